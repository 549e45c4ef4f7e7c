// What must not be the same in two sandboxes made of one image, and what must be of one instant.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <set>

#include "e2e/images.h"
#include "kernel/fault.h"
#include "kernel/process.h"

namespace isola::e2e {
namespace {

using launcher::LaunchRequest;

// A program that answers a line with a line, followed through checkpoints.
class Answering {
 public:
  static Result<Answering> start(launcher::Client& client, const std::string& digest, Argv argv, Argv env = {}) {
    Answering one;
    LaunchRequest request{.digest = digest};
    ISOLA_TRY(auto sandbox, client.launch(request));
    one.open(std::move(sandbox));
    one.run_ = one.guest_->begin_run({.argv = std::move(argv), .env = std::move(env), .stdin_mode = guest::Stdin::pipe},
                                     one.into());
    return one;
  }
  static Result<Answering> fork(launcher::Client& client, const std::string& image, const Answering& parent,
                                bool from_start = false) {
    Answering one;
    LaunchRequest request{.image = image, .forked = true};
    ISOLA_TRY(auto sandbox, client.launch(request));
    one.open(std::move(sandbox));
    one.run_ = one.guest_->begin_attach(parent.pid_, from_start ? 0 : parent.seen_, one.into());
    return one;
  }
  Result<std::string> ask(const std::string& line = "next") {
    ISOLA_CHECK(guest_->write_stdin(run_, line + "\n"));
    ISOLA_CHECK(guest_->pump_until([&] { return heard_->find('\n') != std::string::npos || run_->ended(); },
                                   std::chrono::seconds(60)));
    size_t end = heard_->find('\n');
    if (end == std::string::npos) return fail(Code::internal, "the program ended: " + *heard_);
    std::string answer = heard_->substr(0, end);
    heard_->erase(0, end + 1);
    pid_ = run_->pid();
    seen_ = run_->seq();
    return answer;
  }
  Result<launcher::CheckpointReply> snapshot(launcher::Client& client) {
    ISOLA_CHECK(guest_->quiesce());
    launcher::CheckpointRequest request{.id = id_, .keep_running = true};
    return client.checkpoint(request);
  }
  Result<void> attach(launcher::Client& client, bool from_start = false) {
    ISOLA_TRY(auto link, client.link(id_));
    guest_ = std::make_unique<guest::PipeClient>(std::move(link.from_guest), std::move(link.to_guest));
    heard_->clear();  // what the link before had brought and nobody had asked for
    run_ = guest_->begin_attach(pid_, from_start ? 0 : seen_, into());
    return {};
  }
  guest::PipeClient& guest() { return *guest_; }
  const std::string& id() const { return id_; }

 private:
  void open(launcher::Sandbox sandbox) {
    id_ = sandbox.reply.id;
    guest_ = std::make_unique<guest::PipeClient>(std::move(sandbox.link.from_guest), std::move(sandbox.link.to_guest));
  }
  guest::RunCallbacks into() {
    auto take = [heard = heard_](std::string_view s) { *heard += s; };
    return {.out = take, .err = take};
  }
  std::string id_;
  uint32_t pid_ = 0;
  uint64_t seen_ = 0;
  std::unique_ptr<guest::PipeClient> guest_;
  std::shared_ptr<guest::Run> run_;
  std::shared_ptr<std::string> heard_ = std::make_shared<std::string>();
};

class Forks : public SharedIsland {
 protected:
  void SetUp() override {
    NEEDS_CRIU();
    SharedIsland::SetUp();
    client_.emplace(island().client());
  }
  void TearDown() override {
    if (client_) {
      if (auto live = client_->list())
        for (const auto& one : *live) (void)client_->kill(one.id);
      if (auto images = client_->images())
        for (const auto& image : *images) (void)client_->drop_image(image.id);
      client_.reset();
    }
    SharedIsland::TearDown();
  }
  launcher::Client& client() { return *client_; }

  // What two forks and their parent answer next, all from the same state.
  void answers(const Argv& argv, const Argv& env, std::set<std::string>& drawn) {
    auto parent = Answering::start(client(), digest_of("base"), argv, env);
    ASSERT_OK(parent);
    auto first = parent->ask();  // its generator is seeded now
    ASSERT_OK(first);
    ASSERT_EQ(first->size(), 32u) << *first;
    auto image = parent->snapshot(client());
    ASSERT_OK(image);
    auto attached = parent->attach(client());
    ASSERT_OK(attached);
    for (int i = 0; i < 2; ++i) {
      auto child = Answering::fork(client(), image->image, *parent);
      ASSERT_OK(child);
      auto word = child->ask();
      ASSERT_OK(word);
      ASSERT_EQ(word->size(), 32u) << *word;
      drawn.insert(*word);
    }
    auto own = parent->ask();
    ASSERT_OK(own);
    drawn.insert(*own);
  }

