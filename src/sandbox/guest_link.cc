#include "sandbox/guest_link.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "sandbox/channel_screen.h"

namespace isola::sandbox {

namespace net = boost::asio;

namespace {
// Of requests that a guest which does not read lets pile up. What channels carry is bounded by their windows.
constexpr size_t kMostUnsent = 32 << 20;

// What is read from a pipe is handed on before the next one is read: one buffer for all links of a worker.
constexpr size_t kReadAtOnce = 256 << 10;
char* read_buffer() {
  thread_local std::unique_ptr<char[]> buffer(new char[kReadAtOnce]);
  return buffer.get();
}

// Pipes hold 64 KiB unless told otherwise, less than one large frame with its head: both sides would wake for each.
constexpr int kWidePipe = 1 << 20;

// Of what goes to a file or a port, so much may wait for the guest while its sender already reads on: whoever sends
// there waits for the end anyhow.
constexpr size_t kAhead = 256 << 10;

constexpr uint32_t kScreenedWindow = 512 << 10;

// Of small pieces that are read together. Large ones would be copied into memory that is new each time.
constexpr size_t kJoined = 64 << 10;

bool is_bulk(guest::Op op) { return op == guest::Op::dial || op == guest::Op::read || op == guest::Op::write; }
}  // namespace

// ---- the pipes: everything in here runs on the home worker ----

struct GuestLink::Io : std::enable_shared_from_this<GuestLink::Io> {
  Io(net::io_context& home, std::chrono::milliseconds time) : from(home), to(home), watch(home), patience(time) {}

  guest::Session session;
  boundary::Link fds;  // until begin()
  bool begun = false;
  net::posix::stream_descriptor from, to;
  bool reading = false, writing = false;
  std::atomic<bool> dead = false;
  net::steady_timer watch;
  const std::chrono::milliseconds patience;
  std::chrono::steady_clock::time_point heard = std::chrono::steady_clock::now();  // or when nobody waited
  std::optional<std::chrono::steady_clock::time_point> asked;
  bool watching = false, silent = false;
  bool wide = false;

  // Once, at the latest before the first use.
  void begin() {
    if (dead || std::exchange(begun, true)) return;
    from.assign(fds.from_guest.release());
    to.assign(fds.to_guest.release());
    boost::system::error_code ignored;  // of descriptors that are there
    from.native_non_blocking(true, ignored);
    to.native_non_blocking(true, ignored);
    read();
  }

  // Only where much is carried: most sandboxes never need it. What the kernel does not grant is not needed either.
  void widen() {
    if (std::exchange(wide, true)) return;
    for (int fd : {from.native_handle(), to.native_handle()}) (void)::fcntl(fd, F_SETPIPE_SZ, kWidePipe);
  }

  // One timer, which looks again after each patience for as long as a channel is open.
  void watch_it() {
    if (watching || dead || session.channels() == 0) return;
    watching = true;
    asked.reset();
    heard = std::chrono::steady_clock::now();
    look_later();
  }
  void look_later() {
    watch.expires_after(patience);
    watch.async_wait([weak = weak_from_this()](boost::system::error_code error) {
      if (auto self = weak.lock(); self && !error) self->look();
    });
  }
  void look() {
    if (dead || session.channels() == 0) {
      watching = false;
      return;
    }
    auto now = std::chrono::steady_clock::now();
    if (silent) heard = now;
    if (now - heard >= patience) {
      // Asked the last time, and not a word since then. One whose commands are quiet has answered that.
      if (asked && heard <= *asked) return die({Code::timeout, "the sandbox does not answer"});
      asked = now;
      session.open(guest::Op::ping, {}, {});
      flush();
    } else {
      asked.reset();
    }
    look_later();
  }

  void begin_read() {
    from.async_wait(net::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](boost::system::error_code error) {
                      if (error) return self->die({Code::unavailable, "the link to the sandbox was closed"});
                      self->read();
                    });
  }

  void read() {
    // A few rounds at a time, so that one busy guest does not starve the others of this worker.
    for (int round = 0; round < 4 && !dead; ++round) {
      char* buffer = read_buffer();
      ssize_t n = ::read(from.native_handle(), buffer, kReadAtOnce);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) break;
      if (n <= 0) return die({Code::unavailable, "the sandbox is gone"});
      heard = std::chrono::steady_clock::now();
      if (auto fed = session.feed({buffer, static_cast<size_t>(n)}); !fed) return die(fed.error());
      if (static_cast<size_t>(n) < kReadAtOnce) break;
    }
    flush();
    if (!dead) begin_read();
  }

  void flush() {
    while (!dead && !writing && !session.out().empty()) {
      auto bytes = session.out();
      ssize_t n = ::write(to.native_handle(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) {
        writing = true;
        to.async_wait(net::posix::stream_descriptor::wait_write,
                      [self = shared_from_this()](boost::system::error_code error) {
                        self->writing = false;
                        if (!error) self->flush();
                      });
        return;
      }
      if (n < 0) return die({Code::unavailable, "the sandbox is gone"});
      session.sent(static_cast<size_t>(n));
    }
  }

  void die(const Error& why) {
    if (dead.exchange(true)) return;
    auto keep = shared_from_this();
    session.reset(why);
    fds = {};
    boost::system::error_code ignored;
    from.close(ignored);
    to.close(ignored);
    watch.cancel();
  }
};

