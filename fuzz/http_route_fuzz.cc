// Bytes of a stranger through everything that looks at them before a handler does: the head, the body's framing, the
// target, the query, the routes. And a second opinion: what is left after a message must be what was not used.
#include <cstddef>
#include <cstdint>

#include "http/exchange.h"
#include "http/gzip.h"
#include "http/message.h"
#include "http/router.h"

using namespace isola::http;

namespace {

Router make_router() {
  Router r;
  Handler none = [](Exchange&) -> isola::Task<void> { co_return; };
  r.add("GET", "/", none);
  r.add("GET", "/a/{x}", none);
  r.add("PUT", "/a/{x}/b/{y}", none);
  r.add("GET", "/a/b/{rest...}", none);
  r.add("*", "/f/{rest...}", none);
  return r;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Router router = make_router();
  std::string_view input(reinterpret_cast<const char*>(data), size);
  HeadScanner scan;
  // Torn in two, the scanner must come to the same end.
  HeadScanner whole;
  auto at_once = whole.feed(input);
  auto state = scan.feed(input.substr(0, size / 2));
  if (state == HeadScanner::State::more) state = scan.feed(input);
  if (state != at_once || scan.size() != whole.size()) __builtin_trap();
  if (state != HeadScanner::State::complete) {
    auto match = router.match("GET", input);
    if (match.route && !match.malformed && match.values.size() != match.route->names.size()) __builtin_trap();
    (void)parse_query(input);
    (void)parse_url(input);
    return 0;
  }
  RequestParser parser;
  if (!parser.head(input.substr(0, scan.size()))) return 0;
  if (parser.chunked && parser.length) __builtin_trap();
  size_t question = parser.target.find('?');
  (void)router.match(parser.method, parser.target.substr(0, question));
  if (question != parser.target.npos) (void)parse_query(parser.target.substr(question + 1));
  std::string_view rest = input.substr(scan.size());
  Inflater inflater;
  uint64_t total = 0;
  while (!parser.done()) {
    auto piece = parser.body(rest);
    if (!piece) break;
    if (piece->used > rest.size()) __builtin_trap();
    total += piece->data.size();
    (void)inflater.feed(piece->data);
    rest.remove_prefix(piece->used);
    if (piece->used == 0) break;
  }
  if (parser.length && total > *parser.length) __builtin_trap();
  return 0;
}
