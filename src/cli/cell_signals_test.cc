#include "cli/cell_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <future>

namespace isola::cli {
namespace {

TEST(CellSignals, WaitUntilSomebodyTakesThem) {
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  auto signals = CellSignals::open();
  ASSERT_TRUE(signals);
  EXPECT_FALSE(signals->take());
  // Of the process: what is sent to one thread, as raise() does, another does not see.
  ::kill(::getpid(), SIGTERM);
  EXPECT_EQ(signals->take(), SIGTERM);
  {
    std::promise<int> came;
    CellSignals::Watch watch(*signals, [&](int number) { came.set_value(number); });
    ::kill(::getpid(), SIGINT);
    EXPECT_EQ(came.get_future().get(), SIGINT);
  }
  ::kill(::getpid(), SIGHUP);
  EXPECT_EQ(signals->take(), SIGHUP) << "nobody watches any more";
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace isola::cli
