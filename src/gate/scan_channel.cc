#include "gate/scan_channel.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace isola::gate {

namespace {

constexpr int kFramesAtOnce = 32;         // messages; then it is somebody else's turn
constexpr size_t kAnswerSize = 32 << 10;  // a message of answers that is as long is not added to
constexpr size_t kMostRanges = 4096;      // in one answer
constexpr size_t kMostAnswers = 256;      // messages that wait to be taken
constexpr size_t kMostFound = 64;         // told in one answer

// Appends, joined with the last one where they touch: many spellings of a value cover the same bytes.
void add_blot(std::vector<ScanRange>& blots, uint64_t from, uint64_t to) {
  if (!blots.empty()) {
    auto& last = blots.back();
    uint64_t end = last.offset + last.length;
    if (from <= end && to >= last.offset) {
      uint64_t first = std::min(from, last.offset);
      last.length = static_cast<uint32_t>(std::max(to, end) - first);
      last.offset = first;
      return;
    }
  }
  // So many of them: what lies between goes with them.
  if (blots.size() >= kMostRanges) {
    auto& last = blots.back();
    uint64_t first = std::min(from, last.offset), end = std::max(to, last.offset + last.length);
    last.offset = first;
    last.length = static_cast<uint32_t>(end - first);
    return;
  }
  blots.push_back({from, static_cast<uint32_t>(to - from)});
}

}  // namespace

// ---- one stream -----------------------------------------------------------------------------------------------------

ScanJob::ScanJob(std::vector<std::shared_ptr<const Searches>> owners, uint64_t offset, std::string_view context)
    : owners_(std::move(owners)), current_(owners_.size()), seen_(offset - context.size()) {
  if (context.empty()) return;
  // These went on already: nothing of them is blotted out any more, and what follows them may be.
  renew();
  ScanReply ignored;
  for (auto& pass : passes_) {
    look(pass, context, ignored);
    pass.stream.let_go();
  }
  seen_ = offset;
}

// A search that is new begins here. The one that it replaces goes on until it holds nothing back.
void ScanJob::renew() {
  for (size_t i = 0; i < owners_.size(); ++i) {
    const auto& automaton = owners_[i]->automaton();
    if (automaton == current_[i]) continue;
    current_[i] = automaton;
    if (!automaton) continue;
    passes_.push_back({.owner = i, .automaton = automaton, .stream = scan::Stream(automaton), .base = seen_});
  }
  std::erase_if(passes_,
                [&](const Pass& pass) { return pass.stream.held() == 0 && current_[pass.owner] != pass.automaton; });
}

void ScanJob::look(Pass& pass, std::string_view bytes, ScanReply& reply) {
  hits_.clear();
  pass.stream.feed(bytes, hits_);
  for (const auto& hit : hits_) {
    const uint64_t offset = pass.base + hit.offset;
    add_blot(reply.blots, offset, offset + hit.length);
    const std::string& id = pass.automaton->id_of(hit.value);
    auto same = std::ranges::find_if(
        reply.found, [&](const ScanFound& found) { return found.binding == id && found.form == hit.form; });
    if (same != reply.found.end()) {
      ++same->count;
      continue;
    }
    const auto& target = owners_[pass.owner]->target(id);
    if (reply.found.size() >= kMostFound && !target.blocks) continue;
    reply.found.push_back({.binding = id, .secret = target.secret, .form = hit.form, .offset = offset});
    if (target.blocks && !blocked_) blocked_ = reply.found.back();
  }
}

uint64_t ScanJob::decided() const {
  uint64_t least = seen_;
  for (const auto& pass : passes_) least = std::min(least, pass.decided());
  return least;
}

bool ScanJob::feed(const ScanData& data, ScanReply& reply) {
  if (data.offset != seen_) return false;
  renew();
  for (auto& pass : passes_) look(pass, data.bytes, reply);
  seen_ += data.bytes.size();
  for (auto& pass : passes_) {
    if (data.flags & ScanData::kEnd) {
      pass.stream.end();
    } else if (data.flags & ScanData::kPress) {
      if (pass.decided() < seen_) add_blot(reply.blots, pass.decided(), seen_);
      pass.stream.let_go();
    } else if (data.flags & ScanData::kIdle) {
      pass.stream.idle();
    }
  }
  reply.decided = decided();
  reply.seen = seen_;
  // Of what is decided by all, some may still be a beginning to one of them.
  for (const auto& pass : passes_) {
    const uint64_t begins = pass.base + pass.stream.seen() - pass.stream.held();
    if (begins < reply.decided) reply.context = std::max(reply.context, static_cast<uint32_t>(reply.decided - begins));
  }
  return true;
}

// ---- the channel ----------------------------------------------------------------------------------------------------

Result<std::unique_ptr<ScanChannel>> ScanChannel::make(Loop& loop, Fd socket, Find find, Closed closed) {
  int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) < 0)
    return sys_error("a channel of streams is none");
  std::unique_ptr<ScanChannel> out(new ScanChannel(loop, std::move(socket), std::move(find), std::move(closed)));
  ISOLA_CHECK(loop.add(out->socket_.get(), EPOLLIN, *out));
  return out;
}

ScanChannel::ScanChannel(Loop& loop, Fd socket, Find find, Closed closed)
    : loop_(loop),
      socket_(std::move(socket)),
      find_(std::move(find)),
      closed_(std::move(closed)),
      buffer_(new char[kMaxScanMessage + kMaxScanContext]) {}

ScanChannel::~ScanChannel() = default;

void ScanChannel::close() {
  if (!socket_) return;
  socket_.reset();
  jobs_.clear();
  auto closed = std::move(closed_);
  closed(*this);
}

