// The output of a command as the server streams it: one JSON object per line, bytes in base64 so that they stay exact.
//
//   OutputPrinter printer({.encoded = true});
//   api.request({.target = …, .sink = [&](std::string_view piece) { return printer.feed(piece); }});
//   if (printer.end()) exit code…; else go on from printer.seq()
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cli/collected_output.h"

namespace isola::cli {

struct OutputEvent {
  enum Kind { start, out, err, gap, exit, error, other } kind = other;
  std::string command_id, sandbox;  // start
  std::string data;                 // out, err: the bytes
  uint64_t seq = 0;                 // out, err, gap, exit: where to go on
  uint64_t lost = 0;                // gap
  int exit_code = 0, signal = 0;    // exit
  bool timed_out = false, out_of_memory = false;
  std::string message, code, end_reason;  // error; end_reason: the sandbox went with the command, and why
};

Result<OutputEvent> parse_output(std::string_view line, bool encoded);
Result<std::string> decode_base64(std::string_view text);

// Puts what comes onto our own standard output and error, as it comes.
class OutputPrinter {
 public:
  struct Options {
    bool encoded = true;                                 // data is base64
    bool collect = false;                                // keeps it instead, within bounds, for result()
    std::function<void(const std::string& id)> started;  // once
  };
  explicit OutputPrinter(Options options) : options_(std::move(options)) {}

  Result<void> feed(std::string_view piece);
  void cut() { line_.clear(); }  // the stream broke: what is left of a line is void

  const std::string& command_id() const { return command_id_; }
  uint64_t seq() const { return seq_; }
  // Why our own output could not be written; EPIPE: nobody reads it any more.
  const std::optional<Error>& unwritten() const { return unwritten_; }
  // The exit or the error that ended it.
  const std::optional<OutputEvent>& end() const { return end_; }
  nlohmann::json result() const;  // of all that was collected

 private:
  Result<void> take(std::string_view line);
  Options options_;
  std::string line_, command_id_, sandbox_;
  CollectedOutput collected_;
  uint64_t seq_ = 0;
  std::optional<Error> unwritten_;
  std::optional<OutputEvent> end_;
};

// Our exit code for how it ended, after saying what has to be said.
int exit_code_of(const OutputEvent& end);
// … and for a command that did not even start, or whose end nobody knows. `code`: what the server's refusal was called.
int exit_code_of(const Error& error, std::string_view code = {});

}  // namespace isola::cli
