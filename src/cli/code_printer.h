// What a cell says, as the server streams it, put onto our own standard output and error.
//
//   CodePrinter printer({.images = terminal_images()});
//   api.request({.target = …/code, .sink = [&](std::string_view piece) { return printer.feed(piece); }});
//   return printer.exit_code();
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::cli {

// How the terminal can show a picture, if it can.
enum class Images { none, kitty, iterm };
Images terminal_images();  // by what the environment says of it; none where standard output is no terminal
// The sequence that shows a PNG (in base64) there.
std::string inline_png(Images how, std::string_view base64);

class CodePrinter {
 public:
  struct Options {
    Images images = Images::none;
    bool json = false;  // the lines as they are
  };
  explicit CodePrinter(Options options) : options_(options) {}

  Result<void> feed(std::string_view piece);
  const std::string& context() const { return context_; }  // where the cell ran; empty: it did not begin
  // 0, 1: the cell failed, kTimedOut; kFailed: its end was not heard.
  int exit_code() const { return code_; }

 private:
  Result<void> take(std::string_view line);
  Options options_;
  std::string line_, context_;
  int code_ = 125;
};

}  // namespace isola::cli
