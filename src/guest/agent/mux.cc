#include "guest/agent/mux.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "guest/naming.h"

namespace isola::guest {

bool Stage::open() {
  constexpr int kWide = 512 << 10;
  constexpr int kWorth = 256 << 10;
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) return false;
  read_ = Fd(fds[0]);
  write_ = Fd(fds[1]);
  int size = ::fcntl(write_.get(), F_SETPIPE_SZ, kWide);
  if (size < kWorth) {
    close();
    return false;
  }
  slots_ = static_cast<size_t>(size) / 4096;
  return true;
}

ssize_t Stage::take(int file, uint64_t at, size_t most) {
  auto from = static_cast<off_t>(at);
  ssize_t n = ::splice(file, &from, write_.get(), nullptr, most, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
  if (n <= 0) return n;
  portions_.emplace_back(n, slots(static_cast<size_t>(n)));
  used_ += portions_.back().second;
  return n;
}

ssize_t Stage::move(int out, size_t most) {
  ssize_t n = ::splice(read_.get(), nullptr, out, nullptr, most, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
  if (n <= 0) return n;
  auto& first = portions_.front();  // no portion is larger than its tail
  first.first -= std::min(first.first, static_cast<size_t>(n));
  if (first.first == 0) {
    used_ -= first.second;
    portions_.pop_front();
  }
  return n;
}

size_t Channel::room() const {
  if (!mux_->may_queue() || finished_) return 0;
  return std::min<uint64_t>(credit_, kMaxPayload);
}

void Channel::reply(std::string_view bytes) { mux_->put(id_, Type::reply, bytes); }

void Channel::send(std::string_view a, std::string_view b) {
  credit_ -= std::min<uint64_t>(credit_, a.size() + b.size());
  mux_->put(id_, Type::data, a, b);
}

ssize_t Channel::send_file(int fd, uint64_t at, size_t most) {
  ssize_t n = mux_->put_file(id_, fd, at, most);
  if (n > 0) credit_ -= std::min<uint64_t>(credit_, static_cast<uint64_t>(n));
  return n;
}

void Channel::send_eof() { mux_->put(id_, Type::eof, {}); }

void Channel::grant(uint32_t bytes) {
  owed_ += bytes;
  if (owed_ < kGuestWindow / 2 || finished_) return;
  window_ += owed_;
  Writer out;
  out.u32(owed_);
  owed_ = 0;
  mux_->put(id_, Type::credit, out.data());
}

void Channel::schedule() { mux_->schedule(this); }

void Channel::finish(Result<std::string> result) {
  if (!finished_) mux_->end_channel(this, result);
}

void Mux::begin(std::string_view sandbox_id, uint32_t generation, std::string_view preface) {
  parser_.reset();
  for (auto& [id, channel] : channels_) {
    channel->finished_ = true;
    graveyard_.push_back(std::move(channel));
  }
  channels_.clear();
  pending_.clear();
  ready_.clear();
  pending_bytes_ = 0;
  out_ = preface;
  held_.clear();
  tails_.clear();
  stage_.close();
  after_ = 0;
  out_at_ = 0;
  broken_ = quiesced_ = false;
  put_frame(out_, 0, Type::hello, encode(Hello{.id = std::string(sandbox_id), .generation = generation}));
}

void Mux::feed(std::string_view bytes) {
  Frame frame;
  while (!broken_) {
    auto more = parser_.next(bytes, frame);
    if (!more) broken_ = true;
    if (!more || !*more) return;
    handle(frame);
  }
}

void Mux::put(uint32_t channel, Type type, std::string_view a, std::string_view b) {
  if (broken_) return;
  put_frame(quiesced_ ? held_ : queue(), channel, type, a, b);
  if (!quiesced_ && !tails_.empty()) after_ += kHeader + a.size() + b.size();
}

ssize_t Mux::put_file(uint32_t channel, int fd, uint64_t at, size_t most) {
  if (!files_ || broken_ || quiesced_) return -1;
  if (!stage_.has_room(most)) {
    files_ = tails_.empty() && stage_.open();
    if (!files_) return -1;
  }
  ssize_t n = stage_.take(fd, at, std::min(most, kMaxPayload));
  if (n <= 0) return n;
  put_head(queue(), channel, Type::data, static_cast<size_t>(n));
  if (!tails_.empty()) after_ += kHeader;
  tails_.push_back({static_cast<size_t>(n), {}});
  return n;
}

void Mux::handle(const Frame& frame) {
  if (frame.type == kNaming) {
    if (on_naming)
      on_naming(frame.payload);
    else
      broken_ = true;
    return;
  }
  Reader in(frame.payload);
  auto found = channels_.find(frame.channel);
  Channel* channel = found == channels_.end() ? nullptr : found->second.get();
  switch (frame.type) {
    case Type::open: {
      uint8_t op = in.u8();
      uint32_t window = in.u32();
      uint8_t more = in.u8();
      if (!in.ok() || more > 1 || channel || pending_.contains(frame.channel)) {
        broken_ = true;
        return;
      }
      Op known = op < static_cast<uint8_t>(Op::count_) ? static_cast<Op>(op) : Op::none;
      if (channels_.size() + pending_.size() >= kMaxChannels) {
        return end_with(frame.channel, fail(Code::exhausted, "too many operations at once in this sandbox"));
      }
      if (!more) return open(frame.channel, known, window, in.rest());
      auto& waiting = pending_[frame.channel] = {known, window, std::string(in.rest())};
      pending_bytes_ += waiting.args.size();
      return;
    }
    case Type::args: {
      uint8_t more = in.u8();
      auto at = pending_.find(frame.channel);
      if (at == pending_.end()) return;  // refused before: the rest of it is still under way
      auto rest = in.rest();
      if (!in.ok() || at->second.args.size() + rest.size() > kMaxArgs || pending_bytes_ + rest.size() > 2 * kMaxArgs) {
        pending_bytes_ -= std::min(pending_bytes_, at->second.args.size());
        pending_.erase(at);
        return end_with(frame.channel, fail(Code::exhausted, "the arguments are larger than 16 MiB", E2BIG));
      }
      at->second.args.append(rest);
      pending_bytes_ += rest.size();
      if (more) return;
      Pending whole = std::move(at->second);
      pending_.erase(at);
      pending_bytes_ -= std::min(pending_bytes_, whole.args.size());
      return open(frame.channel, whole.op, whole.window, whole.args);
    }
    case Type::data:
      if (!channel || channel->host_eof_) return;
      if (frame.payload.size() > channel->window_) {
        broken_ = true;  // the host does not keep its own rules: nothing it says can be relied on
        return;
      }
      channel->window_ -= frame.payload.size();
      return channel->on_data(frame.payload);
    case Type::credit: {
      uint32_t n = in.u32();
      if (!in.done()) {
        broken_ = true;
      } else if (channel) {
        channel->credit_ += n;
        schedule(channel);
      }
      return;
    }
    case Type::eof:
      if (!channel || channel->host_eof_) return;
      channel->host_eof_ = true;
      return channel->on_eof();
    case Type::cancel:
      if (channel) return end_channel(channel, fail(Code::unavailable, "cancelled"));
      if (auto at = pending_.find(frame.channel); at != pending_.end()) {
        pending_bytes_ -= std::min(pending_bytes_, at->second.args.size());
        pending_.erase(at);
        end_with(frame.channel, fail(Code::unavailable, "cancelled"));
      }
      return;
    case Type::hello:
    case Type::reply:
    case Type::end: broken_ = true; return;
  }
}

void Mux::open(uint32_t id, Op op, uint32_t window, std::string_view args) {
  if (op == Op::quiesce) {
    end_with(id, std::string());
    quiesced_ = true;
    return;
  }
  if (op == Op::go_on) {
    if (on_go_on) on_go_on(args);
    quiesced_ = false;
    queue() += held_;
    if (!tails_.empty()) after_ += held_.size();
    held_ = {};
    return end_with(id, std::string());
  }
  auto opened = opener_(op, args);
  if (!opened) return end_with(id, std::unexpected(std::move(opened).error()));
  if (!opened->channel) return end_with(id, std::move(opened->result));
  Channel* channel = opened->channel.get();
  channel->mux_ = this;
  channel->id_ = id;
  channel->credit_ = window;
  channels_[id] = std::move(opened->channel);
  if (!opened->result.empty()) put(id, Type::reply, opened->result);
  schedule(channel);
}

void Mux::end_with(uint32_t id, const Result<std::string>& result) {
  if (result) return put(id, Type::end, "\1", *result);
  put(id, Type::end, encode_error(result.error()));
}

void Mux::end_channel(Channel* channel, const Result<std::string>& result) {
  channel->finished_ = true;
  end_with(channel->id_, result);
  auto at = channels_.find(channel->id_);
  graveyard_.push_back(std::move(at->second));
  channels_.erase(at);
}

void Mux::schedule(Channel* channel) {
  if (channel->ready_ || channel->finished_) return;
  channel->ready_ = true;
  ready_.push_back(channel->id_);
}

void Mux::run_ready() {
  for (size_t n = ready_.size(); n > 0 && has_ready(); --n) {
    uint32_t id = ready_.front();
    ready_.pop_front();
    auto at = channels_.find(id);
    if (at == channels_.end()) continue;
    Channel* channel = at->second.get();
    channel->ready_ = false;
    // A channel that found the queue full has no other event to wait for: it is called again when there is room.
    if (channel->step() == Channel::Step::again || !may_queue()) schedule(channel);
  }
}

void Mux::relax() {
  if (out_.empty() && out_.capacity() > (16 << 10)) out_.shrink_to_fit();
  if (tails_.empty()) stage_.close();
}

void Mux::sent(size_t bytes) {
  if (out().empty() && !tails_.empty()) {
    auto& tail = tails_.front();
    tail.left -= std::min(tail.left, bytes);
    if (tail.left > 0) return;
    out_ = std::move(tail.after);
    out_at_ = 0;
    after_ -= out_.size();
    tails_.pop_front();
    return;
  }
  out_at_ += bytes;
  if (out_at_ == out_.size()) {
    out_.clear();
    out_at_ = 0;
  } else if (out_at_ > kOutSoft) {
    out_.erase(0, out_at_);
    out_at_ = 0;
  }
}

}  // namespace isola::guest
