// What the tests of this room that have a loop share.
#pragma once

#include <chrono>
#include <functional>

#include "launcher/event_loop.h"

namespace isola::launcher {

// Runs the loop until it is so; false: a hang.
inline bool run_until(EventLoop& loop, const std::function<bool()>& condition) {
  int left = 20000;
  std::function<void()> look = [&] {
    if (condition() || --left == 0) return loop.stop();
    loop.after(std::chrono::milliseconds(1), look);
  };
  look();
  (void)loop.run();
  return left > 0;
}

}  // namespace isola::launcher
