// What a coroutine returns: Task<Result<T>>. One spelling for every room that waits.
//
// Rules that g++ 12 asks for: no temporary with a destructor inside a co_await expression that also awaits (bind it to
// a name first), no co_await in a catch block or in a conditional expression.
#pragma once

#include <boost/asio/awaitable.hpp>

#include "base/error.h"

namespace isola {

template <typename T = void>
using Task = boost::asio::awaitable<T>;

#define ISOLA_CO_TRY_(tmp, decl, expr)                         \
  auto tmp = (expr);                                           \
  if (!tmp) co_return std::unexpected(std::move(tmp).error()); \
  decl = std::move(*tmp)
// ISOLA_TRY and ISOLA_CHECK inside a coroutine: ISOLA_CO_TRY(Fd fd, co_await open_it());
#define ISOLA_CO_TRY(decl, ...) ISOLA_CO_TRY_(ISOLA_CONCAT(try_, __LINE__), decl, (__VA_ARGS__))
#define ISOLA_CO_CHECK(...)                                                                         \
  do {                                                                                              \
    if (auto check_ = (__VA_ARGS__); !check_) co_return std::unexpected(std::move(check_).error()); \
  } while (0)

}  // namespace isola