  std::optional<launcher::Client> client_;
};

// Process 1 of a restored sandbox is its helper's child until that has ended: the end of the sandbox waits for it.
TEST(RestoredByASlowHelper, IsWaitedForBeforeItsEndIsTold) {
  NEEDS_CRIU();
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  Island island({.env = {"ISOLA_FAULT=helper_end:1:1500"}});
  auto client = island.client();
  auto parent = Counting::start(client, island.digest());
  ASSERT_OK(parent);
  auto image = parent->save(client, true, true);
  ASSERT_OK(image);
  LaunchRequest request{.image = image->image, .forked = true};
  auto child = client.launch(request);
  ASSERT_OK(child);
  auto there = client.list();
  ASSERT_OK(there);
  auto one = std::find_if(there->begin(), there->end(), [&](const auto& it) { return it.id == child->reply.id; });
  ASSERT_NE(one, there->end());
  auto started = kernel::start_time(one->pid);
  ASSERT_OK(started);
  auto ended = client.kill(child->reply.id);
  ASSERT_OK(ended);
  EXPECT_TRUE(WIFSIGNALED(ended->status)) << ended->status;
  auto now = kernel::start_time(one->pid);
  EXPECT_FALSE(now && *now == *started) << "it is still there, if only as a zombie";
  (void)client.kill(parent->id());
  (void)client.drop_image(image->image);
}

const Argv kPython = {"python3", "-u", "-c",
                      "import ssl, sys\nfor line in sys.stdin: print(ssl.RAND_bytes(16).hex(), flush=True)"};
const Argv kNode = {"node", "-e",
                    "const c = require('crypto'); require('readline').createInterface({input: process.stdin})"
                    ".on('line', () => console.log(c.randomBytes(16).toString('hex')))"};
const Argv kWithout = {"OPENSSL_CONF=/dev/null"};

TEST_F(Forks, NoTwoDrawTheSameFromPythonsOpenssl) {
  NEEDS_TEMPLATE("base");
  std::set<std::string> drawn;
  answers(kPython, {}, drawn);
  EXPECT_EQ(drawn.size(), 3u);
}

TEST_F(Forks, WithoutTheCareTheyWould) {
  NEEDS_TEMPLATE("base");
  std::set<std::string> drawn;
  answers(kPython, kWithout, drawn);
  EXPECT_EQ(drawn.size(), 1u) << "then the test above shows nothing";
}

TEST_F(Forks, NoTwoDrawTheSameFromNodesCrypto) {
  NEEDS_TEMPLATE("base");
  std::set<std::string> drawn;
  answers(kNode, {}, drawn);
  EXPECT_EQ(drawn.size(), 3u);
}

TEST_F(Forks, WithoutTheCareNodeWould) {
  NEEDS_TEMPLATE("base");
  std::set<std::string> drawn;
  answers(kNode, kWithout, drawn);
  EXPECT_EQ(drawn.size(), 1u) << "then the test above shows nothing";
}

class RestoredAhead : public Forks {
 protected:
  bool has_parked(uint32_t count) {
    return eventually([&] { return client().info()->parked == count; });
  }
  LaunchRequest of(const std::string& image) { return {.image = image, .forked = true}; }
};

TEST_F(RestoredAhead, OnesAreClaimedWithTheirProcesses) {
  auto parent = Counting::start(client(), island().digest());
  ASSERT_OK(parent);
  auto image = parent->save(client(), true, true);
  ASSERT_OK(image);
  ASSERT_TRUE(client().park(image->image, 2));
  ASSERT_TRUE(has_parked(2));
  std::set<std::string> parked;
  auto listed = client().list();
  ASSERT_OK(listed);
  for (const auto& one : *listed)
    if (one.parked) parked.insert(one.id);
  std::set<std::string> claimed;
  for (int i = 0; i < 2; ++i) {
    auto child = Counting::resume(client(), of(image->image), *parent);
    ASSERT_OK(child);
    EXPECT_EQ(child->birth(), Birth::pooled);
    claimed.insert(child->id());
    ASSERT_TRUE(child->next());  // the word that only its memory has
    ASSERT_TRUE(client().kill(child->id()));
  }
  EXPECT_EQ(claimed, parked);
  // The pool is filled again, and goes with its image.
  ASSERT_TRUE(has_parked(2));
  ASSERT_TRUE(client().drop_image(image->image));
  EXPECT_TRUE(has_parked(0));
  auto gone = client().launch(of(image->image));
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, Code::not_found);
}

TEST_F(RestoredAhead, OneIsNotTakenWhereItDoesNotFit) {
  auto parent = Counting::start(client(), island().digest());
  ASSERT_OK(parent);
  auto image = parent->save(client(), true, true);
  ASSERT_OK(image);
  ASSERT_TRUE(client().park(image->image, 1));
  ASSERT_TRUE(has_parked(1));
  auto births = [&](LaunchRequest request) {
    auto child = client().launch(request);
    EXPECT_TRUE(child) << child.error().message;
    if (!child) return Birth::cold;
    EXPECT_TRUE(client().kill(child->reply.id));
    return child->reply.birth;
  };
  auto smaller = of(image->image), cold = of(image->image), files = of(image->image), larger = of(image->image);
  smaller.limits.memory /= 2;
  EXPECT_EQ(births(smaller), Birth::forked);
  cold.cold = true;
  EXPECT_EQ(births(cold), Birth::forked);
  files.files_only = true;
  EXPECT_EQ(births(files), Birth::cold);
  EXPECT_EQ(client().info()->parked, 1u) << "and it waits for the next";
  larger.limits.memory *= 2;
  larger.limits.pids *= 2;
  EXPECT_EQ(births(larger), Birth::pooled);
}

TEST_F(RestoredAhead, AnImageOfFilesIsParkedLikeATemplate) {
  auto parent = Counting::start(client(), island().digest());
  ASSERT_OK(parent);
  launcher::CheckpointRequest request{.id = parent->id(), .memory = false, .keep_running = true};
  auto image = client().checkpoint(request);
  ASSERT_OK(image);
  ASSERT_TRUE(client().park(image->image, 1));
  ASSERT_TRUE(has_parked(1));
  auto child = client().launch(of(image->image));
  ASSERT_OK(child);
  EXPECT_EQ(child->reply.birth, Birth::pooled);
  ASSERT_TRUE(client().kill(child->reply.id));
  ASSERT_TRUE(client().drop_image(image->image));
  EXPECT_EQ(client().park("m00000000000000000000", 1).error().code, Code::not_found);
}

TEST_F(RestoredAhead, NoTwoDrawTheSame) {
  NEEDS_TEMPLATE("base");
  auto parent = Answering::start(client(), digest_of("base"), kPython);
  ASSERT_OK(parent);
  ASSERT_TRUE(parent->ask());
  auto image = parent->snapshot(client());
  ASSERT_OK(image);
  ASSERT_TRUE(client().park(image->image, 2));
  ASSERT_TRUE(has_parked(2));
  std::set<std::string> drawn;
  for (int i = 0; i < 2; ++i) {
    auto child = Answering::fork(client(), image->image, *parent);
    ASSERT_OK(child);
    auto word = child->ask();
    ASSERT_OK(word);
    drawn.insert(*word);
  }
  EXPECT_EQ(drawn.size(), 2u);
}

TEST_F(Forks, WhatTheParentWroteIsNotReplayedInAChild) {
  const Argv argv = {"python3", "-u", "-c",
                     "import sys\nprint('of the parent')\nfor line in sys.stdin: print('answer to', line.strip())"};
  auto parent = Answering::start(client(), island().digest(), argv);
  ASSERT_OK(parent);
  EXPECT_EQ(parent->ask("one").value_or("failed"), "of the parent");
  EXPECT_EQ(parent->ask("two").value_or("failed"), "answer to one");
  auto image = parent->snapshot(client());
  ASSERT_OK(image);
  auto child = Answering::fork(client(), image->image, *parent, true);
  ASSERT_OK(child);
  EXPECT_EQ(child->ask("of the child").value_or("failed"), "answer to of the child");
  // Whoever comes back to the parent finds everything.
  auto attached = parent->attach(client(), true);
  ASSERT_OK(attached);
  EXPECT_EQ(parent->ask("three").value_or("failed"), "of the parent");
}

// Wall-clock time is the present, whatever was in the memory; monotonic time goes on where it stopped, never back.
TEST_F(Forks, ClocksGoOn) {
  const Argv argv = {
      "python3", "-u", "-c",
      "import sys, time\n"
      "for line in sys.stdin: print(repr(time.time()), repr(time.monotonic()), repr(time.perf_counter()))"};
  auto wall = [] { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); };
  auto parent = Answering::start(client(), island().digest(), argv);
  ASSERT_OK(parent);
  auto read = [&](Answering& one, double(&clocks)[3]) {
    const double before = wall();
    auto said = one.ask();
    ASSERT_OK(said);
    ASSERT_EQ(std::sscanf(said->c_str(), "%lf %lf %lf", &clocks[0], &clocks[1], &clocks[2]), 3) << *said;
    EXPECT_GE(clocks[0], before - 0.1);
    EXPECT_LE(clocks[0], wall() + 0.1);
  };
  double first[3], later[3];
  ASSERT_NO_FATAL_FAILURE(read(*parent, first));
  const double begun = wall();
  auto image = parent->snapshot(client());
  ASSERT_OK(image);
  for (int i = 0; i < 2; ++i) {
    auto child = Answering::fork(client(), image->image, *parent);
    ASSERT_OK(child);
    ASSERT_NO_FATAL_FAILURE(read(*child, later));
    for (int clock : {1, 2}) {
      EXPECT_GE(later[clock], first[clock]) << "back";
      EXPECT_LE(later[clock], first[clock] + (wall() - begun) + 0.5) << "further than the time that passed";
    }
  }
}

