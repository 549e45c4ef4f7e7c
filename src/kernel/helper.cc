#include "kernel/helper.h"

#include <linux/capability.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/codec.h"
#include "kernel/capability.h"
#include "kernel/fault.h"
#include "kernel/process.h"

namespace isola::kernel {

namespace {

constexpr std::string_view kYes = "y", kNo = "n";

Error error_in(std::string_view bytes) {
  Reader in(bytes);
  Error error;
  uint8_t code = in.u8();
  error.code = code <= static_cast<uint8_t>(Code::internal) ? static_cast<Code>(code) : Code::internal;
  error.sys_errno = in.i32();
  error.message = in.str();
  return in.done() ? error : Error{Code::corrupt, "a helper said something unreadable"};
}

Result<void> confine(const Helper::Options& options, int socket) {
  ::prctl(PR_SET_NAME, options.name, 0, 0, 0);
  auto keep = options.keep;
  keep.push_back(socket);
  ISOLA_CHECK(close_all_but(std::move(keep)));
  ::setsid();
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // A container's root may lack some of them to begin with.
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) < 0) return sys_error("cannot read capabilities");
  const uint64_t own = (uint64_t{data[1].permitted} << 32 | data[0].permitted) & options.capabilities;
  ISOLA_CHECK(limit_bounding_set(options.capabilities));
  return set_capabilities(own, own, 0);
}

}  // namespace

const uint64_t kAllButMachine =
    ((uint64_t{1} << (CAP_LAST_CAP + 1)) - 1) &
    ~(capability(CAP_SYS_MODULE) | capability(CAP_SYS_RAWIO) | capability(CAP_SYS_BOOT) | capability(CAP_SYS_TIME) |
      capability(CAP_SYS_PACCT) | capability(CAP_MAC_ADMIN) | capability(CAP_MAC_OVERRIDE) | capability(CAP_SYSLOG) |
      capability(CAP_AUDIT_CONTROL) | capability(CAP_AUDIT_READ) | capability(CAP_BLOCK_SUSPEND));

Result<void> close_all_but(std::vector<int> keep) {
  std::sort(keep.begin(), keep.end());
  unsigned first = 3;
  for (int fd : keep) {
    if (fd < 3) continue;
    if (static_cast<unsigned>(fd) > first && ::syscall(SYS_close_range, first, static_cast<unsigned>(fd) - 1, 0) < 0)
      return sys_error("cannot close inherited descriptors");
    first = std::max(first, static_cast<unsigned>(fd) + 1);
  }
  if (::syscall(SYS_close_range, first, ~0u, 0) < 0) return sys_error("cannot close inherited descriptors");
  return {};
}

std::string Helper::failed_word(const Error& error) {
  Writer out;
  out.u8(static_cast<uint8_t>(kFailed));
  out.u8(static_cast<uint8_t>(error.code));
  out.i32(error.sys_errno);
  out.str(error.message);
  return out.take();
}

Result<void> Helper::Talk::say(char kind, std::string_view bytes) const {
  return send_message(socket_, std::string(1, kind) + std::string(bytes));
}

Result<void> Helper::Talk::ask(char kind, std::string_view bytes) const {
  ISOLA_CHECK(say(kind, bytes));
  ISOLA_TRY(auto message, receive_message(socket_, 16));
  if (message.bytes == kYes) return {};
  return fail(Code::unavailable, message.bytes == kNo ? "refused" : "whoever asked for it is gone");
}

Result<void> Helper::Talk::finish(std::string_view bytes) {
  finished_ = true;
  return say(kDone, bytes);
}

Result<Helper> Helper::start(const Options& options, const Body& body) {
  ISOLA_TRY(auto pair, socket_pair());
  ISOLA_TRY(auto child, spawn(
                            0,
                            [&] {
                              pair.first.reset();  // else it would never hear that its caller died
                              Talk talk(pair.second.get());
                              auto confined = confine(options, pair.second.get());
                              auto done = confined ? body(talk) : std::unexpected(confined.error());
                              Result<void> said;
                              if (!talk.finished())
                                said = done ? talk.say(kDone, *done)
                                            : send_message(pair.second.get(), failed_word(done.error()));
                              if (int milliseconds = fault::at("helper_end"))
                                ::poll(nullptr, 0, milliseconds);  // one that dies slowly
                              return said ? 0 : 1;
                            },
                            options.cgroup));
  Helper helper;
  helper.socket_ = std::move(pair.first);
  helper.pidfd_ = std::move(child.pidfd);
  helper.pid_ = child.pid;
  return helper;
}

Result<Helper::Word> Helper::next() {
  auto message = receive_message(socket_.get());
  if (!message) return std::unexpected(message.error());
  const std::string& bytes = message->bytes;
  if (bytes.empty()) return fail(Code::unavailable, "a helper process died");
  if (bytes.front() == kFailed) return std::unexpected(error_in(std::string_view(bytes).substr(1)));
  return Word{bytes.front(), bytes.substr(1), std::move(message->fds)};
}

Result<void> Helper::answer(bool yes) { return send_message(socket_.get(), yes ? kYes : kNo); }

void Helper::kill() {
  if (pidfd_) (void)send_signal(pidfd_.get(), SIGKILL);
}

}  // namespace isola::kernel
