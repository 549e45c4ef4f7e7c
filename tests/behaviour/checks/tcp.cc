// TCP over loopback.
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include "../topics.h"
#include "inet.h"

namespace isola::behaviour {
namespace {

constexpr Check kTcpChecks[] = {
    {"tcp-both-ways", "a connection carries bytes both ways, and each end knows the other's address",
     [] {
       auto [near, far] = connected();
       NEED("connect", far);
       char text[10] = "";
       WANT(::send(near, "ping", 4, 0) == 4 && ::recv(far, text, sizeof text, 0) == 4, "there");
       WANT(::send(far, "pong!", 5, 0) == 5 && ::recv(near, text, sizeof text, 0) == 5, "and back");
       sockaddr_in peer{};
       socklen_t size = sizeof peer;
       NEED("getpeername", ::getpeername(far, any(peer), &size));
       WANT(ntohs(peer.sin_port) == port_of(near) && peer.sin_addr.s_addr == htonl(INADDR_LOOPBACK), "another peer");
       return ok();
     }},
    {"tcp-much", "megabytes arrive whole and in order",
     [] {
       auto [near, far] = connected();
       NEED("connect", far);
       pid_t child = begin_child([near] {
         std::string block(65536, '\0');
         for (int i = 0; i < 64; ++i) {
           for (char& c : block) c = static_cast<char>(i);
           for (size_t at = 0; at < block.size();) {
             ssize_t n = ::write(near, block.data() + at, block.size() - at);
             if (n <= 0) return 1;
             at += static_cast<size_t>(n);
           }
         }
         return 0;
       });
       ::close(near);
       size_t got = 0;
       char buffer[50000];
       for (ssize_t n; (n = ::read(far, buffer, sizeof buffer)) > 0; got += static_cast<size_t>(n))
         for (ssize_t i = 0; i < n; ++i)
           WANT(buffer[i] == static_cast<char>((got + static_cast<size_t>(i)) / 65536), "other bytes");
       WANT(got == 64 * 65536 && end_of(child) == 0, "not all");
       return ok();
     }},
    {"tcp-refused", "a port without a listener refuses",
     [] {
       int fd = served();
       int port = port_of(fd);
       ::close(fd);
       REFUSED("connect", dialled(port), ECONNREFUSED);
       return ok();
     }},
    {"tcp-half-closed", "shutdown ends one way, the other goes on",
     [] {
       auto [near, far] = connected();
       NEED("shutdown", ::shutdown(near, SHUT_WR));
       char c;
       WANT(::recv(far, &c, 1, 0) == 0, "no end of file");
       WANT(::send(far, "x", 1, 0) == 1 && ::recv(near, &c, 1, 0) == 1, "the other way ended, too");
       return ok();
     }},
    {"tcp-reset", "a connection closed with bytes unread, or with SO_LINGER 0, is reset",
     [] {
       auto [near, far] = connected();
       linger none{1, 0};
       NEED("SO_LINGER", ::setsockopt(far, SOL_SOCKET, SO_LINGER, &none, sizeof none));
       ::close(far);
       char c;
       WANT(readable(near, 5000), "nothing happened");
       REFUSED("recv", ::recv(near, &c, 1, 0), ECONNRESET);
       return ok();
     }},
    {"tcp-broken", "sending on a connection that is gone: EPIPE, or SIGPIPE without MSG_NOSIGNAL",
     [] {
       auto [near, far] = connected();
       NEED("shutdown", ::shutdown(near, SHUT_WR));
       REFUSED("send", ::send(near, "x", 1, MSG_NOSIGNAL), EPIPE);
       WANT(in_child([near] { return static_cast<int>(::send(near, "x", 1, 0)); }) == 128 + SIGPIPE, "no SIGPIPE");
       return ok();
     }},
    {"tcp-nonblocking-connect", "a connect that does not wait is found by poll",
     [] {
       int listener = served();
       auto address = loopback(port_of(listener));
       int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
       REFUSED("connect", ::connect(fd, any(address), sizeof address), EINPROGRESS);
       pollfd ready{fd, POLLOUT, 0};
       WANT(::poll(&ready, 1, 5000) == 1, "never ready");
       WANT(option(fd, SOL_SOCKET, SO_ERROR) == 0, "an error");
       return ok();
     }},
    {"tcp-nonblocking-refused", "SO_ERROR tells once that it was refused",
     [] {
       int gone = served();
       auto address = loopback(port_of(gone));
       ::close(gone);
       int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
       (void)::connect(fd, any(address), sizeof address);
       pollfd ready{fd, POLLOUT, 0};
       WANT(::poll(&ready, 1, 5000) == 1 && (ready.revents & POLLERR), "no POLLERR");
       WANT(option(fd, SOL_SOCKET, SO_ERROR) == ECONNREFUSED, "another error");
       WANT(option(fd, SOL_SOCKET, SO_ERROR) == 0, "it is told twice");
       return ok();
     }},
    {"tcp-port-taken", "a port has one listener",
     [] {
       int fd = served();
       auto address = loopback(port_of(fd));
       int other = ::socket(AF_INET, SOCK_STREAM, 0);
       REFUSED("bind", ::bind(other, any(address), sizeof address), EADDRINUSE);
       return ok();
     }},
    {"tcp-reuse-address", "with SO_REUSEADDR a port is free again although old connections linger",
     [] {
       int listener = ::socket(AF_INET, SOCK_STREAM, 0);
       NEED("SO_REUSEADDR", set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1));
       auto address = loopback();
       NEED("bind", ::bind(listener, any(address), sizeof address));
       NEED("listen", ::listen(listener, 5));
       address = loopback(port_of(listener));
       int near = dialled(port_of(listener)), far = ::accept(listener, nullptr, nullptr);
       ::close(far);  // this side waits for late packets now
       ::close(near);
       ::close(listener);
       int again = ::socket(AF_INET, SOCK_STREAM, 0);
       NEED("SO_REUSEADDR", set_option(again, SOL_SOCKET, SO_REUSEADDR, 1));
       NEED("bind", ::bind(again, any(address), sizeof address));
       NEED("listen", ::listen(again, 5));
       return ok();
     }},
    {"tcp-reuse-port", "with SO_REUSEPORT two listen on one port",
     [] {
       int one = ::socket(AF_INET, SOCK_STREAM, 0), two = ::socket(AF_INET, SOCK_STREAM, 0);
       auto address = loopback();
       NEED("SO_REUSEPORT", set_option(one, SOL_SOCKET, SO_REUSEPORT, 1));
       NEED("SO_REUSEPORT", set_option(two, SOL_SOCKET, SO_REUSEPORT, 1));
       NEED("bind", ::bind(one, any(address), sizeof address));
       address = loopback(port_of(one));
       NEED("bind", ::bind(two, any(address), sizeof address));
       NEED("listen", ::listen(one, 5));
       NEED("listen", ::listen(two, 5));
       return ok();
     }},
    {"tcp-receive-timeout", "SO_RCVTIMEO ends a wait with EAGAIN",
     [] {
       auto [near, far] = connected();
       timeval soon{0, 30000};
       NEED("SO_RCVTIMEO", ::setsockopt(near, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
       char c;
       REFUSED("recv", ::recv(near, &c, 1, 0), EAGAIN);
       return ok();
     }},
    {"tcp-peek", "MSG_PEEK leaves the bytes, MSG_WAITALL waits for all of them",
     [] {
       auto [near, far] = connected();
       NEED("send", ::send(near, "ab", 2, 0));
       char text[5] = "";
       WANT(::recv(far, text, 1, MSG_PEEK) == 1 && text[0] == 'a', "no byte");
       pid_t child = begin_child([near] { return static_cast<int>(::usleep(20000) + ::send(near, "cd", 2, 0)); });
       WANT(::recv(far, text, 4, MSG_WAITALL) == 4 && std::string(text) == "abcd", "not all");
       end_of(child);
       int count = -1;
       NEED("FIONREAD", ::ioctl(far, FIONREAD, &count));
       WANT(count == 0, "bytes are left");
       return ok();
     }},
    {"tcp-accept-flags", "accept4 sets both flags",
     [] {
       int listener = served();
       dialled(port_of(listener));
       int fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
       NEED("accept4", fd);
       WANT((::fcntl(fd, F_GETFL) & O_NONBLOCK) && (::fcntl(fd, F_GETFD) & FD_CLOEXEC), "they are not set");
       return ok();
     }},
    {"tcp-options", "TCP_NODELAY, keep-alive times and buffers are kept as they were set",
     [] {
       auto [near, far] = connected();
       NEED("TCP_NODELAY", set_option(near, IPPROTO_TCP, TCP_NODELAY, 1));
       NEED("SO_KEEPALIVE", set_option(near, SOL_SOCKET, SO_KEEPALIVE, 1));
       NEED("TCP_KEEPIDLE", set_option(near, IPPROTO_TCP, TCP_KEEPIDLE, 33));
       NEED("TCP_KEEPINTVL", set_option(near, IPPROTO_TCP, TCP_KEEPINTVL, 11));
       NEED("TCP_USER_TIMEOUT", set_option(near, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000));
       NEED("SO_SNDBUF", set_option(near, SOL_SOCKET, SO_SNDBUF, 32768));
       WANT(option(near, IPPROTO_TCP, TCP_NODELAY) == 1, "TCP_NODELAY");
       WANT(option(near, IPPROTO_TCP, TCP_KEEPIDLE) == 33 && option(near, IPPROTO_TCP, TCP_KEEPINTVL) == 11,
            "keep-alive times");
       WANT(option(near, SOL_SOCKET, SO_SNDBUF) == 65536, "SO_SNDBUF is not doubled");
       return ok();
     }},
    {"tcp-info", "TCP_INFO knows that it is connected, and the times",
     [] {
       auto [near, far] = connected();
       tcp_info info{};
       socklen_t size = sizeof info;
       NEED("TCP_INFO", ::getsockopt(near, IPPROTO_TCP, TCP_INFO, &info, &size));
       WANT(info.tcpi_state == 1, "another state");
       WANT(info.tcpi_snd_mss > 0 && info.tcpi_rto > 0, "no size of segments or no time");
       return ok();
     }},
    {"tcp-congestion", "TCP_CONGESTION tells a name",
     [] {
       auto [near, far] = connected();
       char name[32] = "";
       socklen_t size = sizeof name;
       NEED("TCP_CONGESTION", ::getsockopt(near, IPPROTO_TCP, TCP_CONGESTION, name, &size));
       WANT(name[0] != 0, "no name");
       return ok();
     }},
    {"tcp-six", "TCP over IPv6 loopback, and a listener for both kinds",
     [] {
       int listener = ::socket(AF_INET6, SOCK_STREAM, 0);
       NEED("socket", listener);
       NEED("IPV6_V6ONLY", set_option(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0));
       sockaddr_in6 address{};
       address.sin6_family = AF_INET6;
       NEED("bind", ::bind(listener, any(address), sizeof address));
       NEED("listen", ::listen(listener, 5));
       socklen_t size = sizeof address;
       ::getsockname(listener, any(address), &size);
       NEED("connect by IPv4", dialled(ntohs(address.sin6_port)));
       int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
       address.sin6_addr = in6addr_loopback;
       NEED("connect by IPv6", ::connect(fd, any(address), sizeof address));
       return ok();
     }},
    {"tcp-any-loopback", "all of 127.0.0.0/8 is this machine",
     [] {
       int fd = ::socket(AF_INET, SOCK_STREAM, 0);
       auto address = loopback();
       address.sin_addr.s_addr = htonl(0x7f010203);
       NEED("bind", ::bind(fd, any(address), sizeof address));
       return ok();
     }},
    {"tcp-low-port", "root binds ports below 1024",
     [] {
       int fd = ::socket(AF_INET, SOCK_STREAM, 0);
       auto address = loopback(979);
       address.sin_addr.s_addr = htonl(0x7f0b0c0d);
       NEED("bind", ::bind(fd, any(address), sizeof address));
       return ok();
     }},
    {"tcp-not-my-address", "an address that is not this machine's cannot be bound",
     [] {
       int fd = ::socket(AF_INET, SOCK_STREAM, 0);
       auto address = loopback();
       address.sin_addr.s_addr = htonl(0xcb007105);  // 203.0.113.5
       REFUSED("bind", ::bind(fd, any(address), sizeof address), EADDRNOTAVAIL);
       return ok();
     }},
    {"tcp-urgent", "one byte comes out of band",
     [] {
       auto [near, far] = connected();
       NEED("send MSG_OOB", ::send(near, "!", 1, MSG_OOB));
       pollfd ready{far, POLLPRI, 0};
       WANT(::poll(&ready, 1, 5000) == 1, "no POLLPRI");
       char c = 0;
       NEED("recv MSG_OOB", ::recv(far, &c, 1, MSG_OOB));
       WANT(c == '!', "another byte");
       return ok();
     }},
};

}  // namespace

Checks tcp_checks() { return kTcpChecks; }

}  // namespace isola::behaviour