// A program that writes what it has just counted, and looks whether the file still says so.
TEST_F(Forks, FilesAndMemoryAreOfOneInstant) {
  const char* kWriter = R"(
import os, sys, threading
fd = os.open('/root/count', os.O_RDWR | os.O_CREAT)
n, wrong = 0, 0
os.pwrite(fd, b'%020d' % n, 0)
def work():
    global n, wrong
    while True:
        if int(open('/root/count').read()) != n: wrong += 1
        os.pwrite(fd, b'%020d' % (n + 1), 0)
        n += 1
threading.Thread(target=work, daemon=True).start()
for line in sys.stdin: print(n, wrong, flush=True)
)";
  auto parent = Answering::start(client(), island().digest(), {"python3", "-c", kWriter});
  ASSERT_OK(parent);
  const int rounds = count("snapshots of a busy writer", 5, 30);
  for (int i = 0; i < rounds; ++i) {
    auto before = parent->ask();
    ASSERT_OK(before);
    auto image = parent->snapshot(client());
    ASSERT_OK(image);
    auto child = Answering::fork(client(), image->image, *parent);
    ASSERT_OK(child);
    auto said = child->ask();
    ASSERT_OK(said);
    int n = 0, wrong = -1;
    ASSERT_EQ(std::sscanf(said->c_str(), "%d %d", &n, &wrong), 2) << *said;
    EXPECT_EQ(wrong, 0) << "the file is of another moment than the memory";
    EXPECT_GE(n, std::atoi(before->c_str()));
    auto attached = parent->attach(client());
    ASSERT_OK(attached);
    ASSERT_TRUE(client().kill(child->id()));
    ASSERT_TRUE(client().drop_image(image->image));
  }
  auto said = parent->ask();
  ASSERT_OK(said);
  EXPECT_TRUE(said->ends_with(" 0")) << *said;
}

