#include "sandbox/scan_link.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/log.h"
#include "gate/scan_ring.h"

namespace isola::sandbox {

namespace net = boost::asio;
using Clock = std::chrono::steady_clock;

namespace {
constexpr auto kLook = std::chrono::milliseconds(250);      // how often it is looked for those that wait too long
constexpr auto kAskAgain = std::chrono::milliseconds(100);  // of a gate that does not know the sandbox yet
constexpr auto kShortPause = std::chrono::milliseconds(20), kLongPause = std::chrono::milliseconds(500);
constexpr int kMostDeaths = 3;            // gates that may die over the same bytes
constexpr size_t kGathered = 16;          // pieces in one message
constexpr int kAtOnce = 64;               // messages of answers
constexpr size_t kWorthLaying = 8 << 10;  // shorter pieces are copied faster than it is told where they are
}  // namespace

// Under the link's mutex.
struct ScanStream::State {
  std::weak_ptr<ScanLink::Inner> link;
  std::shared_ptr<Handler> handler;
  std::vector<std::string> sandboxes;

  struct Chunk {
    std::string bytes;
    size_t head = 0;
    size_t gone = 0;  // of what follows the head: how much has passed
    uint8_t flags = 0;
    size_t size() const { return bytes.size() - head; }
  };
  std::deque<Chunk> chunks;  // that have not passed
  size_t sent = 0;           // how many of them the gate was given
  uint64_t number = 0;       // at this gate; 0: it knows nothing of it
  uint64_t fed = 0, seen = 0, decided = 0;
  std::string context;  // the last bytes that passed though they may be the beginning of a value, as they came
  std::vector<gate::ScanRange> blots;
  bool queued = false, over = false, refused = false;
  int deaths = 0;
  std::string why;                  // it was refused
  Clock::time_point waits_since{};  // of bytes that were not looked at

  bool waits() const { return seen < fed; }
  bool has_more() const { return !over && !refused && sent < chunks.size(); }
};

// One connection. Each worker has one of its own, so that an answer comes to where its stream is read; the first keeps
// the list of them.
struct ScanLink::Inner : std::enable_shared_from_this<ScanLink::Inner> {
  using State = ScanStream::State;
  using StatePtr = std::shared_ptr<State>;

  Inner(net::io_context& context, Connect how, std::chrono::milliseconds time)
      : home(context), connect(std::move(how)), socket(context), timer(context), patience(time) {}

  net::io_context& home;
  const Connect connect;
  std::mutex mutex;  // of all that follows
  net::posix::stream_descriptor socket;
  net::steady_timer timer;
  std::chrono::milliseconds patience;
  bool connected = false, connecting = false, full = false, looking = false, stopped = false;
  uint64_t last_number = 0;
  std::unordered_map<uint64_t, StatePtr> numbered;       // known to this gate
  std::unordered_map<State*, std::weak_ptr<State>> all;  // with something to wait for
  std::deque<StatePtr> ready;                            // with something to send, in turns
  std::vector<uint64_t> cuts;                            // numbers that the gate may forget
  std::unique_ptr<char[]> buffer{new char[gate::kMaxScanMessage]};
  std::optional<gate::ScanRing> ring;                        // of this connection; none: everything goes in messages
  std::map<net::io_context*, std::shared_ptr<Inner>> lines;  // of the first: all others
  // What is to be told when the mutex is free: all of it happens here, on the home worker.
  std::vector<std::pair<std::weak_ptr<ScanStream::Handler>, ScanStream::Progress>> told;

  std::shared_ptr<Inner> line_of(net::io_context& worker) {
    if (&worker == &home) return shared_from_this();
    std::lock_guard lock(mutex);
    auto& line = lines[&worker];
    if (line) return line;
    line = std::make_shared<Inner>(worker, connect, patience);
    line->stopped = stopped;
    return line;
  }

  // ---- out: under the mutex ----

