#include "sandbox/command_tag.h"

#include "base/codec.h"
#include "base/hash/sha256.h"

namespace isola::sandbox {

namespace {

constexpr uint8_t kTakesInput = 1, kUncounted = 2;
constexpr char kDigits[] = "0123456789abcdef";

std::string to_hex(std::string_view bytes) {
  std::string out;
  for (unsigned char c : bytes) out += kDigits[c >> 4], out += kDigits[c & 15];
  return out;
}

std::optional<std::string> from_hex(std::string_view text) {
  if (text.size() % 2) return std::nullopt;
  std::string out;
  auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  for (size_t i = 0; i < text.size(); i += 2) {
    int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high << 4 | low);
  }
  return out;
}

// Keyed inside and outside, so that nothing can be appended to what is signed. Empty: there is no hash to be had.
std::string signature(const std::string& secret, const std::string& sandbox, std::string_view body) {
  Writer bytes;
  bytes.str(secret);
  bytes.str("command");
  bytes.str(sandbox);
  bytes.str(body);
  auto inner = sha256(bytes.data());
  if (!inner) return {};
  auto outer = sha256(secret + *inner);
  return outer ? *outer : std::string();
}

}  // namespace

std::string make_tag(const std::string& secret, const std::string& sandbox, const CommandInfo& info) {
  Writer out;
  for (const auto* text : {&info.id, &info.task, &info.actor, &info.key}) out.str(*text);
  out.i64(info.started);
  out.u8(static_cast<uint8_t>((info.takes_input ? kTakesInput : 0) | (info.counted ? 0 : kUncounted)));
  std::string body = info.id + "." + to_hex(out.data());
  return body + "." + signature(secret, sandbox, body);
}

std::optional<CommandInfo> read_tag(const std::string& secret, const std::string& sandbox, const std::string& tag) {
  auto dot = tag.rfind('.');
  if (dot == std::string::npos) return std::nullopt;
  std::string body = tag.substr(0, dot), signed_with = tag.substr(dot + 1);
  std::string right = signature(secret, sandbox, body);
  if (right.empty() || !equal_secrets(right, signed_with)) return std::nullopt;
  auto bytes = from_hex(std::string_view(body).substr(body.find('.') + 1));
  if (!bytes) return std::nullopt;
  Reader in(*bytes);
  CommandInfo info;
  for (auto* text : {&info.id, &info.task, &info.actor, &info.key}) *text = in.str();
  info.started = in.i64();
  const uint8_t flags = in.u8();
  info.takes_input = flags & kTakesInput;
  info.counted = !(flags & kUncounted);  // those of earlier versions are
  if (!in.done()) return std::nullopt;
  return info;
}

}  // namespace isola::sandbox
