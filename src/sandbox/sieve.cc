#include "sandbox/sieve.h"

#include <set>

namespace isola::sandbox {

struct Sieve::State {
  std::mutex mutex;
  Bell bell;
  std::string out;
  uint64_t fed = 0, seen = 0, decided = 0;
  std::optional<Error> failed;
  std::set<std::string> told;  // bindings
};

Sieve::Sieve(BoxPtr box, std::string stream)
    : box_(std::move(box)), name_(std::move(stream)), state_(std::make_shared<State>()) {}
Sieve::~Sieve() = default;

Task<Result<std::string>> Sieve::pass(std::string_view bytes) {
  // What follows may take its time: a few bytes that are held back are let go at once.
  return ask(bytes, ScanStream::kIdle);
}

Task<Result<std::string>> Sieve::end() { return ask({}, ScanStream::kEnd); }

Task<Result<std::string>> Sieve::ask(std::string_view bytes, uint8_t flags) {
  const auto& screening = box_->screening();
  if (!stream_ && (!screening || !screening->on())) co_return std::string(bytes);
  auto state = state_;
  if (!stream_) {
    auto handler = [state, screening, name = name_](ScanStream::Progress& progress) {
      for (const auto& found : progress.found)
        if (state->told.insert(found.binding).second) screening->report(found, {.stream = name});
      {
        std::lock_guard lock(state->mutex);
        for (auto& passed : progress.passed) state->out += passed.bytes;
        if (progress.failed) {
          state->failed = progress.failed;
        } else {
          state->seen = progress.seen;
          state->decided = progress.decided;
        }
      }
      state->bell.ring();
    };
    ISOLA_CO_TRY(stream_, screening->open(box_->home(), std::move(handler)));
    if (!stream_) co_return std::string(bytes);
  }
  while (bytes.size() > gate::kMaxScanData) {
    stream_->feed(std::string(bytes.substr(0, gate::kMaxScanData)));
    state->fed += gate::kMaxScanData;
    bytes.remove_prefix(gate::kMaxScanData);
  }
  state->fed += bytes.size();
  stream_->feed(std::string(bytes), 0, flags);
  const bool last = (flags & ScanStream::kEnd) != 0;
  for (;;) {
    uint64_t ticket = state->bell.ticket();
    {
      std::lock_guard lock(state->mutex);
      if (state->failed) co_return std::unexpected(*state->failed);
      if (last ? state->decided == state->fed : state->seen == state->fed) co_return std::exchange(state->out, {});
    }
    co_await state->bell.wait(ticket);
  }
}

}  // namespace isola::sandbox
