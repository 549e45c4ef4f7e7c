// Bytes that were read and not used yet. Small while a connection idles (there may be many thousands), larger for
// bodies.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace isola::http {

class Buffer {
 public:
  std::string_view view() const { return {data_.get() + begin_, end_ - begin_}; }
  size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  void consume(size_t n) {
    begin_ += std::min(n, size());
    if (begin_ == end_) begin_ = end_ = 0;
  }
  // Room behind the bytes, growing to at most `limit` in all; empty when there is none left.
  std::span<char> prepare(size_t limit) {
    if (begin_ > 0) {
      std::memmove(data_.get(), data_.get() + begin_, size());
      end_ -= begin_;
      begin_ = 0;
    }
    if (size_ - end_ < kFirst / 2 && size_ < limit) grow(std::min(limit, std::max(kFirst, size_ * 4)));
    return {data_.get() + end_, size_ - end_};
  }
  void commit(size_t n) { end_ += n; }
  void shrink() {
    if (empty() && size_ > kFirst) data_.reset(), size_ = 0, begin_ = end_ = 0;
  }

 private:
  static constexpr size_t kFirst = 4 << 10;
  void grow(size_t size) {
    auto bigger = std::make_unique_for_overwrite<char[]>(size);
    if (!empty()) std::memcpy(bigger.get(), data_.get() + begin_, this->size());
    end_ -= begin_;
    begin_ = 0;
    data_ = std::move(bigger);
    size_ = size;
  }
  std::unique_ptr<char[]> data_;
  size_t size_ = 0, begin_ = 0, end_ = 0;
};

}  // namespace isola::http
