// How much of something each project has in hand, over all its callers.
//
//   Shares shares(256 << 20);
//   auto share = shares.of("default");
//   size_t granted = share.take(piece.size());       // fewer, or none, when the project has as much as it may have
//
// A Share gives back what it took when it goes. Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace isola::native {

class Shares {
  using Count = std::atomic<size_t>;

 public:
  explicit Shares(size_t most) : most_(most) {}

  class Share {
   public:
    Share(std::shared_ptr<Count> all, size_t most) : all_(std::move(all)), most_(most) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { *all_ -= mine_; }

    size_t take(size_t wanted) {
      size_t before = all_->fetch_add(wanted);
      size_t granted = before >= most_ ? 0 : std::min(wanted, most_ - before);
      *all_ -= wanted - granted;
      mine_ += granted;
      return granted;
    }

   private:
    std::shared_ptr<Count> all_;
    const size_t most_;
    size_t mine_ = 0;
  };

  Share of(const std::string& project) {
    std::lock_guard lock(mutex_);
    std::weak_ptr<Count>& known = counts_[project];
    auto count = known.lock();
    if (!count) known = count = std::make_shared<Count>(0);
    return Share(std::move(count), most_);
  }

 private:
  const size_t most_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Count>> counts_;  // of projects: few
};

}  // namespace isola::native