// ---- one channel: `mutex` guards what both sides touch ----

struct Channel::State {
  std::weak_ptr<GuestLink::Io> io;
  net::io_context* home = nullptr;
  std::mutex mutex;
  Bell bell;
  uint32_t number = 0;  // 0: not opened yet; only used on the home worker
  struct Piece {
    std::string bytes;
    uint32_t cost = 0;  // of the guest's window
  };
  std::deque<Piece> data;
  Screening::Place place;  // whose it is
  std::function<void()> withheld;
  std::shared_ptr<ChannelScreen> screen;  // only used on the home worker, and so are the two that follow
  std::shared_ptr<const Screening> screening;
  bool unscreened = false;  // it was asked, and there is nothing to search for
  std::optional<std::string> reply, result;
  std::optional<Error> error;
  bool eof = false, ended = false, cancelled = false, kept_back = false;
  uint32_t batch = 0, owed = 0;  // what was read and not granted again, and how much of it is granted at a time
  std::string unsent;            // handed to write() and, from `unsent_at` on, not yet taken by the session
  size_t unsent_at = 0;
  size_t ahead = 0;  // how much of it write() does not wait for
  bool close_after = false;

  size_t waiting() const { return unsent.size() - unsent_at; }
  // What is left is moved to the front when there is less of it than of what is gone: each byte once, if that.
  void add_unsent(std::string_view bytes) {
    if (unsent_at > waiting()) unsent.erase(0, std::exchange(unsent_at, 0));
    unsent += bytes;
  }

  void change(const std::function<void()>& what) {
    {
      std::lock_guard lock(mutex);
      what();
    }
    bell.ring();
  }

  void deliver(std::string bytes, uint32_t cost) {
    change([&] {
      if (!cancelled) data.push_back({std::move(bytes), cost});
    });
  }

  // On the home worker: whether the data of this channel is looked through before it is delivered.
  static bool is_screened(const std::shared_ptr<State>& self, guest::Op op) {
    if (self->screen) return true;
    if (!self->screening || !self->screening->on() || self->unscreened) return false;
    ChannelScreen::Out out;
    std::weak_ptr<State> weak = self;
    out.deliver = [weak](std::string bytes, uint32_t cost) {
      if (auto state = weak.lock()) state->deliver(std::move(bytes), cost);
    };
    out.failed = [weak](const Error& why) {
      if (auto state = weak.lock()) state->withhold(why);
    };
    out.place = [weak] {
      auto state = weak.lock();
      if (!state) return Screening::Place();
      std::lock_guard lock(state->mutex);
      return state->place;
    };
    self->screen = ChannelScreen::make(op, self->screening, *self->home, std::move(out));
    self->unscreened = !self->screen;
    return self->screen != nullptr;
  }

  // Nothing more of it goes to anybody. What runs inside goes on.
  void withhold(const Error& why) {
    if (ended) return;
    std::function<void()> tell;
    change([&] {
      ended = eof = kept_back = true;
      error = why;
      tell.swap(withheld);
    });
    if (tell) tell();
    auto link = io.lock();
    if (!link || link->dead || number == 0) return;
    link->session.cancel(number);
    link->flush();
  }

  // After everything that was taken has been delivered.
  void after_data(std::function<void()> what) {
    if (!screen) return change(what);
    screen->finish([this, what = std::move(what)] { change(what); });
  }

  bool is_cancelled() {  // by any worker
    std::lock_guard lock(mutex);
    return cancelled;
  }

  // On the home worker: as much of what write() left as the guest's credit allows.
  void push(GuestLink::Io& link) {
    std::unique_lock lock(mutex);
    if (ended || number == 0) return;
    size_t taken = waiting() == 0 ? 0 : link.session.send(number, std::string_view(unsent).substr(unsent_at));
    unsent_at += taken;
    if (waiting() == 0) {
      unsent.clear();
      unsent_at = 0;
    }
    if (waiting() == 0 && close_after) {
      close_after = false;
      link.session.send_eof(number);
    }
    lock.unlock();
    if (taken > 0) bell.ring();
  }
};

