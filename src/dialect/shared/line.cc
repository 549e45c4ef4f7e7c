#include "dialect/shared/line.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/this_coro.hpp>

namespace isola::dialect {

namespace {

constexpr auto kForEver = std::chrono::hours(24 * 365);
constexpr size_t kEncrypted = 64 << 10;  // of what is written, at a time

class ChannelWire : public Wire {
 public:
  explicit ChannelWire(sandbox::ChannelPtr channel) : channel_(std::move(channel)) {}
  Task<std::optional<std::string>> read_for(std::chrono::milliseconds time) override {
    return channel_->read_for(time);
  }
  Task<std::optional<std::string>> read_frame_for(std::chrono::milliseconds time) override {
    return channel_->read_frame_for(time);
  }
  Task<Result<void>> write(std::string_view bytes) override { return channel_->write(bytes); }
  void close_write() override { channel_->close_write(); }
  void cancel() override { channel_->cancel(); }
  Task<Result<std::string>> end() override { return channel_->end(); }
  std::optional<Error> kept_back() const override { return channel_->kept_back(); }

 private:
  sandbox::ChannelPtr channel_;
};

Task<void> nap(std::chrono::milliseconds time) {
  sandbox::Bell never;
  (void)co_await never.wait_for(never.ticket(), time);
}

}  // namespace

// What is on its way to the service. Whoever empties it holds it, and not the line.
struct Line::Outbox {
  WirePtr wire;
  std::chrono::milliseconds patience{};
  std::string bytes;
  size_t unasked = 0;  // of them, what the reader put there
  bool busy = false;
  std::optional<Error> failed;  // nothing more is taken
  sandbox::Bell bell;
};

WirePtr Line::wire(sandbox::ChannelPtr channel) { return std::make_shared<ChannelWire>(std::move(channel)); }

Line::~Line() {
  if (outbox_ && outbox_->busy) wire_->cancel();
}

Task<Result<LinePtr>> Line::secure(WirePtr wire, sandbox::BoxPtr box, std::string host, Limits limits) {
  auto line = std::make_shared<Line>(std::move(wire));
  ISOLA_CO_TRY(line->tls_, TlsClient::open(host.substr(0, host.find(':'))));
  line->sieve_.emplace(std::move(box), "port");
  line->limits_ = limits;
  line->outbox_ = std::make_shared<Outbox>();
  line->outbox_->wire = line->wire_;
  line->outbox_->patience = limits.take;
  const auto until = std::chrono::steady_clock::now() + limits.shake;
  while (!line->tls_->ready()) {
    co_await line->send();
    if (line->broken_) co_return std::unexpected(*line->broken_);
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    std::optional<std::string> piece;
    if (left.count() > 0) piece = co_await line->wire_->read_for(left);
    if (left.count() <= 0 || (piece && piece->empty())) {
      line->cancel();
      co_return fail(Code::timeout, "TLS: the service inside does not answer");
    }
    if (!piece) co_return fail(Code::unavailable, "TLS: the service inside closed the connection");
    line->tls_->feed(*piece);
    if (auto further = line->tls_->advance(); !further) {
      line->cancel();
      co_return std::unexpected(further.error());
    }
  }
  co_await line->send();
  co_return line;
}

// One at a time: what the other end must not get is two records in each other.
Task<void> Line::empty(std::shared_ptr<Outbox> outbox) {
  using namespace boost::asio::experimental::awaitable_operators;
  while (!outbox->bytes.empty() && !outbox->failed) {
    const std::string bytes = std::exchange(outbox->bytes, {});
    outbox->unasked = 0;
    auto first = co_await (outbox->wire->write(bytes) || nap(outbox->patience));
    if (first.index() == 1)
      outbox->failed = Error{Code::timeout, "the service inside does not take what it is sent"};
    else if (auto& sent = std::get<0>(first); !sent)
      outbox->failed = sent.error();
    if (outbox->failed && first.index() == 1) outbox->wire->cancel();
  }
  outbox->busy = false;
  outbox->bell.ring();
}

Task<void> Line::send() {
  outbox_->bytes += tls_->take();
  if (outbox_->failed || outbox_->bytes.empty() || std::exchange(outbox_->busy, true)) co_return;
  auto here = co_await boost::asio::this_coro::executor;
  boost::asio::co_spawn(here, empty(outbox_), boost::asio::detached);
}

Task<Result<void>> Line::drained() {
  for (;;) {
    const uint64_t ticket = outbox_->bell.ticket();
    if (broken_) co_return std::unexpected(*broken_);
    if (outbox_->failed) co_return std::unexpected(*outbox_->failed);
    if (!outbox_->busy) co_return Result<void>();
    co_await outbox_->bell.wait(ticket);
  }
}

// Both ways end: nobody reads any more, and what is written would be for nobody.
void Line::fail_with(Error why) {
  over_ = true;
  if (!broken_) broken_ = std::move(why);
  cancel();
}

void Line::cancel() {
  if (outbox_ && !outbox_->failed) {
    outbox_->failed = Error{Code::unavailable, "the connection was given up"};
    outbox_->bell.ring();
  }
  wire_->cancel();
}

Task<Result<std::string>> Line::sift(std::string_view text, bool last) {
  Result<std::string> out;
  if (!text.empty()) out = co_await sieve_->pass(text);
  if (!out || !last) co_return out;
  auto rest = co_await sieve_->end();
  if (rest) rest->insert(0, *out);
  co_return rest;
}

Task<std::optional<std::string>> Line::read_secure(std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (!over_) {
    auto text = tls_->read();
    const size_t before = outbox_->bytes.size();
    outbox_->bytes += tls_->take();  // what it answers by itself
    outbox_->unasked += outbox_->bytes.size() - before;
    co_await send();
    const bool last = !text || tls_->closed();
    // What was said before it failed is still true.
    std::string_view said;
    if (text) said = *text;
    auto sifted = co_await sift(said, last);
    if (!sifted)
      fail_with(sifted.error());
    else if (!text)
      fail_with(text.error());
    else if (outbox_->unasked > limits_.unasked)
      fail_with({Code::exhausted, "TLS: the service inside asks for more than it takes"});
    over_ = over_ || last;
    if (sifted && !sifted->empty()) co_return std::move(*sifted);
    if (over_) break;
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) co_return std::string();
    auto piece = co_await wire_->read_for(left);
    if (piece && piece->empty()) co_return std::string();
    if (piece) {
      tls_->feed(*piece);
      continue;
    }
    // Cut, without a word: what was said until then is what there is, unless that was half a word.
    over_ = true;
    std::string_view nothing;
    sifted = co_await sift(nothing, true);
    if (!sifted)
      fail_with(sifted.error());
    else if (tls_->amid())
      fail_with({Code::corrupt, "TLS: the service inside was cut short"});
    if (sifted && !sifted->empty()) co_return std::move(*sifted);
  }
  co_return std::nullopt;
}

