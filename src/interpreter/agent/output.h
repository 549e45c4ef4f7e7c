// What a cell says, as events: the kernel's messages translated, and bounded. Whatever a program can say counts towards
// one limit; what is over it is counted, not kept, and an event says where the output was cut. Errors, and events
// without their forms, have some room beyond it: they come even when the output was cut.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "interpreter/agent/message.h"

namespace isola::interpreter {

class Output {
 public:
  using Emit = std::function<void(const Json& event)>;
  Output(Emit emit, size_t most) : emit_(std::move(emit)), most_(most) {}

  void take(const Message& message);  // of the iopub channel; kinds that say nothing to a caller are left out
  // Of a kernel that displays the values of its cells: the last one, if nothing follows it, is the cell's own.
  void displays_values() { holds_ = true; }
  void text(const char* type, const std::string& text);
  void end() { let_go(true); }
  void say(const Json& event) {
    let_go(false);
    emit_(event);
  }
  uint64_t dropped() const { return dropped_; }
  bool failed() const { return failed_; }  // an error was among it

 private:
  size_t room() const { return most_ - std::min(most_, used_); }
  bool afford(size_t bytes);
  void error(const Json& content);
  void bundle(Json event, const Message& message);
  void cut();
  void let_go(bool main);

  Emit emit_;
  size_t most_, used_ = 0, beyond_ = 0;
  uint64_t dropped_ = 0;
  std::optional<Json> held_;
  bool cut_ = false, failed_ = false, holds_ = false;
};

}  // namespace isola::interpreter