std::shared_ptr<GuestLink> GuestLink::start(net::io_context& home, boundary::Link fds,
                                            std::chrono::milliseconds patience,
                                            std::shared_ptr<const Screening> screening) {
  std::shared_ptr<GuestLink> link(new GuestLink(home, std::move(screening)));
  link->io_ = std::make_shared<Io>(home, patience);
  link->io_->fds = std::move(fds);
  // Later: whoever waits for the sandbox to be made does not wait for its descriptors to be watched.
  net::post(home, [io = link->io_] { io->begin(); });
  return link;
}

GuestLink::~GuestLink() { close(); }

void GuestLink::close(Error why) {
  net::post(home_, [io = io_, why = std::move(why)] { io->die(why); });
}

bool GuestLink::closed() const { return io_->dead; }

void GuestLink::may_be_silent(bool silent) {
  net::post(home_, [io = io_, silent] {
    io->silent = silent;
    io->heard = std::chrono::steady_clock::now();
    io->asked.reset();
  });
}

ChannelPtr GuestLink::open(guest::Op op, std::string args, uint32_t window) {
  ChannelPtr channel(new Channel);
  auto state = channel->state_ = std::make_shared<Channel::State>();
  state->io = io_;
  state->home = &home_;
  state->screening = screening_;
  // The guest must always be able to send a whole frame to somebody who waits for one.
  window = std::max<uint32_t>(window, guest::kMaxPayload);
  // What is searched on its way is longer under way.
  if (screening_ && screening_->on()) window = std::max(window, kScreenedWindow);
  state->batch = std::min<uint32_t>(window / 4, window - guest::kMaxPayload);
  if (op == guest::Op::write || op == guest::Op::dial) state->ahead = kAhead;
  net::dispatch(home_, [io = io_, state, op, args = std::move(args), window] {
    if (io->dead) {
      return state->change([&] {
        state->ended = state->eof = true;
        state->error = Error{Code::unavailable, "the sandbox is gone"};
      });
    }
    if (state->is_cancelled()) return;
    io->begin();
    if (io->session.out().size() > kMostUnsent) {
      return state->change([&] {
        state->ended = state->eof = true;
        state->error = Error{Code::unavailable, "the sandbox does not take what it is sent"};
      });
    }
    guest::ChannelCallbacks on;
    on.reply = [state](std::string_view bytes) { state->change([&] { state->reply.emplace(bytes); }); };
    on.data = [state, op](std::string_view bytes) {
      if (Channel::State::is_screened(state, op)) return state->screen->take(bytes);
      state->deliver(std::string(bytes), static_cast<uint32_t>(bytes.size()));
    };
    on.eof = [state] { state->after_data([state] { state->eof = true; }); };
    on.writable = [state, weak = std::weak_ptr(io)] {
      if (auto link = weak.lock()) state->push(*link);
    };
    on.end = [state](Result<std::string_view> end) {
      auto kept = end ? Result<std::string>(*end) : Result<std::string>(std::unexpected(end.error()));
      state->after_data([state, kept = std::move(kept)] {
        if (state->ended) return;  // it was withheld
        state->ended = state->eof = true;
        if (kept)
          state->result = *kept;
        else
          state->error = kept.error();
      });
    };
    if (is_bulk(op)) io->widen();
    state->number = io->session.open(op, args, std::move(on), window, /*manual=*/true);
    state->push(*io);
    io->flush();
    io->watch_it();
  });
  return channel;
}

Task<Result<std::string>> GuestLink::call(guest::Op op, std::string args) {
  ChannelPtr channel = open(op, std::move(args));
  co_return co_await channel->end();
}

Task<Result<std::string>> GuestLink::collect(guest::Op op, std::string args, size_t max) {
  ChannelPtr channel = open(op, std::move(args));
  std::string all;
  for (;;) {
    auto piece = co_await channel->read();
    if (!piece) break;
    if (all.size() + piece->size() > max) co_return fail(Code::exhausted, "the sandbox's answer is too large");
    all += *piece;
  }
  auto end = co_await channel->end();
  if (!end) co_return std::unexpected(std::move(end).error());
  co_return all;
}

// ---- Channel ----

Channel::~Channel() { cancel(); }

void Channel::cancel() {
  auto state = state_;
  {
    std::lock_guard lock(state->mutex);
    if (state->cancelled || state->ended) return;
    state->cancelled = true;
    state->data.clear();
  }
  net::post(*state->home, [state] {
    state->unscreened = true;
    if (auto screen = std::move(state->screen)) screen->drop();
    auto io = state->io.lock();
    if (!io || io->dead || state->number == 0 || state->ended) return;
    // Whatever the guest still sends on its way to the end is thrown away, within the window it was granted.
    io->session.cancel(state->number);
    io->flush();
  });
}

