#include "gate/hello_walk.h"

#include <algorithm>
#include <utility>

namespace isola::gate {

namespace {

constexpr uint8_t kChange = 20, kAlert = 21, kHandshake = 22, kData = 23;
constexpr uint8_t kServerHello = 2;
constexpr size_t kWalkedHead = 5, kMostRecord = (1 << 14) + 256;

// What stands for a random number in a hello that asks for another one (RFC 8446, 4.1.3).
constexpr unsigned char kRetry[32] = {0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c,
                                      0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb,
                                      0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c};

uint8_t at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

}  // namespace

void HelloWalk::wrong(Problem problem, std::string detail) {
  problem_ = problem;
  detail_ = std::move(detail);
}

void HelloWalk::client(std::string_view bytes) {
  while (problem_ == Problem::none && !bytes.empty()) {
    if (over()) return;
    if (hello_) {
      hello_->feed(bytes);
      bytes.remove_prefix(bytes.size() - hello_->unread());
      judge();
      continue;
    }
    if (skip_ > 0) {
      size_t take = std::min(skip_, bytes.size());
      bytes.remove_prefix(take);
      skip_ -= take;
      continue;
    }
    if (head_.empty() && at(bytes, 0) == kHandshake) {
      hello_ = std::make_unique<ClientHelloReader>();
      continue;
    }
    head_.push_back(bytes[0]);
    bytes.remove_prefix(1);
    uint8_t kind = at(head_, 0);
    if (kind != kChange && kind != kAlert && kind != kData) return wrong(Problem::bad, "not a record behind the hello");
    if (head_.size() == 2 && at(head_, 1) != 3) return wrong(Problem::bad, "an odd version behind the hello");
    if (head_.size() < kWalkedHead) continue;
    skip_ = size_t{at(head_, 3)} << 8 | at(head_, 4);
    if (skip_ > kMostRecord) return wrong(Problem::bad, "a record of odd size behind the hello");
    head_.clear();
  }
}

void HelloWalk::judge() {
  switch (hello_->state()) {
    case ClientHelloReader::State::more: return;
    case ClientHelloReader::State::not_tls:
    case ClientHelloReader::State::bad: return wrong(Problem::bad, hello_->problem());
    case ClientHelloReader::State::done: break;
  }
  const auto& hello = hello_->hello();
  if (hello.ech) return wrong(Problem::hidden, "");
  if (hello.server_name != name_) return wrong(Problem::differs, hello.server_name);
  hello_.reset();
  again_ = true;
}

void HelloWalk::server(std::string_view beginning, bool all) {
  if (answer_ != Answer::unknown || beginning.empty()) {
    if (all && answer_ == Answer::unknown) answer_ = Answer::taken;
    return;
  }
  if (at(beginning, 0) != kHandshake) {
    answer_ = Answer::taken;  // an alert, or no TLS at all: there is no second hello to this
    return;
  }
  if (beginning.size() >= kWalkedHead + 1) {
    if (at(beginning, kWalkedHead) != kServerHello) {
      answer_ = Answer::taken;
      return;
    }
    // No server cuts its hello up before the random bytes; one that did would hide from us what it says.
    if ((size_t{at(beginning, 3)} << 8 | at(beginning, 4)) < kServerBytes - kWalkedHead)
      return wrong(Problem::bad, "the server's hello is in pieces");
  }
  if (beginning.size() < kServerBytes) {
    if (all) answer_ = Answer::taken;
    return;
  }
  bool retry = std::equal(std::begin(kRetry), std::end(kRetry), beginning.begin() + kServerBytes - sizeof kRetry,
                          [](unsigned char a, char b) { return a == static_cast<unsigned char>(b); });
  answer_ = retry ? Answer::retry : Answer::taken;
}

}  // namespace isola::gate
