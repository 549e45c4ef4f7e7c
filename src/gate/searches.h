// What the streams of one sandbox are searched for: the values that are bound to it, and those that were. A value that
// was revoked went out, and may come back: it stays in the search for as long as this gate knows the sandbox, unless it
// was a token and has been over for ten minutes, or newer ones need the room.
//
//   searches->set(*bindings);                       // whenever they change
//   stream = scan::Stream(searches->automaton());   // null: there is nothing to search for
//   searches->target(automaton->id_of(hit.value)).secret
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gate/bindings.h"
#include "gate/event.h"

namespace isola::gate {

class Searches {
 public:
  struct Target {
    std::string secret;
    bool blocks = false;  // a stream with this in it ends
  };

  void set(const Bindings& bindings);
  const std::shared_ptr<const scan::Automaton>& automaton() const { return automaton_; }
  // By the id of a binding; of one that was never there an empty one.
  const Target& target(const std::string& binding) const;
  // Whether a value was bound for this place, now or before: whoever had it there may send it back.
  bool any_for(std::string_view name, uint16_t port) const;

  // A value that a program inside has all the same may stand in a name, a path or a method that it asks for: no record
  // keeps it. Looked for before anything is cut off, so that no half of one is left.
  void blot(Event& event) const;

  // Why nothing can be said of its streams now: values that an earlier gate had are not here again. Empty: they are.
  const std::string& missing() const { return missing_; }
  void set_missing(std::string why) { missing_ = std::move(why); }

 private:
  std::vector<std::shared_ptr<const Bound>> now_, past_;  // with values; the oldest last
  struct Place {
    std::vector<Rule> names;
    Ports ports;
    bool operator==(const Place&) const = default;
  };
  std::vector<Place> places_;
  bool everywhere_ = false;  // more of them than are remembered
  std::map<std::string, Target> targets_;
  std::shared_ptr<const scan::Automaton> automaton_;
  std::string missing_;
};

}  // namespace isola::gate
