#include "dialect/shared/line.h"

namespace isola::dialect {

namespace {

constexpr auto kShakeTime = std::chrono::seconds(30);
constexpr auto kForEver = std::chrono::hours(24 * 365);

}  // namespace

Task<Result<LinePtr>> Line::secure(sandbox::ChannelPtr channel, sandbox::BoxPtr box, std::string host) {
  auto line = std::make_shared<Line>(std::move(channel));
  ISOLA_CO_TRY(line->tls_, TlsClient::open(host.substr(0, host.find(':'))));
  line->sieve_.emplace(std::move(box), "port");
  const auto until = std::chrono::steady_clock::now() + kShakeTime;
  while (!line->tls_->ready()) {
    ISOLA_CO_CHECK(co_await line->flush());
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) co_return fail(Code::timeout, "TLS: the service inside does not answer");
    auto piece = co_await line->channel_->read_for(left);
    if (!piece) co_return fail(Code::unavailable, "TLS: the service inside closed the connection");
    line->tls_->feed(*piece);
    ISOLA_CO_CHECK(line->tls_->advance());
  }
  ISOLA_CO_CHECK(co_await line->flush());
  co_return line;
}

// One at a time: what the other end must not get is two records in each other.
Task<Result<void>> Line::flush() {
  out_ += tls_->take();
  if (flushing_) co_return Result<void>();
  struct Busy {
    bool& flag;
    ~Busy() { flag = false; }
  } busy{flushing_};
  flushing_ = true;
  while (!out_.empty()) {
    std::string bytes = std::exchange(out_, {});
    ISOLA_CO_CHECK(co_await channel_->write(bytes));
  }
  co_return Result<void>();
}

Task<std::optional<std::string>> Line::read_secure(std::chrono::milliseconds time) {
  while (!over_) {
    auto text = tls_->read();
    // What it answers by itself, to a change of keys.
    if (auto sent = co_await flush(); !sent || !text) over_ = true;
    Result<std::string> sifted;
    if (text && !text->empty()) sifted = co_await sieve_->pass(*text);
    if (sifted && (over_ || tls_->closed())) {
      over_ = true;
      auto last = co_await sieve_->end();
      if (last) last->insert(0, *sifted);
      sifted = std::move(last);
    }
    if (!sifted) {
      over_ = true;
      kept_back_ = sifted.error();
      co_return std::nullopt;
    }
    if (!sifted->empty()) co_return std::move(*sifted);
    if (over_) break;
    auto piece = co_await channel_->read_for(time);
    if (piece && piece->empty()) co_return std::string();
    if (piece) {
      tls_->feed(*piece);
      continue;
    }
    // Cut, without a word: what was said until then is what there is.
    over_ = true;
    auto last = co_await sieve_->end();
    if (!last) kept_back_ = last.error();
    if (last && !last->empty()) co_return std::move(*last);
  }
  co_return std::nullopt;
}

Task<std::optional<std::string>> Line::read() {
  if (!tls_) co_return co_await channel_->read();
  co_return co_await read_secure(kForEver);
}

Task<std::optional<std::string>> Line::read_for(std::chrono::milliseconds time) {
  if (!tls_) co_return co_await channel_->read_for(time);
  co_return co_await read_secure(time);
}

Task<std::optional<std::string>> Line::read_frame_for(std::chrono::milliseconds time) {
  if (!tls_) co_return co_await channel_->read_frame_for(time);
  co_return co_await read_secure(time);
}

std::optional<Error> Line::kept_back() const { return kept_back_ ? kept_back_ : channel_->kept_back(); }

Task<Result<void>> Line::write(std::string_view bytes) {
  if (!tls_) co_return co_await channel_->write(bytes);
  ISOLA_CO_CHECK(tls_->write(bytes));
  co_return co_await flush();
}

Task<void> Line::close_write() {
  if (tls_) {
    tls_->close();
    (void)co_await flush();
  }
  channel_->close_write();
}

}  // namespace isola::dialect
