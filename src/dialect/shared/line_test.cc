// Lines with TLS, against a service that a test plays: what it sends, what it takes, and when it goes.
#include "dialect/shared/line.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <thread>

#include "dialect/shared/tls_test_server.h"
#include "gate/scan_channel.h"
#include "kernel/process.h"
#include "vault/binding_wire.h"

namespace isola::dialect {
namespace {

using std::chrono::milliseconds;

constexpr const char* kBound = "correct-horse-batter!";

// Its service says and takes what the test lets it.
class ScriptedWire : public Wire {
 public:
  explicit ScriptedWire(int version = 0) : server(version) {}

  Task<std::optional<std::string>> read_for(milliseconds time) override {
    const auto until = std::chrono::steady_clock::now() + time;
    for (;;) {
      const uint64_t ticket = bell_.ticket();
      if (!told_.empty()) co_return std::exchange(told_, {});
      if (gone_ || cancelled) co_return std::nullopt;
      const auto left = until - std::chrono::steady_clock::now();
      if (left.count() <= 0) co_return std::string();
      (void)co_await bell_.wait_for(ticket, left);
    }
  }
  Task<std::optional<std::string>> read_frame_for(milliseconds time) override { return read_for(time); }
  Task<Result<void>> write(std::string_view bytes) override {
    ++writing;
    while (full && !cancelled) co_await bell_.wait(bell_.ticket());
    --writing;
    if (cancelled) co_return fail(Code::unavailable, "it was cancelled");
    taken += bytes.size();
    if (!speaks) co_return Result<void>();
    server.feed(bytes);
    if (!SSL_is_init_finished(server.ssl())) SSL_do_handshake(server.ssl());
    char piece[4096];
    for (int n; SSL_is_init_finished(server.ssl()) && (n = SSL_read(server.ssl(), piece, sizeof piece)) > 0;)
      heard.append(piece, static_cast<size_t>(n));
    say(server.take());
    co_return Result<void>();
  }
  void close_write() override { closed = true; }
  void cancel() override {
    cancelled = true;
    bell_.ring();
  }
  Task<Result<std::string>> end() override {
    while (!gone_ && !cancelled) co_await bell_.wait(bell_.ticket());
    co_return std::string();
  }
  std::optional<Error> kept_back() const override { return std::nullopt; }

  void say(const std::string& bytes) {
    told_ += bytes;
    bell_.ring();
  }
  void tell(std::string_view text) {
    SSL_write(server.ssl(), text.data(), static_cast<int>(text.size()));
    say(server.take());
  }
  void make_room() {
    full = false;
    bell_.ring();
  }
  void go() {
    gone_ = true;
    bell_.ring();
  }

  TlsTestServer server;
  std::string heard;
  size_t taken = 0;
  int writing = 0;
  bool full = false, speaks = true, cancelled = false, closed = false;

 private:
  sandbox::Bell bell_;
  std::string told_;
  bool gone_ = false;
};

class LineTest : public ::testing::Test {
 protected:
  template <typename T>
  T wait(Task<T> task) {
    std::optional<T> out;
    auto whole = [](Task<T> what, std::optional<T>& into) -> Task<void> {
      auto value = co_await std::move(what);
      into.emplace(std::move(value));
    };
    boost::asio::co_spawn(io, whole(std::move(task), out), boost::asio::detached);
    until([&] { return out.has_value(); });
    if (!out) std::abort();
    return std::move(*out);
  }
  void until(const std::function<bool()>& so) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!so() && std::chrono::steady_clock::now() < end) io.run_one_for(milliseconds(100));
    ASSERT_TRUE(so());
  }
  // Everything that can go on without anybody else.
  void settle() {
    while (io.poll() > 0) {
    }
  }
  Result<LinePtr> open() {
    WirePtr through = wire;
    auto line = wait(Line::secure(through, box, "localhost:443", limits));
    if (line) until([&] { return SSL_is_init_finished(wire->server.ssl()) == 1; });  // its last word has arrived, too
    return line;
  }
  void write(const LinePtr& line, std::string bytes, std::optional<Result<void>>& done) {
    auto go = [](LinePtr to, std::string what, std::optional<Result<void>>& into) -> Task<void> {
      auto sent = co_await to->write(what);
      into.emplace(std::move(sent));
    };
    boost::asio::co_spawn(io, go(line, std::move(bytes), done), boost::asio::detached);
  }
  bool written(const LinePtr& line, std::string bytes) {
    std::optional<Result<void>> done;
    write(line, std::move(bytes), done);
    until([&] { return done.has_value(); });
    return done && done->has_value();
  }
  std::string text_of(const LinePtr& line) {
    std::string out;
    while (auto piece = wait(line->read())) out += *piece;
    return out;
  }

  boost::asio::io_context io;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  std::shared_ptr<ScriptedWire> wire = std::make_shared<ScriptedWire>();
  sandbox::BoxPtr box = std::make_shared<sandbox::Box>(io, store::SandboxRecord());
  Line::Limits limits;
};

