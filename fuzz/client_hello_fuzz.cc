// Bytes of a stranger as the first ones of a connection, in pieces: the reader may refuse, it may not crash, grow, or
// see another name when the same bytes come in other pieces.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "gate/client_hello.h"

using isola::gate::ClientHelloReader;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t piece = 1 + (input.empty() ? 0 : static_cast<uint8_t>(input[0]) % 64);
  if (!input.empty()) input.remove_prefix(1);
  ClientHelloReader whole, pieces;
  whole.feed(input);
  for (size_t at = 0; at < input.size(); at += piece) pieces.feed(input.substr(at, piece));
  if (whole.state() != pieces.state() && whole.state() != ClientHelloReader::State::bad &&
      pieces.state() != ClientHelloReader::State::bad)
    std::abort();
  if (whole.state() == ClientHelloReader::State::done && pieces.state() == ClientHelloReader::State::done &&
      whole.hello().server_name != pieces.hello().server_name)
    std::abort();
  return 0;
}
