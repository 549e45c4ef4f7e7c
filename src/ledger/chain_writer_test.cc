// The writer under pressure: many threads, a small queue, a full disk, kill -9.
#include "ledger/chain_writer.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "ledger/test_ledger.h"

namespace isola::ledger {
namespace {

using ChainWriterTest = LedgerTest;

// Each commit is synced or not by whom it is for.
TEST_F(ChainWriterTest, WhatSomebodyWaitsForIsOnTheDisk) {
  ledger_.reset();
  auto db = sqlite::Database::open(path(), kLedgerSchema, sqlite::Sync::normal);
  auto ratchet = Ratchet::open(path());
  ASSERT_TRUE(db && ratchet);
  ChainWriter writer(std::move(*db), {.seq = 0, .hash = kNoHash}, std::move(*ratchet),
                     {.most_items = 100, .most_bytes = 1 << 20, .awaited_on_disk = true});
  // What the last commit was made with: 1 is NORMAL, 2 is FULL.
  auto level = [&] {
    std::promise<int64_t> said;
    EXPECT_TRUE(writer.between(
        [&](auto& open, auto&, auto&) { said.set_value(open->integer("PRAGMA synchronous").value_or(-1)); }));
    return said.get_future().get();
  };
  auto put = [&](bool awaited) {
    std::promise<void> written;
    auto done = [&](const Result<uint64_t>& at) {
      EXPECT_TRUE(at);
      written.set_value();
    };
    ChainWriter::Item item{.event = event("i1")};
    if (awaited) item.done = done;
    EXPECT_TRUE(writer.add(std::move(item)));
    if (!awaited) {
      EXPECT_TRUE(writer.add({.event = {}, .usage = {}, .done = done}));  // that it is in the file
    }
    written.get_future().wait();
  };
  put(false);
  EXPECT_EQ(level(), 1);
  put(true);
  EXPECT_EQ(level(), 2);
  put(false);
  EXPECT_EQ(level(), 1);
}

// A server that was killed between two rows of one sample would take the first for all of it.
TEST_F(ChainWriterTest, WhatBelongsTogetherIsInOneTransaction) {
  ledger_.reset();
  auto db = sqlite::Database::open(path(), kLedgerSchema, sqlite::Sync::normal);
  auto ratchet = Ratchet::open(path());
  ASSERT_TRUE(db && ratchet);
  std::vector<uint64_t> commits;  // the writer's thread's, until the end
  {
    ChainWriter writer(
        std::move(*db), {.seq = 0, .hash = kNoHash}, std::move(*ratchet),
        {.most_items = 5000, .most_bytes = 1 << 24, .written = [&](uint64_t at) { commits.push_back(at); }});
    std::promise<void> held, word;
    EXPECT_TRUE(writer.between([&](auto&, auto&, auto&) {
      held.set_value();
      word.get_future().wait();
    }));
    held.get_future().wait();                        // it writes nothing meanwhile
    constexpr size_t kBefore = 1022, kTogether = 4;  // a commit takes 1024
    for (size_t i = 0; i < kBefore; ++i) ASSERT_TRUE(writer.add({.event = event("i1")}));
    std::vector<ChainWriter::Item> sample;
    for (size_t i = 0; i < kTogether; ++i) sample.push_back({.event = event("i2")});
    ASSERT_TRUE(writer.add_together(std::move(sample)));
    ASSERT_TRUE(writer.add({.event = event("i3")}));
    word.set_value();
  }
  ASSERT_EQ(commits.size(), 2u);
  EXPECT_EQ(commits[0], 1026u);
  EXPECT_EQ(commits[1], 1027u);
}

TEST_F(ChainWriterTest, ManyThreadsOneChain) {
  reopen({.queue_items = 64});  // small: callers have to wait for room
  constexpr int kThreads = 6, kEach = 500;
  std::atomic<int> odd = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      uint64_t last = 0;
      for (int i = 0; i < kEach; ++i) {
        auto e = event(fmt::format("i{}", t));
        e.data = fmt::format("{}", i);
        if (i % 50 == 0) {
          auto seq = ledger_->append_durably(e);
          if (!seq || *seq <= last) ++odd;
          last = seq.value_or(0);
          if (ledger_->query({.after = last - 1, .limit = 1}).value().at(0).seq != last) ++odd;
        } else if (i % 50 == 1) {
          if (!ledger_->record_usage({.project = "p", .sandbox = "u", .from = i, .to = i, .used = {.commands = 1}}))
            ++odd;
        } else if (!ledger_->append(e)) {
          ++odd;
        }
      }
    });
  // Verified while it grows: what comes meanwhile is no fault.
  std::thread verifier([&] {
    while (!stop) {
      auto head = ledger_->head();
      auto verdict = ledger_->verify(head);
      if (!verdict || !verdict->good() || verdict->head.seq < head.seq) ++odd;
    }
  });
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(ledger_->flush());
  stop = true;
  verifier.join();
  EXPECT_EQ(odd, 0);
  auto verdict = ledger_->verify(ledger_->head());
  ASSERT_TRUE(verdict);
  EXPECT_TRUE(verdict->good()) << verdict->what;
  EXPECT_EQ(verdict->entries, uint64_t{kThreads * kEach});
  // Of each thread in the order in which it appended.
  for (int t = 0; t < kThreads; ++t) {
    auto mine = ledger_->query({.sandbox = fmt::format("i{}", t), .limit = 10'000});
    ASSERT_TRUE(mine);
    int last = -1;
    for (const auto& e : *mine) {
      int now = std::atoi(e.data.c_str());
      EXPECT_GT(now, last);
      last = now;
    }
  }
}

TEST_F(ChainWriterTest, TheAnswerComesByCallbackToo) {
  std::promise<uint64_t> answer;
  ASSERT_TRUE(ledger_->append_durably(event("i1"), [&](Result<uint64_t> seq) { answer.set_value(seq.value_or(0)); }));
  EXPECT_EQ(answer.get_future().get(), 1u);
}

// In a child with a mount namespace of its own and a small tmpfs. 0: all is well; otherwise the line that was not.
int fill_the_disk(const std::string& folder) {
#define WANT(condition) \
  if (!(condition)) return __LINE__
  WANT(::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
  WANT(::mount("none", folder.c_str(), "tmpfs", 0, "size=1m") == 0);
  std::string path = folder + "/ledger.db";
  WANT(provide_key(path, folder + "/ledger.key", ::getuid(), ::getgid()));
  auto opened = Ledger::open(path, {.queue_items = 100});
  WANT(opened);
  auto& ledger = **opened;
  Event e{.time = 1, .project = "p", .sandbox = "i", .kind = Kind::command_ended, .data = std::string(2000, 'x')};
  uint64_t written = 0;
  for (;; ++written) {
    auto seq = ledger.append_durably(e);
    if (seq) continue;
    WANT(seq.error().code == Code::exhausted);
    break;
  }
  WANT(written > 10 && ledger.head().seq == written);
  WANT(!ledger.health());
  // What nobody waits for is kept …
  uint64_t kept = 0;
  Event large = e;
  large.data = std::string(20'000, 'y');
  while (ledger.append(large)) WANT(++kept < 1000);
  WANT(kept >= 100);
  WANT(ledger.append(large).error().code == Code::exhausted);  // … until the queue is full
  WANT(!ledger.flush());
  WANT(!ledger.append_durably(e));
  WANT(ledger.verify(ledger.head())->good());
  // Room again: everything that was kept is written, what was refused is not.
  WANT(::mount("none", folder.c_str(), nullptr, MS_REMOUNT, "size=32m") == 0);
  WANT(ledger.flush());
  WANT(ledger.health());
  WANT(ledger.head().seq == written + kept);
  WANT(ledger.append_durably(e).value() == written + kept + 1);
  auto head = ledger.head();
  opened->reset();
  auto keys = VerificationKeys::read(folder + "/ledger.key");
  WANT(keys);
  auto verdict = verify_file(path, {.expected = head, .keys = &*keys});
  WANT(verdict && verdict->good() && verdict->entries == head.seq);
  return 0;
#undef WANT
}

TEST(ChainWriter, AFullDiskLosesNothingThatWasTaken) {
  char folder[] = "/tmp/isola-ledger-XXXXXX";
  ASSERT_TRUE(::mkdtemp(folder));
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int line = fill_the_disk(folder);
    if (line) std::fprintf(stderr, "chain_writer_test.cc:%d: not so\n", line);
    ::_exit(line != 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::filesystem::remove_all(folder);
}

[[noreturn]] void append_until_killed(const std::string& path, int acknowledge) {
  auto ledger = Ledger::open(path);
  if (!ledger) ::_exit(1);
  for (int i = 0;; ++i) {
    Event e{.time = 1, .project = "p", .kind = Kind::command_ended, .data = std::string(i % 700, 'x')};
    if (!(*ledger)->append(e)) ::_exit(2);
    auto seq = (*ledger)->append_durably(e);
    if (!seq) ::_exit(3);
    if (::write(acknowledge, &*seq, sizeof *seq) != sizeof *seq) ::_exit(4);
  }
}

TEST_F(ChainWriterTest, NothingAcknowledgedIsLostByAKill) {
  int rounds = full_suite() ? 200 : 20;
  if (!full_suite()) std::printf("reduced: kills of a ledger 20 instead of 200 (ISOLA_TEST_FULL=1 does all)\n");
  ledger_.reset();
  std::mt19937 random(std::random_device{}());
  uint64_t before = 0;
  for (int round = 0; round < rounds; ++round) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    Fd in(ends[0]), out(ends[1]);
    pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) append_until_killed(path(), out.get());
    out.reset();
    uint64_t last = 0;
    auto take = [&] { return ::read(in.get(), &last, sizeof last) == sizeof last; };
    for (uint32_t i = 0, wanted = 1 + random() % 40; i < wanted && take(); ++i) continue;
    ::kill(child, SIGKILL);
    while (take()) continue;
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself: " << WEXITSTATUS(status);
    ASSERT_GT(last, before);
    auto keys = this->keys();
    auto verdict = verify_file(path(), {.keys = &keys});
    ASSERT_TRUE(verdict) << verdict.error().message;
    EXPECT_TRUE(verdict->good()) << verdict->what;
    EXPECT_GE(verdict->entries, last);
    EXPECT_EQ(verdict->keyed, verdict->entries);
    before = verdict->entries;
  }
}

}  // namespace
}  // namespace isola::ledger
