// QEMU's monitor (QMP), as far as it is needed to save a machine: commands and answers, one line of JSON each.
//
//   Monitor monitor(std::move(socket));
//   ISOLA_CHECK(monitor.greet());
//   ISOLA_CHECK(monitor.tell("stop"));
//
// Whoever answers may have been taken over by its guest: lines are bounded, what is looked for in them is a few words,
// and nobody waits for ever.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/fd.h"

namespace isola::boundary::microvm {

class Monitor {
 public:
  explicit Monitor(Fd socket, std::chrono::milliseconds patience = std::chrono::seconds(30))
      : socket_(std::move(socket)), patience_(patience) {}

  // Before anything else; it may have been greeted before.
  Result<void> greet();
  // Gives back the line of its answer. `arguments`: a JSON object. `descriptor`: goes along.
  Result<std::string> tell(std::string_view command, std::string_view arguments = "", int descriptor = -1);

  // The same in two halves, for a command that is answered while something else has to go on. begin() gives back what
  // answer() asks for, which does not wait: nothing means not yet. fd() is readable when there may be more.
  Result<std::string> begin(std::string_view command, std::string_view arguments = "", int descriptor = -1);
  Result<std::optional<std::string>> answer(const std::string& id);
  int fd() const { return socket_.get(); }

 private:
  using Moment = std::chrono::steady_clock::time_point;
  Result<void> send(std::string_view line, int descriptor);
  Result<std::optional<std::string>> next_line(Moment deadline);  // nothing: not until then
  Result<std::optional<std::string>> answer_until(const std::string& id, Moment deadline);

  Fd socket_;
  std::chrono::milliseconds patience_;
  std::string heard_;
  uint64_t count_ = 0;
  uint64_t secret_ = 0;  // of this conversation: what an earlier one left unread is not an answer
};

// The value of a word in such a line, if it is a text: "completed" of {"return": {"status": "completed"}}; or nothing.
std::string text_in(std::string_view line, std::string_view word);

}  // namespace isola::boundary::microvm
