#include "boundary/jail/criu_rpc.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "boundary/jail/protobuf.h"
#include "kernel/fault.h"
#include "kernel/mount.h"
#include "kernel/process.h"

namespace isola::criu {

namespace {

enum class Request : uint64_t { dump = 1, restore = 2, notify = 6 };

// Fields of criu_opts.
enum Field : uint32_t {
  kImagesDirFd = 1,
  kPid = 2,
  kLeaveRunning = 3,
  kTcpEstablished = 5,
  kFileLocks = 8,
  kLogLevel = 9,
  kLogFile = 10,
  kNotifyScripts = 12,
  kRoot = 13,
  kLinkRemap = 18,
  kRestoreSibling = 26,
  kManageCgroupsMode = 34,
  kGhostLimit = 35,
  kExternal = 37,
  kEmptyNamespaces = 38,
  kTcpSkipInFlight = 46,
  kNetworkLock = 64,
};
constexpr uint64_t kCgroupsIgnore = 0, kNetworkLockSkip = 3;

ProtoWriter common(const Options& options, const char* log) {
  ProtoWriter out;
  // Our number: it finds the folder through /proc.
  out.number(kImagesDirFd, static_cast<uint64_t>(options.images));
  out.number(kTcpEstablished, 1);
  out.number(kFileLocks, 1);
  out.number(kLogLevel, static_cast<uint64_t>(options.log_level));
  out.text(kLogFile, log);
  out.number(kNotifyScripts, 1);
  out.number(kLinkRemap, 1);
  out.number(kManageCgroupsMode, kCgroupsIgnore);
  out.number(kGhostLimit, options.ghost_limit);
  for (const auto& external : options.external) out.text(kExternal, external);
  out.number(kEmptyNamespaces, CLONE_NEWNET);
  out.number(kTcpSkipInFlight, 1);
  out.number(kNetworkLock, kNetworkLockSkip);
  return out;
}

std::string request(Request type, const std::string& options) {
  ProtoWriter out;
  out.number(1, static_cast<uint64_t>(type));
  out.text(2, options);
  return out.take();
}

std::string notified(bool success) {
  ProtoWriter out;
  out.number(1, static_cast<uint64_t>(Request::notify));
  out.number(3, success);
  return out.take();
}

struct Response {
  uint64_t type = 0;
  bool success = false;
  pid_t restored = 0;
  std::string notify_point;
  pid_t notify_pid = 0;
  std::string message;
};

Result<Response> parse(std::string_view bytes) {
  Response response;
  ProtoReader in(bytes);
  while (in.next()) {
    if (in.field() == 1) response.type = in.number();
    if (in.field() == 2) response.success = in.number() != 0;
    if (in.field() == 9) response.message = in.text();
    if (in.field() != 4 && in.field() != 5) continue;
    bool restored = in.field() == 4;
    ProtoReader inner(in.text());
    while (inner.next()) {
      if (restored && inner.field() == 1) response.restored = static_cast<pid_t>(inner.number());
      if (!restored && inner.field() == 1) response.notify_point = inner.text();
      if (!restored && inner.field() == 2) response.notify_pid = static_cast<pid_t>(inner.number());
    }
    if (inner.bad()) return fail(Code::corrupt, "unreadable answer from criu");
  }
  if (in.bad()) return fail(Code::corrupt, "unreadable answer from criu");
  return response;
}

}  // namespace

Result<void> enter_criu_world(const std::string& run) {
  if (::unshare(CLONE_NEWNS) < 0) return sys_error("cannot make a mount namespace");
  ISOLA_CHECK(kernel::make_all_private());
  ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, run));
  Fd point(::open("/run", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!point) return sys_error("cannot open /run");
  return kernel::attach(tree.get(), point.get(), ".");
}

