// The server's end, with the gate's own end on a thread that can be taken away at any moment.
#include "sandbox/scan_link.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <random>
#include <thread>

#include "gate/scan_channel.h"
#include "kernel/process.h"
#include "vault/binding_wire.h"

namespace isola::sandbox {
namespace {

namespace net = boost::asio;
using gate::Searches;

constexpr const char* kSearched = "correct-horse-batter!";

// A gate that knows the sandbox "box".
class Gate {
 public:
  Gate(Fd socket, std::shared_ptr<const Searches> searches) : loop_(gate::Loop::make().value()) {
    wake_ = Fd(::eventfd(0, EFD_CLOEXEC));
    (void)loop_.add(wake_.get(), EPOLLIN, stop_);
    auto find = [searches](const std::string& id) { return id == "box" ? searches : nullptr; };
    channel_ = gate::ScanChannel::make(loop_, std::move(socket), find, [](gate::ScanChannel&) {}).value();
    thread_ = std::thread([this] { (void)loop_.run(); });
  }
  // As a kill does: in the middle of whatever.
  ~Gate() {
    ::eventfd_write(wake_.get(), 1);
    thread_.join();
  }

 private:
  gate::Loop loop_;
  Fd wake_;
  gate::Callback stop_{[this](uint32_t) { loop_.stop(); }};
  std::unique_ptr<gate::ScanChannel> channel_;
  std::thread thread_;
};

class ScanLinkTest : public ::testing::Test {
 protected:
  void SetUp() override { bind(*searches, kSearched); }
  static void bind(Searches& searches, const std::string& value, bool blocks = false) {
    auto key = vault::KeyPair::make().value();
    vault::Binding binding;
    binding.id = "b1";
    binding.secret = "github";
    binding.names = {"a.example"};
    binding.blocks = blocks;
    binding.sealed = vault::seal(key.open_key(), value).value();
    searches.set(*gate::Bindings::make(vault::encode_bindings({binding}), &key).value());
  }
  Task<Result<Fd>> connect() {
    ++connects;
    if (!there) co_return fail(Code::unavailable, "there is no gate");
    auto pair = kernel::socket_pair();
    gates.push_back(std::make_unique<Gate>(std::move(pair->second), searches));
    co_return std::move(pair->first);
  }
  struct Reader {
    std::unique_ptr<ScanStream> stream;
    std::string out;
    std::vector<gate::ScanFound> found;
    ScanStream::Progress last;
    std::optional<Error> failed;
  };
  std::unique_ptr<Reader> open(const std::string& sandbox = "box") {
    auto reader = std::make_unique<Reader>();
    auto* raw = reader.get();
    reader->stream = link->open({sandbox}, io, [raw](ScanStream::Progress& progress) {
      for (auto& passed : progress.passed) raw->out += passed.bytes.substr(passed.head);
      raw->found.insert(raw->found.end(), progress.found.begin(), progress.found.end());
      if (progress.failed) raw->failed = progress.failed;
      raw->last = {.fed = progress.fed, .seen = progress.seen, .decided = progress.decided};
    });
    return reader;
  }
  // Runs until it is so; the test fails after a minute.
  void until(const std::function<bool()>& so) {
    auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!so() && std::chrono::steady_clock::now() < end) io.run_one_for(std::chrono::milliseconds(100));
    ASSERT_TRUE(so());
  }

