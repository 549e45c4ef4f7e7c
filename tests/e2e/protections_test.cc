// Protections are data: what a living sandbox has installed is what its boundary says, whichever way it was born, and
// each thing that differs makes the comparison fail.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "boundary/jail/jail.h"
#include "e2e/island.h"
#include "guest/client.h"

namespace isola::e2e {
namespace {

using boundary::jail::Jail;
using boundary::jail::MountRule;
using boundary::jail::Protections;
using boundary::jail::verify;
using boundary::jail::verify_companions;

// A process in the namespaces of another that was started otherwise than the guest starts them: without its filter,
// and as `how` (setarch with an option) says. With the guest's limits.
class Stranger {
 public:
  static Result<Stranger> enter(pid_t pid, uint32_t open_files, std::vector<std::string> how = {}) {
    Stranger made;
    std::string target = std::to_string(pid);
    std::vector<std::string> words = std::move(how);
    for (const char* word : {"nsenter", "-t", target.c_str(), "-U", "-m", "-u", "-i", "-n", "-p", "-C", "-T", "sh",
                             "-c", "echo; exec sleep 1000"})
      words.emplace_back(word);
    int out[2];
    if (::pipe2(out, O_CLOEXEC) < 0) return sys_error("cannot make a pipe");
    made.nsenter_ = ::fork();
    if (made.nsenter_ == 0) {
      for (const auto& limit : boundary::jail::resource_limits(open_files)) {
        const auto resource = static_cast<__rlimit_resource>(limit.resource);
        rlimit own{};
        ::getrlimit(resource, &own);
        own.rlim_cur = own.rlim_max = std::min<rlim_t>(limit.value, own.rlim_max);
        ::setrlimit(resource, &own);
      }
      std::vector<char*> argv;
      for (auto& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::dup2(out[1], 1);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    char byte = 0;
    const bool there = ::read(out[0], &byte, 1) == 1;
    ::close(out[0]);
    std::ifstream children("/proc/" + std::to_string(made.nsenter_) + "/task/" + std::to_string(made.nsenter_) +
                           "/children");
    if (!there || !(children >> made.pid_)) return fail(Code::internal, "nobody entered");
    return made;
  }
  Stranger(Stranger&& other) noexcept
      : nsenter_(std::exchange(other.nsenter_, -1)), pid_(std::exchange(other.pid_, -1)) {}
  Stranger& operator=(Stranger&&) = delete;
  ~Stranger() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (nsenter_ > 0) ::waitpid(nsenter_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  Stranger() = default;
  pid_t nsenter_ = -1, pid_ = -1;
};

class ProtectionsTest : public SharedIsland {
 protected:
  void SetUp() override {
    SharedIsland::SetUp();
    if (IsSkipped()) return;
    auto tree = kernel::CgroupTree::detect({});
    ASSERT_OK(tree);
    auto jail = Jail::make(*tree);
    ASSERT_OK(jail);
    standard_ = (*jail)->protections();
  }
  // What one sandbox should have, from the launcher's journal.
  Protections wanted(const std::string& id, pid_t& pid) {
    std::ifstream journal(island().data() + "/run/" + id);
    std::string version, name, digest;
    Protections p = standard_;
    journal >> version >> name >> p.id_base >> digest >> pid;
    p.cgroup = id;
    return p;
  }
  Protections standard_;
};

TEST_F(ProtectionsTest, EveryBirthHasThem) {
  auto client = island().client();
  ASSERT_TRUE(client.park(island().digest(), 1));
  ASSERT_TRUE(eventually([&] { return client.info()->parked == 1; }));
  for (bool cold : {true, false}) {
    auto sandbox = client.launch({.digest = island().digest(), .cold = cold});
    ASSERT_OK(sandbox);
    EXPECT_EQ(sandbox->reply.birth, cold ? Birth::cold : Birth::pooled);
    pid_t pid = 0;
    Protections p = wanted(sandbox->reply.id, pid);
    auto verified = verify(pid, p);
    EXPECT_TRUE(verified) << verified.error().message;
    EXPECT_TRUE(client.kill(sandbox->reply.id));
  }
  auto info = client.info();
  ASSERT_OK(info);
  EXPECT_EQ(info->protections, standard_.describe()) << "what the launcher tells is what this build makes";
}

TEST_F(ProtectionsTest, EachDifferenceIsNoticed) {
  auto client = island().client();
  auto sandbox = client.launch({.digest = island().digest()});
  ASSERT_OK(sandbox);
  pid_t pid = 0;
  const Protections good = wanted(sandbox->reply.id, pid);
  ASSERT_TRUE(verify(pid, good));
  auto differs = [&](const char* saying, const std::function<void(Protections&)>& change) {
    Protections bad = good;
    change(bad);
    auto verified = verify(pid, bad);
    ASSERT_FALSE(verified) << saying;
    EXPECT_NE(verified.error().message.find(saying), std::string::npos) << verified.error().message;
  };
  differs("uid_map", [](auto& p) { p.id_base += 65536; });
  differs("uid_map", [](auto& p) { p.id_count -= 1; });
  differs("CapBnd", [](auto& p) { p.capabilities ^= 1; });
  differs("seccomp", [](auto& p) { p.filter_hash[0] ^= 1; });
  differs("Max open files", [](auto& p) { p.open_files -= 1; });
  differs("control group", [](auto& p) { p.cgroup = "i0123456789abcdefghij"; });
  for (size_t i = 0; i < good.mounts.size(); ++i) {
    SCOPED_TRACE("/" + good.mounts[i].target);
    differs("mount table", [i](auto& p) { p.mounts.erase(p.mounts.begin() + static_cast<long>(i)); });
    differs("mount table", [i](auto& p) { p.mounts[i].attributes.read_only ^= true; });
    differs("mount table", [i](auto& p) { p.mounts[i].attributes.nosuid ^= true; });
    differs("mount table", [i](auto& p) { p.mounts[i].attributes.nodev ^= true; });
    differs("mount table", [i](auto& p) { p.mounts[i].attributes.noexec ^= true; });
    differs("mount table", [i](auto& p) { p.mounts[i].target += "x"; });
    if (good.mounts[i].from == MountRule::From::stage)
      differs("mount table", [i](auto& p) { p.mounts[i].source += "x"; });
    for (size_t o = 0; o < good.mounts[i].options.size(); ++o) {
      std::string key = good.mounts[i].options[o].key;
      if (key == "size" || key == "nr_inodes" || key == "max")
        differs("mount table", [i, o](auto& p) { p.mounts[i].options[o].value = "77"; });
    }
  }
  differs("mount table", [](auto& p) { p.mounts.push_back({.target = "mnt", .from = MountRule::From::shown}); });
  EXPECT_TRUE(client.kill(sandbox->reply.id));
}

// As somebody of the same id: root may need CAP_SYS_RESOURCE for it, which machines withhold.
bool change_limit(uint32_t id, pid_t pid, __rlimit_resource resource, const rlimit* now, rlimit* before) {
  void* shared = ::mmap(nullptr, sizeof(rlimit), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return false;
  pid_t child = ::fork();
  if (child == 0)
    ::_exit(::setresgid(id, id, id) < 0 || ::setresuid(id, id, id) < 0 ||
            ::prlimit(pid, resource, now, static_cast<rlimit*>(shared)) < 0);
  int status = -1;
  ::waitpid(child, &status, 0);
  if (before) *before = *static_cast<rlimit*>(shared);
  ::munmap(shared, sizeof(rlimit));
  return status == 0;
}

// The same from the other side: what is installed is changed, not what is wanted.
TEST_F(ProtectionsTest, EachLimitOfAProcessIsNoticed) {
  auto client = island().client();
  auto sandbox = client.launch({.digest = island().digest()});
  ASSERT_OK(sandbox);
  pid_t pid = 0;
  const Protections good = wanted(sandbox->reply.id, pid);
  for (const auto& limit : boundary::jail::resource_limits(good.open_files)) {
    SCOPED_TRACE(limit.name);
    const auto resource = static_cast<__rlimit_resource>(limit.resource);
    rlimit before{};
    ASSERT_TRUE(change_limit(good.id_base, pid, resource, nullptr, &before));
    if (before.rlim_cur == 0) continue;  // nothing is less
    rlimit less{before.rlim_cur == RLIM_INFINITY ? 1 << 30 : before.rlim_cur - 1, before.rlim_max};
    ASSERT_TRUE(change_limit(good.id_base, pid, resource, &less, nullptr));
    auto verified = verify(pid, good);
    ASSERT_TRUE(change_limit(good.id_base, pid, resource, &before, nullptr));
    ASSERT_FALSE(verified);
    EXPECT_NE(verified.error().message.find(limit.name), std::string::npos) << verified.error().message;
  }
  auto verified = verify(pid, good);
  EXPECT_TRUE(verified) << verified.error().message;
}

TEST_F(ProtectionsTest, APersonalityIsNoticed) {
  auto client = island().client();
  auto sandbox = client.launch({.digest = island().digest()});
  ASSERT_OK(sandbox);
  pid_t pid = 0;
  const Protections good = wanted(sandbox->reply.id, pid);
  auto tree = kernel::CgroupTree::detect({});
  ASSERT_OK(tree);
  for (bool fixed_addresses : {false, true}) {
    auto stranger = Stranger::enter(
        pid, good.open_files, fixed_addresses ? std::vector<std::string>{"setarch", "-R"} : std::vector<std::string>{});
    ASSERT_OK(stranger);
    auto group = tree->adopt(sandbox->reply.id);
    ASSERT_OK(group);
    auto attached = group->attach(stranger->pid());
    group->release();
    ASSERT_OK(attached);
    auto verified = verify(stranger->pid(), good);
    ASSERT_FALSE(verified);
    // Without it the next that differs is what a process has that the guest did not start.
    EXPECT_EQ(verified.error().message.find("personality") != std::string::npos, fixed_addresses)
        << verified.error().message;
  }
}

// Of those beside process 1, that a restored sandbox has.
TEST_F(ProtectionsTest, EachDifferenceOfACompanionIsNoticed) {
  auto client = island().client();
  auto sandbox = client.launch({.digest = island().digest()});
  ASSERT_OK(sandbox);
  pid_t pid = 0;
  const Protections good = wanted(sandbox->reply.id, pid);
  guest::PipeClient guest(std::move(sandbox->link.from_guest), std::move(sandbox->link.to_guest));
  auto sleeping = std::make_shared<bool>(false);
  auto run = guest.begin_run({.argv = {"sh", "-c", "echo; exec sleep 1000"}},
                             {.out = [sleeping](std::string_view) { *sleeping = true; }});
  ASSERT_TRUE(guest.pump_until([&] { return *sleeping; }, std::chrono::seconds(60)));
  auto tree = kernel::CgroupTree::detect({});
  ASSERT_OK(tree);
  auto group = tree->adopt(sandbox->reply.id);
  ASSERT_OK(group);
  auto pids = group->processes();
  group->release();
  ASSERT_OK(pids);
  ASSERT_EQ(pids->size(), 2u);
  auto verified = verify_companions(pid, *pids, good);
  EXPECT_TRUE(verified) << verified.error().message;

  auto differs = [&](const char* saying, const std::vector<pid_t>& who, const Protections& wanted) {
    auto found = verify_companions(pid, who, wanted);
    ASSERT_FALSE(found) << saying;
    EXPECT_NE(found.error().message.find(saying), std::string::npos) << found.error().message;
  };
  Protections nothing = good;
  nothing.capabilities = 0;
  differs("CapBnd of process", *pids, nothing);
  differs("ns/", {pid, ::getpid()}, good);
  auto stranger = Stranger::enter(pid, good.open_files);
  ASSERT_OK(stranger);
  differs("Seccomp of process", {pid, stranger->pid()}, good);
}

// What a launch adds of its own is compared too: these are launches that would fail if it were not found.
TEST_F(ProtectionsTest, OtherLimitsThanTheStandardOnes) {
  auto client = island().client();
  auto few = client.launch({.digest = island().digest(), .limits = {.open_files = 99}});
  ASSERT_OK(few);
  pid_t pid = 0;
  Protections p = wanted(few->reply.id, pid);
  EXPECT_FALSE(verify(pid, p));
  p.open_files = 99;
  auto verified = verify(pid, p);
  EXPECT_TRUE(verified) << verified.error().message;
  auto slow = client.launch({.digest = island().digest(), .limits = {.io_bytes_per_second = 8 << 20}});
  if (!slow && slow.error().code == Code::unsupported) GTEST_SKIP() << slow.error().message;
  ASSERT_OK(slow);
  p = wanted(slow->reply.id, pid);
  p.limits.io_bytes_per_second = 8 << 20;
  verified = verify(pid, p);
  EXPECT_TRUE(verified) << verified.error().message;
}

}  // namespace
}  // namespace isola::e2e
