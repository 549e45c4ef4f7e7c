// What waits for the disk, away from the threads that answer requests: they have others to serve meanwhile.
//
//   auto kept = co_await on_disk([draft] { return draft->finish(); });
//
// The step runs on a thread of the few that do nothing else. It must own what it uses: whoever asked may be gone before
// it is over.
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <type_traits>

#include "base/task.h"

namespace isola::dialect {

boost::asio::thread_pool& disk_threads();

template <typename Step>
Task<std::invoke_result_t<Step>> on_disk(Step step) {
  auto run = [](Step what) -> Task<std::invoke_result_t<Step>> { co_return what(); };
  auto running = run(std::move(step));
  co_return co_await boost::asio::co_spawn(disk_threads(), std::move(running), boost::asio::use_awaitable);
}

}  // namespace isola::dialect
