#include "http/ndjson.h"

namespace isola::http {

Task<Result<void>> NdjsonWriter::open(int status) {
  exchange_.set_header("Cache-Control", "no-store");
  exchange_.set_header("X-Accel-Buffering", "no");
  exchange_.begin(status, "application/x-ndjson");
  Result<void> sent = co_await exchange_.write({});
  co_return sent;
}

Task<Result<void>> NdjsonWriter::send(std::string_view json) {
  line_.assign(json);
  line_ += '\n';
  Result<void> sent = co_await exchange_.write(line_);
  co_return sent;
}

Task<Result<void>> NdjsonWriter::keep_alive() {
  Result<void> sent = co_await exchange_.write("\n");
  co_return sent;
}

}  // namespace isola::http
