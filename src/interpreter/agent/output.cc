#include "interpreter/agent/output.h"

#include <algorithm>
#include <utility>

namespace isola::interpreter {

namespace {

// Not in the middle of a character.
std::string first_bytes(const std::string& text, size_t most) {
  while (most > 0 && most < text.size() && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

std::string string_of(const Json& object, const char* name) {
  auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

void Output::cut() {
  if (cut_) return;
  cut_ = true;
  emit_({{"type", "truncated"}, {"limit_bytes", most_}});
}

void Output::text(const char* type, const std::string& text) {
  std::string kept = first_bytes(text, room());
  used_ += kept.size();
  dropped_ += text.size() - kept.size();
  if (!kept.empty()) emit_({{"type", type}, {"text", kept}});
  if (kept.size() < text.size()) cut();
}

// All forms of one thing. A form that is too large is left out and named, so that the others arrive whole.
void Output::bundle(Json event, const Message& message) {
  Json kept = Json::object(), omitted = Json::object();
  auto data = message.content.find("data");
  if (data != message.content.end() && data->is_object()) {
    for (const auto& [type, value] : data->items()) {
      size_t size = value.is_string() ? value.get_ref<const std::string&>().size() : dump(value).size();
      if (size <= room()) {
        used_ += size;
        kept[type] = value;
      } else {
        dropped_ += size;
        omitted[type] = size;
      }
    }
  }
  event["data"] = kept;
  if (auto found = message.content.find("metadata"); found != message.content.end() && !found->empty())
    event["metadata"] = *found;
  if (auto found = message.content.find("transient"); found != message.content.end() && found->is_object())
    if (auto id = string_of(*found, "display_id"); !id.empty()) event["display_id"] = id;
  if (!omitted.empty()) event["omitted_bytes"] = omitted;
  // A picture is never held back: it may stand for minutes of work.
  bool value = kept.contains("text/plain") && !kept.contains("image/png");
  if (holds_ && message.type == "display_data" && value && omitted.empty()) {
    held_ = std::move(event);
    return;
  }
  emit_(event);
  if (!omitted.empty()) cut();
}

void Output::let_go(bool main) {
  if (!held_) return;
  (*held_)["main"] = main;
  emit_(*std::exchange(held_, std::nullopt));
}

void Output::take(const Message& message) {
  const Json& content = message.content;
  let_go(false);
  if (message.type == "stream") {
    text(string_of(content, "name") == "stderr" ? "stderr" : "stdout", string_of(content, "text"));
  } else if (message.type == "execute_result") {
    bundle({{"type", "result"}, {"main", true}}, message);
  } else if (message.type == "display_data") {
    bundle({{"type", "result"}, {"main", false}}, message);
  } else if (message.type == "update_display_data") {
    bundle({{"type", "display_update"}}, message);
  } else if (message.type == "clear_output") {
    emit_({{"type", "clear"}, {"wait", content.contains("wait") && content["wait"] == Json(true)}});
  } else if (message.type == "error") {
    failed_ = true;
    Json lines = Json::array();
    if (auto found = content.find("traceback"); found != content.end() && found->is_array())
      for (const auto& line : *found)
        if (line.is_string()) lines.push_back(first_bytes(line, 64 << 10));
    emit_({{"type", "error"},
           {"name", string_of(content, "ename")},
           {"value", first_bytes(string_of(content, "evalue"), 64 << 10)},
           {"traceback", lines}});
  }
}

}  // namespace isola::interpreter
