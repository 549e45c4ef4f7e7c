#include "image/image.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "base/ids.h"

namespace isola::image {

namespace {

using Json = nlohmann::ordered_json;

std::string sum_of(const std::string& text) { return fmt::format("{:016x}", ::XXH3_64bits(text.data(), text.size())); }

std::string chunk_text(const std::vector<uint64_t>& chunks) {
  std::string text;
  for (uint64_t sum : chunks) text += fmt::format("{:016x}", sum);
  return text;
}

bool parse_chunks(const std::string& text, std::vector<uint64_t>& chunks) {
  if (text.size() % 16 != 0) return false;
  for (size_t at = 0; at < text.size(); at += 16) {
    char* end = nullptr;
    std::string word = text.substr(at, 16);
    chunks.push_back(std::strtoull(word.c_str(), &end, 16));
    if (end != word.c_str() + 16) return false;
  }
  return true;
}

std::string dump(const Json& json) { return json.dump(1, ' ', false, Json::error_handler_t::replace); }

Json body(const Image& i) {
  Json files = Json::array();
  for (const auto& f : i.files)
    files.push_back({{"name", f.name}, {"size", f.size}, {"xxh3", chunk_text(f.chunks)}, {"sha256", f.sha256}});
  Json whole = {{"format", i.outrun     ? kImageFormat
                           : i.packed() ? 2
                                        : 1},
                {"id", i.id},
                {"created", i.created},
                {"sandbox", i.sandbox},
                {"verb", i.verb},
                {"parent", i.parent},
                {"boundary", i.boundary},
                {"version", i.version},
                {"digest", i.digest},
                {"layers", i.layers},
                {"limits",
                 {{"milli_cpus", i.limits.milli_cpus},
                  {"memory", i.limits.memory},
                  {"disk", i.limits.disk},
                  {"io_bytes_per_second", i.limits.io_bytes_per_second},
                  {"pids", i.limits.pids},
                  {"open_files", i.limits.open_files}}},
                {"roots_own", i.roots_own},
                {"protections", i.protections},
                {"memory", i.memory},
                {"volumes", i.volumes},
                {"host",
                 {{"checkpointer", i.host.checkpointer},
                  {"kernel", i.host.kernel},
                  {"cpu", i.host.cpu},
                  {"guest", i.host.guest}}},
                {"memory_bytes", i.memory_bytes},
                {"layer_bytes", i.layer_bytes},
                {"files", files}};
  for (const auto& f : i.archives)
    whole["archives"].push_back({{"name", f.name}, {"size", f.size}, {"sha256", f.sha256}});
  if (i.outrun) whole["outrun"] = true;
  return whole;
}

Result<Image> from_body(const Json& json) {
  Image i;
  json.at("id").get_to(i.id);
  json.at("created").get_to(i.created);
  json.at("sandbox").get_to(i.sandbox);
  json.at("verb").get_to(i.verb);
  json.at("parent").get_to(i.parent);
  json.at("boundary").get_to(i.boundary);
  json.at("version").get_to(i.version);
  json.at("digest").get_to(i.digest);
  json.at("layers").get_to(i.layers);
  const auto& limits = json.at("limits");
  limits.at("milli_cpus").get_to(i.limits.milli_cpus);
  limits.at("memory").get_to(i.limits.memory);
  limits.at("disk").get_to(i.limits.disk);
  limits.at("io_bytes_per_second").get_to(i.limits.io_bytes_per_second);
  limits.at("pids").get_to(i.limits.pids);
  limits.at("open_files").get_to(i.limits.open_files);
  json.at("roots_own").get_to(i.roots_own);
  json.at("protections").get_to(i.protections);
  json.at("memory").get_to(i.memory);
  if (json.contains("volumes")) json.at("volumes").get_to(i.volumes);
  json.at("host").at("checkpointer").get_to(i.host.checkpointer);
  json.at("host").at("kernel").get_to(i.host.kernel);
  json.at("host").at("cpu").get_to(i.host.cpu);
  json.at("host").at("guest").get_to(i.host.guest);
  json.at("memory_bytes").get_to(i.memory_bytes);
  json.at("layer_bytes").get_to(i.layer_bytes);
  for (const auto& file : json.at("files")) {
    ImageFile f;
    file.at("name").get_to(f.name);
    file.at("size").get_to(f.size);
    file.at("sha256").get_to(f.sha256);
    bool good = parse_chunks(file.at("xxh3").get<std::string>(), f.chunks);
    if (!good || f.chunks.size() != (f.size + kChunk - 1) / kChunk || f.name.find('/') != std::string::npos)
      return fail(Code::corrupt, "not a manifest of an image");
    i.files.push_back(std::move(f));
  }
  i.outrun = json.value("outrun", false);
  if (json.contains("archives"))
    for (const auto& file : json.at("archives")) {
      ImageFile f;
      file.at("name").get_to(f.name);
      file.at("size").get_to(f.size);
      file.at("sha256").get_to(f.sha256);
      if (f.name.find('/') != std::string::npos || !is_digest(f.sha256))
        return fail(Code::corrupt, "not a manifest of an image");
      i.archives.push_back(std::move(f));
    }
  if (!is_image_id(i.id) || !is_digest(i.digest)) return fail(Code::corrupt, "not a manifest of an image");
  return i;
}

}  // namespace

std::string to_json(const Image& image) {
  Json json = body(image);
  return dump({{"sum", sum_of(dump(json))}, {"image", json}}) + "\n";
}

Result<Image> parse_image(std::string_view text) {
  // The library throws where a field is missing or of another kind; nothing of that leaves this function.
  try {
    Json json = Json::parse(text);
    const Json& inner = json.at("image");
    int format = inner.at("format").get<int>();
    if (format > kImageFormat)
      return fail(Code::unsupported, fmt::format("the image has format {}, made by a newer Isola", format));
    if (json.at("sum").get<std::string>() != sum_of(dump(inner)))
      return fail(Code::corrupt, "the manifest of the image was changed after it was written");
    return from_body(inner);
  } catch (const nlohmann::json::exception&) {
    return fail(Code::corrupt, "not a manifest of an image");
  }
}

}  // namespace isola::image
