#include "dialog.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>

#include "boundary/network.h"
#include "program.h"

namespace isola::hostile {

using namespace std::string_literals;

namespace {

struct Place {
  sockaddr_storage storage{};
  socklen_t size = 0;  // 0: not an address
};

Place place_of(const std::string& address, uint16_t port) {
  Place place;
  auto* four = reinterpret_cast<sockaddr_in*>(&place.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&place.storage);
  if (::inet_pton(AF_INET, address.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET, four->sin_port = htons(port);
    place.size = sizeof *four;
  } else if (::inet_pton(AF_INET6, address.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6, six->sin6_port = htons(port);
    place.size = sizeof *six;
  }
  return place;
}

std::string number(size_t value, size_t bytes) {
  std::string out;
  for (size_t i = bytes; i-- > 0;) out.push_back(static_cast<char>(value >> 8 * i));
  return out;
}
std::string sized(const std::string& body, size_t bytes) { return number(body.size(), bytes) + body; }

}  // namespace

void patience(const Fd& fd) {
  timeval limit{kLongMs / 1000, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

bool is_address(const std::string& text) { return place_of(text, 0).size != 0; }

Fd dial(const std::string& address, uint16_t port, int type) {
  Place to = place_of(address, port);
  if (to.size == 0) return errno = EINVAL, Fd();
  Fd fd(::socket(to.storage.ss_family, type | SOCK_CLOEXEC, 0));
  patience(fd);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to.storage), to.size) < 0) return Fd();
  return fd;
}

std::string read_to_end(const Fd& fd) {
  std::string out;
  char buffer[65536];
  for (;;) {
    ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n < 0) return out + errno_name(errno);
    if (n == 0) return out;
    out.append(buffer, static_cast<size_t>(n));
  }
}

std::string talk_to(const std::string& address, uint16_t port, std::string_view what, size_t pieces) {
  Fd fd = dial(address, port);
  if (!fd) return errno_name(errno);
  int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  for (size_t at = 0; at < what.size();) {
    size_t size = pieces ? std::min(pieces, what.size() - at) : what.size() - at;
    ssize_t n = ::send(fd.get(), what.data() + at, size, MSG_NOSIGNAL);
    if (n < 0) return errno_name(errno);
    at += static_cast<size_t>(n);
  }
  ::shutdown(fd.get(), SHUT_WR);
  return read_to_end(fd);
}

std::string make_query(std::string_view name, uint16_t type) {
  std::string out = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"s;
  while (!name.empty()) {
    auto label = name.substr(0, name.find('.'));
    out += sized(std::string(label), 1);
    name.remove_prefix(std::min(label.size() + 1, name.size()));
  }
  return out + '\0' + number(type, 2) + number(1, 2);
}

std::string read_answer(std::string_view reply, uint16_t type) {
  if (reply.size() < 12) return "short";
  if (reply[7] == 0) return "code " + std::to_string(reply[3] & 15);
  size_t size = type == 28 ? 16 : 4;
  char text[INET6_ADDRSTRLEN];
  return ::inet_ntop(type == 28 ? AF_INET6 : AF_INET, reply.data() + reply.size() - size, text, sizeof text);
}

std::string name_server() {
  const char* named = ::getenv("ISOLA_DNS");
  return named ? named : boundary::kOwnAddress4;
}

std::string resolve(std::string_view name, uint16_t type, bool tcp, const std::string& server) {
  Fd fd = dial(server, 53, tcp ? SOCK_STREAM : SOCK_DGRAM);
  if (!fd) return errno_name(errno);
  auto query = make_query(name, type);
  if (tcp) query = sized(query, 2);
  if (::send(fd.get(), query.data(), query.size(), MSG_NOSIGNAL) < 0) return errno_name(errno);
  std::string stream;
  char buffer[2048];
  for (;;) {
    ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n < 0) return errno_name(errno);
    if (n == 0) return "closed";
    stream.append(buffer, static_cast<size_t>(n));
    if (!tcp) return read_answer(stream, type);
    if (stream.size() < 2) continue;
    size_t size = static_cast<size_t>(static_cast<uint8_t>(stream[0])) << 8 | static_cast<uint8_t>(stream[1]);
    if (stream.size() >= 2 + size) return read_answer(std::string_view(stream).substr(2, size), type);
  }
}

std::string talk(const std::string& name, uint16_t port, std::string_view what, size_t pieces) {
  auto address = resolve(name);
  return is_address(address) ? talk_to(address, port, what, pieces) : "no address: " + address;
}

std::string tls_hello(const std::string& name, const std::string& more) {
  std::string extensions = more;
  if (!name.empty()) extensions += number(0, 2) + sized(sized("\0"s + sized(name, 2), 2), 2);
  std::string body =
      "\x03\x03"s + std::string(32, 'r') + "\0"s + sized("\x13\x01", 2) + "\x01\0"s + sized(extensions, 2);
  std::string message = "\x01"s + sized(body, 3), out;
  for (size_t at = 0; at < message.size(); at += 16000) out += "\x16\x03\x01"s + sized(message.substr(at, 16000), 2);
  return out;
}

}  // namespace isola::hostile
