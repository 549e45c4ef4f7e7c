// Host ids for sandboxes, machine-wide: each living sandbox has 65,536 ids of its own that nothing else on the machine
// uses. A range is taken by making its file, which names the owner (and the sandbox): one step that excludes others
// and says whose it is, so several launchers (data directories) share one machine without talking to each other, and
// what a killed one took and never wrote down is found again. /run is empty after a boot, and so are the ranges.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/name_files.h"

namespace isola::launcher {

class IdRanges {
 public:
  static constexpr uint32_t kFirst = 0x40000000;  // above what distributions give to users and containers
  static constexpr uint32_t kCount = 16384;

  // `owner`: the data directory.
  static Result<IdRanges> open(const std::string& owner, const std::string& folder = "/run/isola/ids");

  struct Taken {
    uint32_t base = 0;
    std::string sandbox;
    bool operator==(const Taken&) const = default;
  };

  Result<uint32_t> take(const std::string& sandbox = "");  // the base of a free range
  void give_back(uint32_t base);                           // nothing happens if it is another owner's
  // For a sandbox that was found alive after a restart: makes sure that its range is marked as taken. Code::exists:
  // another owner has it, so that there may be two sandboxes with these ids.
  Result<void> keep(uint32_t base, const std::string& sandbox = "");
  // Every range that this owner has.
  Result<std::vector<Taken>> mine() const;
  // Frees what belonged to data directories that are no more: nobody will ever give it back. Not where the sandbox
  // still lives.
  Result<void> sweep(const std::function<bool(const std::string& sandbox)>& lives);

 private:
  struct Label {
    uint32_t base = 0;
    std::string owner, sandbox;
  };
  bool is_mine(const std::string& owner) const;
  Result<Label> read(const std::string& name) const;
  Result<std::vector<Label>> all() const;

  NameFiles files_;
  std::string owner_;
  uint32_t next_ = 0;  // going round, so that a range rests before it is used again
};

}  // namespace isola::launcher