  net::io_context io;
  net::executor_work_guard<net::io_context::executor_type> work{io.get_executor()};
  std::shared_ptr<Searches> searches = std::make_shared<Searches>();
  std::vector<std::unique_ptr<Gate>> gates;
  bool there = true;
  int connects = 0;
  std::shared_ptr<ScanLink> link = ScanLink::make(io, [this] { return connect(); }, std::chrono::minutes(1));
};

TEST_F(ScanLinkTest, PassesWhatWasLookedAt) {
  auto reader = open();
  reader->stream->feed("well: correct-ho");
  until([&] { return reader->last.seen == 16; });
  EXPECT_EQ(reader->out, "well: ");
  reader->stream->feed("rse-batter!. And");
  until([&] { return reader->last.decided == 32; });
  EXPECT_EQ(reader->out, "well: *********************. And");
  ASSERT_EQ(reader->found.size(), 1u);
  EXPECT_EQ(reader->found[0].secret, "github");
}

TEST_F(ScanLinkTest, HeadsAreHandedBackAsTheyWere) {
  std::vector<ScanStream::Passed> all;
  auto stream = link->open({"box"}, io, [&](ScanStream::Progress& progress) {
    for (auto& passed : progress.passed) all.push_back(std::move(passed));
  });
  stream->feed("HEADone", 4);
  stream->feed("HEADtwo corr", 4);
  until([&] { return all.size() == 2; });
  stream->feed("HEADect", 4);
  stream->nudge(ScanStream::kEnd);
  until([&] { return all.size() == 4; });
  std::string seen;
  for (const auto& one : all) seen += std::to_string(one.head) + one.bytes + "|";
  EXPECT_EQ(seen, "4HEADone|0two |0corr|4HEADect|");
}

TEST_F(ScanLinkTest, NothingIsLostOrPassedWhenTheGateDies) {
  std::mt19937 random(7);
  std::string text, wanted;
  while (text.size() < 2'000'000) {
    std::string line(random() % 200, static_cast<char>('a' + random() % 26));
    text += line + "\n";
    wanted += line + "\n";
    if (random() % 4) continue;
    text += kSearched;
    wanted += std::string(21, '*');
  }
  auto reader = open();
  size_t at = 0, kills = 0;
  while (reader->last.decided < text.size()) {
    // As a window would: only so much is under way.
    while (at < text.size() && at - reader->last.decided < 200'000) {
      size_t n = std::min<size_t>(1 + random() % 60'000, text.size() - at);
      reader->stream->feed(text.substr(at, n));
      at += n;
      if (at == text.size()) reader->stream->nudge(ScanStream::kEnd);
    }
    io.run_one_for(std::chrono::milliseconds(100));
    if (kills < 12 && !gates.empty() && reader->last.decided > (kills + 1) * 120'000) {
      gates.clear();
      ++kills;
    }
    ASSERT_FALSE(reader->failed) << reader->failed->message;
  }
  EXPECT_GE(kills, 5u);  // as many as there was time for
  EXPECT_EQ(reader->out, wanted);
}

TEST_F(ScanLinkTest, WhatIdleLetGoIsRememberedByTheNextGate) {
  auto reader = open();
  reader->stream->feed("correct-");
  reader->stream->nudge(ScanStream::kIdle);
  until([&] { return reader->out == "cor"; });
  gates.clear();
  reader->stream->feed("horse-batter!");
  until([&] { return reader->last.decided == 21; });
  EXPECT_EQ(reader->out, "cor" + std::string(18, '*'));
}

TEST_F(ScanLinkTest, WithoutAGateItFailsAfterAWhile) {
  there = false;
  link->set_patience(std::chrono::milliseconds(400));
  auto reader = open();
  reader->stream->feed("something");
  until([&] { return reader->failed.has_value(); });
  EXPECT_EQ(reader->out, "");
  EXPECT_EQ(reader->failed->code, Code::unavailable);
  EXPECT_GT(connects, 1);
}

TEST_F(ScanLinkTest, ASandboxThatIsUnknownYetIsAskedForAgain) {
  auto late = std::make_shared<Searches>();
  late->set_missing("the vault is locked");
  auto ready = std::exchange(searches, late);
  link->set_patience(std::chrono::minutes(1));
  auto reader = open();
  reader->stream->feed("correct-horse-batter!");
  until([&] { return !gates.empty(); });
  searches = ready;
  gates.clear();
  until([&] { return reader->last.decided == 21; });
  EXPECT_EQ(reader->out, std::string(21, '*'));
  auto stranger = open("another");
  link->set_patience(std::chrono::milliseconds(300));
  stranger->stream->feed("x");
  until([&] { return stranger->failed.has_value(); });
  EXPECT_NE(stranger->failed->message.find("does not know the sandbox"), std::string::npos)
      << stranger->failed->message;
}

TEST_F(ScanLinkTest, WhatBlocksEndsTheStream) {
  bind(*searches, kSearched, true);
  auto reader = open(), other = open();
  reader->stream->feed("a correct-horse");
  other->stream->feed("b ");
  until([&] { return reader->out == "a " && other->out == "b "; });
  reader->stream->feed("-batter! and more");
  until([&] { return reader->failed.has_value(); });
  EXPECT_EQ(reader->out, "a ");
  EXPECT_EQ(reader->failed->code, Code::denied);
  EXPECT_EQ(reader->found.size(), 1u);
  other->stream->feed("d");
  until([&] { return other->out == "b d"; });
}

TEST_F(ScanLinkTest, ManyStreamsTakeTurns) {
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 200; ++i) {
    readers.push_back(open());
    for (int j = 0; j < 4; ++j) readers.back()->stream->feed(std::string(60'000, 'x'));
  }
  auto late = open();
  late->stream->feed("here");
  until([&] { return late->out == "here"; });
  // Whoever came last did not wait until all others were through.
  size_t unfinished = 0;
  for (const auto& reader : readers) unfinished += reader->last.decided < 240'000;
  EXPECT_GT(unfinished, 0u);
  until([&] { return std::ranges::all_of(readers, [](const auto& one) { return one->last.decided == 240'000; }); });
}

// These are not copied into messages (gate/scan_ring.h), as long as the gate keeps up.
TEST_F(ScanLinkTest, LongPiecesAreSearchedLikeShortOnes) {
  auto reader = open();
  const std::string value = kSearched;
  std::string whole;
  for (size_t i = 0; i < 100; ++i) {
    std::string piece(i % 3 == 0 ? 60'000 : 20'000 + i, static_cast<char>('A' + i % 26));
    piece.replace(0, value.size() - 5, value.substr(5));  // the end of what the piece before began
    piece.replace(piece.size() - 5, 5, value.substr(0, 5));
    whole += piece;
    reader->stream->feed(std::move(piece));
    if (i % 10 == 9) until([&] { return reader->last.seen == whole.size(); });
  }
  reader->stream->nudge(ScanStream::kEnd);
  until([&] { return reader->last.decided == whole.size(); });
  for (size_t at = whole.find(value); at != std::string::npos; at = whole.find(value))
    whole.replace(at, value.size(), value.size(), '*');
  EXPECT_TRUE(reader->out == whole);
  uint32_t count = 0;
  for (const auto& found : reader->found) count += found.count;
  EXPECT_EQ(count, 99u);
}

TEST_F(ScanLinkTest, OneThatIsDroppedIsForgotten) {
  auto reader = open();
  reader->stream->feed("correct-");
  until([&] { return reader->last.seen == 8; });
  reader->stream.reset();
  auto other = open();
  other->stream->feed("x");
  until([&] { return other->out == "x"; });
  EXPECT_EQ(reader->out, "");
}

}  // namespace
}  // namespace isola::sandbox
