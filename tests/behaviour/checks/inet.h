// Loopback addresses and sockets, for the checks of the network.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace isola::behaviour {

inline sockaddr_in loopback(int port = 0) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}
template <typename A>
sockaddr* any(A& address) {
  return reinterpret_cast<sockaddr*>(&address);
}
inline int port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  return ::getsockname(fd, any(address), &size) < 0 ? -1 : ntohs(address.sin_port);
}
// Bound to loopback on a port that the kernel chose; listening, if it is a stream.
inline int served(int type = SOCK_STREAM) {
  int fd = ::socket(AF_INET, type, 0);
  auto address = loopback();
  if (fd < 0 || ::bind(fd, any(address), sizeof address) < 0) return -1;
  if ((type & 0xf) == SOCK_STREAM && ::listen(fd, 16) < 0) return -1;
  return fd;
}
inline int dialled(int port, int type = SOCK_STREAM) {
  int fd = ::socket(AF_INET, type, 0);
  auto address = loopback(port);
  return fd < 0 || ::connect(fd, any(address), sizeof address) < 0 ? -1 : fd;
}
// Two ends of one connection.
struct Ends {
  int near = -1, far = -1;
};
inline Ends connected() {
  int listener = served();
  Ends ends;
  ends.near = dialled(port_of(listener));
  ends.far = ::accept(listener, nullptr, nullptr);
  return ends;
}
inline int option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, level, name, &value, &size) < 0 ? -1 : value;
}
inline int set_option(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace isola::behaviour