TEST_F(LineTest, BothSpeakAndTakeTheirLeave) {
  auto line = open();
  ASSERT_TRUE(line) << line.error().message;
  const std::string question(300'000, 'q');
  EXPECT_TRUE(written(*line, question));
  EXPECT_TRUE(wire->heard == question);
  wire->tell("answer");
  EXPECT_EQ(wait((*line)->read()), "answer");
  EXPECT_EQ(wait((*line)->read_for(milliseconds(1))), "") << "the time is up";
  SSL_shutdown(wire->server.ssl());
  wire->say(wire->server.take());
  EXPECT_EQ(wait((*line)->read()), std::nullopt);
  EXPECT_FALSE((*line)->broken());
  EXPECT_FALSE(wire->cancelled) << "it may still be told something";
  EXPECT_TRUE(written(*line, "thanks"));
  EXPECT_EQ(wire->heard.substr(question.size()), "thanks");
}

TEST_F(LineTest, WhoeverReadsDoesNotWaitForRoomAndWhoeverWritesDoes) {
  wire = std::make_shared<ScriptedWire>(TLS1_2_VERSION);
  auto line = open();
  ASSERT_TRUE(line) << line.error().message;
  wire->full = true;
  std::optional<Result<void>> sent;
  write(*line, std::string(1 << 20, 'q'), sent);
  until([&] { return wire->writing == 1; });
  // It asks for something that is answered, while it takes nothing.
  SSL_renegotiate(wire->server.ssl());
  SSL_do_handshake(wire->server.ssl());
  wire->say(wire->server.take());
  wire->tell("before you go on");
  EXPECT_EQ(wait((*line)->read()), "before you go on");
  settle();
  EXPECT_FALSE(sent) << "nothing of it was taken";
  EXPECT_EQ(wire->writing, 1) << "one record after the other";
  const size_t taken = wire->taken;
  wire->speaks = false;
  wire->make_room();
  until([&] { return sent.has_value(); });
  EXPECT_TRUE(*sent);
  EXPECT_GT(wire->taken - taken, size_t{1} << 20);
}

TEST_F(LineTest, OneThatAsksForMoreThanItTakesIsLetGo) {
  wire = std::make_shared<ScriptedWire>(TLS1_2_VERSION);
  limits.unasked = 0;
  auto line = open();
  ASSERT_TRUE(line) << line.error().message;
  wire->full = true;
  std::optional<Result<void>> sent;
  write(*line, "question", sent);
  until([&] { return wire->writing == 1; });
  SSL_renegotiate(wire->server.ssl());
  SSL_do_handshake(wire->server.ssl());
  wire->say(wire->server.take());
  EXPECT_EQ(wait((*line)->read()), std::nullopt);
  ASSERT_TRUE((*line)->broken());
  EXPECT_EQ((*line)->broken()->code, Code::exhausted) << (*line)->broken()->message;
  EXPECT_TRUE(wire->cancelled);
  until([&] { return sent.has_value(); });
  EXPECT_FALSE(*sent);
}

TEST_F(LineTest, OneThatTakesNothingIsLetGo) {
  limits.take = milliseconds(1);
  auto line = open();
  ASSERT_TRUE(line) << line.error().message;
  wire->full = true;
  EXPECT_FALSE(written(*line, "question"));
  EXPECT_TRUE(wire->cancelled);
  EXPECT_FALSE(written(*line, "again"));
}

TEST_F(LineTest, NobodyIsWaitedForWhoIsLeft) {
  auto line = open();
  ASSERT_TRUE(line) << line.error().message;
  wire->full = true;
  std::optional<Result<void>> sent;
  write(*line, "question", sent);
  until([&] { return wire->writing == 1; });
  (*line)->cancel();
  until([&] { return sent.has_value(); });
  EXPECT_FALSE(*sent);
  // Nor where whoever wrote is gone first.
  auto other = std::make_shared<ScriptedWire>();
  wire = other;
  line = open();
  ASSERT_TRUE(line) << line.error().message;
  other->full = true;
  SSL_shutdown(other->server.ssl());
  auto close = [](LinePtr to) -> Task<void> { co_await to->close_write(); };
  boost::asio::co_spawn(io, close(*line), boost::asio::detached);
  until([&] { return other->writing == 1; });
  (*line)->cancel();
  until([&] { return other->closed; });
}

TEST_F(LineTest, AFarewellWithoutAnEndIsNotWaitedForLong) {
  limits.linger = milliseconds(1);
  auto line = open();
  ASSERT_TRUE(line) << line.error().message;
  wire->tell("last words");
  SSL_shutdown(wire->server.ssl());
  wire->say(wire->server.take());
  EXPECT_EQ(text_of(*line), "last words");
  EXPECT_FALSE((*line)->broken());
  EXPECT_FALSE(wait((*line)->end()));
  EXPECT_TRUE(wire->cancelled);
}

TEST_F(LineTest, WhatWasChangedEndsIt) {
  auto line = open();
  ASSERT_TRUE(line) << line.error().message;
  SSL_write(wire->server.ssl(), "before", 6);
  SSL_write(wire->server.ssl(), "after", 5);
  std::string bytes = wire->server.take();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  wire->say(bytes);
  EXPECT_EQ(text_of(*line), "before");
  ASSERT_TRUE((*line)->broken());
  EXPECT_EQ((*line)->broken()->code, Code::corrupt);
  EXPECT_TRUE(wire->cancelled);
  EXPECT_FALSE(written(*line, "more"));
  EXPECT_TRUE(wait((*line)->end())) << "it ends with that";
}

TEST_F(LineTest, ACutIsAnEndUnlessItIsWithinARecord) {
  for (size_t kept : {0, 3, 10}) {
    wire = std::make_shared<ScriptedWire>();
    auto line = open();
    ASSERT_TRUE(line) << line.error().message;
    wire->tell("whole");
    SSL_write(wire->server.ssl(), "half", 4);
    wire->say(wire->server.take().substr(0, kept));
    wire->go();
    EXPECT_EQ(text_of(*line), "whole");
    EXPECT_EQ((*line)->broken().has_value(), kept > 0) << kept;
  }
}

TEST_F(LineTest, WhatDoesNotSpeakTlsIsSaidAtOnce) {
  wire->speaks = false;
  wire->say("HTTP/1.1 400 Bad Request\r\n\r\n");
  auto line = open();
  ASSERT_FALSE(line);
  EXPECT_EQ(line.error().code, Code::corrupt);
  EXPECT_TRUE(wire->cancelled);
}

TEST_F(LineTest, WhatSaysNothingIsNotWaitedForLong) {
  wire->full = true;
  limits.shake = milliseconds(1);
  auto line = open();
  ASSERT_FALSE(line);
  EXPECT_EQ(line.error().code, Code::timeout);
  EXPECT_TRUE(wire->cancelled);
}

// With a value that is bound to its sandbox.
class BoundLineTest : public LineTest {
 protected:
  void SetUp() override {
    auto key = vault::KeyPair::make().value();
    vault::Binding binding;
    binding.id = "b1";
    binding.secret = "github";
    binding.names = {"a.example"};
    binding.sealed = vault::seal(key.open_key(), kBound).value();
    searches->set(*gate::Bindings::make(vault::encode_bindings({binding}), &key).value());
    auto connect = [this]() -> Task<Result<Fd>> {
      auto pair = kernel::socket_pair();
      auto find = [this](const std::string&) { return searches; };
      loop.emplace(gate::Loop::make().value());
      channel = gate::ScanChannel::make(*loop, std::move(pair->second), find, [this](gate::ScanChannel&) {
                  loop->stop();
                }).value();
      gate = std::thread([this] { (void)loop->run(); });
      co_return std::move(pair->first);
    };
    link = sandbox::ScanLink::make(io, connect, std::chrono::minutes(1));
    auto screening = std::make_shared<sandbox::Screening>(
        link, [this] { return whose; },
        [this](const gate::ScanFound& found, const sandbox::Screening::Place& place) {
          reports.push_back(place.stream + " " + found.secret);
        });
    screening->turn_on();
    box->set_screening(screening);
  }
  void TearDown() override {
    link->stop();
    while (gate.joinable() && io.run_one_for(milliseconds(50))) {
    }
    if (gate.joinable()) gate.join();
  }

  std::shared_ptr<gate::Searches> searches = std::make_shared<gate::Searches>();
  std::optional<gate::Loop> loop;
  std::unique_ptr<gate::ScanChannel> channel;
  std::thread gate;
  Result<std::vector<std::string>> whose = std::vector<std::string>{"box"};
  std::shared_ptr<sandbox::ScanLink> link;
  std::vector<std::string> reports;
};

TEST_F(BoundLineTest, ABoundValueInAnAnswerIsBlotted) {
  auto line = open();
  ASSERT_TRUE(line) << line.error().message;
  const std::string value = kBound;
  wire->tell("the token is " + value.substr(0, 9));
  wire->tell(value.substr(9) + ", keep it");
  SSL_shutdown(wire->server.ssl());
  wire->say(wire->server.take());
  const std::string text = text_of(*line);
  EXPECT_TRUE(text.starts_with("the token is ") && text.ends_with(", keep it")) << text;
  EXPECT_EQ(text.find(value), std::string::npos);
  EXPECT_EQ(text.find(value.substr(0, 9)), std::string::npos);
  EXPECT_EQ(reports, (std::vector<std::string>{"port github"}));
  EXPECT_FALSE((*line)->broken());
}

TEST_F(BoundLineTest, WhatCannotBeSearchedDoesNotPassAndBothWaysEnd) {
  auto line = open();
  ASSERT_TRUE(line) << line.error().message;
  whose = fail(Code::unavailable, "nobody knows");
  wire->full = true;
  std::optional<Result<void>> sent;
  write(*line, "question", sent);
  wire->tell(std::string("the token is ") + kBound);
  EXPECT_EQ(text_of(*line), "");
  ASSERT_TRUE((*line)->broken());
  EXPECT_EQ((*line)->broken()->message, "nobody knows");
  EXPECT_TRUE(wire->cancelled);
  until([&] { return sent.has_value(); });
  EXPECT_FALSE(*sent);
}

}  // namespace
}  // namespace isola::dialect