  void enqueue(const StatePtr& stream) {
    if (stream->queued || !stream->has_more()) return;
    stream->queued = true;
    ready.push_back(stream);
  }

  void pump() {
    if (!connected) return begin_connecting();
    while (!full && !cuts.empty()) {
      if (!send_all(gate::encode_cut(cuts.back()))) return;
      cuts.pop_back();
    }
    while (connected && !full && !ready.empty()) {
      StatePtr stream = ready.front();
      if (stream->has_more() && !send_next(stream)) return;
      ready.pop_front();
      stream->queued = false;
      enqueue(stream);  // behind the others
    }
  }

  bool send_next(const StatePtr& stream) {
    if (stream->number == 0) {
      gate::ScanOpen open{.stream = ++last_number,
                          .sandboxes = stream->sandboxes,
                          .offset = stream->decided,
                          .context = stream->context};
      if (!send_all(gate::encode_open(open))) return false;
      stream->number = open.stream;
      numbered[stream->number] = stream;
    }
    gate::ScanData data{.stream = stream->number, .offset = stream->decided};
    for (size_t i = 0; i < stream->sent; ++i) data.offset += stream->chunks[i].size() - stream->chunks[i].gone;
    std::array<iovec, kGathered + 1> parts{};
    size_t count = 1, size = 0;
    for (size_t i = stream->sent; i < stream->chunks.size() && count < parts.size(); ++i, ++count) {
      auto& chunk = stream->chunks[i];
      const size_t length = chunk.size() - chunk.gone;
      if (count > 1 && size + length > gate::kMaxScanData) break;
      parts[count] = {chunk.bytes.data() + chunk.head + chunk.gone, length};
      size += length;
      data.flags = chunk.flags;
      if (chunk.flags) {
        ++count;
        break;
      }
    }
    char* slot = ring && size >= kWorthLaying ? ring->free_slot() : nullptr;
    if (slot) {
      for (size_t i = 1; i < count; ++i) {
        std::memcpy(slot, parts[i].iov_base, parts[i].iov_len);
        slot += parts[i].iov_len;
      }
      if (!send_all(gate::encode_laid(data, size))) return false;
      ring->laid();
    } else {
      std::string head = gate::encode_data_head(data);
      parts[0] = {head.data(), head.size()};
      if (!send_parts(parts.data(), count)) return false;
    }
    stream->sent += count - 1;
    return true;
  }

