// Replies of the launcher, read: for its two clients, the one that waits (client.h) and the server's.
//
//   ISOLA_TRY(Reader in, open_reply(message.bytes));        // the launcher's Error, if it refused
//   ISOLA_TRY(auto stats, read_value<StatsReply>(in));
#pragma once

#include "kernel/process.h"
#include "launcher/protocol.h"

namespace isola::launcher {

inline std::unexpected<Error> unreadable_reply() { return fail(Code::corrupt, "unreadable reply from the launcher"); }

inline Result<Reader> open_reply(std::string_view bytes) {
  Reader in(bytes);
  in.u32();
  if (in.u8() == 0) return in;
  Error error;
  decode(in, error);
  if (!in.done()) return unreadable_reply();
  return std::unexpected(error);
}

// All of what is left.
template <typename T>
Result<T> read_value(Reader in) {
  T value;
  decode(in, value);
  if (!in.done()) return unreadable_reply();
  return value;
}

inline Result<boundary::Link> take_link(kernel::Message& message) {
  if (message.fds.size() != 2) return fail(Code::corrupt, "the launcher sent no link");
  return boundary::Link{std::move(message.fds[0]), std::move(message.fds[1])};
}

}  // namespace isola::launcher
