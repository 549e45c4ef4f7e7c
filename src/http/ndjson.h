// A stream of JSON values, one per line.
//
//   NdjsonWriter lines(ex);
//   co_await lines.open();
//   co_await lines.send(R"({"type":"start"})");     // one line of JSON, without its end
//   co_await lines.keep_alive();                    // an empty line, which readers pass over
#pragma once

#include <string>
#include <string_view>

#include "http/exchange.h"

namespace isola::http {

class NdjsonWriter {
 public:
  explicit NdjsonWriter(Exchange& exchange) : exchange_(exchange) {}
  Task<Result<void>> open(int status = 200);
  Task<Result<void>> send(std::string_view json);
  Task<Result<void>> keep_alive();

 private:
  Exchange& exchange_;
  std::string line_;
};

}  // namespace isola::http
