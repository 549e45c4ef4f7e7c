// Whether what a client says first, and it is not TLS, is a request in clear: of whatever method, and HTTP/2's, too
// ("PRI * HTTP/2.0"). What other protocols begin with may look the same up to the end of the line. Each byte is looked
// at once, however small the pieces are: nothing of them is kept here.
//
//   FirstLine line;
//   line.feed("FROBNICATE / HT");  // unknown
//   line.feed("TP/1.1\r\n");       // yes
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isola::gate {

class FirstLine {
 public:
  enum class Likeness : uint8_t { yes, no, unknown };
  // The bytes that follow those before; what was once said is not taken back.
  Likeness feed(std::string_view bytes);

 private:
  enum class Part : uint8_t { empty_lines, method, rest };
  Likeness next(char c);

  size_t size_ = 0;
  Likeness likeness_ = Likeness::unknown;
  Part part_ = Part::empty_lines;
  uint8_t method_size_ = 0, version_size_ = 0;  // of the method what `method_` has room for
  char method_[8] = {};
};

}  // namespace isola::gate
