// How anything in Isola fails: a function that can fail returns Result<T>, and the Error in it says what went wrong in
// one sentence that a user can read, with a code that a program can test and the errno where the kernel said no.
//
//   Result<Fd> open_blob(const std::string& path) {
//     int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
//     if (fd < 0) return sys_error("cannot open the image blob " + path);
//     return Fd(fd);
//   }
//   Result<void> use() {
//     ISOLA_TRY(Fd blob, open_blob(p));       // returns the Error to the caller
//     ISOLA_CHECK(do_something(blob));        // the same for Result<void>
//     return {};
//   }
#pragma once

#include <cerrno>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace isola {

enum class Code {
  invalid,      // the caller asked for something that makes no sense
  not_found,    // it is not there
  exists,       // it is there already
  denied,       // missing privileges, or a rule says no
  unsupported,  // this machine, kernel or build cannot do it
  exhausted,    // a limit or a resource ran out (memory, disk, ids)
  unavailable,  // it could work later: a peer is gone, or not there yet
  timeout,      // it took too long
  corrupt,      // data is not what it claims to be
  internal,     // everything else: ours or the kernel's fault
};

std::string_view to_string(Code code);

struct Error {
  Code code = Code::internal;
  std::string message;
  int sys_errno = 0;  // 0: no system call was involved

  // "what: cause", keeping code and errno: says where in the work the cause struck.
  Error in(std::string_view what) const&;
  // The message for a person, with the errno's name where there is one.
  std::string text() const;
};

template <typename T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> fail(Code code, std::string message, int sys_errno = 0) {
  return std::unexpected(Error{code, std::move(message), sys_errno});
}

// The Code that fits an errno (ENOENT → not_found, ENOSPC → exhausted …).
Code code_of(int sys_errno);

// An Error from errno (or the given one): "message: strerror".
std::unexpected<Error> sys_error(std::string_view message, int sys_errno = errno);

#define ISOLA_CONCAT_(a, b) a##b
#define ISOLA_CONCAT(a, b) ISOLA_CONCAT_(a, b)
#define ISOLA_TRY_(tmp, decl, expr)                         \
  auto tmp = (expr);                                        \
  if (!tmp) return std::unexpected(std::move(tmp).error()); \
  decl = std::move(*tmp)
#define ISOLA_TRY(decl, ...) ISOLA_TRY_(ISOLA_CONCAT(try_, __LINE__), decl, (__VA_ARGS__))
#define ISOLA_CHECK(...)                                                                         \
  do {                                                                                           \
    if (auto check_ = (__VA_ARGS__); !check_) return std::unexpected(std::move(check_).error()); \
  } while (0)

}  // namespace isola
