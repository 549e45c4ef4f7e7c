#include "gate/flow.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "gate/sandbox.h"

namespace isola::gate {

namespace {

constexpr uint32_t kEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET;
constexpr auto kConnectTimeout = std::chrono::seconds(5);  // of one address, where there are more
constexpr auto kPause = std::chrono::milliseconds(100);    // in an answer
constexpr auto kValuePause = std::chrono::seconds(1);      // of a request that waits for a credential
constexpr int kRounds = 16;                                // of up to 64 KiB, before it is somebody else's turn
constexpr size_t kReadAtOnce = 16 << 10;
constexpr size_t kLittle = 4096;           // bytes that are not worth a splice. Every empty pipe has room for them
constexpr int kNarrow = 128 << 10;         // bytes each way
constexpr uint64_t kTellBytes = 16 << 20;  // of a connection that goes on

void set_option(const Fd& fd, int level, int name, int value) {
  (void)::setsockopt(fd.get(), level, name, &value, sizeof value);
}

// The kernel's buffers of a socket grow to many MiB if nobody reads: those of a few connections may.
void keep_narrow(const Fd& fd) {
  set_option(fd, SOL_SOCKET, SO_RCVBUF, kNarrow);
  set_option(fd, SOL_SOCKET, SO_SNDBUF, kNarrow);
}

void reset_on_close(const Fd& fd) {
  linger now{.l_onoff = 1, .l_linger = 0};
  if (fd) (void)::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

}  // namespace

Result<PipePool::Pipe> PipePool::take() {
  if (!free_.empty()) {
    Pipe pipe = std::move(free_.back());
    free_.pop_back();
    return pipe;
  }
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) return sys_error("cannot create a pipe");
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

void PipePool::give_back(Pipe pipe) {
  if (free_.size() < kIdle) free_.push_back(std::move(pipe));
}

Flow::Flow(Sandbox& sandbox, Fd client, Address to, uint16_t port)
    : sandbox_(sandbox), egress_(sandbox.egress()), asked_(to), port_(port) {
  client_.fd = std::move(client);
}

void Flow::start() {
  if (Names::is_synthetic(asked_)) {
    auto* entry = sandbox_.resolver().names().behind(asked_);
    if (!entry) return deny({Reason::unknown_address, ""}, asked_.text());
    name_ = entry->name;
    verdict_ = egress_->connect_name(name_, port_);
  } else {
    verdict_ = egress_->connect_address("", asked_, port_);
  }
  if (!verdict_.allowed()) return deny(verdict_, name_.empty() ? asked_.text() : "");
  intercepts_ = !name_.empty() && (egress_->inspects(name_, port_) || sandbox_.looks_into(name_, port_));
  guards_placeholders_ = !intercepts_ && !name_.empty() && sandbox_.bindings()->has_placeholders();
  guards_tls_ = guards_placeholders_ && sandbox_.bindings()->guards();
  inspecting_ = intercepts_ || guards_placeholders_ || looks_at_hello(*egress_);
  narrow_ = sandbox_.has_many_flows();
  if (narrow_) keep_narrow(client_.fd);
  if (name_.empty())
    resolved({.state = Answer::State::found, .addresses = {asked_}});
  else
    sandbox_.resolver().addresses(name_, [this, alive = std::weak_ptr(alive_)](const Answer& answer) {
      if (!alive.expired() && !done_) resolved(answer);
    });
  // Last: where the address was known, the other side has something to do already.
  if (!done_ && !sandbox_.loop().add(client_.fd.get(), kEvents, client_)) finish(true);
}

void Flow::resolved(const Answer& answer) {
  if (answer.state != Answer::State::found)
    return deny({answer.state == Answer::State::failed ? Reason::unresolvable : Reason::no_such_name, ""});
  // Judged by the address that is really connected to, and by nothing that the sandbox said.
  std::optional<std::pair<Verdict, Address>> refused;
  for (auto it = answer.addresses.rbegin(); it != answer.addresses.rend(); ++it) {
    auto verdict = egress_->connect_address(name_, *it, port_);
    if (verdict.allowed() && sandbox_.is_own(*it)) {
      own_ = *it;
      if (!egress_->names_address(*it, port_)) verdict = {Reason::own_address, it->text()};
    }
    if (verdict.allowed())
      candidates_.push_back(*it);
    else
      refused = {verdict, *it};
  }
  if (candidates_.empty() && refused) return deny(refused->first, refused->second.text());
  connect_next();
}

void Flow::connect_next() {
  if (timer_) sandbox_.loop().cancel(*std::exchange(timer_, std::nullopt));
  if (server_.fd) sandbox_.loop().remove(server_.fd.get());
  for (;;) {
    if (candidates_.empty()) return deny({Reason::unreachable, ""}, to_.text());
    to_ = candidates_.back();
    candidates_.pop_back();
    auto address = to_.with_port(port_);
    server_.fd = Fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!server_.fd) continue;
    if (narrow_) keep_narrow(server_.fd);
    server_.readable = server_.writable = server_.over = false;
    ++attempts_;
    if (::connect(server_.fd.get(), address.get(), address.size) < 0 && errno != EINPROGRESS) continue;
    set_option(server_.fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(server_.fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    if (!sandbox_.loop().add(server_.fd.get(), kEvents, server_)) continue;
    break;
  }
  if (!candidates_.empty()) timer_ = sandbox_.loop().after(kConnectTimeout, [this] { timer_.reset(), connect_next(); });
}

void Flow::connected() {
  int error = 0;
  socklen_t size = sizeof error;
  // Without an error, writable means connected.
  if (server_.over && (::getsockopt(server_.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error != 0))
    return connect_next();
  // But an event of an earlier attempt may have come late.
  SocketAddress peer;
  peer.size = sizeof peer.storage;
  if (attempts_ > 1 && ::getpeername(server_.fd.get(), peer.get(), &peer.size) < 0) {
    server_.writable = server_.readable = server_.over = false;
    return;
  }
  connected_ = true;
  candidates_ = {};
  if (timer_) sandbox_.loop().cancel(*std::exchange(timer_, std::nullopt));
  if (!hello_ && !intercepts_) sandbox_.grown_up(*this);
  if (!inspecting_) inspected();
}

void Flow::side_ready(Side& side, uint32_t events) {
  if (done_) return;
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) side.readable = true;
  if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) side.writable = true;
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) side.over = true;
  if (events & EPOLLPRI) side.urgent = true;
  if (&side == &server_ && !connected_) {
    if (side.writable) connected();
    if (done_ || !connected_) return;
  }
  // It gave up before it was let through: nothing is worth finishing.
  if (&side == &client_ && !connected_ && (events & (EPOLLHUP | EPOLLERR))) return finish(true);
  pump();
}

// Reads the client's first bytes until they say whether it is TLS, and for whom.
void Flow::inspect() {
  char buffer[kReadAtOnce];
  while (inspecting_ && client_.readable && !client_.eof) {
    ssize_t n = ::recv(client_.fd.get(), buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      client_.readable = false;
      return;
    }
    if (n < 0) return finish(true);
    if (n == 0) {
      client_.eof = true;
      // A first line that ends here is no request, or it would have been taken for one.
      if (hello_ && !cleartext_ && refused({Reason::bad_hello, "cut off"})) return;
      if (intercepts_) return finish(true);  // it never said anything
      return inspected();
    }
    client_.was_read(static_cast<size_t>(n), sizeof buffer);
    if (!hello_) hello_ = std::make_unique<ClientHelloReader>();
    std::string_view bytes(buffer, static_cast<size_t>(n));
    held_.append(bytes);
    auto state = hello_->feed(bytes);
    const bool begins_in_clear = state == ClientHelloReader::State::not_tls && !cleartext_;
    if (begins_in_clear) cleartext_ = true;
    if (!may_hold()) {
      if (!refused({Reason::too_many_connections, "first messages"})) inspected();
      return;
    }
    switch (state) {
      case ClientHelloReader::State::more: sandbox_.is_young(*this); continue;
      case ClientHelloReader::State::not_tls:
        if (!guards_placeholders_) return inspected();
        // A placeholder that leaves in clear is refused: for that the request must be read.
        switch (first_line_.feed(begins_in_clear ? held_ : bytes)) {
          case FirstLine::Likeness::unknown: sandbox_.is_young(*this); continue;
          case FirstLine::Likeness::yes: intercepts_ = true; break;
          case FirstLine::Likeness::no: break;
        }
        return inspected();
      case ClientHelloReader::State::bad:
        if (!refused({Reason::bad_hello, hello_->problem()})) inspected();
        return;
      case ClientHelloReader::State::done: break;
    }
    const auto& hello = hello_->hello();
    if (guards_tls_) intercepts_ = true;
    auto verdict = judge_hello(hello);
    std::string where = name_.empty() && !hello.server_name.empty() ? hello.server_name + " at " + to_.text() : "";
    if (!verdict.allowed() && refused(verdict, where)) return;
    if (intercepts_) {
      protocols_ = Interception::protocols_of(hello.alpn);
      if (protocols_.empty() && !hello.alpn.empty())
        return deny({Reason::bad_hello, "only protocols that cannot be looked into"});
    }
    // A connection that ends here may have as many hellos as it likes: each is for this name (tls_leg.cc).
    if (intercepts_ || !must_say_name(*egress_)) return inspected();
    walk_ = std::make_unique<HelloWalk>(hello.server_name);
    walk_->client(bytes.substr(bytes.size() - hello_->unread()));
    if (walk_is_good()) inspected();
    return;
  }
}

Verdict Flow::judge_hello(const ClientHello& hello) {
  // What is hidden in a hello means nothing to us, where it is us who answer it.
  if (hello.ech && !intercepts_) return {Reason::ech, ""};
  if (name_.empty()) {
    // By address, but asking for somebody by name: then that name must be allowed, and not only for some requests.
    server_name_ = hello.server_name;
    if (server_name_.empty()) return verdict_;
    if (egress_->inspects(server_name_, port_)) return {Reason::request, "by address"};
    return egress_->connect_name(server_name_, port_);
  }
  if (hello.server_name.empty()) return {Reason::sni_missing, ""};
  if (hello.server_name != name_) return {Reason::sni_differs, hello.server_name};
  verified_ = true;
  return verdict_;
}

// A policy that learns only notes what the one that comes of it would refuse. What cannot be read cannot be searched
// for a placeholder either: where that is to be done it is refused, whatever the policy.
bool Flow::refused(const Verdict& verdict, const std::string& address) {
  const bool guarded = guards_tls_ || (guards_placeholders_ && cleartext_);
  if (intercepts_ || guarded || must_say_name(*egress_)) return deny(verdict, address), true;
  hello_problem_ = verdict.reason;
  return false;
}

// What is held back is in the sandbox's share: thousands of hellos that never end are its own trouble.
bool Flow::may_hold() {
  size_t now = (held_.empty() ? 0 : held_.capacity()) + (hello_ ? hello_->memory() : 0) + (walk_ ? walk_->memory() : 0);
  auto& share = sandbox_.hello_bytes();
  if (now > charged_ && !share.take(now - charged_)) return false;
  if (now < charged_) share.give_back(charged_ - now);
  charged_ = now;
  return true;
}

// Another hello behind the first one: the same name, or nothing at all.
bool Flow::walk_is_good() {
  switch (walk_->problem()) {
    case HelloWalk::Problem::none: break;
    case HelloWalk::Problem::bad: return deny({Reason::bad_hello, walk_->detail()}, to_.text()), false;
    case HelloWalk::Problem::hidden: return deny({Reason::ech, "a second hello"}, to_.text()), false;
    case HelloWalk::Problem::differs:
      return deny({Reason::sni_differs, "a second hello: " + walk_->detail()}, to_.text()), false;
  }
  if (walk_->over()) walk_.reset();
  return true;
}

// What the server says first decides how long its client is watched. Only looked at: it is passed on as ever.
void Flow::look_at_server() {
  if (!server_.readable || walk_->server_known()) return;
  char beginning[HelloWalk::kServerBytes];
  ssize_t n = ::recv(server_.fd.get(), beginning, sizeof beginning, MSG_PEEK);
  if (n < 0 && errno == EAGAIN) server_.readable = false;
  if (n < 0) return;
  walk_->server(std::string_view(beginning, static_cast<size_t>(n)), n == 0 || server_.over);
  if (!walk_is_good() || !walk_ || walk_->server_known()) return;
  server_.readable = false;  // what is there does not say it yet: the next bytes are an event
}

// The client's bytes while it is watched. True if there is more to do at once.
bool Flow::pass_on_watched() {
  char buffer[kReadAtOnce];
  for (int round = 0; walk_; ++round) {
    if (!send_held() || up_.ended) return false;
    if (client_.eof) {
      ::shutdown(server_.fd.get(), SHUT_WR);
      up_.ended = true;
      return false;
    }
    if (!client_.readable) return false;
    if (round == kRounds) return true;
    size_t room = std::min<uint64_t>(sizeof buffer, sandbox_.bandwidth().available(sandbox_.loop().now()));
    if (room == 0) return sandbox_.wait_for_tokens(*this), false;
    ssize_t n = ::recv(client_.fd.get(), buffer, room, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      client_.readable = false;
      return false;
    }
    if (n < 0) return finish(true), false;
    if (n == 0) {
      client_.eof = true;
      continue;
    }
    client_.was_read(static_cast<size_t>(n), room);
    std::string_view bytes(buffer, static_cast<size_t>(n));
    walk_->client(bytes);
    if (!walk_is_good()) return false;
    held_.append(bytes);
    if (!may_hold()) return deny({Reason::too_many_connections, "first messages"}, to_.text()), false;
  }
  return false;
}

void Flow::inspected() {
  inspecting_ = false;
  hello_.reset();
  (void)may_hold();  // less than before
  if (!connected_ || intercepts_) return;
  sandbox_.grown_up(*this);
  tell();
}

void Flow::tell() {
  if (std::exchange(told_, true)) return;
  sandbox_.record({.kind = Event::Kind::allowed,
                   .name = name_,
                   .address = to_.text(),
                   .port = port_,
                   .reason = verdict_.reason,
                   .rule = verdict_.rule,
                   .host_verified = verified_,
                   .own_address = own_ == to_,
                   .hello = hello_problem_});
}

// What moved since the last time. A gate that is killed loses what it had not told: a few seconds of it, or a few MiB.
void Flow::tell_bytes() {
  if (untold_since) sandbox_.untold().erase(untold_place), untold_since.reset();
  uint64_t up = up_bytes_ - std::exchange(told_up_, up_bytes_),
           down = down_bytes_ - std::exchange(told_down_, down_bytes_);
  if (up == 0 && down == 0) return;
  sandbox_.record({.kind = Event::Kind::moved,
                   .name = name_,
                   .address = to_.text(),
                   .port = port_,
                   .reason = verdict_.reason,
                   .host_verified = verified_,
                   .up = up,
                   .down = down});
}

void Flow::moved() {
  uint64_t untold = up_bytes_ - told_up_ + down_bytes_ - told_down_;
  if (untold == 0) return;
  if (untold >= kTellBytes) return tell_bytes();
  if (untold_since) return;
  untold_since = sandbox_.loop().now();
  untold_place = sandbox_.untold().insert(sandbox_.untold().end(), this);
}

// What was read before the verdict goes first. True when it is all gone.
bool Flow::send_held() {
  while (!held_.empty() && server_.writable) {
    ssize_t n = ::send(server_.fd.get(), held_.data(), held_.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      server_.writable = false;
    } else if (n < 0) {
      finish(true);
      return false;
    } else {
      up_bytes_ += static_cast<uint64_t>(n);
      sandbox_.bandwidth().spend(static_cast<uint64_t>(n));
      held_.erase(0, static_cast<size_t>(n));
    }
  }
  if (held_.empty()) held_ = std::string();
  (void)may_hold();  // less than before
  return held_.empty();
}

void Flow::pump() {
  if (done_) return;
  if (inspecting_) inspect();
  if (done_ || !connected_) return;
  if (intercepts_) return inspecting_ ? void() : pump_inside();
  if (!inspecting_ && !told_) inspected();
  if (walk_) look_at_server();
  if (done_) return;
  bool more = pump(down_);
  if (done_) return;
  if (walk_) more |= pass_on_watched();
  if (done_) return;
  if (!inspecting_ && !walk_ && send_held()) more |= pump(up_);
  if (done_) return;
  moved();
  sandbox_.active(*this);
  end_if_done();
  if (!done_ && more) sandbox_.loop().again(*this);
}

// ---- looking into it ------------------------------------------------------------------------------------------------

size_t Flow::LegMeter::room() {
  auto tokens = flow.sandbox_.bandwidth().available(flow.sandbox_.loop().now());
  if (tokens == 0) flow.sandbox_.wait_for_tokens(flow);
  return static_cast<size_t>(std::min<uint64_t>(tokens, SIZE_MAX));
}

void Flow::LegMeter::was_read(size_t bytes) {
  read += bytes;
  flow.sandbox_.bandwidth().spend(bytes);
}

bool Flow::take_for_inside(size_t bytes) {
  if (!sandbox_.inside_bytes().take(bytes)) return false;
  inside_bytes_ += bytes;
  return true;
}

void Flow::give_from_inside(size_t bytes) {
  bytes = std::min(bytes, inside_bytes_);
  inside_bytes_ -= bytes;
  sandbox_.inside_bytes().give_back(bytes);
}

bool Flow::begin_inside() {
  Authority* authority = nullptr;
  if (!cleartext_) {
    auto made = sandbox_.authority();
    if (!made) return deny({Reason::locked, made.error().message}), false;
    authority = *made;
  }
  if (!take_for_inside(Interception::kCost))
    return deny({Reason::too_many_connections, "connections that are looked into"}), false;
  inside_ = std::make_unique<Interception>(
      Interception::Needs{.premises = sandbox_,
                          .client = client_,
                          .server = server_,
                          .client_meter = client_meter_,
                          .server_meter = server_meter_,
                          .tls = cleartext_ ? nullptr : &sandbox_.tls(),
                          .authority = authority,
                          .name = name_,
                          .address = to_,
                          .port = port_,
                          .first = std::move(held_),
                          .protocols = protocols_,
                          .budget = {.more = [this](size_t bytes) { return take_for_inside(bytes); },
                                     .less = [this](size_t bytes) { give_from_inside(bytes); }}});
  held_ = std::string();
  (void)may_hold();  // less than before
  return true;
}

void Flow::pump_inside() {
  if (!inside_ && !begin_inside()) return;
  const auto outcome = inside_->pump();
  if (inside_->is_established() && !told_) {
    sandbox_.grown_up(*this);
    tell();
  }
  moved();
  sandbox_.active(*this);
  switch (outcome) {
    case Interception::Outcome::again: wait_to_let_go(); return sandbox_.loop().again(*this);
    case Interception::Outcome::going:
      if (inside_->is_waiting_for_head())
        sandbox_.is_young(*this);
      else if (told_)
        sandbox_.grown_up(*this);
      wait_to_let_go();
      if (inside_->waits_for_value()) wait_for_value();
      return;
    case Interception::Outcome::closing: return sandbox_.is_young(*this);
    case Interception::Outcome::ended: return finish(false);
    case Interception::Outcome::broken: return finish(true);
    case Interception::Outcome::refused: return deny(inside_->verdict(), to_.text());
  }
}

// A server that stops in the middle of a word which could become a value: after a moment its client hears the first
// letters of it, or both would wait for each other. Other streams of the same connection may be as busy as they like.
void Flow::wait_to_let_go() {
  if (timer_ || !inside_->begin_to_wait()) return;
  timer_ = sandbox_.loop().after(kPause, [this] {
    timer_.reset();
    inside_->let_go();
    pump();
  });
}

// Whoever is told of a new value looks again at once (bindings_changed); this is for where none comes.
void Flow::wait_for_value() {
  if (timer_) return;
  timer_ = sandbox_.loop().after(kValuePause, [this] {
    timer_.reset();
    pump();
  });
}

void Flow::bindings_changed() {
  // One from before the binding would go on unsearched: its client has to come again.
  const bool guarded = sandbox_.bindings()->guards() && !guards_tls_;
  if (!intercepts_ && !name_.empty() && (guarded || sandbox_.looks_into(name_, port_)))
    return deny({Reason::policy_changed, "a credential was bound"}, connected_ ? to_.text() : "");
  if (!inside_) return;
  if (inside_->is_revoked()) return deny({Reason::revoked, ""}, to_.text());
  if (inside_->is_over()) return deny({Reason::binding_expired, ""}, to_.text());
  if (inside_->waits_for_value()) sandbox_.loop().again(*this);
}

// Moves what can be moved. True if there is more to do at once.
bool Flow::pump(Direction& d) {
  for (int round = 0; !d.ended; ++round) {
    if (round == kRounds) return true;
    bool moved = false;
    if (!d.from.eof && d.from.readable && d.in_pipe < PipePool::kSize) {
      uint64_t room =
          std::min<uint64_t>(PipePool::kSize - d.in_pipe, sandbox_.bandwidth().available(sandbox_.loop().now()));
      if (room > 0 && !d.pipe) d.pipe = sandbox_.take_pipe();
      if (room == 0) {
        sandbox_.wait_for_tokens(*this);
      } else if (!d.pipe) {
        moved = copy(d, room);
        if (done_) return false;
      } else if ((!d.much || d.from.urgent) && d.in_pipe == 0 && d.to.writable) {
        moved = pass_little(d, room);
        if (done_) return false;
      } else if (!d.from.urgent) {  // else a splice would stop at the mark, and take it for the end
        ssize_t n =
            ::splice(d.from.fd.get(), nullptr, d.pipe->write.get(), nullptr, room, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
        if (n > 0) {
          d.in_pipe += static_cast<size_t>(n);
          d.much = static_cast<size_t>(n) >= kLittle;
          sandbox_.bandwidth().spend(static_cast<uint64_t>(n));
          moved = true;
        } else if (n == 0) {
          char next;  // a mark that nobody told of yet?
          d.from.urgent = ::recv(d.from.fd.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
          d.from.eof = !d.from.urgent;
        } else if (errno == EAGAIN) {
          // Either the socket is empty or the pipe has no room: with bytes in it, nobody can tell.
          if (d.in_pipe == 0) d.from.readable = false;
        } else if (errno != EINTR) {
          return finish(true), false;
        }
      }
    }
    if (d.in_pipe > 0 && d.to.writable && !d.ended) {
      ssize_t n =
          ::splice(d.pipe->read.get(), nullptr, d.to.fd.get(), nullptr, d.in_pipe, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
      if (n > 0) {
        d.in_pipe -= static_cast<size_t>(n);
        d.bytes += static_cast<uint64_t>(n);
        moved = true;
      } else if (n < 0 && errno == EAGAIN) {
        d.to.writable = false;
      } else if (n < 0 && errno != EINTR) {
        // It does not listen any more; what it still has to say is worth hearing.
        d.ended = true;
        break;
      }
    }
    if (d.from.eof && d.in_pipe == 0 && !d.ended) {
      const Direction& back = &d == &up_ ? down_ : up_;
      if (!back.ended) ::shutdown(d.to.fd.get(), SHUT_WR);  // else both are closed now, which says the same
      d.ended = true;
    }
    if (!moved) break;
  }
  if (d.in_pipe == 0 || d.ended) release(d);
  return false;
}

// A message of a few bytes, of which most connections are made: read and written, and that was it. What the other side
// does not take goes into the pipe. True if bytes moved.
bool Flow::pass_little(Direction& d, size_t room) {
  char buffer[kLittle];
  room = std::min(room, sizeof buffer);
  ssize_t n = ::recv(d.from.fd.get(), buffer, room, 0);
  if (n == 0) d.from.eof = true;
  if (n < 0 && errno == EAGAIN) d.from.readable = false;
  if (n < 0 && errno != EAGAIN && errno != EINTR) finish(true);
  if (n <= 0) return n < 0 && errno == EINTR && !done_;
  auto size = static_cast<size_t>(n);
  d.from.was_read(size, room);
  d.much = size == sizeof buffer;
  sandbox_.bandwidth().spend(size);
  ssize_t sent = ::send(d.to.fd.get(), buffer, size, MSG_NOSIGNAL);
  if (sent < 0 && errno == EAGAIN) d.to.writable = false;
  if (sent < 0 && errno != EAGAIN && errno != EINTR) return d.ended = true, false;  // it does not listen any more
  auto gone = static_cast<size_t>(std::max<ssize_t>(sent, 0));
  d.bytes += gone;
  if (gone == size) return true;
  if (::write(d.pipe->write.get(), buffer + gone, size - gone) != static_cast<ssize_t>(size - gone))
    return finish(true), false;
  d.in_pipe = size - gone;
  return true;
}

// Without a pipe, where all of them are full: slower, and nothing is kept but where it came from. True if bytes moved.
bool Flow::copy(Direction& d, size_t room) {
  if (!d.to.writable) return false;
  char buffer[kReadAtOnce];
  ssize_t n = ::recv(d.from.fd.get(), buffer, std::min(room, sizeof buffer), MSG_PEEK);
  if (n == 0) d.from.eof = true;
  if (n < 0 && errno == EAGAIN) d.from.readable = false;
  if (n < 0 && errno != EAGAIN && errno != EINTR) finish(true);
  if (n <= 0) return n < 0 && errno == EINTR && !done_;
  ssize_t sent = ::send(d.to.fd.get(), buffer, static_cast<size_t>(n), MSG_NOSIGNAL);
  if (sent < 0 && errno == EAGAIN) d.to.writable = false;
  if (sent < 0 && errno != EAGAIN && errno != EINTR) d.ended = true;  // it does not listen any more
  if (sent <= 0) return false;
  // They are there: only now are they taken.
  if (::recv(d.from.fd.get(), buffer, static_cast<size_t>(sent), 0) != sent) return finish(true), false;
  d.bytes += static_cast<uint64_t>(sent);
  sandbox_.bandwidth().spend(static_cast<uint64_t>(sent));
  return true;
}

void Flow::release(Direction& d) {
  if (!d.pipe) return;
  auto pipe = std::exchange(d.pipe, std::nullopt);
  if (d.in_pipe > 0) pipe.reset();
  sandbox_.give_pipe_back(std::move(pipe));
}

void Flow::end_if_done() {
  if (up_.ended && down_.ended) finish(false);
}

// By name under a policy of names; and by an address that only "everything else" lets through, where a name that is
// denied could be asked for.
bool Flow::must_say_name(const Egress& egress) const {
  return egress.verifies_tls() && (!name_.empty() || !egress.allows_network(asked_, port_));
}

bool Flow::looks_at_hello(const Egress& egress) const {
  return must_say_name(egress) || (egress.policy().learn && !name_.empty());
}

void Flow::judge_again() {
  auto now = sandbox_.egress();
  bool good =
      name_.empty() ? now->connect_address("", asked_, port_).allowed() : now->connect_name(name_, port_).allowed();
  // Connected or on its way there.
  if (good && server_.fd && !name_.empty()) good = now->connect_address(name_, to_, port_).allowed();
  if (good && server_.fd && sandbox_.is_own(to_) && !now->names_address(to_, port_)) good = false;
  std::erase_if(candidates_, [&](const Address& a) {
    return !now->connect_address(name_, a, port_).allowed() || (sandbox_.is_own(a) && !now->names_address(a, port_));
  });
  // One that was let through whatever its first bytes were, and could not be now, has to come again.
  if (good && must_say_name(*now) && !must_say_name(*egress_)) good = false;
  if (good && !intercepts_ && now->inspects(name_.empty() ? server_name_ : name_, port_)) good = false;
  if (good && must_say_name(*now) && !server_name_.empty()) good = now->connect_name(server_name_, port_).allowed();
  if (good)
    egress_ = now;
  else
    deny({Reason::policy_changed, ""});
}

void Flow::expire() {
  if (inside_ && inside_->is_closing()) return finish(true);
  // Whether it is a request nobody can tell: then nobody can tell what is in it either.
  if (young && inspecting_ && cleartext_ && guards_placeholders_)
    return deny({Reason::bad_request, "a first line that does not end"});
  if (young && inside_) return deny(inside_->late(), to_.text());
  if (young && hello_ && connected_) {
    if (!refused({Reason::bad_hello, "too slow"})) inspected(), pump();
    return;
  }
  if (young && hello_) return deny({Reason::bad_hello, "too slow"});
  if (young) return deny({Reason::unreachable, "too slow"}, to_.text());
  finish(true);
}

void Flow::deny(const Verdict& verdict, const std::string& address) {
  denied_ = true;
  if (connected_) tell_bytes();  // a server may have spoken before its client was refused
  sandbox_.record({.kind = Event::Kind::denied,
                   .name = name_,
                   .address = !address.empty() ? address
                              : connected_     ? to_.text()
                              : name_.empty()  ? asked_.text()
                                               : "",
                   .port = port_,
                   .reason = verdict.reason,
                   .rule = verdict.rule});
  finish(true);
}

void Flow::finish(bool reset) {
  if (std::exchange(done_, true)) return;
  alive_.reset();
  if (connected_ && !denied_) tell();  // the client never spoke: let through, nothing to verify
  if (untold_since) sandbox_.untold().erase(untold_place), untold_since.reset();
  if (told_)
    sandbox_.record({.kind = Event::Kind::closed,
                     .name = name_,
                     .address = to_.text(),
                     .port = port_,
                     .reason = verdict_.reason,
                     .host_verified = verified_,
                     .up = up_bytes_ - told_up_,
                     .down = down_bytes_ - told_down_});
  for (Side* side : {&client_, &server_}) {
    if (!side->fd) continue;
    if (reset) reset_on_close(side->fd);
    side->fd.reset();
  }
  release(up_), release(down_);
  held_ = std::string(), hello_.reset(), walk_.reset();
  (void)may_hold();
  // Whoever is in the middle of it is inside of what it calls: it goes with the flow.
  sandbox_.inside_bytes().give_back(std::exchange(inside_bytes_, 0));
  if (timer_) sandbox_.loop().cancel(*std::exchange(timer_, std::nullopt));
  sandbox_.flow_ended(*this);
}

}  // namespace isola::gate
