#include "guest/agent/net.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "guest/agent/scratch.h"

namespace isola::guest {

namespace {

class DialChannel : public Channel {
 public:
  DialChannel(Loop& loop, const DialPath& dial) : loop_(loop), port_(dial.port), path_(dial.path) {}
  ~DialChannel() override { close(); }

  Result<void> connect(bool v6) {
    close();
    v6_ = v6;
    fd_ = Fd(::socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_) return sys_error("cannot make a socket");
    int n;
    if (v6) {
      sockaddr_in6 a{.sin6_family = AF_INET6,
                     .sin6_port = htons(port_),
                     .sin6_flowinfo = 0,
                     .sin6_addr = in6addr_loopback,
                     .sin6_scope_id = 0};
      n = ::connect(fd_.get(), reinterpret_cast<sockaddr*>(&a), sizeof a);
    } else {
      sockaddr_in a{
          .sin_family = AF_INET, .sin_port = htons(port_), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
      n = ::connect(fd_.get(), reinterpret_cast<sockaddr*>(&a), sizeof a);
    }
    if (n < 0 && errno != EINPROGRESS) return sys_error("cannot connect to the port");
    return loop_.add(fd_.get(), events_ = EPOLLOUT, &source_);
  }

  Result<void> connect_to_path() {
    sockaddr_un a{.sun_family = AF_UNIX, .sun_path = {}};
    if (path_.size() >= sizeof a.sun_path) return fail(Code::invalid, "the socket's path is too long");
    std::memcpy(a.sun_path, path_.c_str(), path_.size() + 1);
    fd_ = Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_) return sys_error("cannot make a socket");
    if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&a), sizeof a) < 0)
      return sys_error("cannot connect to the socket " + path_);
    return loop_.add(fd_.get(), events_ = EPOLLOUT, &source_);
  }

  void on_data(std::string_view bytes) override {
    pending_.append(bytes);
    if (connected_) push();
  }
  void on_eof() override {
    closing_ = true;
    if (connected_) push();
  }

  Step step() override {
    if (!connected_ || !fd_) return Step::idle;
    if (!peer_ended_) {
      size_t space = room();
      if (space > 0) {
        ssize_t n = ::recv(fd_.get(), scratch, std::min(space, sizeof scratch), 0);
        if (n > 0) {
          send({scratch, static_cast<size_t>(n)});
          carried_ += static_cast<uint64_t>(n);
          return Step::again;
        }
        if (n < 0 && errno != EAGAIN && errno != EINTR) return broken(errno);
        if (n == 0) {
          peer_ended_ = true;
          send_eof();
        }
      }
    }
    if (done()) return Step::idle;
    want();
    return Step::idle;
  }

 private:
  void on_socket(uint32_t) {
    if (!connected_) {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) {
        if (path_.empty() && !v6_ && connect(true)) return;  // a service that listens on ::1 only
        return finish(fail(code_of(error), "nothing accepts connections on port " + std::to_string(port_), error));
      }
      connected_ = true;
      reply(encode(Done{}));
    }
    push();
  }

  void push() {
    size_t before = pending_.size();
    while (!pending_.empty()) {
      ssize_t n = ::send(fd_.get(), pending_.data(), pending_.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) break;
      if (n < 0) return void(broken(errno));
      pending_.erase(0, static_cast<size_t>(n));
    }
    grant(static_cast<uint32_t>(before - pending_.size()));
    if (pending_.empty() && closing_ && !shut_) {
      shut_ = true;
      ::shutdown(fd_.get(), SHUT_WR);
    }
    if (!done()) schedule();  // step() says what to wait for
  }

  bool done() {
    if (!(peer_ended_ && shut_)) return false;
    finish(encode(Done{.bytes = carried_}));
    close();
    return true;
  }

  Step broken(int error) {
    finish(sys_error("the connection broke", error));
    close();
    return Step::idle;
  }

  // Waits for what could make progress and for nothing else: no busy waking while the host takes nothing.
  void want() {
    uint32_t events = 0;
    if (!pending_.empty()) events |= EPOLLOUT;
    if (!peer_ended_ && room() > 0) events |= EPOLLIN;
    if (events == events_ || !fd_) return;
    if (events == 0)
      loop_.remove(fd_.get(), &source_);
    else if (events_ == 0)
      (void)loop_.add(fd_.get(), events, &source_);
    else
      loop_.modify(fd_.get(), events, &source_);
    events_ = events;
  }

  void close() {
    if (fd_ && events_) loop_.remove(fd_.get(), &source_);
    events_ = 0;
    fd_.reset();
  }

  Loop& loop_;
  uint16_t port_;
  std::string path_;
  Fd fd_;
  MemberSource<DialChannel, &DialChannel::on_socket> source_{this};
  std::string pending_;
  uint64_t carried_ = 0;
  uint32_t events_ = 0;
  bool v6_ = false, connected_ = false, peer_ended_ = false, closing_ = false, shut_ = false;
};

}  // namespace

Result<Mux::Opened> open_dial(Loop& loop, const DialPath& dial) {
  if ((dial.port == 0) == dial.path.empty()) return fail(Code::invalid, "not a port");
  auto channel = std::make_unique<DialChannel>(loop, dial);
  if (dial.path.empty())
    ISOLA_CHECK(channel->connect(false));
  else
    ISOLA_CHECK(channel->connect_to_path());
  return Mux::Opened{std::move(channel), {}};
}

}  // namespace isola::guest
