// The host's side of the interpreter: one request to isola-kernels inside a sandbox, and the lines that answer it.
//
//   ISOLA_CO_TRY(auto talk, co_await ask(service, box, R"({"op":"execute","code":"1+1"})"));
//   while (true) {
//     ISOLA_CO_TRY(auto line, co_await talk->next(15s));     // "": nothing came in that time; nullopt: that was all
//   }
//
// The program is started when it is not there yet, and lives as long as the sandbox does: through pauses, and in every
// fork. What it says comes from inside the sandbox and is not to be trusted.
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
  Conversation(sandbox::ChannelPtr channel, sandbox::BoxPtr box, sandbox::Box::Use use)
      : channel_(std::move(channel)), use_(std::move(use)), box_(std::move(box)) {}

  Task<Result<std::optional<std::string>>> next(std::chrono::milliseconds time);
  // The caller has left: its cell is stopped, and its variables stay.
  Task<void> interrupt();

 private:
  Task<Result<std::optional<std::string>>> take(std::chrono::milliseconds time);
  // What code prints comes in messages, cut anywhere: searched as the text that it is together.
  Task<Result<std::string>> sifted(std::string line);
  Task<Result<std::string>> last_of(const std::string& name);

  sandbox::ChannelPtr channel_;
  sandbox::Box::Use use_;
  sandbox::BoxPtr box_;
  std::map<std::string, std::unique_ptr<sandbox::Sieve>> sieves_;  // stdout, stderr: once something came
  std::deque<std::string> ready_;                                  // lines that come before the next one
  std::string pending_;
  size_t searched_ = 0;
  bool over_ = false;
};

// `request`: one object of JSON without a line break. unsupported: the sandbox's template has no interpreter.
Task<Result<std::unique_ptr<Conversation>>> ask(sandbox::Service& service, sandbox::BoxPtr box, std::string request);

// The first line of the answer: for requests that are answered by one.
Task<Result<std::string>> ask_once(sandbox::Service& service, sandbox::BoxPtr box, std::string request);

}  // namespace isola::interpreter
