#include "cli/output_events.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace isola::cli {

using nlohmann::json;

namespace {

constexpr size_t kMaxLine = 64 << 20;

int digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

uint64_t count_of(const json& object, const char* name) {
  auto at = object.find(name);
  return at != object.end() && at->is_number_unsigned() ? at->get<uint64_t>() : 0;
}

bool flag(const json& object, const char* name) {
  auto at = object.find(name);
  return at != object.end() && at->is_boolean() && at->get<bool>();
}

}  // namespace

Result<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4) return fail(Code::corrupt, "malformed base64");
  std::string out;
  out.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    bool last = i + 4 == text.size();
    int padding = last && text[i + 3] == '=' ? (text[i + 2] == '=' ? 2 : 1) : 0;
    uint32_t group = 0;
    for (int k = 0; k < 4; ++k) {
      int value = k >= 4 - padding ? 0 : digit(text[i + static_cast<size_t>(k)]);
      if (value < 0) return fail(Code::corrupt, "malformed base64");
      group = group << 6 | static_cast<uint32_t>(value);
    }
    out += static_cast<char>(group >> 16);
    if (padding < 2) out += static_cast<char>(group >> 8 & 255);
    if (padding < 1) out += static_cast<char>(group & 255);
  }
  return out;
}

Result<OutputEvent> parse_output(std::string_view line, bool encoded) {
  json parsed = json::parse(line, nullptr, false);
  if (!parsed.is_object()) return fail(Code::corrupt, "the server sent a line that is not JSON");
  OutputEvent event;
  std::string type = text_of(parsed, "type", "");
  event.seq = count_of(parsed, "seq");
  if (type == "start") {
    event.kind = OutputEvent::start;
    event.command_id = text_of(parsed, "command_id", "");
    event.sandbox = text_of(parsed, "sandbox", "");
  } else if (type == "stdout" || type == "stderr") {
    event.kind = type == "stdout" ? OutputEvent::out : OutputEvent::err;
    event.data = text_of(parsed, "data", "");
    if (encoded) {
      ISOLA_TRY(event.data, decode_base64(event.data));
    }
  } else if (type == "gap") {
    event.kind = OutputEvent::gap;
    event.lost = count_of(parsed, "lost_bytes");
  } else if (type == "exit") {
    event.kind = OutputEvent::exit;
    event.exit_code = static_cast<int>(count_of(parsed, "exit_code"));
    event.signal = static_cast<int>(count_of(parsed, "signal"));
    event.timed_out = flag(parsed, "timed_out");
    event.out_of_memory = flag(parsed, "killed_by_memory_limit");
  } else if (type == "error") {
    event.kind = OutputEvent::error;
    json error = parsed.value("error", json::object());
    event.message = shown(text_of(error, "message", "the server gave no reason"));
    event.code = text_of(error, "code", "");
    event.end_reason = text_of(error, "end_reason", "");
  }
  return event;
}

Result<void> OutputPrinter::feed(std::string_view piece) {
  while (!piece.empty()) {
    auto end = piece.find('\n');
    if (end == std::string_view::npos) {
      if (line_.size() + piece.size() > kMaxLine) return fail(Code::corrupt, "the server sent too long a line");
      line_ += piece;
      return {};
    }
    line_ += piece.substr(0, end);
    piece.remove_prefix(end + 1);
    std::string line = std::move(line_);
    line_.clear();
    if (!line.empty()) ISOLA_CHECK(take(line));
  }
  return {};
}

Result<void> OutputPrinter::take(std::string_view line) {
  ISOLA_TRY(OutputEvent event, parse_output(line, options_.encoded));
  switch (event.kind) {
    case OutputEvent::start:
      if (command_id_.empty() && options_.started) options_.started(event.command_id);
      command_id_ = event.command_id;
      sandbox_ = event.sandbox;
      break;
    case OutputEvent::out:
    case OutputEvent::err: {
      if (options_.collect) {
        collected_.add(event.kind == OutputEvent::err ? CollectedOutput::err : CollectedOutput::out, event.data);
        seq_ = event.seq;
        break;
      }
      auto put = put_out(event.kind == OutputEvent::out ? STDOUT_FILENO : STDERR_FILENO, event.data);
      if (!put) unwritten_ = put.error();
      ISOLA_CHECK(put);
      seq_ = event.seq;
      break;
    }
    case OutputEvent::gap:
      collected_.add_lost(event.lost);
      if (options_.collect) break;
      std::fprintf(stderr, "isola: %llu bytes of output were lost\n", static_cast<unsigned long long>(event.lost));
      break;
    case OutputEvent::exit:
    case OutputEvent::error: end_ = event; break;
    case OutputEvent::other: break;
  }
  return {};
}

json OutputPrinter::result() const {
  json out = collected_.result();
  if (!command_id_.empty()) out["command_id"] = command_id_;
  if (!sandbox_.empty()) out["sandbox"] = sandbox_;
  if (!end_) return out;
  if (end_->kind == OutputEvent::error) {
    out["error"] = {{"code", end_->code}, {"message", end_->message}};
    return out;
  }
  out["exit_code"] = end_->exit_code;
  if (end_->signal) out["signal"] = end_->signal;
  if (end_->timed_out) out["timed_out"] = true;
  if (end_->out_of_memory) out["killed_by_memory_limit"] = true;
  return out;
}

int exit_code_of(const OutputEvent& end) {
  if (end.kind == OutputEvent::error) {
    complain(end.message);
    if (end.end_reason == "deadline") return kTimedOut;
    return end.end_reason == "oom" ? 128 + SIGKILL : kFailed;
  }
  if (end.timed_out) {
    complain("the command took longer than its timeout and was ended");
    return kTimedOut;
  }
  if (end.out_of_memory) complain(kKilledText);
  return end.exit_code;
}

int exit_code_of(const Error& error, std::string_view code) {
  complain(error.message);
  // What has a code of its own among shells.
  if (code == "command_not_found") return kNoSuchCommand;
  if (code == "command_not_executable") return kCannotRun;
  if (code == "deadline") return kTimedOut;
  if (code == "oom") return 128 + SIGKILL;
  return kFailed;
}

}  // namespace isola::cli