void Channel::belongs_to(std::string command, std::string task, std::function<void()> withheld) {
  std::lock_guard lock(state_->mutex);
  state_->place.command = std::move(command);
  state_->place.task = std::move(task);
  state_->withheld = std::move(withheld);
}

Task<Result<std::string>> Channel::reply() {
  auto state = state_;
  for (;;) {
    uint64_t ticket = state->bell.ticket();
    {
      std::lock_guard lock(state->mutex);
      if (state->reply) co_return *state->reply;
      if (state->ended) {
        if (state->error) co_return std::unexpected(*state->error);
        co_return fail(Code::corrupt, "the sandbox ended an operation without an answer");
      }
    }
    co_await state->bell.wait(ticket);
  }
}

Task<std::optional<std::string>> Channel::read_frame() {
  for (;;) {
    auto frame = co_await take(std::chrono::hours(1), false);
    if (!frame || !frame->empty()) co_return frame;
  }
}

Task<std::optional<std::string>> Channel::read_frame_for(std::chrono::milliseconds time) { return take(time, false); }

Task<std::optional<std::string>> Channel::read() {
  for (;;) {
    auto bytes = co_await take(std::chrono::hours(1), true);
    if (!bytes || !bytes->empty()) co_return bytes;
  }
}

Task<std::optional<std::string>> Channel::read_for(std::chrono::milliseconds time) { return take(time, true); }

Task<std::optional<std::string>> Channel::take(std::chrono::milliseconds time, bool join) {
  auto state = state_;
  auto until = std::chrono::steady_clock::now() + time;
  for (;;) {
    uint64_t ticket = state->bell.ticket();
    std::string piece;
    uint32_t grant = 0;  // not for each small piece: a credit wakes the guest
    {
      std::lock_guard lock(state->mutex);
      while (!state->data.empty() &&
             (piece.empty() || (join && piece.size() + state->data.front().bytes.size() <= kJoined))) {
        if (piece.empty())
          piece = std::move(state->data.front().bytes);
        else
          piece += state->data.front().bytes;
        state->owed += state->data.front().cost;
        state->data.pop_front();
      }
      if (piece.empty() && (state->eof || state->ended)) co_return std::nullopt;
      if (!piece.empty() && state->owed >= state->batch) grant = std::exchange(state->owed, 0);
    }
    if (!piece.empty() && grant == 0) co_return piece;
    if (!piece.empty()) {
      net::post(*state->home, [state, bytes = grant] {
        auto io = state->io.lock();
        if (!io || io->dead || state->ended) return;
        io->session.grant(state->number, bytes);
        io->flush();
      });
      co_return piece;
    }
    auto left = until - std::chrono::steady_clock::now();
    if (left.count() <= 0) co_return std::string();
    (void)co_await state->bell.wait_for(ticket, left);
  }
}

Task<Result<std::string>> Channel::end() {
  auto state = state_;
  for (;;) {
    uint64_t ticket = state->bell.ticket();
    {
      std::lock_guard lock(state->mutex);
      if (state->ended) {
        if (state->error) co_return std::unexpected(*state->error);
        co_return state->result.value_or("");
      }
    }
    co_await state->bell.wait(ticket);
  }
}

std::optional<Error> Channel::kept_back() const {
  std::lock_guard lock(state_->mutex);
  return state_->kept_back ? state_->error : std::nullopt;
}

Task<Result<void>> Channel::write(std::string_view bytes) {
  auto state = state_;
  {
    std::lock_guard lock(state->mutex);
    if (!state->ended) state->add_unsent(bytes);
  }
  auto push = [state] {
    if (auto io = state->io.lock(); io && !io->dead) {
      state->push(*io);
      io->flush();
    }
  };
  net::dispatch(*state->home, push);
  for (;;) {
    uint64_t ticket = state->bell.ticket();
    {
      std::lock_guard lock(state->mutex);
      if (state->waiting() == 0) co_return Result<void>();
      if (state->ended) {
        if (state->error) co_return std::unexpected(*state->error);
        co_return fail(Code::unavailable, "the sandbox no longer takes input here");
      }
      if (state->waiting() <= state->ahead) co_return Result<void>();
    }
    co_await state->bell.wait(ticket);
  }
}

void Channel::close_write() {
  auto state = state_;
  net::post(*state->home, [state] {
    {
      std::lock_guard lock(state->mutex);
      state->close_after = true;
    }
    if (auto io = state->io.lock(); io && !io->dead) {
      state->push(*io);
      io->flush();
    }
  });
}

}  // namespace isola::sandbox
