// Bytes of a stranger, piece by piece, as text: a character that is split over two pieces comes whole with the second,
// what is not UTF-8 becomes U+FFFD, and, when asked, whatever steers a terminal or misleads a reader is taken out
// (escape sequences, control characters but tab and newline, bidi overrides, zero-width and tag characters).
//
//   TextFeed feed(Clean::yes);
//   out += feed.feed(piece);
//   out += feed.finish();
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace isola {

enum class Clean { no, yes };

class TextFeed {
 public:
  explicit TextFeed(Clean clean = Clean::no) : clean_(clean) {}
  std::string feed(std::string_view bytes);
  std::string finish();

 private:
  enum class Escape : uint8_t { none, begun, csi, string, string_end };
  void put(std::string& out, char32_t c, std::string_view bytes);

  Clean clean_;
  std::string held_;  // the beginning of a character, at most three bytes
  Escape escape_ = Escape::none;
};

}  // namespace isola
