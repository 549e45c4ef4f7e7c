#include "interpreter/agent/output.h"

#include <algorithm>
#include <utility>

#include "interpreter/bounds.h"

namespace isola::interpreter {

namespace {

constexpr size_t kEvent = 128;  // what an event is in JSON, without what it says
constexpr size_t kEntry = 16;   // and one thing in it
constexpr size_t kName = 1 << 10, kLine = 64 << 10, kTraceback = 256 << 10;

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

// For what is not left out in part: out of the limit, or of the room beyond it.
bool Output::afford(size_t bytes) {
  if (bytes <= room()) {
    used_ += bytes;
    return true;
  }
  if (bytes <= kBeyond - beyond_) {
    beyond_ += bytes;
    return true;
  }
  dropped_ += bytes;
  cut();
  return false;
}

void Output::text(const char* type, const std::string& text) {
  let_go(false);
  std::string kept = first_bytes(text, room());
  used_ += kept.size();
  dropped_ += text.size() - kept.size();
  for (size_t at = 0; at < kept.size();) {
    std::string piece = first_bytes(at == 0 && kept.size() <= kPiece ? kept : kept.substr(at, kPiece + 4), kPiece);
    at += piece.size();
    emit_({{"type", type}, {"text", std::move(piece)}});
  }
  if (kept.size() < text.size()) cut();
}

// All forms of one thing. A form that is too large is left out and named, so that the others arrive whole.
void Output::bundle(Json event, const Message& message) {
  Json kept = Json::object(), omitted = Json::object();
  size_t rest = kEvent;
  auto keep = [&](Json& to, const std::string& name, const Json& value) {
    std::string written = dump(value);
    size_t cost = dump(name).size() + kEntry + written.size();
    if (cost <= room()) {
      used_ += cost;
      to[name] = value;
      return;
    }
    size_t size = value.is_string() ? value.get_ref<const std::string&>().size() : written.size();
    dropped_ += size;
    omitted[name] = size;
    rest += dump(name).size() + 2 * kEntry;
  };
  if (auto data = message.content.find("data"); data != message.content.end() && data->is_object())
    for (const auto& [type, value] : data->items()) keep(kept, type, value);
  event["data"] = kept;
  if (auto found = message.content.find("metadata"); found != message.content.end() && !found->empty())
    keep(event, "metadata", *found);
  if (auto found = message.content.find("transient"); found != message.content.end() && found->is_object())
    if (auto id = first_bytes(string_of(*found, "display_id"), 256); !id.empty()) {
      rest += dump(id).size();
      event["display_id"] = id;
    }
  if (!omitted.empty()) event["omitted_bytes"] = omitted;
  if (!afford(rest)) return;
  // A picture is never held back: it may stand for minutes of work.
  bool value = kept.contains("text/plain") && !kept.contains("image/png");
  if (holds_ && message.type == "display_data" && value && omitted.empty()) {
    held_ = std::move(event);
    return;
  }
  emit_(event);
  if (!omitted.empty()) cut();
}

void Output::error(const Json& content) {
  failed_ = true;
  Json lines = Json::array();
  size_t left = kTraceback;
  if (auto found = content.find("traceback"); found != content.end() && found->is_array())
    for (const auto& line : *found) {
      if (!line.is_string()) continue;
      lines.push_back(first_bytes(line, std::min(kLine, left)));
      left -= lines.back().get_ref<const std::string&>().size();
      if (left > 0) continue;
      lines.push_back("[the rest of the traceback was left out]");
      break;
    }
  Json event = {{"type", "error"},
                {"name", first_bytes(string_of(content, "ename"), kName)},
                {"value", first_bytes(string_of(content, "evalue"), kLine)},
                {"traceback", lines}};
  if (afford(dump(event).size() + kEvent)) emit_(event);
}

void Output::let_go(bool main) {
  if (!held_) return;
  (*held_)["main"] = main;
  emit_(*std::exchange(held_, std::nullopt));
}

void Output::take(const Message& message) {
  const Json& content = message.content;
  let_go(false);
  if (!message.unreadable.empty()) {
    // Rather than a result that is not there, and a cell that ended well.
    std::string why =
        "a message of the kernel (" + first_bytes(message.type, kName) + ") was lost: " + message.unreadable;
    if (afford(why.size() + kEvent)) emit_({{"type", "lost"}, {"message", why}});
  } else if (message.type == "stream") {
    text(string_of(content, "name") == "stderr" ? "stderr" : "stdout", string_of(content, "text"));
  } else if (message.type == "execute_result") {
    bundle({{"type", "result"}, {"main", true}}, message);
  } else if (message.type == "display_data") {
    bundle({{"type", "result"}, {"main", false}}, message);
  } else if (message.type == "update_display_data") {
    bundle({{"type", "display_update"}}, message);
  } else if (message.type == "clear_output") {
    if (afford(kEvent)) emit_({{"type", "clear"}, {"wait", content.contains("wait") && content["wait"] == Json(true)}});
  } else if (message.type == "error") {
    error(content);
  }
}

}  // namespace isola::interpreter
