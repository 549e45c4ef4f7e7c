#include "cli/prove_leak.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <thread>

#include "base/fd.h"
#include "base/file.h"
#include "kernel/mount.h"
#include "kernel/netlink.h"
#include "kernel/nftables.h"
#include "kernel/process.h"

namespace isola::cli {

namespace {

Result<void> enter(pid_t pid, const std::string& kind, int flag) {
  ISOLA_TRY(Fd space, kernel::open_namespace(pid, kind));
  if (::setns(space.get(), flag) < 0) return sys_error("cannot enter the sandbox's " + kind);
  return {};
}

Result<void> leak_name(pid_t pid) {
  utsname host{};
  ::uname(&host);
  ISOLA_CHECK(enter(pid, "uts", CLONE_NEWUTS));
  if (::sethostname(host.nodename, ::strlen(host.nodename)) < 0) return sys_error("cannot set the sandbox's name");
  return {};
}

// `file` is shown in the place of what the kernel says about process 1.
Result<void> leak_groups(pid_t pid, const std::string& file) {
  ISOLA_TRY(Fd mount, kernel::clone_tree(AT_FDCWD, file));
  if (::unshare(CLONE_FS) < 0) return sys_error("cannot leave the folders of other threads");
  ISOLA_CHECK(enter(pid, "mnt", CLONE_NEWNS));
  Fd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  return kernel::attach(mount.get(), root.get(), "proc/1/cgroup");
}

Result<std::unique_ptr<HostServices>> leak_network(pid_t pid, const HostServices& services) {
  ISOLA_CHECK(enter(pid, "net", CLONE_NEWNET));
  ISOLA_TRY(auto netfilter, kernel::NetlinkSocket::open(NETLINK_NETFILTER));
  ISOLA_CHECK(netfilter.run(kernel::remove_table("isola")));
  return services.open_again();
}

Result<std::unique_ptr<HostServices>> leak_all(pid_t pid, const HostServices& services, const std::string& groups) {
  ISOLA_TRY(auto there, leak_network(pid, services));
  ISOLA_CHECK(leak_name(pid));
  ISOLA_CHECK(leak_groups(pid, groups));  // last: from here on the folders are the sandbox's
  return there;
}

// A file of the host with the control groups as the host sees them.
Result<std::string> file_of_groups(pid_t pid) {
  ISOLA_TRY(std::string groups, read_file(fmt::format("/proc/{}/cgroup", pid)));
  std::string path = "/tmp/isola-leak-XXXXXX";
  Fd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file || ::fchmod(file.get(), 0444) < 0) return sys_error("cannot make a file");
  ISOLA_CHECK(write_all(file.get(), groups));
  return path;
}

}  // namespace

Result<std::unique_ptr<HostServices>> leak_into(pid_t pid, const HostServices& services) {
  ISOLA_TRY(std::string groups, file_of_groups(pid));
  Result<std::unique_ptr<HostServices>> there = fail(Code::internal, "not tried");
  // In a thread, which takes the namespaces that it is in with it when it ends.
  std::thread([&] { there = leak_all(pid, services, groups); }).join();
  ::unlink(groups.c_str());
  return there;
}

}  // namespace isola::cli