void ScanChannel::on_ready(uint32_t events) {
  if (!socket_) return;
  if (waits_for_room_ && events != 0) flush();
  if (!socket_ || waits_for_room_) return;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0 && events != 0) return;
  const bool more = read_some();
  if (!socket_) return;
  if (ring_ && ring_->taken() != told_) answer({.what = ScanAnswer::taken, .seen = told_ = ring_->taken()});
  flush();
  if (socket_ && more && !waits_for_room_) loop_.again(*this);
}

// A descriptor that comes with any message but the first is dropped by the kernel.
ssize_t ScanChannel::receive() {
  constexpr size_t kMost = kMaxScanMessage + kMaxScanContext;
  if (!first_) return ::recv(socket_.get(), buffer_.get(), kMost, MSG_TRUNC);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec part{buffer_.get(), kMost};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_TRUNC | MSG_CMSG_CLOEXEC);
  if (n < 0) return n;
  first_ = false;
  if (const cmsghdr* one = CMSG_FIRSTHDR(&message);
      one && one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_RIGHTS && one->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(one), sizeof fd);
    brought_ = Fd(fd);
  }
  return n;
}

// Whether there may be more.
bool ScanChannel::read_some() {
  for (int i = 0; i < kFramesAtOnce; ++i) {
    if (answers_.size() >= kMostAnswers) return true;
    const ssize_t n = receive();
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    const auto size = static_cast<size_t>(n);
    if (n <= 0 || size > kMaxScanMessage + kMaxScanContext || !handle({buffer_.get(), size})) {
      if (n > 0) log::error("gate", "a channel of streams said what it cannot say, and is closed");
      close();
      return false;
    }
  }
  return true;
}

bool ScanChannel::handle(std::string_view message) {
  Reader in(message);
  switch (static_cast<ScanOp>(in.u8())) {
    case ScanOp::open: return open(in);
    case ScanOp::data: return data(in, false);
    case ScanOp::laid: return data(in, true);
    case ScanOp::ring: {
      const Fd memory = std::move(brought_);
      if (!in.done() || !memory) return false;
      auto ring = ScanRingView::map(memory);
      if (!ring) return log::error("gate", "{}", ring.error().text()), false;
      ring_.emplace(std::move(*ring));
      return true;
    }
    case ScanOp::cut: {
      uint64_t stream = in.u64();
      if (!in.done()) return false;
      jobs_.erase(stream);
      return true;
    }
  }
  return false;
}

bool ScanChannel::open(Reader& in) {
  ScanOpen asked;
  asked.stream = in.u64();
  asked.sandboxes = in.strs();
  asked.offset = in.u64();
  std::string_view context = in.view();
  if (!in.done() || asked.sandboxes.empty() || asked.sandboxes.size() > kMaxScanned ||
      context.size() > std::min<uint64_t>(kMaxScanContext, asked.offset) || jobs_.contains(asked.stream))
    return false;
  if (jobs_.size() >= kMostStreams) return refuse(asked.stream, "too many streams are open"), true;
  std::vector<std::shared_ptr<const Searches>> owners;
  for (const auto& sandbox : asked.sandboxes) {
    auto searches = find_(sandbox);
    if (!searches) return refuse(asked.stream, "the gate does not know the sandbox yet"), true;
    if (!searches->missing().empty()) return refuse(asked.stream, searches->missing()), true;
    owners.push_back(std::move(searches));
  }
  jobs_.try_emplace(asked.stream, std::move(owners), asked.offset, context);
  return true;
}

bool ScanChannel::data(Reader& in, bool laid) {
  ScanData data;
  data.stream = in.u64();
  data.offset = in.u64();
  data.flags = in.u8();
  if (laid) {
    const uint32_t length = in.u32();
    auto bytes = in.done() && ring_ ? ring_->take(length) : std::nullopt;
    if (!bytes) return false;
    data.bytes = *bytes;
  } else {
    if (!in.ok()) return false;
    data.bytes = in.rest();
    if (data.bytes.size() > kMaxScanData) return false;
  }
  auto job = jobs_.find(data.stream);
  if (job == jobs_.end()) return true;  // refused, and that was told; or it has ended
  ScanReply reply{.stream = data.stream};
  if (!job->second.feed(data, reply)) return false;
  if (const ScanFound* found = job->second.blocked()) {
    ScanReply no{.what = ScanAnswer::blocked, .stream = data.stream, .found = {*found}};
    jobs_.erase(job);
    answer(no);
    return true;
  }
  answer(reply);
  return true;
}

void ScanChannel::refuse(uint64_t stream, std::string why) {
  answer({.what = ScanAnswer::unready, .stream = stream, .why = std::move(why)});
}

void ScanChannel::answer(const ScanReply& reply) {
  Writer out;
  encode(out, reply);
  // Several in one message, as far as it stays small.
  if (answers_.empty() || answers_.back().size() + out.data().size() > kAnswerSize) answers_.emplace_back();
  answers_.back() += out.data();
}

void ScanChannel::flush() {
  size_t sent = 0;
  while (sent < answers_.size()) {
    ssize_t n = ::send(socket_.get(), answers_[sent].data(), answers_[sent].size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return close();
    ++sent;
  }
  answers_.erase(answers_.begin(), answers_.begin() + static_cast<ptrdiff_t>(sent));
  const bool waits = !answers_.empty();
  if (waits == waits_for_room_) return;
  waits_for_room_ = waits;
  // What is not taken is not added to: nothing more is read until there is room.
  if (!loop_.change(socket_.get(), waits ? EPOLLOUT : EPOLLIN, *this)) close();
}

}  // namespace isola::gate
