#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <vector>

#include "../topics.h"

namespace isola::behaviour {
namespace {

struct Address {
  sockaddr_un at{};
  socklen_t size = 0;
  explicit Address(const std::string& path, bool abstract = false) {
    at.sun_family = AF_UNIX;
    ::memcpy(at.sun_path + (abstract ? 1 : 0), path.data(), path.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  }
  sockaddr* any() { return reinterpret_cast<sockaddr*>(&at); }
};
int bound(Address address, int type = SOCK_STREAM) {
  int fd = ::socket(AF_UNIX, type, 0);
  if (fd < 0 || ::bind(fd, address.any(), address.size) < 0) return -1;
  if (type != SOCK_DGRAM && ::listen(fd, 5) < 0) return -1;
  return fd;
}
int dialled(Address address, int type = SOCK_STREAM) {
  int fd = ::socket(AF_UNIX, type, 0);
  return fd < 0 || ::connect(fd, address.any(), address.size) < 0 ? -1 : fd;
}

ssize_t send_fds(int socket, const std::vector<int>& fds) {
  char byte = 'f';
  iovec out{&byte, 1};
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &out, message.msg_iovlen = 1;
  message.msg_control = control.data(), message.msg_controllen = control.size();
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  ::memcpy(CMSG_DATA(head), fds.data(), fds.size() * sizeof(int));
  return ::sendmsg(socket, &message, 0);
}
std::vector<int> receive_fds(int socket, size_t room, int flags = 0, int* got_flags = nullptr) {
  char byte;
  iovec in{&byte, 1};
  std::vector<char> control(CMSG_SPACE(room * sizeof(int)));
  msghdr message{};
  message.msg_iov = &in, message.msg_iovlen = 1;
  message.msg_control = control.data(), message.msg_controllen = control.size();
  std::vector<int> fds;
  if (::recvmsg(socket, &message, flags) < 0) return fds;
  if (got_flags) *got_flags = message.msg_flags;
  if (cmsghdr* head = CMSG_FIRSTHDR(&message); head && head->cmsg_type == SCM_RIGHTS) {
    fds.resize((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    ::memcpy(fds.data(), CMSG_DATA(head), fds.size() * sizeof(int));
  }
  return fds;
}

constexpr Check kUnixSocketChecks[] = {
    {"unix-pair", "a pair carries bytes both ways and ends when one side closes",
     [] {
       int ends[2];
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
       char text[10];
       WANT(::write(ends[0], "abc", 3) == 3 && ::read(ends[1], text, sizeof text) == 3, "there");
       WANT(::write(ends[1], "ab", 2) == 2 && ::read(ends[0], text, sizeof text) == 2, "and back");
       ::close(ends[1]);
       WANT(::read(ends[0], text, 1) == 0, "no end of file");
       REFUSED("send", ::send(ends[0], "x", 1, MSG_NOSIGNAL), EPIPE);
       return ok();
     }},
    {"unix-packets", "SOCK_SEQPACKET keeps bounds and tells the end",
     [] {
       int ends[2];
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
       NEED("send", ::send(ends[0], "abc", 3, 0));
       NEED("send", ::send(ends[0], "de", 2, 0));
       char text[10];
       WANT(::recv(ends[1], text, sizeof text, 0) == 3 && ::recv(ends[1], text, sizeof text, 0) == 2, "other bounds");
       ::close(ends[0]);
       WANT(::recv(ends[1], text, 1, 0) == 0, "no end");
       return ok();
     }},
    {"unix-datagrams", "datagrams tell the name of their sender",
     [] {
       int server = bound(Address("server"), SOCK_DGRAM), client = bound(Address("client"), SOCK_DGRAM);
       NEED("bind", server);
       NEED("bind", client);
       Address to("server");
       NEED("sendto", ::sendto(client, "abc", 3, 0, to.any(), to.size));
       sockaddr_un from{};
       socklen_t size = sizeof from;
       char text[10];
       WANT(::recvfrom(server, text, sizeof text, 0, reinterpret_cast<sockaddr*>(&from), &size) == 3, "nothing came");
       WANT(std::string(from.sun_path) == "client", "another sender");
       return ok();
     }},
    {"unix-path", "a bound socket is a file that can be connected to",
     [] {
       int listener = bound(Address("socket"));
       NEED("bind", listener);
       struct stat s{};
       NEED("stat", ::stat("socket", &s));
       WANT(S_ISSOCK(s.st_mode), "not a socket");
       NEED("connect", dialled(Address("socket")));
       NEED("accept", ::accept(listener, nullptr, nullptr));
       REFUSED("bind", bound(Address("socket")), EADDRINUSE);
       REFUSED("open", ::open("socket", O_RDWR), ENXIO);
       return ok();
     }},
    {"unix-path-alone", "a socket file whose server is gone refuses; one that is not there is not found",
     [] {
       ::close(bound(Address("socket")));
       REFUSED("connect", dialled(Address("socket")), ECONNREFUSED);
       REFUSED("connect", dialled(Address("none")), ENOENT);
       return ok();
     }},
    {"unix-path-rights", "who may not write to the socket file may not connect",
     [] {
       NEED("bind", bound(Address("socket")));
       NEED("chmod", ::chmod("socket", 0600));
       int code = in_child([] {
         if (::setuid(12345) < 0) return 100;
         return dialled(Address("socket")) < 0 ? errno : 0;
       });
       WANT(code == EACCES, code == 0 ? "it may" : "connect: " + errno_name(code));
       return ok();
     }},
    {"unix-abstract", "an abstract name needs no file",
     [] {
       Address name("isola-check-" + std::to_string(::getpid()), true);
       int listener = bound(name);
       NEED("bind", listener);
       NEED("connect", dialled(name));
       REFUSED("bind", bound(name), EADDRINUSE);
       return ok();
     }},
    {"unix-pass-file", "a descriptor that was sent is the same open file",
     [] {
       int ends[2], fd = scratch_file("abcdef");
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
       char c;
       NEED("read", ::read(fd, &c, 1));
       NEED("sendmsg", send_fds(ends[0], {fd}));
       auto got = receive_fds(ends[1], 1);
       WANT(got.size() == 1 && got[0] != fd, "nothing came");
       WANT(::read(got[0], &c, 1) == 1 && c == 'b', "another position");
       return ok();
     }},
    {"unix-pass-many", "a hundred descriptors go in one message",
     [] {
       int ends[2];
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
       NEED("sendmsg", send_fds(ends[0], std::vector<int>(100, 0)));
       WANT(receive_fds(ends[1], 100).size() == 100, "some are missing");
       return ok();
     }},
    {"unix-pass-too-many", "descriptors that do not fit are dropped, and MSG_CTRUNC says so",
     [] {
       int ends[2], flags = 0;
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
       NEED("sendmsg", send_fds(ends[0], std::vector<int>(10, 0)));
       auto got = receive_fds(ends[1], 2, 0, &flags);
       WANT(got.size() == 2 && (flags & MSG_CTRUNC), "all came, or nothing is said");
       return ok();
     }},
    {"unix-pass-close-on-exec", "MSG_CMSG_CLOEXEC sets the flag on what comes",
     [] {
       int ends[2];
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
       NEED("sendmsg", send_fds(ends[0], {0}));
       auto got = receive_fds(ends[1], 1, MSG_CMSG_CLOEXEC);
       WANT(got.size() == 1 && ::fcntl(got[0], F_GETFD) == FD_CLOEXEC, "not set");
       return ok();
     }},
    {"unix-pass-socket", "a connected socket can be sent to another process, which goes on with it",
     [] {
       int ends[2], other[2];
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, other));
       pid_t child = begin_child([&] {
         ::close(other[1]);
         auto got = receive_fds(ends[1], 1);
         return got.size() == 1 && ::write(got[0], "hello", 5) == 5 ? 0 : 1;
       });
       NEED("sendmsg", send_fds(ends[0], {other[1]}));
       ::close(other[1]);
       char text[6] = "";
       WANT(::read(other[0], text, 5) == 5 && std::string(text) == "hello", "nothing came");
       WANT(end_of(child) == 0, "the other process failed");
       return ok();
     }},
    {"unix-pass-pipe-end", "the end of a pipe that is under way counts as open",
     [] {
       int ends[2], pipe_ends[2];
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
       NEED("pipe", ::pipe2(pipe_ends, O_NONBLOCK));
       NEED("sendmsg", send_fds(ends[0], {pipe_ends[1]}));
       ::close(pipe_ends[1]);
       char c;
       REFUSED("read", ::read(pipe_ends[0], &c, 1), EAGAIN);
       ::close(ends[0]);
       ::close(ends[1]);
       WANT(::read(pipe_ends[0], &c, 1) == 0, "it stays open when the message is lost");
       return ok();
     }},
    {"unix-peer", "SO_PEERCRED tells who is at the other end",
     [] {
       int listener = bound(Address("socket"));
       NEED("bind", listener);
       pid_t child = begin_child([] {
         int fd = dialled(Address("socket"));
         char c;
         return fd < 0 ? 1 : static_cast<int>(::read(fd, &c, 1));
       });
       int fd = ::accept(listener, nullptr, nullptr);
       ucred peer{};
       socklen_t size = sizeof peer;
       NEED("SO_PEERCRED", ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size));
       WANT(peer.pid == child && peer.uid == ::getuid(), "somebody else");
       return ok();
     }},
    {"unix-credentials", "SO_PASSCRED brings number and user of the sender",
     [] {
       int ends[2];
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
       int on = 1;
       NEED("SO_PASSCRED", ::setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
       pid_t child = begin_child([&] { return ::write(ends[0], "x", 1) == 1 ? 0 : 1; });
       char byte, control[256];
       iovec in{&byte, 1};
       msghdr message{};
       message.msg_iov = &in, message.msg_iovlen = 1, message.msg_control = control,
       message.msg_controllen = sizeof control;
       NEED("recvmsg", ::recvmsg(ends[1], &message, 0));
       cmsghdr* head = CMSG_FIRSTHDR(&message);
       WANT(head && head->cmsg_type == SCM_CREDENTIALS, "no credentials");
       ucred sender{};
       ::memcpy(&sender, CMSG_DATA(head), sizeof sender);
       WANT(sender.pid == child && sender.uid == ::getuid(), "somebody else");
       return ok();
     }},
    {"unix-backlog", "a full backlog answers EAGAIN to who does not wait",
     [] {
       Address name("socket");
       int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
       NEED("bind", ::bind(listener, name.any(), name.size));
       NEED("listen", ::listen(listener, 1));
       for (int i = 0; i < 50; ++i) {
         int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
         if (::connect(fd, name.any(), name.size) < 0) {
           WANT(errno == EAGAIN, "connect: " + errno_name(errno));
           return ok();
         }
       }
       return differs("fifty connections fit into a backlog of one");
     }},
};

}  // namespace

Checks unix_socket_checks() { return kUnixSocketChecks; }

}  // namespace isola::behaviour