Task<std::optional<std::string>> Line::read() { return read_for(kForEver); }

Task<std::optional<std::string>> Line::read_for(std::chrono::milliseconds time) {
  if (!tls_) co_return co_await wire_->read_for(time);
  co_return co_await read_secure(time);
}

Task<std::optional<std::string>> Line::read_frame_for(std::chrono::milliseconds time) {
  if (!tls_) co_return co_await wire_->read_frame_for(time);
  co_return co_await read_secure(time);
}

std::optional<Error> Line::broken() const { return broken_ ? broken_ : wire_->kept_back(); }

Task<Result<void>> Line::write(std::string_view bytes) {
  if (!tls_) co_return co_await wire_->write(bytes);
  while (!bytes.empty()) {
    ISOLA_CO_CHECK(co_await drained());
    const auto piece = bytes.substr(0, kEncrypted);
    ISOLA_CO_CHECK(tls_->write(piece));
    bytes.remove_prefix(piece.size());
    co_await send();
  }
  co_return co_await drained();
}

Task<void> Line::close_write() {
  if (tls_) {
    tls_->close();
    co_await send();
    (void)co_await drained();
  }
  wire_->close_write();
}

Task<Result<std::string>> Line::end() {
  using namespace boost::asio::experimental::awaitable_operators;
  if (!tls_) co_return co_await wire_->end();
  auto first = co_await (wire_->end() || nap(limits_.linger));
  if (first.index() == 0) co_return std::get<0>(std::move(first));
  cancel();
  co_return fail(Code::timeout, "the service inside does not close the connection");
}

}  // namespace isola::dialect
