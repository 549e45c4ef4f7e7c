#include "gate/names.h"

namespace isola::gate {

namespace {

constexpr uint32_t kBase4 = 198u << 24 | 18u << 16, kCount = 1u << 17;

const Network& network4() {
  static const Network network = Network::parse(kSynthetic4).value();
  return network;
}
const Network& network6() {
  static const Network network = Network::parse(kSynthetic6).value();
  return network;
}

// Programs treat x.x.x.0 and x.x.x.255 as something else than a host.
bool usable(uint32_t number) { return (number & 0xff) != 0 && (number & 0xff) != 0xff; }

}  // namespace

Names::Names(uint32_t start, Pool& pool) : share_(pool, {.little = kLittle, .most = kMax}), next_(start % kCount) {}

bool Names::forget_oldest() {
  int tries = 16;
  for (uint32_t number : order_) {
    Entry& oldest = entries_.at(number);
    if (!oldest.waiting.empty() && --tries > 0) continue;
    if (!oldest.waiting.empty()) return false;
    numbers_.erase(oldest.name);
    order_.erase(oldest.used);
    entries_.erase(number);
    share_.give_back();
    return true;
  }
  return false;
}

Names::Entry* Names::find(std::string_view name) {
  auto it = numbers_.find(name);
  if (it == numbers_.end()) return nullptr;
  Entry& entry = entries_.at(it->second);
  touch(entry);
  return &entry;
}

Names::Entry* Names::enter(std::string_view name) {
  if (Entry* known = find(name)) return known;
  // One out, one in, where there is no room for more.
  if (!share_.take() && !(forget_oldest() && share_.take())) return nullptr;
  while (!usable(next_) || entries_.contains(next_)) next_ = (next_ + 1) % kCount;
  uint32_t number = next_;
  next_ = (next_ + 1) % kCount;
  Entry& entry = entries_[number];
  entry.name = name;
  entry.number = number;
  entry.used = order_.insert(order_.end(), number);
  numbers_[entry.name] = number;
  return &entry;
}

Names::Entry* Names::behind(const Address& address) {
  uint32_t number = 0;
  if (address.is_v4()) {
    if (!network4().contains(address)) return nullptr;
    number = address.v4() - kBase4;
  } else {
    if (!network6().contains(address)) return nullptr;
    const auto& b = address.bytes();
    for (size_t i = 8; i < 12; ++i)
      if (b[i] != 0) return nullptr;
    number = uint32_t{b[12]} << 24 | uint32_t{b[13]} << 16 | uint32_t{b[14]} << 8 | b[15];
  }
  auto it = entries_.find(number);
  if (it == entries_.end()) return nullptr;
  touch(it->second);
  return &it->second;
}

bool Names::is_synthetic(const Address& address) {
  return network4().contains(address) || network6().contains(address);
}

Address Names::four(const Entry& entry) { return Address::v4(kBase4 + entry.number); }

Address Names::six(const Entry& entry) {
  auto bytes = Address::parse("fd69:736f:6c61:5359::").value().bytes();
  for (size_t i = 0; i < 4; ++i) bytes[12 + i] = static_cast<uint8_t>(entry.number >> (24 - 8 * i));
  return Address::v6(bytes);
}

}  // namespace isola::gate
