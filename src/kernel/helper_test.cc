#include "kernel/helper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "kernel/process.h"

namespace isola::kernel {
namespace {

class HelperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  }
  static void wait_for(const Helper& helper) { ::waitpid(helper.pid(), nullptr, 0); }
};

TEST_F(HelperTest, SaysWhatItDid) {
  auto helper = Helper::start({}, [](Helper::Talk&) -> Result<std::string> { return "done it"; });
  ASSERT_TRUE(helper) << helper.error().message;
  auto word = helper->next();
  ASSERT_TRUE(word) << word.error().message;
  EXPECT_EQ(word->kind, Helper::kDone);
  EXPECT_EQ(word->bytes, "done it");
  wait_for(*helper);
}

// Its last word can come before its end.
TEST_F(HelperTest, NobodyWaitsForWhatItDoesAfterwards) {
  auto pipe = make_pipe();
  ASSERT_TRUE(pipe);
  auto helper = Helper::start({.keep = {pipe->first.get()}}, [&](Helper::Talk& talk) -> Result<std::string> {
    ISOLA_CHECK(talk.finish("done it"));
    char byte = 0;
    (void)!::read(pipe->first.get(), &byte, 1);
    return "something else";
  });
  ASSERT_TRUE(helper) << helper.error().message;
  auto word = helper->next();
  ASSERT_TRUE(word) << word.error().message;
  EXPECT_EQ(word->kind, Helper::kDone);
  EXPECT_EQ(word->bytes, "done it");
  pipe->second.reset();
  EXPECT_FALSE(helper->next()) << "that was the last one";
  wait_for(*helper);
}

TEST_F(HelperTest, AnErrorArrivesWhole) {
  auto helper =
      Helper::start({}, [](Helper::Talk&) -> Result<std::string> { return fail(Code::exhausted, "no room", ENOSPC); });
  ASSERT_TRUE(helper);
  auto word = helper->next();
  ASSERT_FALSE(word);
  EXPECT_EQ(word.error().code, Code::exhausted);
  EXPECT_EQ(word.error().message, "no room");
  EXPECT_EQ(word.error().sys_errno, ENOSPC);
  wait_for(*helper);
}

TEST_F(HelperTest, AsksAndIsAnswered) {
  for (bool yes : {true, false}) {
    auto helper = Helper::start({}, [](Helper::Talk& talk) -> Result<std::string> {
      ISOLA_CHECK(talk.ask('Q', "may I?"));
      return "thanks";
    });
    ASSERT_TRUE(helper);
    auto question = helper->next();
    ASSERT_TRUE(question);
    EXPECT_EQ(question->kind, 'Q');
    EXPECT_EQ(question->bytes, "may I?");
    ASSERT_TRUE(helper->answer(yes));
    EXPECT_EQ(helper->next().has_value(), yes);
    wait_for(*helper);
  }
}

TEST_F(HelperTest, OneThatIsKilledIsNoticed) {
  auto helper = Helper::start({}, [](Helper::Talk&) -> Result<std::string> {
    for (;;) ::pause();
  });
  ASSERT_TRUE(helper);
  helper->kill();
  auto word = helper->next();
  ASSERT_FALSE(word);
  EXPECT_EQ(word.error().code, Code::unavailable);
  wait_for(*helper);
}

TEST_F(HelperTest, HoldsNothingThatItWasNotGiven) {
  Fd secret(::open("/dev/null", O_RDONLY | O_CLOEXEC)), given(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto helper =
      Helper::start({.keep = {given.get()}}, [&, hidden = secret.get()](Helper::Talk&) -> Result<std::string> {
        auto status = read_file("/proc/self/status").value_or("");
        size_t at = status.find("CapEff:\t");
        return std::string(::fcntl(hidden, F_GETFD) < 0 ? "closed " : "open ") +
               (::fcntl(given.get(), F_GETFD) < 0 ? "closed " : "open ") + status.substr(at + 8, 16);
      });
  ASSERT_TRUE(helper);
  auto word = helper->next();
  ASSERT_TRUE(word) << word.error().message;
  EXPECT_EQ(word->bytes, "closed open 0000000000000000");
  wait_for(*helper);
}

}  // namespace
}  // namespace isola::kernel
