// Messages of the Jupyter protocol (5.3): four JSON parts, signed with HMAC-SHA-256 over their bytes, behind a
// delimiter.
//
//   Signer signer(key, session);
//   auto frames = signer.pack("execute_request", {{"code", "1+1"}}, id);
//   ISOLA_TRY(Message message, signer.unpack(received));          // denied: the signature is wrong
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace isola::interpreter {

using Json = nlohmann::json;
using Frames = std::vector<std::string>;

struct Message {
  std::string type;
  std::string parent;  // the id of the request that it belongs to
  Json content, metadata;
  std::string unreadable = {};  // why there is no content, though the kernel signed it
};

class Signer {
 public:
  Signer(std::string key, std::string session) : key_(std::move(key)), session_(std::move(session)) {}
  Frames pack(const std::string& type, const Json& content, const std::string& id, const Json& metadata = {}) const;
  Result<Message> unpack(const Frames& frames) const;
  std::string sign(const std::string* parts) const;  // of the four parts
  const std::string& key() const { return key_; }

 private:
  std::string key_, session_;
};

// One object of JSON, with a bound on how deep and how wide it is: a value is written and copied by recursion.
Result<Json> parse_bounded(const std::string& text);
// A member of an object, if it is there and is text.
std::string text_of(const Json& object, const char* name, const std::string& otherwise = {});
// Text as JSON; what is not UTF-8 is mended.
std::string dump(const Json& value);
// `bytes` random bytes as hex digits.
std::string random_hex(size_t bytes);

}  // namespace isola::interpreter
