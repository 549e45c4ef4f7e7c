// The host's side of the interpreter: one request to isola-kernels inside a sandbox, and the lines that answer it.
//
//   Conversation talk(service, box, longest_line(max_output));
//   ISOLA_CO_CHECK(co_await talk.open(R"({"op":"execute","code":"1+1"})"));
//   while (true) {
//     ISOLA_CO_TRY(auto line, co_await talk.next(15s));     // "": nothing came in that time; nullopt: that was all
//   }
//
// The program is started when it is not there yet, and lives as long as the sandbox does: through pauses, and in every
// fork. What it says comes from inside the sandbox and is not to be trusted (events.h), and nor is that it says
// anything: every wait here has an end, and can be left (`co_await (talk.open(…) || ex.gone())`).
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/task.h"
#include "sandbox/service.h"
#include "sandbox/sieve.h"

namespace isola::interpreter {

class Conversation {
 public:
  // `longest`: of a line; a longer one ends the conversation.
  Conversation(sandbox::Service& service, sandbox::BoxPtr box, size_t longest);
  ~Conversation();
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  // `request`: one object of JSON without a line break. Returns when it is inside. unsupported: the sandbox's template
  // has no interpreter. Once.
  Task<Result<void>> open(std::string request);
  Task<Result<std::optional<std::string>>> next(std::chrono::milliseconds time);
  // The caller has left: its cell is stopped, and its variables stay. Also of one that is not open yet. Returns when it
  // has stopped, or after `time`.
  Task<void> interrupt(std::chrono::milliseconds time = std::chrono::seconds(15));

 private:
  struct Opening;
  static Task<void> open_it(std::shared_ptr<Opening> opening);
  Task<void> stop(std::chrono::milliseconds time);
  Task<Result<std::optional<std::string>>> take(std::chrono::milliseconds time);
  // What code prints comes in messages, cut anywhere: searched as the text that it is together.
  Task<Result<std::string>> sifted(std::string line);
  Task<Result<std::string>> last_of(const std::string& name);

  std::shared_ptr<Opening> opening_;
  sandbox::ChannelPtr channel_;
  const size_t longest_;
  const sandbox::BoxPtr box_;
  std::map<std::string, std::unique_ptr<sandbox::Sieve>> sieves_;  // stdout, stderr: once something came
  std::deque<std::string> ready_;                                  // lines that come before the next one
  std::string pending_;
  size_t searched_ = 0;
  bool over_ = false;
};

// The first line of the answer: for requests that are answered by one.
Task<Result<std::string>> ask_once(sandbox::Service& service, sandbox::BoxPtr box, std::string request);

}  // namespace isola::interpreter
