// Bytes of a stranger as the first ones of a connection, in pieces: the reader may refuse, it may not crash, grow, or
// see anything else when the same bytes come in other pieces. Then the same bytes as what follows a hello, and as what
// a server answers.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "gate/client_hello.h"
#include "gate/hello_walk.h"

using isola::gate::ClientHelloReader;
using isola::gate::HelloWalk;

namespace {

void expect(bool good) {
  if (!good) std::abort();
}

void walk(std::string_view input, size_t piece, bool asked) {
  HelloWalk whole("a.example"), pieces("a.example");
  if (asked)
    for (auto* one : {&whole, &pieces}) one->server(input.substr(0, HelloWalk::kServerBytes));
  if (whole.problem() == HelloWalk::Problem::none) whole.client(input);
  for (size_t at = 0; at < input.size() && pieces.problem() == HelloWalk::Problem::none; at += piece)
    pieces.client(input.substr(at, piece));
  expect(whole.problem() == pieces.problem());
  expect(whole.over() == pieces.over());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t piece = 1 + (input.empty() ? 0 : static_cast<uint8_t>(input[0]) % 64);
  if (!input.empty()) input.remove_prefix(1);
  ClientHelloReader whole, pieces;
  whole.feed(input);
  for (size_t at = 0; at < input.size(); at += piece) pieces.feed(input.substr(at, piece));
  expect(whole.state() == pieces.state());
  expect(whole.memory() <= 4 * ClientHelloReader::kMaxHello);
  if (whole.state() == ClientHelloReader::State::done)
    expect(whole.hello().server_name == pieces.hello().server_name && whole.unread() <= input.size());
  walk(input, piece, false);
  walk(input, piece, true);
  return 0;
}
