// What a gate had of one sandbox and has not any more: the next gate goes on searching for these values in what comes
// out of it. In memory alone, sealed for the gate; it goes with the launcher.
//
//   past.remember(before, now);          // both as JSON, opened for the gate
//   request.past = past.text(room);      // for a gate that is told of the sandbox
//
// A value is known by its print (vault/binding.h). One that changed at its source is another, although nothing of its
// binding changed; one that was sealed anew is the same.
#pragma once

#include <deque>
#include <string>

#include "vault/binding.h"

namespace isola::launcher {

class PastBindings {
 public:
  static constexpr size_t kMost = vault::kMaxBindings;  // so that a change that drops all of a sandbox's loses none

  void remember(const std::string& before, const std::string& now);
  bool empty() const { return all_.empty(); }
  // As many as there is room for, the newest first; one that is too large does not keep the others out.
  std::string text(size_t room) const;

 private:
  std::deque<vault::Binding> all_;
};

}  // namespace isola::launcher
