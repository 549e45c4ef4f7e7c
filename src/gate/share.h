// Something that all sandboxes take from and none may take away from the others: bytes of first messages, look-ups
// under way, names, pipes, connections.
//
//   Pool bytes{.size = 64 << 20, .reserve = 16 << 20};
//   Share mine(bytes, {.little = 64 << 10, .most = 4 << 20});
//   if (!mine.take(n)) …                                     // refused: its own most, or the pool is empty
//   mine.give_back(n);                                       // what is left goes back with the Share
//
// The pool's last part, the reserve, is only for those who have little: one that takes all it can get, and a dozen of
// its kind, leave a neighbour enough to work with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isola::gate {

struct Pool {
  size_t size = SIZE_MAX, reserve = 0;
  size_t used = 0;
};

class Share {
 public:
  struct Quota {
    size_t little = 1, most = SIZE_MAX;
  };

  Share(Pool& pool, Quota quota) : pool_(pool), quota_(quota) {}
  ~Share() { pool_.used -= used_; }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  bool take(size_t count = 1) {
    if (!may_take(count)) return false;
    used_ += count, pool_.used += count;
    return true;
  }
  bool may_take(size_t count = 1) const {
    if (count > quota_.most || used_ > quota_.most - count) return false;
    size_t open = used_ + count <= quota_.little ? pool_.size : pool_.size - pool_.reserve;
    return count <= open && pool_.used <= open - count;
  }
  void give_back(size_t count = 1) { used_ -= count, pool_.used -= count; }
  size_t used() const { return used_; }

 private:
  Pool& pool_;
  Quota quota_;
  size_t used_ = 0;
};

}  // namespace isola::gate
