// Copies the write-ahead log of a database into its file, on a thread of its own: the copy waits for the disk, and a
// create should not.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "store/sqlite.h"

namespace isola::store {

class Checkpointer {
 public:
  // Takes over from `writer`, which must stay where it is and outlive the Checkpointer.
  static Result<std::unique_ptr<Checkpointer>> start(sqlite::Database& writer);
  ~Checkpointer();

 private:
  Checkpointer(sqlite::Database& writer, sqlite::Database own);
  void run();

  sqlite::Database own_;  // the thread's alone
  sqlite::Database& writer_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool wanted_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace isola::store
