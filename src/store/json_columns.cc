#include "store/json_columns.h"

#include <nlohmann/json.hpp>

namespace isola::store {

namespace {

using nlohmann::json;

template <typename T>
Result<std::string> dump(const T& value, std::string_view what) {
  try {
    return json(value).dump();
  } catch (const json::type_error&) {
    return fail(Code::invalid, std::string(what) + " must be UTF-8 text");
  }
}

std::unexpected<Error> damaged() { return fail(Code::corrupt, "a record of the store holds damaged JSON"); }

}  // namespace

Result<std::string> to_json(const Labels& labels, std::string_view what) { return dump(labels, what); }
Result<std::string> to_json(const std::vector<std::string>& list, std::string_view what) { return dump(list, what); }

Result<std::string> to_json(const std::vector<VolumeUse>& volumes) {
  auto all = json::array();
  for (const auto& v : volumes) {
    all.push_back(
        {{"volume", v.volume}, {"path", v.path}, {"read_only", v.read_only}, {"subpath", v.subpath}, {"name", v.name}});
    if (v.bucket)
      all.back()["bucket"] = {{"endpoint", v.bucket->endpoint},
                              {"bucket", v.bucket->bucket},
                              {"prefix", v.bucket->prefix},
                              {"region", v.bucket->region},
                              {"secret", v.bucket->secret}};
  }
  return dump(all, "the paths of volumes");
}

Result<Labels> labels_of(const std::string& text) {
  Labels labels;
  if (text == "{}") return labels;
  auto parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object()) return damaged();
  for (const auto& [key, value] : parsed.items()) {
    if (!value.is_string()) return damaged();
    labels.emplace(key, value.get_ref<const std::string&>());
  }
  return labels;
}

Result<std::vector<std::string>> list_of(const std::string& text) {
  std::vector<std::string> list;
  if (text == "[]") return list;
  auto parsed = json::parse(text, nullptr, false);
  if (!parsed.is_array()) return damaged();
  for (const auto& value : parsed) {
    if (!value.is_string()) return damaged();
    list.push_back(value.get_ref<const std::string&>());
  }
  return list;
}

Result<std::vector<VolumeUse>> volumes_of(const std::string& text) {
  std::vector<VolumeUse> volumes;
  if (text == "[]") return volumes;
  auto parsed = json::parse(text, nullptr, false);
  if (!parsed.is_array()) return damaged();
  for (const auto& one : parsed) {
    if (!one.is_object()) return damaged();
    auto word_of = [](const json& object, const char* name) {
      auto at = object.find(name);
      return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
    };
    auto word = [&](const char* name) { return word_of(one, name); };
    auto read_only = one.find("read_only");
    bool shut = read_only == one.end() || !read_only->is_boolean() || read_only->get<bool>();
    volumes.push_back({.volume = word("volume"),
                       .path = word("path"),
                       .read_only = shut,
                       .subpath = word("subpath"),
                       .name = word("name")});
    if (auto at = one.find("bucket"); at != one.end() && at->is_object())
      volumes.back().bucket = BucketUse{.endpoint = word_of(*at, "endpoint"),
                                        .bucket = word_of(*at, "bucket"),
                                        .prefix = word_of(*at, "prefix"),
                                        .region = word_of(*at, "region"),
                                        .secret = word_of(*at, "secret")};
  }
  return volumes;
}

}  // namespace isola::store
