#include "base/error.h"

#include <cstring>

namespace isola {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::invalid: return "invalid";
    case Code::not_found: return "not-found";
    case Code::exists: return "exists";
    case Code::denied: return "denied";
    case Code::unsupported: return "unsupported";
    case Code::exhausted: return "exhausted";
    case Code::unavailable: return "unavailable";
    case Code::timeout: return "timeout";
    case Code::corrupt: return "corrupt";
    case Code::internal: return "internal";
  }
  return "internal";
}

Error Error::in(std::string_view what) const& { return Error{code, std::string(what) + ": " + message, sys_errno}; }

std::string Error::text() const { return message; }

Code code_of(int sys_errno) {
  switch (sys_errno) {
    case EINVAL:
    case ENAMETOOLONG:
    case E2BIG:
    case ENOTDIR:
    case EISDIR:
    case ELOOP: return Code::invalid;
    case ENOENT:
    case ESRCH:
    case ENODEV:
    case ENXIO: return Code::not_found;
    case EEXIST:
    case ENOTEMPTY:
    case EBUSY: return Code::exists;
    case EPERM:
    case EACCES:
    case EROFS: return Code::denied;
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT: return Code::unsupported;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE: return Code::exhausted;
    case EAGAIN:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE: return Code::unavailable;
    case ETIMEDOUT: return Code::timeout;
    default: return Code::internal;
  }
}

std::unexpected<Error> sys_error(std::string_view message, int sys_errno) {
  return std::unexpected(Error{code_of(sys_errno), std::string(message) + ": " + std::strerror(sys_errno), sys_errno});
}

}  // namespace isola
