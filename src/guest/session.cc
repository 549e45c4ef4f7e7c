#include "guest/session.h"

#include <algorithm>
#include <utility>

namespace isola::guest {

namespace {

constexpr size_t kOpenHeader = 6;  // op, window, more

std::unexpected<Error> broken(const char* what) {
  return fail(Code::corrupt, std::string("the guest broke the rules of the link: ") + what);
}

}  // namespace

uint32_t Session::open(Op op, std::string_view args, ChannelCallbacks callbacks, uint32_t window, bool manual) {
  if (channels_.size() >= kMostOpen) {
    if (callbacks.end) callbacks.end(fail(Code::exhausted, "the sandbox does not end what was asked of it"));
    return 0;
  }
  while (next_ == 0 || channels_.contains(next_)) ++next_;
  uint32_t id = next_++;
  auto channel = std::make_shared<Channel>();
  channel->on = std::move(callbacks);
  window = std::max<uint32_t>(window, kMaxPayload);
  channel->window = window;
  channel->batch = window / 2;
  channel->manual = manual;
  channels_[id] = std::move(channel);

  auto part = args.substr(0, kMaxPayload - kOpenHeader);
  args.remove_prefix(part.size());
  Writer head;
  head.u8(static_cast<uint8_t>(op));
  head.u32(window);
  head.u8(!args.empty());
  put_frame(out_, id, Type::open, head.data(), part);
  while (!args.empty()) {
    part = args.substr(0, kMaxPayload - 1);
    args.remove_prefix(part.size());
    put_frame(out_, id, Type::args, args.empty() ? std::string_view("\0", 1) : "\1", part);
  }
  return id;
}

size_t Session::sendable(uint32_t channel) const {
  auto at = channels_.find(channel);
  return at == channels_.end() || at->second->sent_eof ? 0 : at->second->send_credit;
}

size_t Session::send(uint32_t channel, std::string_view bytes) {
  auto at = channels_.find(channel);
  if (at == channels_.end() || at->second->sent_eof) return bytes.size();  // ended: as if written to nobody
  auto& ch = *at->second;
  size_t taken = std::min<uint64_t>(bytes.size(), ch.send_credit);
  ch.blocked = taken < bytes.size();
  ch.send_credit -= taken;
  for (auto left = bytes.substr(0, taken); !left.empty();) {
    auto part = left.substr(0, kMaxPayload);
    put_frame(out_, channel, Type::data, part);
    left.remove_prefix(part.size());
  }
  return taken;
}

void Session::send_eof(uint32_t channel) {
  auto at = channels_.find(channel);
  if (at == channels_.end() || std::exchange(at->second->sent_eof, true)) return;
  put_frame(out_, channel, Type::eof, {});
}

void Session::cancel(uint32_t channel) {
  auto at = channels_.find(channel);
  if (at == channels_.end() || std::exchange(at->second->cancelled, true)) return;
  at->second->sent_eof = true;
  put_frame(out_, channel, Type::cancel, {});
}

void Session::grant(uint32_t channel, uint32_t bytes) {
  auto at = channels_.find(channel);
  if (at == channels_.end() || bytes == 0 || at->second->cancelled) return;
  at->second->window += bytes;
  Writer n;
  n.u32(bytes);
  put_frame(out_, channel, Type::credit, n.data());
}

Result<void> Session::feed(std::string_view bytes) {
  if (bad_) return broken("it did so before");
  Frame frame;
  for (;;) {
    auto more = parser_.next(bytes, frame);
    auto handled = more && *more ? handle(frame) : Result<void>();
    if (!more || !handled) {
      bad_ = true;
      return std::unexpected(more ? handled.error() : more.error());
    }
    if (!*more) return {};
  }
}

Result<void> Session::greet(const Frame& frame) {
  if (greeted_) return broken("a second hello");
  ISOLA_TRY(Hello hello, decode<Hello>(frame.payload));
  if (hello.magic != kMagic) return broken("not a hello");
  if (hello.version != kVersion) return fail(Code::unsupported, "the guest speaks another version of the link");
  if (hello.id.size() > 64) return broken("an id that is none");
  hello_ = std::move(hello);
  greeted_ = true;
  if (on_hello) on_hello(hello_);
  return {};
}

Result<void> Session::handle(const Frame& frame) {
  if (frame.type == Type::hello) return greet(frame);
  if (!greeted_) return broken("no hello");
  auto at = channels_.find(frame.channel);
  if (at == channels_.end()) return broken("a channel that nobody opened");
  auto channel = at->second;  // a callback may end it
  switch (frame.type) {
    case Type::reply:
      if (std::exchange(channel->replied, true)) return broken("a second reply");
      if (channel->on.reply && !channel->cancelled) channel->on.reply(frame.payload);
      return {};
    case Type::data: {
      if (channel->eof || frame.payload.size() > channel->window) return broken("more data than was granted");
      channel->window -= frame.payload.size();
      if (channel->cancelled) return {};
      if (channel->on.data) channel->on.data(frame.payload);
      if (channel->manual) return {};
      channel->owed += static_cast<uint32_t>(frame.payload.size());
      if (channel->owed >= channel->batch) grant(frame.channel, std::exchange(channel->owed, 0));
      return {};
    }
    case Type::credit: {
      Reader in(frame.payload);
      uint32_t n = in.u32();
      if (!in.done() || channel->send_credit + n > kMostCredit) return broken("a credit that is none");
      channel->send_credit += n;
      if (std::exchange(channel->blocked, false) && channel->on.writable && !channel->cancelled) channel->on.writable();
      return {};
    }
    case Type::eof:
      if (std::exchange(channel->eof, true)) return broken("a second end of file");
      if (channel->on.eof && !channel->cancelled) channel->on.eof();
      return {};
    case Type::end: {
      channels_.erase(frame.channel);
      if (channel->on.end) channel->on.end(decode_end(frame.payload));
      return {};
    }
    default: return broken("a frame that only the host sends");
  }
}

void Session::sent(size_t bytes) {
  out_at_ += bytes;
  if (out_at_ == out_.size()) {
    out_.clear();
    out_at_ = 0;
  } else if (out_at_ > (1U << 20)) {
    out_.erase(0, out_at_);
    out_at_ = 0;
  }
}

void Session::reset(const Error& why) {
  auto channels = std::exchange(channels_, {});
  parser_.reset();
  out_.clear();
  out_at_ = 0;
  greeted_ = bad_ = false;
  for (auto& [id, channel] : channels) {
    if (channel->on.end) channel->on.end(std::unexpected(why));
  }
}

}  // namespace isola::guest
