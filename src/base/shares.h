// How much of something each project has in hand, over all its callers.
//
//   Shares shares(256 << 20);
//   auto share = shares.of("default");
//   size_t granted = share.take(piece.size());       // fewer, or none, when the project has as much as it may have
//   ISOLA_CHECK(share.take_all(body.size(), "…"));    // or all of it, or an error
//
// A Share gives back what it took when it goes. Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.h"

namespace isola {

class Shares {
  using Count = std::atomic<size_t>;

 public:
  explicit Shares(size_t most) : most_(most) {}

  class Share {
   public:
    Share(std::shared_ptr<Count> all, size_t most) : all_(std::move(all)), most_(most) {}
    Share(Share&& other) noexcept
        : all_(std::move(other.all_)), most_(other.most_), mine_(std::exchange(other.mine_, 0)) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() {
      if (all_) *all_ -= mine_;
    }

    size_t take(size_t wanted) {
      size_t before = all_->fetch_add(wanted);
      size_t granted = before >= most_ ? 0 : std::min(wanted, most_ - before);
      *all_ -= wanted - granted;
      mine_ += granted;
      return granted;
    }
    // Code::exhausted: then it has none of it.
    Result<void> take_all(size_t wanted, const std::string& what) {
      const size_t granted = take(wanted);
      if (granted == wanted) return {};
      *all_ -= granted;
      mine_ -= granted;
      return fail(Code::exhausted,
                  what + ": the project has " + std::to_string(most_ >> 20) + " MiB under way already");
    }

   private:
    std::shared_ptr<Count> all_;
    const size_t most_;
    size_t mine_ = 0;
  };

  Share of(const std::string& project) {
    std::lock_guard lock(mutex_);
    // Whoever has nothing in hand is forgotten: a name may be as passing as an address.
    if (counts_.size() >= forget_at_) {
      std::erase_if(counts_, [](const auto& one) { return one.second.expired(); });
      forget_at_ = std::max(kFew, 2 * counts_.size());
    }
    std::weak_ptr<Count>& known = counts_[project];
    auto count = known.lock();
    if (!count) known = count = std::make_shared<Count>(0);
    return Share(std::move(count), most_);
  }
  size_t known() {
    std::lock_guard lock(mutex_);
    return counts_.size();
  }
  static constexpr size_t kFew = 64;

 private:
  const size_t most_;
  std::mutex mutex_;
  size_t forget_at_ = kFew;
  std::map<std::string, std::weak_ptr<Count>> counts_;
};

}  // namespace isola
