#include "interpreter/agent/message.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <ctime>

#include "base/text_feed.h"
#include "interpreter/bounds.h"

namespace isola::interpreter {

namespace {

constexpr const char* kDelimiter = "<IDS|MSG>";

std::string hex(const unsigned char* bytes, size_t size) {
  std::string out;
  for (size_t i = 0; i < size; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

std::string now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  tm utc{};
  ::gmtime_r(&time.tv_sec, &utc);
  char text[32];
  ::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:06}Z", text, time.tv_nsec / 1000);
}

// A kernel passes on what a program wrote, and that need not be text.
Result<Json> parse(const std::string& bytes) {
  if (auto value = parse_bounded(bytes); value || value.error().code == Code::exhausted) return value;
  TextFeed feed;
  std::string text = feed.feed(bytes);
  text += feed.finish();
  return parse_bounded(text);
}

}  // namespace

Result<Json> parse_bounded(const std::string& text) {
  if (!check_json_bound(text, kMessageBound))
    return fail(Code::exhausted, "it is nested too deeply, or has too many values");
  Json value = Json::parse(text, nullptr, false);
  if (!value.is_object()) return fail(Code::corrupt, "it is not an object of JSON, or a number in it is too large");
  return value;
}

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string random_hex(size_t bytes) {
  std::string raw(bytes, '\0');
  for (size_t at = 0; at < bytes;) {
    ssize_t n = ::getrandom(raw.data() + at, bytes - at, 0);
    if (n > 0) at += static_cast<size_t>(n);
  }
  return hex(reinterpret_cast<const unsigned char*>(raw.data()), raw.size());
}

std::string Signer::sign(const std::string* parts) const {
  if (key_.empty()) return {};
  std::string all;
  for (int i = 0; i < 4; ++i) all += parts[i];
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  ::HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()), reinterpret_cast<const unsigned char*>(all.data()),
         all.size(), digest, &size);
  return hex(digest, size);
}

Frames Signer::pack(const std::string& type, const Json& content, const std::string& id, const Json& metadata) const {
  Json header = {{"msg_id", id},  {"msg_type", type}, {"session", session_},
                 {"date", now()}, {"version", "5.3"}, {"username", "isola"}};
  std::string parts[4] = {dump(header), "{}", metadata.is_object() ? dump(metadata) : "{}", dump(content)};
  return {kDelimiter, sign(parts), parts[0], parts[1], parts[2], parts[3]};
}

Result<Message> Signer::unpack(const Frames& frames) const {
  size_t at = 0;  // identities, or the topic, stand before the delimiter
  while (at < frames.size() && frames[at] != kDelimiter) ++at;
  if (at + 6 > frames.size()) return fail(Code::corrupt, "a message of the kernel has too few parts");
  std::string wanted = sign(&frames[at + 2]);
  const std::string& given = frames[at + 1];
  if (given.size() != wanted.size() || CRYPTO_memcmp(given.data(), wanted.data(), wanted.size()) != 0)
    return fail(Code::denied, "a message of the kernel has a wrong signature");
  ISOLA_TRY(Json header, parse(frames[at + 2]));
  Json parent = parse(frames[at + 3]).value_or(Json::object());
  Message message;
  message.metadata = parse(frames[at + 4]).value_or(Json::object());
  auto content = parse(frames[at + 5]);
  if (!content) message.unreadable = content.error().message;
  message.content = std::move(content).value_or(Json::object());
  auto text = [](const Json& object, const char* name) {
    auto found = object.find(name);
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  };
  message.type = text(header, "msg_type");
  message.parent = text(parent, "msg_id");
  return message;
}

std::string text_of(const Json& object, const char* name, const std::string& otherwise) {
  auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

}  // namespace isola::interpreter
