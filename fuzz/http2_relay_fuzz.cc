// Frames of HTTP/2 from both ends: nothing crashes, nothing grows without bounds, no value comes back.
#include "gate/http2_relay.h"
#include "relay_stage.h"

using namespace isola::gate;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  // Without a preface and settings nothing begins: they are given, so that the fuzzer starts behind them.
  constexpr std::string_view kSettings("\0\0\0\4\0\0\0\0\0", 9);
  std::string whole = "\x04PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";  // 33 bytes: the preface, and settings
  whole += kSettings;
  whole += static_cast<char>(0x81);  // 9 of the server's
  whole += kSettings;
  whole += input;
  play(whole, [](Inspector& inspector, Leg& client, Leg& server) {
    return Http2Relay::make(inspector, client, server).value();
  });
  return 0;
}
