// The heads of HTTP/1.1 messages and the framing of their bodies, without any I/O: bytes in, pieces out. Beast parses;
// what it would let pass although two programs could read it differently (folded lines, two lengths, a length beside an
// encoding …) is refused here, and never mended.
//
//   HeadScanner scan;
//   while (scan.feed(buffer) == HeadScanner::State::more) read more bytes;
//   RequestParser parser(Limits{});
//   ISOLA_CHECK(parser.head(buffer.substr(0, scan.size())));     // fields are views into a copy that the parser keeps
//   while (!parser.done()) { auto piece = parser.body(rest); … rest.remove_prefix(piece->used); }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::http {

struct Field {
  std::string_view name;
  std::string_view value;
};
std::string_view find_field(const std::vector<Field>& fields, std::string_view name);  // the first, or empty

// Finds the end of a head in a buffer that grows, looking at each byte once; notices at once what cannot become one.
class HeadScanner {
 public:
  enum class State { more, complete, bad };
  State feed(std::string_view buffer);   // the whole buffer from the head's first byte, longer each time
  size_t size() const { return size_; }  // of the complete head, with its blank line
  std::string_view why() const { return why_; }
  void reset() { *this = {}; }

 private:
  size_t line_ = 0, seen_ = 0, size_ = 0;
  std::string_view why_;
};

inline constexpr size_t kMaxFields = 256;

template <bool is_request>
class MessageParser {
 public:
  MessageParser();
  ~MessageParser();
  void reset();

  // Everything through the blank line. Errors: invalid (400), unsupported (501 and 505), exhausted (431).
  Result<void> head(std::string_view text);
  std::string_view method, target;  // of a request
  std::string_view reason;          // of a reply
  int status = 0;
  int version = 11;
  std::vector<Field> fields;
  std::optional<uint64_t> length;
  bool chunked = false;
  bool keep_alive = false;
  std::string_view text() const { return text_; }  // the head as it came

  // For replies that have no body whatever their head says (to HEAD); before head().
  void no_body();

  struct Piece {
    size_t used = 0;        // bytes of the input that are done with
    std::string_view data;  // a part of the input
  };
  // Takes the next step in the body. No data and nothing used: it needs a longer input.
  Result<Piece> body(std::string_view input);
  // The input ended. An error if the message did not.
  Result<void> end_of_input();
  bool done() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string text_;
};

using RequestParser = MessageParser<true>;
using ResponseParser = MessageParser<false>;
extern template class MessageParser<true>;
extern template class MessageParser<false>;

}  // namespace isola::http
