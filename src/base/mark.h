// A mark in a stream of bytes: 32 of them, drawn at random, that two ends agreed on and nobody else knows. Where it
// comes, something new begins, whatever was under way before: that is how a stream which cannot be closed and opened
// again is begun anew (guest/agent/relay.h).
//
//   MarkFinder finder(mark);
//   size_t end = finder.find(piece);   // just behind the mark, or npos; a mark may lie in several pieces
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace isola {

inline constexpr size_t kMarkSize = 32;

class MarkFinder {
 public:
  static constexpr size_t npos = std::string_view::npos;

  explicit MarkFinder(std::string mark = std::string(kMarkSize, '\0')) : mark_(std::move(mark)) {
    // Where a match that fails after so many bytes can still go on.
    for (size_t i = 1, k = 0; i < mark_.size(); ++i) {
      while (k > 0 && mark_[i] != mark_[k]) k = back_[k - 1];
      if (mark_[i] == mark_[k]) ++k;
      back_[i] = k;
    }
  }

  // Looks through the next bytes of the stream, up to the first mark that ends in them.
  size_t find(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      while (matched_ > 0 && bytes[i] != mark_[matched_]) matched_ = back_[matched_ - 1];
      if (bytes[i] == mark_[matched_]) ++matched_;
      if (matched_ < mark_.size()) continue;
      matched_ = 0;
      return i + 1;
    }
    return npos;
  }
  // How much of the mark the bytes so far end with.
  size_t matched() const { return matched_; }
  void reset() { matched_ = 0; }
  const std::string& mark() const { return mark_; }

 private:
  std::string mark_;
  std::array<size_t, kMarkSize> back_{};
  size_t matched_ = 0;
};

// The stream before and after marks, without them. What may be the beginning of a mark is kept back once it is long
// enough not to be chance: an ordinary message that ends like that is not delayed, and of a mark that cuts a message
// short next to nothing is taken for a part of it.
class MarkedStream {
 public:
  explicit MarkedStream(std::string mark = std::string(kMarkSize, '\0')) : finder_(std::move(mark)) {}

  // Calls plain(bytes) and marked(), in the order of the stream.
  template <typename Plain, typename Marked>
  void feed(std::string_view bytes, Plain plain, Marked marked) {
    while (!bytes.empty()) {
      const size_t end = finder_.find(bytes);
      const bool found = end != MarkFinder::npos;
      std::string_view part = bytes.substr(0, end);
      bytes.remove_prefix(part.size());
      // So many bytes at the end are a mark, or may be the beginning of one. (Some of them may have gone out before.)
      const size_t open = found ? kMarkSize : finder_.matched() >= kKeepFrom ? finder_.matched() : 0;
      const size_t all = kept_.size() + part.size();
      const size_t give = all - std::min(all, open);
      const size_t from_kept = std::min(kept_.size(), give);
      if (from_kept > 0) plain(std::string_view(kept_).substr(0, from_kept));
      if (give > from_kept) plain(part.substr(0, give - from_kept));
      kept_.erase(0, from_kept);
      kept_.append(part.substr(give - from_kept));
      if (found) kept_.clear(), marked();
    }
  }
  const std::string& mark() const { return finder_.mark(); }

 private:
  static constexpr size_t kKeepFrom = 8;
  MarkFinder finder_;
  std::string kept_;
};

}  // namespace isola
