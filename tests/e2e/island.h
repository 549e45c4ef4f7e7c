// A machine for one test: a data directory of its own, a launcher on it, and a census that must come out even.
//
//   Island island;
//   Done done = island.run({"--", "echo", "hi"});
//   island.expect_unchanged();    // and once more, by itself, when it goes: then nothing at all may be left
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "e2e/census.h"
#include "e2e/program.h"
#include "guest/client.h"
#include "kernel/cgroup.h"
#include "launcher/client.h"

#define ASSERT_OK(...)                                             \
  do {                                                             \
    auto& r_ = (__VA_ARGS__);                                      \
    ASSERT_TRUE(r_.has_value()) << (r_ ? "" : r_.error().message); \
  } while (0)

namespace isola::e2e {

inline constexpr char kIsola[] = ISOLA_BINARY;

// True with ISOLA_TEST_FULL: all of everything. Otherwise says on standard output what was reduced.
bool full_suite();
int count(const char* what, int fast, int full);

std::string digest_of(const std::string& template_name);  // empty: not built
// Skips the test that uses it where the template is missing.
#define NEEDS_TEMPLATE(name) \
  if (::isola::e2e::digest_of(name).empty()) GTEST_SKIP() << "template " << name << " is not built on this machine"

struct IslandOptions {
  bool start = true;             // a launcher, at once
  std::vector<std::string> env;  // of the launcher, NAME=value
  std::string folder;            // the data directory; empty: a fresh one below /tmp
  std::string user;              // who may use the launcher besides root
  std::string layer_store;       // its kind; empty: the first that works
};

class Island {
 public:
  explicit Island(IslandOptions options = {});
  ~Island();
  Island(const Island&) = delete;
  Island& operator=(const Island&) = delete;

  const std::string& data() const { return data_; }
  const std::string& digest() const { return digest_; }

  // isola with these words; the data directory is in its environment.
  Done isola(Argv words, ProgramOptions options = {});
  // isola run --template minimal …
  Done run(Argv words, ProgramOptions options = {});
  Done sh(const std::string& script, Argv flags = {}, ProgramOptions options = {});
  Argv run_words(Argv words) const;
  ProgramOptions with_data(ProgramOptions options) const;

  Result<void> start();
  launcher::Client client();                     // a connection to the launcher that runs; aborts the test without one
  std::optional<launcher::Client> try_client();  // or nothing
  pid_t launcher_pid();
  // Ends the launcher and all its sandboxes.
  void stop();
  void kill_launcher();  // -9, and waits until it is gone

  // Nothing is parked, nothing is being cleared: what is there is what a fresh launcher has.
  void expect_unchanged(const std::string& after = "");
  Census census() { return taker_->take(); }
  CensusTaker& taker() { return *taker_; }

 private:
  IslandOptions options_;
  bool own_folder_ = false;
  std::string data_, digest_;
  std::unique_ptr<CensusTaker> taker_;
  std::optional<Census> with_launcher_;  // right after a launcher started
};

// One island for all tests of a program.
class SharedIsland : public ::testing::Test {
 public:
  static void SetUpTestSuite();
  static void TearDownTestSuite();

 protected:
  void SetUp() override;
  void TearDown() override;
  static Island& island() { return *island_; }

 private:
  static std::unique_ptr<Island> island_;
};

// Exactly one line on standard error, ours, and this exit code; nothing on standard output.
void expect_complaint(const Done& done, int code, const std::string& saying);

// A sandbox to talk to from C++: launched, and its guest greeted.
struct Talking {
  std::string id;
  std::unique_ptr<guest::PipeClient> guest;
};
Result<Talking> launch(launcher::Client& client, const launcher::LaunchRequest& request);
Result<Talking> talk(const std::string& id, boundary::Link link);
struct Heard {
  Result<guest::Exit> exit;
  std::string out, err;
};
Heard hear(guest::PipeClient& guest, const Argv& argv);

}  // namespace isola::e2e
