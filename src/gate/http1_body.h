// Where the body of an HTTP/1 message ends, and what is in it: bytes in, pieces out, without a socket.
//
//   BodyReader body = BodyReader::chunked();
//   while (!body.done()) {
//     auto piece = body.feed(buffer);          // an error: bad chunks
//     use(piece->data); buffer.remove_prefix(piece->used);
//   }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::gate {

class BodyReader {
 public:
  static BodyReader none() { return BodyReader(Kind::length, 0); }
  static BodyReader of_length(uint64_t size) { return BodyReader(Kind::length, size); }
  static BodyReader chunked() { return BodyReader(Kind::chunked, 0); }
  static BodyReader until_end() { return BodyReader(Kind::until_end, 0); }

  struct Piece {
    size_t used = 0;
    std::string_view data;  // a part of the input
  };
  // One step. Nothing used: it needs a longer input (never more than kMaxLine).
  Result<Piece> feed(std::string_view input);
  // Whether the message may end where its connection does.
  bool may_end() const { return kind_ == Kind::until_end || done(); }
  void end() { ended_ = true; }
  bool done() const { return ended_ || (kind_ == Kind::length && left_ == 0); }
  bool is_chunked() const { return kind_ == Kind::chunked; }

  static constexpr size_t kMaxLine = 4096;

 private:
  enum class Kind : uint8_t { length, chunked, until_end };
  enum class At : uint8_t { size, data, after, trailer };
  BodyReader(Kind kind, uint64_t left) : kind_(kind), left_(left) {}
  Result<Piece> feed_chunked(std::string_view input);

  Kind kind_;
  At at_ = At::size;
  uint64_t left_;
  size_t trailer_ = 0;  // bytes of trailers, which are read over
  bool ended_ = false;
};

// The beginning of a chunk; its end is CR LF, and the end of them all kLastChunk.
std::string chunk_head(size_t size);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace isola::gate
