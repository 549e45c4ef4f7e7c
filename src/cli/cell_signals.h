// Interrupts and other signals that a user sends while cells are written and run: they are for the cell, and none of
// them may leave a sandbox behind that was made for this command alone.
//
//   ISOLA_TRY(CellSignals signals, CellSignals::open());     // from here on they wait until somebody takes them
//   CellSignals::Watch watch(signals, [](int number) { … }); // in a thread of its own, while this lives
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/fd.h"

namespace isola::cli {

class CellSignals {
 public:
  static Result<CellSignals> open();  // INT, TERM and HUP
  int fd() const { return fd_.get(); }
  std::optional<int> take();  // one that has come, without waiting

  class Watch {
   public:
    Watch(CellSignals& signals, std::function<void(int number)> use);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Fd stop_;
    std::thread thread_;
  };

 private:
  explicit CellSignals(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace isola::cli
