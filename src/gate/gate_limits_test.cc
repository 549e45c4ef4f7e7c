// What a sandbox may ask of the gate at a time, and that streams arrive whole.
#include <cstring>

#include "gate/dns.h"
#include "gate/gate_fixture.h"

namespace isola::gate::testing {
namespace {

// Clients are copies of this process, which has threads. That such a copy has some of its own, the thread sanitizer
// cannot follow.
#ifdef __SANITIZE_THREAD__
#define SKIP_WITHOUT_THREADS_OF_COPIES() GTEST_SKIP() << "the thread sanitizer knows no threads of a forked copy"
#else
#define SKIP_WITHOUT_THREADS_OF_COPIES() static_cast<void>(0)
#endif

TEST_F(GateTest, LimitsOfConnections) {
  Box box = world->box("allow a.example\nlimit connections 4\nlimit connections-per-second 1000");
  auto text = box.run([] {
    auto address = resolve("a.example");
    std::vector<Fd> held;
    std::string out;
    for (int i = 0; i < 6; ++i) {
      held.push_back(dial(address, kEchoPort));
      char c = 'x';
      (void)!::send(held.back().get(), &c, 1, MSG_NOSIGNAL);
      out += ::recv(held.back().get(), &c, 1, 0) == 1 ? "+" : "-";
    }
    held.pop_back(), held.pop_back();
    ::shutdown(held[0].get(), SHUT_WR);
    if (read_to_end(held[0]) != "") out += "?";
    return out;
  });
  EXPECT_EQ(text, "++++--");
  EXPECT_EQ(world->next_denial(), "too-many-connections a.example:7");
  Box slow = world->box("allow a.example\nlimit connections-per-second 1");
  auto counted = slow.run([] {
    auto address = resolve("a.example");
    int good = 0;
    for (int i = 0; i < 60; ++i) good += talk_to(address, kEchoPort, "x") == "x";
    return std::to_string(good);
  });
  EXPECT_LT(std::stoi(counted), 40);
  EXPECT_GE(std::stoi(counted), 16);
  EXPECT_EQ(world->next_denial(), "too-fast a.example:7");
}

// The packet rules bound questions by UDP before the gate does; over TCP only the gate counts them.
TEST_F(GateTest, LimitsOfStreamsOfQuestions) {
  Box box = world->box("allow a.example");
  EXPECT_EQ(box.run([] {
    std::vector<Fd> open;
    for (int i = 0; i < 16; ++i) open.push_back(dial(boundary::kOwnAddress4, 53));
    auto one = framed(make_query("a.example", 1));
    char c = 0;
    // All of them are there: the last one answers.
    (void)!::send(open.back().get(), one.data(), one.size(), MSG_NOSIGNAL);
    if (::recv(open.back().get(), &c, 1, 0) != 1) return "the sixteenth got no answer"s;
    Fd more = dial(boundary::kOwnAddress4, 53);
    (void)!::send(more.get(), one.data(), one.size(), MSG_NOSIGNAL);
    return ::recv(more.get(), &c, 1, 0) == 1 ? "one more was answered"s : "refused"s;
  }),
            "refused");
  auto denial = world->next(Event::Kind::denied);
  ASSERT_TRUE(denial);
  EXPECT_EQ(denial->reason, Reason::too_many_connections);
  EXPECT_EQ(denial->protocol, Event::Protocol::dns);
  EXPECT_EQ(denial->port, 53);
}

TEST_F(GateTest, LimitsOfQuestions) {
  SKIP_WITHOUT_THREADS_OF_COPIES();
  Box box = world->box("allow a.example");
  constexpr int kQuestions = 3000;
  auto counted = box.run([] {
    Fd fd = dial(boundary::kOwnAddress4, 53);
    auto one = framed(make_query("a.example", 1));
    std::thread writer([&] {
      for (int i = 0; i < kQuestions; ++i)
        if (::send(fd.get(), one.data(), one.size(), MSG_NOSIGNAL) < 0) return;
    });
    std::string stream;
    char buffer[65536];
    int answered = 0, refused = 0;
    while (answered + refused < kQuestions) {
      ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
      if (n <= 0) break;
      stream.append(buffer, static_cast<size_t>(n));
      for (auto reply = take_framed(stream); reply && *reply; reply = take_framed(stream))
        ++(read_answer(**reply, 1) == "code 5" ? refused : answered);
    }
    writer.join();
    return std::to_string(answered) + " " + std::to_string(refused);
  });
  int answered = 0, refused = 0;
  ASSERT_EQ(std::sscanf(counted.c_str(), "%d %d", &answered, &refused), 2) << counted;
  EXPECT_EQ(answered + refused, kQuestions);
  EXPECT_GE(answered, 1000);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(world->next_denial(), "dns-rate a.example:53");
}

TEST_F(GateTest, FewStreamsOfQuestionsAtATime) {
  Box box = world->box("allow a.example");
  EXPECT_EQ(box.run([] {
    std::vector<Fd> held;
    for (int i = 0; i < 15; ++i) held.push_back(dial(boundary::kOwnAddress4, 53));
    auto last = resolve("a.example", 1, true);
    if (!is_address(last)) return "the sixteenth: " + last;
    for (int i = 0; i < 2; ++i) held.push_back(dial(boundary::kOwnAddress4, 53));
    return is_address(resolve("a.example", 1, true)) ? "one more than sixteen"s : "refused"s;
  }),
            "refused");
}

TEST_F(GateTest, WhatIsTooLargeForAQuestionIsNotRead) {
  Box box = world->box("allow a.example");
  EXPECT_EQ(box.run([] {
    Fd fd = dial(boundary::kOwnAddress4, 53, SOCK_DGRAM);
    auto query = make_query("a.example", 1);
    std::string large = query + std::string(3000, 'x');
    (void)!::send(fd.get(), large.data(), large.size(), 0);
    (void)!::send(fd.get(), query.data(), query.size(), 0);
    char buffer[2048];
    ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n < 0) return "none"s;
    auto answer = read_answer(std::string_view(buffer, static_cast<size_t>(n)), 1);
    return is_address(answer) ? "an address"s : answer;
  }),
            "an address")
      << "the first answer is to the good question";
  EXPECT_EQ(box.run([] {
    Fd fd = dial(boundary::kOwnAddress4, 53);
    std::string large = "\xff\xff"s + std::string(70000, 'x');
    (void)!::send(fd.get(), large.data(), large.size(), MSG_NOSIGNAL);
    return read_to_end(fd).substr(0, 10);
  }),
            "ECONNRESET");
}

TEST_F(GateTest, BandwidthIsBounded) {
  Box box = world->box("default allow\nlimit bytes-per-second 2M");
  auto begin = Clock::now();
  EXPECT_EQ(box.run([] {
    Fd fd = dial(resolve("a.example"), kSourcePort);
    size_t wanted = 4 << 20;
    (void)!::send(fd.get(), &wanted, sizeof wanted, MSG_NOSIGNAL);
    return std::to_string(read_to_end(fd).size());
  }),
            std::to_string(4 << 20));
  // 4 MiB less the burst of half a MiB at 2 MiB a second: slower is possible on a busy machine, faster is not.
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(1500));
}

