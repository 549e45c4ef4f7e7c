// Thousands of connections and what they cost: nobody takes the gate's memory, pipes or descriptors from the others.
#include <sys/resource.h>

#include <filesystem>
#include <list>

#include "base/file.h"
#include "gate/flow.h"
#include "gate/gate_fixture.h"

namespace isola::gate::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryCounts = false;  // a sanitizer keeps what was freed
#else
constexpr bool kMemoryCounts = true;
#endif

// Kilobytes that the gate has in memory.
long memory_of(pid_t pid) {
  auto status = read_file("/proc/" + std::to_string(pid) + "/status").value();
  return std::atol(status.c_str() + status.find("VmRSS:") + 6);
}

// A sandbox whose process inside holds `count` connections, each begun with `first`, until it is let go.
class Crowd {
 public:
  Crowd(const Box& box, std::string address, uint16_t port, int count, std::string first, bool answered) {
    if (::pipe(ready_) < 0 || ::pipe(hold_) < 0) std::abort();
    thread_ = std::thread([=, this, &box] {
      box.run([&] {
        std::vector<Fd> held;
        char c = 0;
        int begun = 0;
        if (::write(ready_[1], &begun, sizeof begun) != sizeof begun) return ""s;
        for (int i = 0; i < count; ++i) {
          held.push_back(dial(address, port));
          timeval patience{60, 0};  // a crowd on a busy machine takes longer than one
          ::setsockopt(held.back().get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
          if (held.back()) (void)!::send(held.back().get(), first.data(), first.size(), MSG_NOSIGNAL);
        }
        int good = 0;
        for (auto& fd : held) good += fd && (!answered || ::recv(fd.get(), &c, 1, 0) == 1);
        if (::write(ready_[1], &good, sizeof good) != sizeof good) return ""s;
        (void)!::read(hold_[0], &c, 1);
        return ""s;
      });
    });
    (void)wait();  // until it is a process of its own: nothing that is opened from here on is also open there
  }
  ~Crowd() {
    let_go();
    thread_.join();
    ::close(hold_[1]), ::close(hold_[0]), ::close(ready_[0]), ::close(ready_[1]);
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;
  // Of several, each before the first one goes: a process that was forked later has the ends of earlier ones' pipes.
  void let_go() { (void)!::write(hold_[1], "x", 1); }
  int wait() const {
    int good = -1;
    (void)!::read(ready_[0], &good, sizeof good);
    return good;
  }

 private:
  int ready_[2], hold_[2];
  std::thread thread_;
};

TEST_F(GateTest, ThousandsOfConnectionsAtOnce) {
  // Two descriptors each in the gate, one each out there and in here.
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_max < 16384) GTEST_SKIP() << "needs 16384 descriptors";
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
#ifdef __SANITIZE_THREAD__
  constexpr int kBoxes = 5, kEach = 200;  // each takes many times as long
  std::puts("reduced: 1000 instead of 4000 connections at once, under the thread sanitizer");
#else
  constexpr int kBoxes = 5, kEach = 800;
#endif
  std::vector<Box> boxes;
  std::list<Crowd> crowds;
  std::vector<std::string> addresses;
  for (int i = 0; i < kBoxes; ++i) {
    boxes.push_back(world->box("default allow\nlimit connections-per-second 100000"));
    addresses.push_back(boxes.back().run([] { return resolve("a.example"); }));
  }
  long before = memory_of(world->gate());
  for (int i = 0; i < kBoxes; ++i)
    crowds.emplace_back(boxes[static_cast<size_t>(i)], addresses[static_cast<size_t>(i)], kEchoPort, kEach, "x", true);
  for (const auto& crowd : crowds) EXPECT_EQ(crowd.wait(), kEach);
  while (world->pending_events()) world->drop_event();
  long after = memory_of(world->gate());
  std::printf("%d connections at once: the gate has %ld KiB, %ld KiB before: %ld bytes each\n", kBoxes * kEach, after,
              before, (after - before) * 1024 / (kBoxes * kEach));
  EXPECT_EQ(boxes[0].run([&] { return talk_to(addresses[0], kEchoPort, "one more"); }), "one more");
  if (kMemoryCounts) {
    EXPECT_LT(after, before + kBoxes * kEach * 8) << "8 KiB each, at most";
  }
  for (auto& crowd : crowds) crowd.let_go();
}

// Thousands of hellos that never end: each up to 64 KiB, if nobody counted them together.
TEST_F(GateTest, HalfHellosHurtNobodyElse) {
  constexpr int kBoxes = 3, kEach = 900;
  Box neighbour = world->box("allow b.example");
  auto address = neighbour.run([] { return resolve("b.example"); });
  auto hello = tls_hello("b.example");
  EXPECT_EQ(neighbour.run([&] { return talk_to(address, kTlsPort, hello); }), hello);
  auto half = tls_hello("a.example", "\x00\x29\xc3\x50"s + std::string(50000, 'p')).substr(0, 48'000);
  long before = memory_of(world->gate());
  std::vector<Box> boxes;
  std::list<Crowd> crowds;
  for (int i = 0; i < kBoxes; ++i) boxes.push_back(world->box("allow a.example\nlimit connections-per-second 100000"));
  for (const auto& box : boxes)
    crowds.emplace_back(box, box.run([] { return resolve("a.example"); }), kTlsPort, kEach, half, false);
  for (const auto& crowd : crowds) EXPECT_GT(crowd.wait(), 0);
  EXPECT_EQ(world->next_denial(), "too-many-connections a.example:443");
  EXPECT_EQ(neighbour.run([&] { return talk_to(address, kTlsPort, hello, 100); }), hello);
  EXPECT_EQ(neighbour.run([] { return talk("b.example", kEchoPort, "x"); }), "x");
  long after = memory_of(world->gate());
  std::printf("%d half hellos of %zu bytes: the gate has %ld KiB, %ld KiB before\n", kBoxes * kEach, half.size(), after,
              before);
  if (kMemoryCounts) {
    // 4 MiB for each, and what the allocator and 2700 connections need besides.
    EXPECT_LT(after, before + kBoxes * 4096 + 24 * 1024);
  }
  for (auto& crowd : crowds) crowd.let_go();
}

// Connections whose data nobody reads: each would hold a pipe of 64 KiB.
TEST_F(GateTest, StuckConnectionsHoldFewPipes) {
  constexpr int kEach = 400;
  Box box = world->box("default allow\nlimit connections-per-second 100000"), neighbour = world->box("default allow");
  size_t wanted = 20 << 20;
  std::string first(reinterpret_cast<const char*>(&wanted), sizeof wanted);
  auto address = box.run([] { return resolve("a.example"); });
  auto pipes = [&] {
    size_t out = 0;
    std::error_code none;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(world->gate()) + "/fd", none))
      out += std::filesystem::read_symlink(entry.path(), none).string().starts_with("pipe:");
    return out;
  };
  {
    Crowd crowd(box, address, kSourcePort, kEach, first, true);
    EXPECT_EQ(crowd.wait(), kEach) << "each got its first byte";
    // Where there is no pipe for it any more, a stream goes on without one, also in the same sandbox.
    auto pour = [&] {
      Fd fd = dial(resolve("a.example"), kSourcePort);
      (void)!::send(fd.get(), first.data(), first.size(), MSG_NOSIGNAL);
      return std::to_string(read_to_end(fd).size());
    };
    EXPECT_EQ(box.run(pour), std::to_string(wanted));
    EXPECT_EQ(neighbour.run(pour), std::to_string(wanted));
    size_t held = pipes();
    std::printf("%d stuck connections: %zu ends of pipes in the gate\n", kEach, held);
    EXPECT_GE(held, 2 * 256U);
    EXPECT_LE(held, 2 * (256U + 16 + PipePool::kIdle));
  }
}