Result<Servant> Servant::start(const Program& program, const Birth& birth) {
  if (int e = kernel::fault::at("criu")) return sys_error("cannot start criu", e);
  ISOLA_TRY(auto pair, kernel::socket_pair());
  auto body = [&] {
    constexpr int kSocket = 3;
    // The launcher keeps its capabilities when it changes ids; criu counts on the ordinary rules.
    ::prctl(PR_SET_SECUREBITS, 0, 0, 0, 0);
    ::setpgid(0, 0);  // with its own helpers, so that none of them outlives it
    if (birth.before_exec && !birth.before_exec()) return 126;
    if (::dup2(pair.second.get(), kSocket) != kSocket) return 127;
    ::fcntl(kSocket, F_SETFD, 0);
    ::syscall(SYS_close_range, kSocket + 1, ~0u, 0);
    std::string preload = "LD_PRELOAD=" + program.preload, path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    // A library of criu's would set up its cryptography while it is loaded; nobody here uses any.
    std::string no_tls = "GNUTLS_NO_IMPLICIT_INIT=1";
    std::string owner = "ISOLA_CRIU_OWNER=" + std::to_string(birth.owner);  // jail/preload/preload_owner.h
    char* env[] = {path.data(), no_tls.data(), program.preload.empty() ? nullptr : preload.data(),
                   birth.owner == 0 ? nullptr : owner.data(), nullptr};
    ::execle(program.path.c_str(), "criu", "swrk", "3", nullptr, env);
    return 127;
  };
  ISOLA_TRY(auto child, kernel::spawn(0, body, birth.cgroup));
  return Servant(child.pid, std::move(child.pidfd), std::move(pair.first));
}

Servant::~Servant() {
  socket_.reset();
  kernel::wait_for(pid_);
}

Result<void> Servant::dump(const Options& options, pid_t pid, bool leave_running, const Hooks& hooks) {
  auto out = common(options, "dump.log");
  out.number(kPid, static_cast<uint64_t>(pid));
  out.number(kLeaveRunning, leave_running);
  ISOLA_CHECK(serve(request(Request::dump, out.take()), hooks));
  return {};
}

Result<pid_t> Servant::restore(const Options& options, const std::string& root, const Hooks& hooks) {
  auto out = common(options, "restore.log");
  out.text(kRoot, root);
  out.number(kRestoreSibling, 1);
  ISOLA_TRY(pid_t restored, serve(request(Request::restore, out.take()), hooks));
  if (restored <= 0) return fail(Code::corrupt, "criu named no restored process");
  return restored;
}

Result<pid_t> Servant::serve(const std::string& request, const Hooks& hooks) {
  ISOLA_CHECK(kernel::send_message(socket_.get(), request));
  Result<void> hooked;
  int beside = hooks.beside;
  for (;;) {
    Word word = wait_for_word(beside);
    if (word == Word::beside) {
      beside = -1;
      if (hooks.on_word && hooked) hooked = hooks.on_word();
      continue;
    }
    const bool said = word == Word::criu;
    auto message = said ? kernel::receive_message(socket_.get()) : kernel::Message();
    if (!message || message->bytes.empty()) {  // closed, or reset with words of ours unread
      if (!hooked) return std::unexpected(hooked.error());
      return fail(Code::unavailable, "criu died");
    }
    ISOLA_TRY(auto response, parse(message->bytes));
    if (response.type != static_cast<uint64_t>(Request::notify)) {
      if (!hooked) return std::unexpected(hooked.error());
      if (!response.success) return fail(Code::internal, "criu: " + response.message);
      return response.restored;
    }
    if (hooks.on_notify && hooked) hooked = hooks.on_notify(response.notify_point, response.notify_pid);
    // Whoever refused may have ended it: then the refusal is what happened.
    auto told = kernel::send_message(socket_.get(), notified(hooked.has_value()));
    if (!hooked && !told) return std::unexpected(hooked.error());
    ISOLA_CHECK(told);
  }
}

// `gone`: what it left behind will say nothing. Those are helpers in its group, and in a restore processes half made,
// which are their own groups (whoever removes the control group kills them): they hold the socket, and waiting for
// its end would be waiting for ever.
Servant::Word Servant::wait_for_word(int beside) const {
  pollfd all[] = {{socket_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}, {beside, POLLIN, 0}};
  while (::poll(all, 3, -1) < 0 && errno == EINTR) {
  }
  if (all[0].revents != 0) return Word::criu;
  if (all[2].revents != 0) return Word::beside;
  ::kill(-pid_, SIGKILL);
  // Its last word may have come between the two looks.
  return ::poll(all, 1, 0) > 0 ? Word::criu : Word::gone;
}

}  // namespace isola::criu
