// The bindings of one sandbox (vault/binding.h), ready for use: whom each is for, and its value in locked memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gate/policy.h"
#include "scan/automaton.h"
#include "vault/binding.h"
#include "vault/seal.h"

namespace isola::gate {

// Of all values of one sandbox that differ, in bytes: what searches streams for them takes many times as much.
inline constexpr size_t kMostValues = 16 << 10;

struct Bound {
  vault::Binding binding;
  std::vector<Rule> names;  // of the kinds name and below
  Ports ports;
  vault::Secret value;
  std::string trouble;         // why there is no value
  bool closed = false;         // there is one here, and it could not be opened
  bool unsendable = false;     // it cannot stand where it should: searched for, and never sent
  int64_t until = 0, due = 0;  // of a value that does not last (vault/minting.h)

  bool is_for(std::string_view name, uint16_t port) const;
  bool fits(std::string_view method, std::string_view path) const;  // a path in normal form
  // What of the value travels, and is searched for.
  std::vector<std::string_view> searched() const;
  bool is_over(int64_t now) const { return binding.expires != 0 && now >= binding.expires; }
  bool is_stale(int64_t now) const { return until != 0 && now >= until; }
  bool is_due(int64_t now) const { return until != 0 && now >= due; }
};

class Bindings {
 public:
  // Values are opened at once; without a key they stay closed, and whoever needs one is refused.
  static Result<std::shared_ptr<const Bindings>> make(const std::string& encoded, const vault::KeyPair* key);

  const std::vector<std::shared_ptr<const Bound>>& all() const { return all_; }
  bool any_for(std::string_view name, uint16_t port) const;
  // Still there, with the same meaning; its value may be another.
  bool has(const vault::Binding& binding) const;
  // Finds the values in what comes back; null: there is none to search for.
  const std::shared_ptr<const scan::Automaton>& automaton() const { return automaton_; }
  bool empty() const { return all_.empty(); }
  bool has_placeholders() const;
  bool guards() const;  // one of these is to be refused at every name

 private:
  std::vector<std::shared_ptr<const Bound>> all_;
  std::shared_ptr<const scan::Automaton> automaton_;
};

}  // namespace isola::gate
