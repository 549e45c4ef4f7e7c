// gzip and deflate (zlib): bodies that come in compressed, replies that go out so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::http {

// Takes gzip (several members, too), zlib, or bare deflate: by the first bytes, since clients mix the last two up.
class Inflater {
 public:
  Inflater();
  ~Inflater();
  struct Piece {
    size_t used = 0;
    std::string_view data;  // at most 64 KiB, valid until the next call
  };
  // Call again with what was not used; the input is exhausted when a call uses nothing and gives nothing.
  // Input that swells beyond a few hundred times its size is a bomb, and refused.
  Result<Piece> feed(std::string_view input);
  Result<void> end() const;  // an error if the stream stopped in its middle

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A stream on its way out, piece by piece.
//
//   Deflater pack;
//   while (…) ISOLA_TRY(auto bytes, pack.feed(piece));   // may be empty: zlib waits for more
//   ISOLA_TRY(auto last, pack.finish());
//
// One that lives long beside many others looks back over a little window: 40 KiB of memory instead of 260.
class Deflater {
 public:
  enum class Window { large, small };
  explicit Deflater(int level = 1, Window window = Window::large);
  ~Deflater();
  Result<std::string> feed(std::string_view input);
  Result<std::string> feed_all(std::string_view input);  // nothing waits: the reader can unpack all of it at once
  Result<std::string> finish();

 private:
  Result<std::string> run(std::string_view input, int flush);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

Result<std::string> gzip(std::string_view text, int level = 1);

}  // namespace isola::http