TEST_F(Forks, ADatabaseUnderLoadIsWhole) {
  NEEDS_TEMPLATE("base");
  const char* kLoad = R"(
import sqlite3, sys, threading
def work():
    db = sqlite3.connect('/root/db'); db.execute('pragma journal_mode=wal')
    db.execute('create table if not exists t (a integer primary key, b text)')
    i = 0
    while True:
        with db:
            db.executemany('insert into t (b) values (?)', [(str(i) * 50,)] * 20)
            db.execute('delete from t where a < (select max(a) from t) - 20000')
        i += 1
threading.Thread(target=work, daemon=True).start()
for line in sys.stdin: print('here', flush=True)
)";
  auto parent = Answering::start(client(), digest_of("base"), {"python3", "-c", kLoad});
  ASSERT_OK(parent);
  ASSERT_TRUE(parent->ask());
  EXPECT_TRUE(eventually([&] { return hear(parent->guest(), {"test", "-s", "/root/db-wal"}).exit->code == 0; }));
  const int rounds = count("snapshots of a busy database", 3, 20);
  for (int i = 0; i < rounds; ++i) {
    launcher::CheckpointRequest request{.id = parent->id(), .memory = false, .keep_running = true};
    auto image = client().checkpoint(request);
    ASSERT_OK(image);
    LaunchRequest launch_request{.image = image->image};
    auto child = launch(client(), launch_request);
    ASSERT_OK(child);
    auto heard = hear(*child->guest, {"sqlite3", "/root/db", "pragma integrity_check; select count(*) > 0 from t"});
    EXPECT_EQ(heard.out, "ok\n1\n") << heard.err;
    ASSERT_TRUE(client().kill(child->id));
    ASSERT_TRUE(client().drop_image(image->image));
  }
  ASSERT_TRUE(parent->ask());
}

}  // namespace
}  // namespace isola::e2e
