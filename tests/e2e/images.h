// What the tests of images share: a sandbox that can be told apart, paused and resumed.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>

#include "boundary/jail/checkpoint.h"
#include "e2e/island.h"

namespace isola::e2e {

#define NEEDS_CRIU()         \
  NEEDS_TEMPLATE("minimal"); \
  if (::isola::boundary::jail::Criu::find().program.empty()) GTEST_SKIP() << "no criu here; `./dev criu` provides one"

// Why that boundary keeps no memory on this machine; empty: it does.
std::string lacks_memory(BoundaryKind kind);

// Takes a line, counts, answers with a random word that only its memory holds, and the count.
inline constexpr char kCounter[] = R"(
import os, sys
word, count = os.urandom(16).hex(), 0
for line in sys.stdin:
    count += 1
    print(word, count, flush=True)
)";

// One sandbox with a counter in it.
class Counting {
 public:
  // A new one.
  static Result<Counting> start(launcher::Client& client, const std::string& digest, bool ephemeral = false) {
    return start(client, launcher::LaunchRequest{.digest = digest, .ephemeral = ephemeral});
  }
  static Result<Counting> start(launcher::Client& client, const launcher::LaunchRequest& request);
  // One that was saved with a counter in it.
  static Result<Counting> resume(launcher::Client& client, launcher::LaunchRequest request, const Counting& saved);

  const std::string& id() const { return id_; }
  const std::string& word() const { return word_; }
  Birth birth() const { return birth_; }
  const Latency& latency() const { return latency_; }
  uint32_t generation() const { return generation_; }
  int count() const { return count_; }
  guest::PipeClient& guest() { return *guest_; }

  // Asks the counter: the same word as ever and the next number, or an error.
  Result<void> next();
  Result<std::string> sh(const std::string& script, const std::string& user = "");
  // Quiesces the link first.
  Result<launcher::CheckpointReply> save(launcher::Client& client, bool memory, bool keep_running);
  // A new link, after the sandbox went on.
  Result<void> attach(launcher::Client& client);

 private:
  Result<void> follow(boundary::Link link);
  Result<std::string> ask();

  std::string id_, word_;
  Birth birth_ = Birth::cold;
  Latency latency_;
  uint32_t generation_ = 0, pid_ = 0;
  uint64_t seen_ = 0;
  int count_ = 0;
  std::unique_ptr<guest::PipeClient> guest_;
  std::shared_ptr<guest::Run> run_;
  std::shared_ptr<std::string> received_ = std::make_shared<std::string>();
};

}  // namespace isola::e2e
