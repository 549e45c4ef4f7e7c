// multipart/form-data, taken apart while it arrives: bytes in, callbacks out, a few KiB of memory whatever the size.
//
//   ISOLA_TRY(std::string boundary, multipart_boundary(ex.header("Content-Type")));
//   MultipartParser parser(boundary, {.part = [&](const Part& part) { …; return Result<void>(); },
//                                     .data = [&](std::string_view piece) { return write(piece); },
//                                     .end = [&] { return close(); }});
//   for each piece of the body: ISOLA_CHECK(parser.feed(piece));
//   ISOLA_CHECK(parser.finish());
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::http {

struct Part {
  std::string name;
  std::string filename;  // as sent: a path of the client's, to be judged by whoever uses it
  bool has_filename = false;
  std::string type;
};

struct MultipartCallbacks {
  std::function<Result<void>(const Part&)> part;
  std::function<Result<void>(std::string_view)> data;
  std::function<Result<void>()> end;  // of that part
};

// Out of a Content-Type.
Result<std::string> multipart_boundary(std::string_view content_type);

class MultipartParser {
 public:
  MultipartParser(std::string_view boundary, MultipartCallbacks callbacks, size_t max_parts = 1000);
  // An error (malformed, too much, or a callback's own) is final.
  Result<void> feed(std::string_view bytes);
  Result<void> finish();  // an error if the last boundary did not come
  size_t held() const { return buffer_.size(); }

  static constexpr size_t kMaxHead = 8 << 10;  // of one part

 private:
  enum class State { preamble, head, data, after, done };
  Result<bool> step();  // false: it needs more
  Result<void> read_head(std::string_view head);

  std::string delimiter_;  // CR LF -- boundary
  MultipartCallbacks on_;
  size_t max_parts_, parts_ = 0;
  State state_ = State::preamble;
  std::string buffer_;
};

}  // namespace isola::http
