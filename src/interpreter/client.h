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
#include <memory>
#include <optional>
#include <string>

#include "base/task.h"
#include "sandbox/service.h"

namespace isola::interpreter {

class Conversation {
 public:
  Conversation(sandbox::ChannelPtr channel, sandbox::Box::Use use)
      : channel_(std::move(channel)), use_(std::move(use)) {}

  Task<Result<std::optional<std::string>>> next(std::chrono::milliseconds time);
  // The caller has left: its cell is stopped, and its variables stay.
  Task<void> interrupt();

 private:
  sandbox::ChannelPtr channel_;
  sandbox::Box::Use use_;
  std::string pending_;
  size_t searched_ = 0;
  bool over_ = false;
};

// `request`: one object of JSON without a line break. unsupported: the sandbox's template has no interpreter.
Task<Result<std::unique_ptr<Conversation>>> ask(sandbox::Service& service, sandbox::BoxPtr box, std::string request);

// The first line of the answer: for requests that are answered by one.
Task<Result<std::string>> ask_once(sandbox::Service& service, sandbox::BoxPtr box, std::string request);

}  // namespace isola::interpreter