  // Without it all works, too, only slower.
  void offer_ring() {
    auto made = gate::ScanRing::make();
    if (!made) return log::warn("server", "{}", made.error().text());
    std::string word = gate::encode_ring();
    iovec part{word.data(), word.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* one = CMSG_FIRSTHDR(&message);
    one->cmsg_level = SOL_SOCKET;
    one->cmsg_type = SCM_RIGHTS;
    one->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = made->fd().get();
    std::memcpy(CMSG_DATA(one), &fd, sizeof fd);
    if (::sendmsg(socket.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) ring.emplace(std::move(*made));
  }

  bool send_all(std::string bytes) {
    iovec part{bytes.data(), bytes.size()};
    return send_parts(&part, 1);
  }

  // False: it was not taken, and is to be sent again.
  bool send_parts(iovec* parts, size_t count) {
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    ssize_t n = -1;
    do n = ::sendmsg(socket.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n >= 0) return true;
    if (errno != EAGAIN && errno != ENOBUFS) {
      // Whoever reads there hears of it, too, and sees to the rest.
      full = true;
      ::shutdown(socket.native_handle(), SHUT_RDWR);
      return false;
    }
    full = true;
    socket.async_wait(net::posix::stream_descriptor::wait_write,
                      [self = shared_from_this()](boost::system::error_code error) {
                        if (error) return;
                        std::lock_guard lock(self->mutex);
                        self->full = false;
                        self->pump();
                      });
    return false;
  }

  // ---- the connection: it is made when somebody needs it ----

  void begin_connecting() {
    if (connecting || stopped || ready.empty()) return;
    connecting = true;
    // Not from here: it may begin before this returns, and wants the mutex.
    net::post(home, [self = shared_from_this()] { net::co_spawn(self->home, make_connection(self), net::detached); });
  }

  static Task<void> make_connection(std::shared_ptr<Inner> self) {
    auto pause = kShortPause;
    for (;;) {
      auto made = co_await self->connect();
      {
        std::lock_guard lock(self->mutex);
        if (self->stopped || (!made && self->ready.empty())) {
          self->connecting = false;
          co_return;
        }
        if (made) {
          ::fcntl(made->get(), F_SETFL, ::fcntl(made->get(), F_GETFL) | O_NONBLOCK);
          boost::system::error_code ignored;
          self->socket.assign(made->release(), ignored);
          self->connected = true;
          self->connecting = self->full = false;
          self->cuts.clear();
          self->offer_ring();
          self->read_soon();
          self->pump();
          co_return;
        }
      }
      net::steady_timer wait(self->home, pause);
      co_await wait.async_wait(net::use_awaitable);
      pause = std::min(pause * 2, kLongPause);
    }
  }

  // The gate is gone. What it has not answered is asked of the next one.
  void broken() {
    if (!connected) return;
    connected = false;
    ring.reset();
    boost::system::error_code ignored;
    socket.close(ignored);
    auto known = std::exchange(numbered, {});
    for (auto& [number, stream] : known) {
      if (stream->waits() && ++stream->deaths > kMostDeaths)
        fail_stream(stream, {Code::unavailable, "the gate that searches this output for secrets fails on it"});
      begin_anew(stream);
      enqueue(stream);
    }
    if (!stopped) pump();
  }

  void begin_anew(const StatePtr& stream) {
    stream->number = 0;
    stream->sent = 0;
    if (!stream->waits()) stream->waits_since = Clock::now();
    stream->seen = stream->decided;
    watch(stream);
  }

  // For as long as it has something that was not looked at.
  void watch(const StatePtr& stream) {
    if (!stream->waits() || stream->over) return;
    all.emplace(stream.get(), stream);
    look_soon();
  }

  // ---- back ----

  void read_soon() {
    socket.async_wait(net::posix::stream_descriptor::wait_read,
                      [self = shared_from_this()](boost::system::error_code error) {
                        if (!error) self->read();
                      });
  }

  void read() {
    std::unique_lock lock(mutex);
    for (int i = 0; i < kAtOnce && connected; ++i) {
      ssize_t n = ::recv(socket.native_handle(), buffer.get(), gate::kMaxScanMessage, MSG_DONTWAIT | MSG_TRUNC);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) break;
      if (n <= 0 || static_cast<size_t>(n) > gate::kMaxScanMessage || !take({buffer.get(), static_cast<size_t>(n)}))
        broken();
    }
    if (connected) read_soon();
    tell_all(lock);
  }

  bool take(std::string_view message) {
    Reader in(message);
    while (in.ok() && !in.done()) {
      gate::ScanReply reply;
      decode(in, reply);
      if (!in.ok()) return false;
      if (reply.what == gate::ScanAnswer::taken) {
        if (!ring || !ring->taken(reply.seen)) return false;
        continue;
      }
      auto at = numbered.find(reply.stream);
      if (at == numbered.end()) continue;  // we have left already
      StatePtr stream = at->second;
      switch (reply.what) {
        case gate::ScanAnswer::decided:
          if (!decided(stream, reply)) return false;
          break;
        case gate::ScanAnswer::unready:
          numbered.erase(at);
          unready(stream, std::move(reply.why));
          break;
        case gate::ScanAnswer::blocked: {
          numbered.erase(at);
          stream->number = 0;
          std::string secret = reply.found.empty() ? "" : reply.found.front().secret;
          fail_stream(stream,
                      {Code::denied, "blocked: the value of secret " + secret + " is in what the sandbox sends here"},
                      std::move(reply.found));
          break;
        }
        default: return false;
      }
    }
    return in.done();
  }

  // The gate is believed within what it was given, and in nothing else.
  bool decided(const StatePtr& stream, gate::ScanReply& reply) {
    if (reply.decided < stream->decided || reply.seen < stream->seen || reply.decided > reply.seen ||
        reply.seen > stream->fed || reply.context > gate::kMaxScanContext)
      return false;
    stream->seen = reply.seen;
    stream->deaths = 0;
    stream->why.clear();
    stream->waits_since = Clock::now();
    stream->blots.insert(stream->blots.end(), reply.blots.begin(), reply.blots.end());
    ScanStream::Progress progress;
    pass(*stream, reply.decided, reply.context, progress.passed);
    progress.found = std::move(reply.found);
    progress.fed = stream->fed, progress.seen = stream->seen, progress.decided = stream->decided;
    tell(stream, std::move(progress));
    return true;
  }

  // Lets go of what is decided, blotted out where it must be.
  static void pass(State& stream, uint64_t decided, size_t context, std::vector<ScanStream::Passed>& out) {
    std::string kept;  // as it came
    while (!stream.chunks.empty()) {
      auto& chunk = stream.chunks.front();
      const size_t left = chunk.size() - chunk.gone;
      const auto n = static_cast<size_t>(std::min<uint64_t>(left, decided - stream.decided));
      if (stream.sent == 0 || (n == 0 && left > 0)) break;
      char* from = chunk.bytes.data() + chunk.head + chunk.gone;
      if (context > 0) {
        kept.append(from, n);
        if (kept.size() > 2 * gate::kMaxScanContext) kept.erase(0, kept.size() - gate::kMaxScanContext);
      }
      for (const auto& blot : stream.blots) {
        const uint64_t begin = std::max(blot.offset, stream.decided);
        const uint64_t end = std::min(blot.offset + blot.length, stream.decided + n);
        if (begin < end) std::memset(from + (begin - stream.decided), '*', end - begin);
      }
      stream.decided += n;
      if (n < left) {
        out.push_back({std::string(from, n), 0});
        chunk.gone += n;
        break;
      }
      if (chunk.gone == 0 && !chunk.bytes.empty())
        out.push_back({std::move(chunk.bytes), chunk.head});
      else if (n > 0)
        out.push_back({std::string(from, n), 0});
      stream.chunks.pop_front();
      --stream.sent;
    }
    std::erase_if(stream.blots, [&](const auto& blot) { return blot.offset + blot.length <= stream.decided; });
    if (context == 0) {
      stream.context.clear();
    } else {
      stream.context += kept;
      if (stream.context.size() > context) stream.context.erase(0, stream.context.size() - context);
    }
  }

  void unready(const StatePtr& stream, std::string why) {
    begin_anew(stream);
    stream->why = std::move(why);
    stream->refused = true;  // until it is tried again
    auto again = std::make_shared<net::steady_timer>(home, kAskAgain);
    again->async_wait([self = shared_from_this(), again, weak = std::weak_ptr(stream)](boost::system::error_code) {
      std::lock_guard lock(self->mutex);
      auto waiting = weak.lock();
      if (!waiting) return;
      waiting->refused = false;
      self->enqueue(waiting);
      self->pump();
    });
  }

  void fail_stream(const StatePtr& stream, Error why, std::vector<gate::ScanFound> found = {}) {
    if (std::exchange(stream->over, true)) return;
    stream->chunks.clear();
    stream->sent = 0;
    ScanStream::Progress progress;
    progress.found = std::move(found);
    progress.failed = std::move(why);
    tell(stream, std::move(progress));
  }

  void tell(const StatePtr& stream, ScanStream::Progress progress) {
    if (stream->handler) told.emplace_back(stream->handler, std::move(progress));
  }
  void tell_all(std::unique_lock<std::mutex>& lock) {
    auto now = std::exchange(told, {});
    lock.unlock();
    for (auto& [handler, progress] : now)
      if (auto there = handler.lock()) (*there)(progress);
  }

  // ---- time ----

  void look_soon() {
    if (std::exchange(looking, true) || stopped) return;
    net::post(home, [self = shared_from_this()] {
      self->timer.expires_after(kLook);
      self->timer.async_wait([self](boost::system::error_code error) {
        if (!error) self->look();
      });
    });
  }

  void look() {
    std::unique_lock lock(mutex);
    looking = false;
    const auto now = Clock::now();
    for (auto it = all.begin(); it != all.end();) {
      auto stream = it->second.lock();
      if (stream && !stream->over && stream->waits() && now - stream->waits_since >= patience) {
        std::string why =
            "this output cannot be searched for the secrets that are bound to the sandbox, and is withheld: ";
        fail_stream(stream,
                    {Code::unavailable, why + (stream->why.empty() ? "the gate does not answer" : stream->why)});
      }
      if (!stream || stream->over || !stream->waits())
        it = all.erase(it);
      else
        ++it;
    }
    if (!all.empty()) look_soon();
    tell_all(lock);
  }

  void stop() {
    net::post(home, [self = shared_from_this()] {
      std::unique_lock lock(self->mutex);
      if (std::exchange(self->stopped, true)) return;
      self->broken();
      self->timer.cancel();
      auto others = std::exchange(self->lines, {});
      self->tell_all(lock);
      for (auto& [worker, line] : others) line->stop();
    });
  }
};

// ---- handles --------------------------------------------------------------------------------------------------------

ScanStream::~ScanStream() {
  auto link = state_->link.lock();
  if (!link) return;
  std::lock_guard lock(link->mutex);
  state_->over = true;
  state_->handler.reset();
  state_->chunks.clear();
  state_->sent = 0;
  link->all.erase(state_.get());
  if (state_->number == 0) return;
  link->numbered.erase(state_->number);
  link->cuts.push_back(state_->number);
  if (link->connected) link->pump();
}

void ScanStream::feed(std::string bytes, size_t head, uint8_t flags) {
  auto link = state_->link.lock();
  if (!link) return;
  std::lock_guard lock(link->mutex);
  if (state_->over) return;
  auto& chunks = state_->chunks;
  const size_t size = bytes.size() - head;
  // With what waits to be sent, where there is something.
  if (bytes.empty() && state_->sent < chunks.size() && chunks.back().flags == 0) {
    chunks.back().flags = flags;
    return;
  }
  if (!state_->waits()) state_->waits_since = Clock::now();
  state_->fed += size;
  link->watch(state_);
  chunks.push_back({std::move(bytes), head, 0, flags});
  link->enqueue(state_);
  link->pump();
}

std::shared_ptr<ScanLink> ScanLink::make(net::io_context& home, Connect connect, std::chrono::milliseconds patience) {
  std::shared_ptr<ScanLink> link(new ScanLink);
  link->inner_ = std::make_shared<Inner>(home, std::move(connect), patience);
  return link;
}

ScanLink::~ScanLink() { stop(); }

void ScanLink::stop() { inner_->stop(); }

void ScanLink::set_patience(std::chrono::milliseconds patience) {
  std::lock_guard lock(inner_->mutex);
  inner_->patience = patience;
  for (auto& [worker, line] : inner_->lines) {
    std::lock_guard its(line->mutex);
    line->patience = patience;
  }
}

std::unique_ptr<ScanStream> ScanLink::open(std::vector<std::string> sandboxes, net::io_context& home,
                                           ScanStream::Handler handler) {
  std::unique_ptr<ScanStream> stream(new ScanStream);
  auto state = stream->state_ = std::make_shared<ScanStream::State>();
  state->link = inner_->line_of(home);
  state->handler = std::make_shared<ScanStream::Handler>(std::move(handler));
  state->sandboxes = std::move(sandboxes);
  return stream;
}

}  // namespace isola::sandbox
