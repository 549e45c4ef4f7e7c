// What a program inside does to reach somebody: plain sockets, for the evasion programs and for the tests of the gate.
// A text is what came back; what failed is the errno's name ("ECONNRESET").
//
//   talk_to(resolve("a.example"), 7, "hello")   → "hello"
//   resolve("b.example")                        → "code 3"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace isola::hostile {

inline constexpr int kLongMs = 20'000;  // only a hang takes that long

void patience(const Fd& fd);
bool is_address(const std::string& text);

// A connected socket; empty with errno.
Fd dial(const std::string& address, uint16_t port, int type = 1 /* SOCK_STREAM */);
// Everything that comes back until the end, or the errno's name.
std::string read_to_end(const Fd& fd);
// Connects to an address, sends (in pieces of so many bytes), says that this is all, reads to the end.
std::string talk_to(const std::string& address, uint16_t port, std::string_view what, size_t pieces = 0);

// A DNS question, and what a reply says: "198.18.0.1", or "code N".
std::string make_query(std::string_view name, uint16_t type);
std::string read_answer(std::string_view reply, uint16_t type);
// Whom a sandbox asks: ISOLA_DNS, or its own address.
std::string name_server();
std::string resolve(std::string_view name, uint16_t type = 1, bool tcp = false,
                    const std::string& server = name_server());
std::string talk(const std::string& name, uint16_t port, std::string_view what, size_t pieces = 0);

// A TLS hello that says this name (empty: none); more extensions in front of it.
std::string tls_hello(const std::string& name, const std::string& more = "");

}  // namespace isola::hostile
