#include "cli/output_events.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/fd.h"
#include "cli/commands.h"
#include "kernel/process.h"

namespace isola::cli {
namespace {

TEST(Base64, DecodesEveryLength) {
  EXPECT_EQ(*decode_base64(""), "");
  EXPECT_EQ(*decode_base64("YQ=="), "a");
  EXPECT_EQ(*decode_base64("YWI="), "ab");
  EXPECT_EQ(*decode_base64("YWJj"), "abc");
  EXPECT_EQ(*decode_base64("AP+A"), std::string("\0\xff\x80", 3));
  for (const char* bad : {"Y", "YQ=", "Y!==", "====", "YQ==YQ==", "Y=Q="}) EXPECT_FALSE(decode_base64(bad)) << bad;
}

TEST(OutputEvents, Parse) {
  auto start = parse_output(R"({"type":"start","command_id":"c1","pid":7})", true);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->kind, OutputEvent::start);
  EXPECT_EQ(start->command_id, "c1");
  auto out = parse_output(R"({"type":"stdout","seq":3,"data":"AAEC"})", true);
  EXPECT_EQ(out->data, std::string("\0\1\2", 3));
  EXPECT_EQ(out->seq, 3u);
  EXPECT_EQ(parse_output(R"({"type":"stderr","data":"plain"})", false)->data, "plain");
  auto exit = parse_output(R"({"type":"exit","exit_code":137,"signal":9,"timed_out":true})", true);
  EXPECT_EQ(exit->exit_code, 137);
  EXPECT_TRUE(exit->timed_out);
  EXPECT_EQ(parse_output(R"({"type":"error","error":{"code":"x","message":"gone"}})", true)->message, "gone");
  EXPECT_EQ(parse_output(R"({"type":"ping"})", true)->kind, OutputEvent::other);
  EXPECT_FALSE(parse_output("no", true));
  EXPECT_FALSE(parse_output(R"({"type":"stdout","data":"%"})", true));
  // Types that are not what they should be must not throw.
  EXPECT_TRUE(parse_output(R"({"type":7,"seq":"x","exit_code":null})", true));
}

TEST(OutputEvents, CodesOfWhatNeverRan) {
  EXPECT_EQ(exit_code_of(Error{Code::not_found, "whatever words"}, "command_not_found"), kNoSuchCommand);
  EXPECT_EQ(exit_code_of(Error{Code::denied, "whatever words"}, "command_not_executable"), kCannotRun);
  EXPECT_EQ(exit_code_of(Error{Code::timeout, "whatever words"}, "deadline"), kTimedOut);
  EXPECT_EQ(exit_code_of(Error{Code::not_found, "no such command: nope"}), kFailed);
  OutputEvent went{.kind = OutputEvent::error, .message = "m", .code = "unavailable", .end_reason = "oom"};
  EXPECT_EQ(exit_code_of(went), 137);
  EXPECT_EQ(exit_code_of(Error{Code::not_found, "there is no sandbox"}), kFailed);
  OutputEvent end{.kind = OutputEvent::exit, .exit_code = 137, .timed_out = true};
  EXPECT_EQ(exit_code_of(end), kTimedOut);
}

// Our own standard output, caught in a pipe.
class Caught {
 public:
  Caught() : saved_(::dup(1)) {
    auto ends = kernel::make_pipe();
    read_ = std::move(ends->first);
    ::dup2(ends->second.get(), 1);
  }
  ~Caught() { give_back(); }
  std::string text() {
    give_back();
    std::string out(65536, '\0');
    ssize_t n = ::read(read_.get(), out.data(), out.size());
    out.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return out;
  }
  void hang_up() { read_.reset(); }

 private:
  void give_back() {
    if (saved_) ::dup2(saved_.get(), 1);
    saved_.reset();
  }
  Fd saved_, read_;
};

TEST(OutputPrinter, LinesMayComeInAnyPieces) {
  std::string stream =
      "{\"type\":\"start\",\"command_id\":\"c9\"}\n\n{\"type\":\"stdout\",\"seq\":2,\"data\":\"YWI=\"}\n"
      "{\"type\":\"ping\"}\n{\"type\":\"stdout\",\"seq\":3,\"data\":\"Yw==\"}\n{\"type\":\"exit\",\"exit_code\":4}\n";
  std::string started;
  OutputPrinter printer({.started = [&](const std::string& id) { started += id; }});
  Caught caught;
  for (char c : stream) ASSERT_TRUE(printer.feed(std::string_view(&c, 1)));
  EXPECT_EQ(caught.text(), "abc");
  EXPECT_EQ(started, "c9");
  EXPECT_EQ(printer.seq(), 3u);
  ASSERT_TRUE(printer.end());
  EXPECT_EQ(printer.end()->exit_code, 4);
}

TEST(OutputPrinter, WhatIsCollectedIsBounded) {
  OutputPrinter printer({.encoded = false, .collect = true});
  const std::string line = nlohmann::json({{"type", "stdout"}, {"data", std::string(1 << 20, 'x')}}).dump() + "\n";
  for (int i = 0; i < 18; ++i) ASSERT_TRUE(printer.feed(line));
  ASSERT_TRUE(printer.feed("{\"type\":\"gap\",\"lost_bytes\":5}\n{\"type\":\"exit\",\"exit_code\":4}\n"));
  auto result = printer.result();
  EXPECT_EQ(result["stdout"].get<std::string>().size(), 16u << 20);
  EXPECT_EQ(result["stdout_dropped_bytes"], 2 << 20);
  EXPECT_EQ(result["lost_bytes"], 5);
  EXPECT_EQ(result["exit_code"], 4);
}

TEST(OutputPrinter, AResultSaysWhereAndHow) {
  OutputPrinter printer({.encoded = false, .collect = true});
  ASSERT_TRUE(
      printer.feed("{\"type\":\"start\",\"command_id\":\"c9\",\"sandbox\":\"i1\"}\n"
                   "{\"type\":\"exit\",\"exit_code\":137,\"signal\":9,\"killed_by_memory_limit\":true}\n"));
  auto result = printer.result();
  EXPECT_EQ(result["sandbox"], "i1");
  EXPECT_EQ(result["command_id"], "c9");
  EXPECT_EQ(result["signal"], 9);
  EXPECT_EQ(result["killed_by_memory_limit"], true);
}

TEST(OutputPrinter, NoticesThatNobodyReads) {
  ::signal(SIGPIPE, SIG_IGN);
  OutputPrinter printer({});
  Caught caught;
  caught.hang_up();
  EXPECT_FALSE(printer.feed("{\"type\":\"stdout\",\"seq\":2,\"data\":\"YWI=\"}\n"));
  ASSERT_TRUE(printer.unwritten().has_value());
  EXPECT_EQ(printer.unwritten()->sys_errno, EPIPE);
  EXPECT_EQ(printer.seq(), 0u);
}

}  // namespace
}  // namespace isola::cli
