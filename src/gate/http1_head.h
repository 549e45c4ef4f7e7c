// The heads of HTTP/1 messages, read strictly and without a socket: what two programs could read differently is refused
// and never mended. Fields are views into the text.
//
//   HeadEnd end;
//   while (!end.feed(buffer)) …                               // the whole buffer each time, longer and longer
//   auto head = parse_request_head(buffer.substr(0, end.size()));
//
// Errors: invalid (400), exhausted (431), unsupported (501).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::gate {

inline constexpr size_t kMaxHead = 64 << 10, kMaxFields = 200;

struct Field {
  std::string name, value;
  bool operator==(const Field&) const = default;
};
using Fields = std::vector<Field>;

// Finds the blank line that ends a head, looking at each byte once.
class HeadEnd {
 public:
  bool feed(std::string_view buffer);
  size_t size() const { return size_; }  // with the blank line
  void reset() { *this = {}; }

 private:
  size_t seen_ = 0, size_ = 0;
};

struct MessageHead {
  int minor = 1;  // HTTP/1.minor
  Fields fields;
  std::optional<uint64_t> length;
  bool chunked = false;
  bool keep_alive = true;
  std::string upgrade;  // one protocol, in lower case, and only where Connection says so, too
};
struct RequestHead : MessageHead {
  std::string method, target, host;
  bool expects_continue = false;
};
struct ResponseHead : MessageHead {
  int status = 0;
  std::string phrase;
};

Result<RequestHead> parse_request_head(std::string_view text);
Result<ResponseHead> parse_response_head(std::string_view text);

bool same_name(std::string_view a, std::string_view b);  // of fields: whatever the case
const std::string* find_field(const Fields& fields, std::string_view name);
// Of an answer that is not plain, as a whole or message by message (gRPC, Connect), whichever of several fields says
// so; null: it is.
const std::string* encoding_of(const Fields& fields);
void remove_field(Fields& fields, std::string_view name);
bool is_field_name(std::string_view name);  // of a value: base/field_value.h
// "a, b" has the word b, whatever the case.
bool has_word(std::string_view list, std::string_view word);
// Those that are between two neighbours only and never passed on: Connection, what it names, and a few more.
void remove_hop_fields(Fields& fields);

}  // namespace isola::gate
