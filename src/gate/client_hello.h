// The first message of a TLS client, read as it comes: over records and segments of any size, without a socket.
//
//   ClientHelloReader reader;
//   switch (reader.feed(bytes)) {                       // again and again, with whatever arrived
//     case ClientHelloReader::State::more: …            // not all of it is there
//     case ClientHelloReader::State::done: reader.hello().server_name
//     case ClientHelloReader::State::not_tls: …         // the first byte says so already
//     case ClientHelloReader::State::bad: …             // it claims to be TLS and is not, or is too large
//   }
//
// Strict where leniency would let two readers see two things: one server name exactly, in plain characters; no
// extension twice; lengths that add up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace isola::gate {

struct ClientHello {
  std::string server_name;        // in normal form; empty: none was sent
  std::vector<std::string> alpn;  // at most 16
  bool ech = false;               // an encrypted hello inside (or something that looks like one)
};

class ClientHelloReader {
 public:
  enum class State : uint8_t { more, done, not_tls, bad };
  // Of the handshake message. A hello with post-quantum key shares has about 2 KiB, a ticket adds up to a few more.
  static constexpr size_t kMaxHello = 64 << 10;

  State feed(std::string_view bytes);
  State state() const { return state_; }
  const ClientHello& hello() const { return hello_; }
  const char* problem() const { return problem_; }  // for State::bad
  size_t unread() const { return unread_; }         // of the last bytes fed: what is behind the hello
  size_t memory() const { return message_.capacity() + head_.capacity(); }

 private:
  State read(std::string_view& bytes);
  State bad(const char* problem);
  State parse();

  State state_ = State::more;
  ClientHello hello_;
  const char* problem_ = "";
  std::string message_;     // handshake bytes so far, without record headers
  std::string head_;        // of the record that is just coming
  size_t record_left_ = 0;  // of its body
  size_t records_ = 0, unread_ = 0;
};

}  // namespace isola::gate