TEST_F(GateTest, ManyConnectionsLeaveNothingBehind) {
  // Each sandbox may begin about a thousand connections at once; then the rules inside make it wait.
  const int kPerBox = 800;
  const int boxes = std::getenv("ISOLA_TEST_FULL") ? 126 : 3;
  if (boxes < 126) std::printf("reduced: %d connections instead of 100000 (ISOLA_TEST_FULL=1)\n", boxes * kPerBox);
  // All of them go from one address to one server: 28,000 ports, and each rests for a minute unless told otherwise.
  EXPECT_EQ(
      world->run_plainly([] { return std::system("echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse") ? "failed"s : "done"s; }),
      "done");
  auto work = [] {
    auto address = resolve("a.example");
    int good = 0;
    for (int i = 0; i < kPerBox; ++i) good += talk_to(address, kEchoPort, "hello") == "hello";
    return std::to_string(good);
  };
  auto one = [&] {
    Box box = world->box("allow a.example\nlimit connections-per-second 100000");
    EXPECT_EQ(box.run(work), std::to_string(kPerBox));
    world->remove(box);
    while (world->pending_events()) world->drop_event();
  };
  one();
  long before = memory_of(world->gate());
  auto begin = Clock::now();
  for (int i = 1; i < boxes; ++i) one();
  long after = memory_of(world->gate());
  double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("%d connections in %.1f s (%.0f a second, with making %d sandboxes); the gate: %ld KiB, then %ld KiB\n",
              (boxes - 1) * kPerBox, seconds, (boxes - 1) * kPerBox / seconds, boxes - 1, before, after);
  if (kMemoryCounts) {
    EXPECT_LT(after, before + 1024) << "was " << before << " KiB";
  }
}

TEST_F(GateTest, AnIdleSandboxCostsLittle) {
  const int kBoxes = 100;
  std::vector<Box> boxes;
  boxes.push_back(world->box("allow a.example"));
  long before = memory_of(world->gate());
  for (int i = 0; i < kBoxes; ++i) boxes.push_back(world->box("allow a.example"));
  long each = (memory_of(world->gate()) - before) * 1024 / kBoxes;
  std::printf("%ld bytes each\n", each);
  if (kMemoryCounts) {
    EXPECT_LT(each, 50 << 10);
  }
}

}  // namespace
}  // namespace isola::gate::testing
