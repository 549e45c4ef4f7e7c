#include "boundary/jail/protections.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "boundary/jail/furnish.h"
#include "kernel/capability.h"
#include "kernel/process.h"

namespace isola::boundary::jail {
namespace {

TEST(MountLines, ReadsTheKernelsTable) {
  auto lines = mount_lines(
      "22 1 0:21 / / rw,nodev,relatime - overlay isola rw,lowerdir=0,upperdir=upper/upper\n"
      "23 22 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:5 master:1 - proc isola rw\n"
      "24 23 0:22 /sys /proc/sys ro,nosuid,nodev,noexec - proc isola rw\n"
      "25 22 0:30 /dev /dev ro,nosuid - tmpfs isola rw,size=65536k\n"
      "26 22 0:31 / /with\\040space ro - ext4 /dev/x rw\n"
      "27 25 0:32 / /dev/pts rw,nosuid - devpts isola rw,gid=5,mode=620,max=512\n"
      "28 25 0:33 / /dev/shm rw - tmpfs isola rw,nr_inodes=7,size=1024k\n");
  ASSERT_TRUE(lines);
  ASSERT_EQ(lines->size(), 7u);
  EXPECT_EQ((*lines)[0], "/ overlay rw,nodev / -");
  EXPECT_EQ((*lines)[1], "/proc proc rw,nosuid,nodev,noexec / -");
  EXPECT_EQ((*lines)[2], "/proc/sys proc ro,nosuid,nodev,noexec /sys -");
  EXPECT_EQ((*lines)[3], "/dev tmpfs ro,nosuid /dev size=65536k");
  EXPECT_EQ((*lines)[4], "/with\\040space ext4 ro / -");
  EXPECT_EQ((*lines)[5], "/dev/pts devpts rw,nosuid / max=512");
  EXPECT_EQ((*lines)[6], "/dev/shm tmpfs rw / size=1024k,nr_inodes=7");
}

TEST(MountLines, RulesReadTheSame) {
  using From = MountRule::From;
  EXPECT_EQ(mount_line({"dev/shm", From::filesystem, "tmpfs", {}, {{"nr_inodes", "7"}, {"mode", "1"}, {"size", "1m"}}}),
            "/dev/shm tmpfs rw / size=1024k,nr_inodes=7");
  EXPECT_EQ(mount_line({"proc/sys", From::itself, "", {.read_only = true}, {}}), "/proc/sys proc ro /sys -");
  EXPECT_EQ(mount_line({"proc/kmsg", From::stage, "shut", {}, {}}), "/proc/kmsg tmpfs rw /shut size=65536k");
  EXPECT_EQ(mount_line({"a b", From::shown, "", {.nodev = true}, {}}), "/a\\040b * rw,nodev * *");
}

TEST(MountLines, RefusesWhatItCannotRead) {
  EXPECT_FALSE(mount_lines("22 1 0:21 / / rw,nodev\n"));
  EXPECT_FALSE(mount_lines("22 1 0:21 / / rw,nodev -\n"));
  EXPECT_FALSE(mount_lines("x\n"));
  EXPECT_FALSE(mount_lines("\n"));
  auto empty = mount_lines("");
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->empty());
}

TEST(Protections, TheStandardMounts) {
  auto rules = standard_mounts();
  ASSERT_FALSE(rules.empty());
  // Each is a mount that the kernel makes, compares and takes down for every sandbox: who adds one means it.
  EXPECT_LE(rules.size(), 24u);
  EXPECT_EQ(rules[0].target, "");
  EXPECT_EQ(rules[0].source, "overlay");
  std::string all;
  for (const auto& rule : rules) {
    all += "/" + rule.target + "\n";
    // Nothing but the root, /dev and what lies in it may hold or make devices; nothing but the root may hold set-uid
    // files.
    bool dev = rule.target == "dev" || rule.target == "dev/pts";
    EXPECT_TRUE(rule.attributes.nodev || dev) << rule.target;
    EXPECT_TRUE(rule.attributes.nosuid || rule.target.empty()) << rule.target;
    EXPECT_FALSE(rule.target.starts_with('/')) << rule.target;
  }
  for (const char* path : {"/proc", "/proc/sys", "/dev", "/dev/pts", "/dev/shm", "/sys"})
    EXPECT_NE(all.find(std::string(path) + "\n"), std::string::npos) << path;
  for (const char* path : {"/proc/kcore", "/proc/sysrq-trigger", "/proc/keys", "/proc/kmsg", "/proc/acpi"}) {
    bool here = ::access(path, F_OK) == 0;  // not every kernel has each of them
    EXPECT_EQ(all.find(std::string(path) + "\n") != std::string::npos, here) << path;
  }
}

TEST(Protections, CapabilitiesReachNothingOutside) {
  for (int cap : {CAP_SYS_ADMIN,
                  CAP_NET_ADMIN,
                  CAP_SYS_MODULE,
                  CAP_SYS_RAWIO,
                  CAP_SYS_PTRACE,
                  CAP_SYS_BOOT,
                  CAP_SYS_TIME,
                  CAP_MKNOD,
                  CAP_DAC_READ_SEARCH,
                  CAP_SYSLOG,
                  CAP_BPF,
                  CAP_PERFMON,
                  CAP_NET_RAW,
                  CAP_SYS_RESOURCE,
                  CAP_MAC_ADMIN,
                  CAP_IPC_LOCK,
                  CAP_CHECKPOINT_RESTORE,
                  CAP_LINUX_IMMUTABLE,
                  CAP_SYS_NICE,
                  CAP_SYS_TTY_CONFIG,
                  CAP_AUDIT_CONTROL,
                  CAP_WAKE_ALARM})
    EXPECT_FALSE(kCapabilities & kernel::capability(cap)) << cap;
}

TEST(Protections, DescribeNamesEverything) {
  Protections p{.id_base = 7, .id_count = 65536, .capabilities = 0xab, .filter_hash = "hash", .cgroup = "group"};
  p.mounts = {{"", MountRule::From::filesystem, "overlay", {.nodev = true}, {}},
              {"mnt", MountRule::From::shown, "", {.read_only = true, .nosuid = true, .nodev = true}, {}}};
  std::string text = p.describe();
  for (const char* part :
       {"ids 0 7 65536", "owner 7", "capabilities 00000000000000ab", "seccomp hash", "personality 00000000",
        "no_new_privs 0", "cgroup group", "mount / overlay rw,nodev", "mount /mnt * ro,nosuid,nodev * *",
        "limit Max core file size 1", " user", " mnt", " pid", " net", " ipc", " uts", " cgroup"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  Protections q = p;
  q.capabilities |= 1 << 2;
  EXPECT_NE(q.describe(), text);
}

// A process that has nothing of its own is noticed at the first look; the full set of mismatches is tried on a living
// jail (tests/e2e/protections_test.cc).
TEST(Verify, AnOrdinaryProcess) {
  auto verified = verify(::getpid(), Protections{});
  ASSERT_FALSE(verified);
  EXPECT_NE(verified.error().message.find("ns/user"), std::string::npos) << verified.error().message;
  EXPECT_FALSE(verify(1 << 30, Protections{}));  // no such process
}

TEST(Verify, LimitsAndNetworkAroundIt) {
  Protections wanted;
  wanted.limits = {.cpus = 1.5, .memory = 64 << 20, .pids = 32};
  wanted.network = "link lo";
  EXPECT_TRUE(verify_around(wanted, wanted.limits, "link lo"));
  EXPECT_TRUE(verify_around(wanted, {.cpus = 1.5, .memory = (64 << 20) - 4096, .pids = 32}, "link lo"));
  for (auto [limits, network] : std::initializer_list<std::pair<kernel::CgroupLimits, const char*>>{
           {{.cpus = 1.5, .memory = 0, .pids = 32}, "link lo"},
           {{.cpus = 1.5, .memory = 65 << 20, .pids = 32}, "link lo"},
           {{.cpus = 2, .memory = 64 << 20, .pids = 32}, "link lo"},
           {{.cpus = 1.5, .memory = 64 << 20, .pids = 0}, "link lo"},
           {{.cpus = 1.5, .memory = 64 << 20, .pids = 32}, "link eth0"}})
    EXPECT_FALSE(verify_around(wanted, limits, network));
}

// With namespaces one after the other: each one that is missing is named.
TEST(Verify, AMissingNamespaceIsNamed) {
  const std::pair<uint64_t, const char*> steps[] = {
      {CLONE_NEWUSER, "ns/mnt"}, {CLONE_NEWNS, "ns/pid"},     {CLONE_NEWPID, "ns/net"},    {CLONE_NEWNET, "ns/ipc"},
      {CLONE_NEWIPC, "ns/uts"},  {CLONE_NEWUTS, "ns/cgroup"}, {CLONE_NEWCGROUP, "uid_map"}};
  uint64_t flags = 0;
  for (auto [flag, missing] : steps) {
    flags |= flag;
    auto pipe = kernel::make_pipe();
    ASSERT_TRUE(pipe);
    auto child = kernel::spawn(flags, [&] {
      pipe->second.reset();
      char c;
      (void)!::read(pipe->first.get(), &c, 1);
      return 0;
    });
    ASSERT_TRUE(child) << child.error().message;
    auto verified = verify(child->pid, Protections{.id_base = 5, .id_count = 1});
    ASSERT_FALSE(verified);
    EXPECT_NE(verified.error().message.find(missing), std::string::npos) << verified.error().message;
    pipe->second.reset();
    ::waitpid(child->pid, nullptr, 0);
  }
}

// Everything is its own, and the ids are right; but whoever made it was the host's root, as a forgotten change of the
// user before the clone would have it.
TEST(Verify, ANamespaceOfTheHostsRootIsNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr uint32_t kBase = 0x40000000, kCount = 65536;
  auto pipe = kernel::make_pipe();
  ASSERT_TRUE(pipe);
  auto child = kernel::spawn(
      CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP, [&] {
        pipe->second.reset();
        char c;
        (void)!::read(pipe->first.get(), &c, 1);
        return 0;
      });
  ASSERT_TRUE(child) << child.error().message;
  auto mapped = kernel::write_id_maps(child->pid, kBase, kCount);
  ASSERT_TRUE(mapped) << mapped.error().message;
  auto verified = verify(child->pid, Protections{.id_base = kBase, .id_count = kCount});
  ASSERT_FALSE(verified);
  EXPECT_NE(verified.error().message.find("owner of ns/user"), std::string::npos) << verified.error().message;
  pipe->second.reset();
  ::waitpid(child->pid, nullptr, 0);
}

TEST(Verify, LimitsAndNetwork) {
  Protections wanted{.limits = {.cpus = 0.5, .memory = 64 << 20, .pids = 100}, .network = "lo\n"};
  const kernel::CgroupLimits good = wanted.limits;
  EXPECT_TRUE(verify_around(wanted, good, "lo\n"));
  auto differs = [&](const char* what, kernel::CgroupLimits limits, const std::string& network) {
    auto verified = verify_around(wanted, limits, network);
    ASSERT_FALSE(verified) << what;
    EXPECT_NE(verified.error().message.find(what), std::string::npos) << verified.error().message;
  };
  differs("limits", {.cpus = 0, .memory = good.memory, .pids = good.pids}, "lo\n");
  differs("limits", {.cpus = 0.6, .memory = good.memory, .pids = good.pids}, "lo\n");
  differs("limits", {.cpus = good.cpus, .memory = 0, .pids = good.pids}, "lo\n");
  differs("limits", {.cpus = good.cpus, .memory = good.memory + 4096, .pids = good.pids}, "lo\n");
  differs("limits", {.cpus = good.cpus, .memory = good.memory, .pids = 101}, "lo\n");
  differs("network", good, "lo\neth0\n");
  differs("network", good, "");
}

TEST(Verify, EveryControllerLeadsIntoTheGroup) {
  const std::string v1 =
      "9:name=systemd:/\n8:pids:/isola/x\n7:blkio:/\n6:freezer:/isola/x\n4:memory:/isola/x\n"
      "1:cpu:/isola/x\n0::/\n";
  EXPECT_EQ(misplaced_controller(v1, "x", false), "");
  EXPECT_EQ(misplaced_controller(v1, "x", true), "blkio");
  EXPECT_EQ(misplaced_controller(v1, "y", false), "cpu");
  const std::string joined = "5:freezer:/isola/x\n4:cpuacct,cpu:/isola/x\n3:memory,pids:/isola/x\n2:blkio:/isola/x\n";
  EXPECT_EQ(misplaced_controller(joined, "x", true), "");
  auto moved = [](std::string text, const std::string& line) {
    text.replace(text.find(line), line.size() + 8, line + "/other/x");
    return text;
  };
  EXPECT_EQ(misplaced_controller("3:memory,pids,cpu:/isola/xx\n", "x", false), "cpu") << "another group's name";
  EXPECT_EQ(misplaced_controller(moved(joined, "4:cpuacct,cpu:"), "x", true), "") << "any parent will do";
  for (auto [from, to, missing] :
       std::initializer_list<std::array<const char*, 3>>{{"cpuacct,cpu:/isola/x", "cpuacct,cpu:/", "cpu"},
                                                         {"memory,pids:/isola/x", "memory,pids:/", "memory"},
                                                         {"freezer:/isola/x", "freezer:/", "freezer"},
                                                         {"blkio:/isola/x", "blkio:/", "blkio"}}) {
    std::string text = joined;
    text.replace(text.find(from), std::strlen(from), to);
    EXPECT_EQ(misplaced_controller(text, "x", true), missing) << text;
  }
  EXPECT_EQ(misplaced_controller("0::/isola/x\n", "x", true), "");
  EXPECT_EQ(misplaced_controller("0::/isola\n", "x", true), "cpu");
  EXPECT_EQ(misplaced_controller("", "x", false), "cpu");
  EXPECT_EQ(misplaced_controller("nonsense\n", "x", false), "unreadable");
}

TEST(Verify, LimitsOfIo) {
  Protections wanted{.limits = {.cpus = 1, .memory = 1 << 20, .pids = 4, .io_bytes_per_second = 1 << 20}};
  EXPECT_TRUE(verify_around(wanted, wanted.limits, ""));
  auto without = wanted.limits;
  without.io_bytes_per_second = 0;
  EXPECT_FALSE(verify_around(wanted, without, ""));
}

TEST(Verify, DescriptorsAreExactlyThese) {
  auto hold = kernel::make_pipe();
  ASSERT_TRUE(hold);
  struct stat held{};
  ASSERT_EQ(::fstat(hold->first.get(), &held), 0);
  auto child = kernel::spawn(0, [&] {
    int null = ::open("/dev/null", O_RDWR);
    if (::dup2(null, 0) < 0 || ::dup2(null, 1) < 0 || ::dup2(hold->first.get(), 2) < 0) return 1;
    ::syscall(SYS_close_range, 3, ~0u, 0);
    char c;
    (void)!::read(2, &c, 1);
    return 0;
  });
  ASSERT_TRUE(child);
  const std::string pipe = "pipe:[" + std::to_string(held.st_ino) + "]";
  auto verified = verify_descriptors(child->pid, {"/dev/null", "/dev/null", pipe});
  for (int i = 0; i < 5000 && !verified; ++i, ::poll(nullptr, 0, 1))  // until the child has closed the rest
    verified = verify_descriptors(child->pid, {"/dev/null", "/dev/null", pipe});
  EXPECT_TRUE(verified) << verified.error().message;
  for (const auto& wrong : std::initializer_list<std::vector<std::string>>{{"/dev/null", "/dev/null"},
                                                                           {"/dev/null", "/dev/null", "pipe:[1]"},
                                                                           {"/dev/null", pipe, pipe},
                                                                           {"/dev/null", "/dev/null", pipe, pipe}})
    EXPECT_FALSE(verify_descriptors(child->pid, wrong));
  ::kill(child->pid, SIGKILL);
  ::waitpid(child->pid, nullptr, 0);
}

TEST(Furnish, ErrorsTravel) {
  Error error{Code::exhausted, "no room", ENOSPC};
  auto back = decode_error(encode_error(error));
  EXPECT_EQ(back.code, error.code);
  EXPECT_EQ(back.message, error.message);
  EXPECT_EQ(back.sys_errno, error.sys_errno);
  std::string bytes = encode_error(error);
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_EQ(decode_error(bytes.substr(0, n)).code, Code::corrupt) << n;
}

}  // namespace
}  // namespace isola::boundary::jail
