#include "cli/code_printer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/terminal.h"

namespace isola::cli {

using nlohmann::json;

namespace {

constexpr size_t kKittyPiece = 4096;

std::string words_of(const json& object, const char* name) {
  auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string with_newline(std::string text) {
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

std::string shown(const json& event, Images images) {
  auto data = event.find("data");
  if (data == event.end() || !data->is_object()) return {};
  if (auto png = words_of(*data, "image/png"); !png.empty() && images != Images::none)
    return inline_png(images, png) + "\n";
  if (auto plain = words_of(*data, "text/plain"); !plain.empty()) return with_newline(plain);
  std::string types;
  for (const auto& [type, value] : data->items()) types += (types.empty() ? "" : ", ") + type;
  return "[" + types + "]\n";
}

}  // namespace

Images terminal_images() {
  if (!::isatty(STDOUT_FILENO)) return Images::none;
  auto is = [](const char* name, std::string_view value) {
    const char* found = std::getenv(name);
    return found && (value.empty() || value == found);
  };
  if (is("TMUX", "")) return Images::none;  // it shows neither the picture nor what stands for it
  if (is("KITTY_WINDOW_ID", "") || is("TERM", "xterm-kitty") || is("TERM", "xterm-ghostty")) return Images::kitty;
  if (is("TERM_PROGRAM", "iTerm.app") || is("TERM_PROGRAM", "WezTerm")) return Images::iterm;
  return Images::none;
}

std::string inline_png(Images how, std::string_view base64) {
  std::string bytes;
  for (char c : base64)
    if (c > ' ') bytes += c;
  if (how == Images::iterm) return "\033]1337;File=inline=1:" + bytes + "\a";
  std::string out;
  for (size_t at = 0; how == Images::kitty && at < bytes.size(); at += kKittyPiece) {
    bool last = at + kKittyPiece >= bytes.size();
    out +=
        fmt::format("\033_G{}m={};{}\033\\", at == 0 ? "a=T,f=100," : "", last ? 0 : 1, bytes.substr(at, kKittyPiece));
  }
  return out;
}

Result<void> CodePrinter::feed(std::string_view piece) {
  line_ += piece;
  size_t from = 0;
  for (size_t end; (end = line_.find('\n', from)) != std::string::npos; from = end + 1)
    ISOLA_CHECK(take(std::string_view(line_).substr(from, end - from)));
  line_.erase(0, from);
  return {};
}

Result<void> CodePrinter::take(std::string_view line) {
  json event = json::parse(line, nullptr, false);
  if (!event.is_object()) return fail(Code::corrupt, "the server's answer is malformed");
  std::string type = words_of(event, "type");
  if (type == "start") context_ = words_of(event, "context");
  if (type == "end") {
    std::string status = words_of(event, "status");
    code_ = status == "ok" ? 0 : status == "timeout" ? kTimedOut : 1;
  }
  if (options_.json) return type == "ping" ? Result<void>() : put_out(STDOUT_FILENO, std::string(line) + "\n");
  if (type == "stdout") return put_out(STDOUT_FILENO, words_of(event, "text"));
  if (type == "stderr") return put_out(STDERR_FILENO, words_of(event, "text"));
  if (type == "result" || type == "display_update") return put_out(STDOUT_FILENO, shown(event, options_.images));
  if (type == "truncated") return put_out(STDERR_FILENO, "isola: the output of this cell was cut here\n");
  if (type == "failure" || type == "lost") complain(words_of(event, "message"));
  if (type == "end" && words_of(event, "status") == "timeout") complain(words_of(event, "message"));
  if (type == "error") {
    std::string text;
    if (event["traceback"].is_array())
      for (const auto& one : event["traceback"])
        if (one.is_string()) text += with_newline(one);
    if (text.empty()) text = with_newline(words_of(event, "name") + ": " + words_of(event, "value"));
    return put_out(STDERR_FILENO, text);
  }
  return {};
}

}  // namespace isola::cli