TEST_F(GateTest, LargeStreamsArriveWholeInBothDirections) {
  SKIP_WITHOUT_THREADS_OF_COPIES();
  Box box = world->box("default allow");
  auto sizes = box.run([] {
    auto address = resolve("a.example");
    Fd fd = dial(address, kSourcePort);
    size_t wanted = 50'000'000, got = 0;
    (void)!::send(fd.get(), &wanted, sizeof wanted, MSG_NOSIGNAL);
    static char buffer[1 << 20];
    for (ssize_t n; (n = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) got += static_cast<size_t>(n);
    // Echo of more than all buffers on the way, read only when all is written or nothing more can be.
    Fd echo = dial(address, kEchoPort);
    std::string sent;
    for (int i = 0; i < 300'000; ++i) sent += std::to_string(i) + " ";
    std::string back;
    std::thread writer([&] {
      for (size_t at = 0; at < sent.size();) {
        ssize_t n = ::send(echo.get(), sent.data() + at, sent.size() - at, MSG_NOSIGNAL);
        if (n <= 0) return;
        at += static_cast<size_t>(n);
      }
      ::shutdown(echo.get(), SHUT_WR);
    });
    back = read_to_end(echo);
    writer.join();
    return std::to_string(got) + " " + (back == sent ? "same" : "different");
  });
  EXPECT_EQ(sizes, "50000000 same");
}

// Little by little, with a reader that only begins when nothing more can be written.
TEST_F(GateTest, SmallMessagesArriveWholeAndInOrder) {
  Box box = world->box("allow a.example");
  EXPECT_EQ(box.run([] {
    Fd fd = dial(resolve("a.example"), kEchoPort);
    std::string sent, back;
    for (int i = 0; i < 20'000; ++i) {
      std::string one = std::to_string(i) + std::string(static_cast<size_t>(i % 900), '.');
      ssize_t n = ::send(fd.get(), one.data(), one.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) break;
      sent.append(one, 0, static_cast<size_t>(n));
      // Many are on their way one by one: what is not yet taken goes in the same segment otherwise.
      if (i % 3 == 0) ::sched_yield();
    }
    ::shutdown(fd.get(), SHUT_WR);
    back = read_to_end(fd);
    return back == sent ? "same"s : std::to_string(sent.size()) + " sent, back " + std::to_string(back.size());
  }),
            "same");
}

// The kernel stops reading at the mark of an urgent byte, which is not the end of what there is.
TEST_F(GateTest, BytesBehindAnUrgentOneArrive) {
  Box box = world->box("default allow");
  EXPECT_EQ(box.run([] {
    Fd fd = dial(resolve("a.example"), kEchoPort);
    for (auto [text, flag] : {std::pair("abc", 0), std::pair("!", static_cast<int>(MSG_OOB)), std::pair("efg", 0)})
      (void)!::send(fd.get(), text, std::strlen(text), MSG_NOSIGNAL | flag);
    std::string back(6, ' ');
    ssize_t n = ::recv(fd.get(), back.data(), back.size(), MSG_WAITALL);
    return n < 0 ? "none"s : back.substr(0, static_cast<size_t>(n));
  }),
            "abcefg");
}

// The same where much is under way, and the end of it is already there.
TEST_F(GateTest, BytesBehindAnUrgentOneArriveInALargeStream) {
  SKIP_WITHOUT_THREADS_OF_COPIES();
  Box box = world->box("default allow");
  EXPECT_EQ(box.run([] {
    Fd fd = dial(resolve("a.example"), kEchoPort);
    std::thread writer([&] {
      auto send_all = [&](size_t size) {
        std::string text(size, 'x');
        for (size_t at = 0; at < size;) {
          ssize_t n = ::send(fd.get(), text.data() + at, size - at, MSG_NOSIGNAL);
          if (n <= 0) return;
          at += static_cast<size_t>(n);
        }
      };
      send_all(400'000);
      (void)!::send(fd.get(), "!", 1, MSG_NOSIGNAL | MSG_OOB);
      send_all(50'000);
      ::shutdown(fd.get(), SHUT_WR);
    });
    std::string back = read_to_end(fd);
    writer.join();
    return std::to_string(back.size());
  }),
            "450000");
}

}  // namespace
}  // namespace isola::gate::testing
