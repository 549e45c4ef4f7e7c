#include "http/sse.h"

namespace isola::http {

namespace {
void put_line(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (char c : value) out += c == '\n' || c == '\r' || c == '\0' ? ' ' : c;
  out += '\n';
}
}  // namespace

std::string sse_text(const SseEvent& event) {
  std::string out;
  if (!event.id.empty()) put_line(out, "id", event.id);
  if (!event.event.empty()) put_line(out, "event", event.event);
  std::string_view rest = event.data;
  for (bool more = true; more;) {
    // CR LF, LF and CR all end a line for the reader, so each must for the writer.
    size_t end = rest.find_first_of("\r\n");
    more = end != rest.npos;
    put_line(out, "data", rest.substr(0, end));
    if (more) rest.remove_prefix(end + (rest.substr(end).starts_with("\r\n") ? 2 : 1));
  }
  out += '\n';
  return out;
}

Task<Result<void>> SseWriter::open(int status) {
  exchange_.set_header("Cache-Control", "no-store");
  exchange_.set_header("X-Accel-Buffering", "no");  // asks proxies on the way not to collect
  exchange_.begin(status, "text/event-stream");
  Result<void> sent = co_await exchange_.write({});
  co_return sent;
}

Task<Result<void>> SseWriter::send(SseEvent event) {
  std::string text = sse_text(event);
  Result<void> sent = co_await exchange_.write(text);
  co_return sent;
}

Task<Result<void>> SseWriter::keep_alive() {
  Result<void> sent = co_await exchange_.write(":\n\n");
  co_return sent;
}

}  // namespace isola::http
