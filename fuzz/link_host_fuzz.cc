// What a hostile guest can send, into the host's session: it may refuse, it may not crash or grow.
#include <cstddef>
#include <cstdint>

#include "guest/session.h"

using namespace isola::guest;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  Session session;
  // Without a hello everything is refused at once: give it one, unless the input is to bring its own.
  std::string hello;
  put_frame(hello, 0, Type::hello, encode(Hello{.id = "i0123456789abcdefghij", .generation = 1}));
  if (!input.empty() && (input[0] & 1)) (void)session.feed(hello);
  if (!input.empty()) input.remove_prefix(1);

  auto open = [&](Op op, auto decode_data, auto decode_end, bool manual) {
    ChannelCallbacks on;
    on.data = decode_data;
    on.end = [decode_end, &session](isola::Result<std::string_view> end) {
      if (end) decode_end(*end);
      (void)session.open(Op::ping, "again", {});  // callbacks may open
      if (session.channels() > 64) __builtin_trap();
    };
    session.open(op, "args", std::move(on), kHostWindow, manual);
  };
  auto nothing = [](std::string_view) {};
  open(
      Op::run,
      [](std::string_view s) {
        isola::Reader in(s);
        in.u8();
        in.u64();
        (void)in.rest();
      },
      [](std::string_view s) { (void)decode<Exit>(s); }, false);
  open(
      Op::list,
      [](std::string_view s) {
        isola::Reader in(s);
        while (in.ok() && !in.done()) (void)decode<Entry>(in.view());
      },
      [](std::string_view s) { (void)decode<Listed>(s); }, true);
  open(Op::processes, [](std::string_view s) { (void)decode<Processes>(s); }, nothing, false);
  open(
      Op::watch,
      [](std::string_view s) {
        (void)decode<WatchEvent>(s);
        (void)decode<Ports>(s);
        (void)decode<Names>(s);
      },
      [](std::string_view s) {
        (void)decode<Stat>(s);
        (void)decode<Metrics>(s);
      },
      false);

  // In two halves, so that frames are torn.
  if (session.feed(input.substr(0, size / 2))) (void)session.feed(input.substr(std::min(size / 2, input.size())));
  session.reset({isola::Code::unavailable, "over", 0});
  return 0;
}
