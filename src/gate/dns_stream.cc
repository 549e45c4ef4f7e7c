#include "gate/dns_stream.h"

#include <sys/socket.h>

#include "gate/sandbox.h"

namespace isola::gate {

namespace {
constexpr auto kPatience = std::chrono::seconds(15);  // between one question and the next
}

Result<void> DnsStream::start() {
  arm();
  return sandbox_.loop().add(fd_.get(), EPOLLIN, *this);
}

void DnsStream::arm() {
  if (timer_) sandbox_.loop().cancel(*timer_);
  timer_ = sandbox_.loop().after(kPatience, [this] { timer_.reset(), end(); });
}

void DnsStream::end() { sandbox_.stream_ended(*this); }

void DnsStream::close() {
  if (timer_) sandbox_.loop().cancel(*std::exchange(timer_, std::nullopt));
  if (fd_) sandbox_.loop().remove(fd_.get());
  fd_.reset();
  alive_.reset();
}

void DnsStream::on_ready(uint32_t events) {
  if (!fd_) return;
  if (events & (EPOLLHUP | EPOLLERR)) return end();  // both ways: nobody is there to be answered
  if (events & EPOLLIN && !receive()) return end();
  ask();
}

bool DnsStream::receive() {
  char buffer[4096];
  ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) {
    eof_ = true;
    return asking_ || !out_.empty();
  }
  in_.append(buffer, static_cast<size_t>(n));
  return true;
}

void DnsStream::ask() {
  while (!asking_) {
    if (silent_ || !send()) return end();
    if (!out_.empty()) break;
    auto query = take_framed(in_);
    if (!query || (!*query && eof_)) return end();
    if (!*query) break;
    arm();
    asking_ = inside_ = true;
    sandbox_.resolver().answer(**query, [this, alive = std::weak_ptr(alive_)](const std::string& reply) {
      if (alive.expired()) return;
      asking_ = false;
      silent_ = reply.empty();
      if (!silent_) out_ = framed(reply);
      if (!inside_) sandbox_.loop().again(*this);
    });
    inside_ = false;
  }
  // Level-triggered: only what would be used is asked for.
  uint32_t events = (!asking_ && out_.empty() && !eof_ ? EPOLLIN : 0u) | (out_.empty() ? 0u : EPOLLOUT);
  (void)sandbox_.loop().change(fd_.get(), events, *this);
}

bool DnsStream::send() {
  while (!out_.empty()) {
    ssize_t n = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return false;
    out_.erase(0, static_cast<size_t>(n));
  }
  return true;
}

}  // namespace isola::gate
