// Waits for a short question's answer as long as it can reach somebody: what a client whose connection is broken had
// asked for is let go. One that has only ended its side of the connection gets its answer.
//
//   ISOLA_CO_TRY(auto events, co_await until_gone(ex, service.ask_ledger(project, filter)));
#pragma once

#include <boost/asio/experimental/awaitable_operators.hpp>

#include "base/task.h"
#include "http/exchange.h"

namespace isola::dialect {

template <typename T>
Task<Result<T>> until_gone(http::Exchange& ex, Task<Result<T>> question) {
  using namespace boost::asio::experimental::awaitable_operators;
  auto first = co_await (std::move(question) || ex.cut_off());
  if (first.index() == 1) co_return fail(Code::unavailable, "the client has left");
  co_return std::move(std::get<0>(first));
}

}  // namespace isola::dialect
