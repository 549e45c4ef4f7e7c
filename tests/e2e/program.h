// Programs run by tests: started with pipes, fed, listened to, bounded in time, and never left behind.
//
//   auto done = run_program({kIsola, "run", "--", "cat"}, {.input = "hello"});
//   EXPECT_EQ(done.code, 0);
//   EXPECT_EQ(done.out, "hello");
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"

namespace isola::e2e {

using Argv = std::vector<std::string>;

struct ProgramOptions {
  std::string input;                  // then end of file
  std::vector<std::string> env;       // NAME=value, added to this process's
  std::chrono::seconds limit{60};     // then it is killed, and timed_out is true
  std::function<void()> before_exec;  // in the child
  bool keep_input_open = false;       // standard input stays open and silent after `input`
};

struct Done {
  int code = -1;  // what it returned, or 128 + the signal that ended it
  int signal = 0;
  bool timed_out = false;
  std::string out, err;
  // For a failed expectation: everything a person needs to see.
  std::string text() const;
};

// A program under way, for tests that do something to it meanwhile.
class Program {
 public:
  Program(const Argv& argv, ProgramOptions options = {});
  ~Program();  // kills it if it still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  // Reads until `enough` says so, the program ends, or the time is up; false on the latter two.
  bool listen_until(const std::function<bool(const Done&)>& enough);
  bool out_has(const std::string& text) {
    return listen_until([&](const Done& d) { return d.out.find(text) != std::string::npos; });
  }
  void close_input() { in_.reset(); }
  void signal(int signal) const;
  const Done& so_far() const { return done_; }
  Done finish();

 private:
  bool pump(int timeout_ms);
  void reap(int flags);

  ProgramOptions options_;
  std::chrono::steady_clock::time_point deadline_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  Fd in_, out_, err_;
  size_t fed_ = 0;
  Done done_;
};

Done run_program(const Argv& argv, ProgramOptions options = {});

// Asks again until it is so or the time is up: for what another process does in its own time. Not for measuring.
bool eventually(const std::function<bool()>& so, std::chrono::seconds limit = std::chrono::seconds(20));

}  // namespace isola::e2e
