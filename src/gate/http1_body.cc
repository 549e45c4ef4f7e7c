#include "gate/http1_body.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace isola::gate {

namespace {

constexpr size_t kMaxTrailers = 16 << 10;

// A line up to its CR LF, or nothing yet.
Result<std::optional<std::string_view>> line_of(std::string_view input) {
  size_t end = input.find('\n');
  if (end == input.npos) {
    if (input.size() > BodyReader::kMaxLine) return fail(Code::invalid, "a line in a chunked body is too long");
    return std::nullopt;
  }
  if (end == 0 || input[end - 1] != '\r' || end > BodyReader::kMaxLine)
    return fail(Code::invalid, "a line in a chunked body does not end in CR LF");
  auto line = input.substr(0, end - 1);
  if (line.find('\r') != line.npos || line.find('\0') != line.npos)
    return fail(Code::invalid, "a line in a chunked body has a CR or a NUL in it");
  return line;
}

// An extension says nothing that we pass on, but it must be one.
Result<uint64_t> size_of(std::string_view line) {
  uint64_t size = 0;
  auto [end, bad] = std::from_chars(line.data(), line.data() + line.size(), size, 16);
  size_t digits = static_cast<size_t>(end - line.data());
  if (bad != std::errc() || digits == 0 || digits > 15) return fail(Code::invalid, "the size of a chunk is no number");
  if (digits < line.size() && line[digits] != ';') return fail(Code::invalid, "odd bytes behind the size of a chunk");
  return size;
}

}  // namespace

Result<BodyReader::Piece> BodyReader::feed(std::string_view input) {
  if (done()) return Piece{};
  if (kind_ == Kind::chunked) return feed_chunked(input);
  size_t take = kind_ == Kind::until_end ? input.size() : static_cast<size_t>(std::min<uint64_t>(left_, input.size()));
  if (kind_ == Kind::length) left_ -= take;
  return Piece{take, input.substr(0, take)};
}

Result<BodyReader::Piece> BodyReader::feed_chunked(std::string_view input) {
  if (at_ == At::data) {
    size_t take = static_cast<size_t>(std::min<uint64_t>(left_, input.size()));
    left_ -= take;
    if (left_ == 0) at_ = At::after;
    return Piece{take, input.substr(0, take)};
  }
  if (at_ == At::after) {
    if (input.size() < 2) {
      if (input.starts_with('\r') || input.empty()) return Piece{};
      return fail(Code::invalid, "a chunk is longer than it says");
    }
    if (!input.starts_with("\r\n")) return fail(Code::invalid, "a chunk is longer than it says");
    at_ = At::size;
    return Piece{2, {}};
  }
  ISOLA_TRY(auto line, line_of(input));
  if (!line) return Piece{};
  Piece piece{line->size() + 2, {}};
  if (at_ == At::trailer) {
    trailer_ += piece.used;
    if (trailer_ > kMaxTrailers) return fail(Code::exhausted, "too many trailers");
    if (line->empty()) ended_ = true;
    return piece;
  }
  ISOLA_TRY(left_, size_of(*line));
  at_ = left_ > 0 ? At::data : At::trailer;
  return piece;
}

std::string chunk_head(size_t size) {
  char digits[20];
  auto [end, bad] = std::to_chars(digits, digits + sizeof digits, size, 16);
  (void)bad;
  return std::string(digits, end) + "\r\n";
}

}  // namespace isola::gate
