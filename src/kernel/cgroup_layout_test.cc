// The path logic of all kinds of machines, on made-up ones: a mountinfo text and a few files in a temporary folder.
#include "kernel/cgroup_layout.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernel/cgroup.h"

namespace isola::kernel {
namespace {

namespace fs = std::filesystem;

class Machine : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "isola-cgroup-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void file(const std::string& path, const std::string& text = "") {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::string text_of(const std::string& path) {
    std::ifstream in(root_ / path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void mount(const std::string& folder, const std::string& type, const std::string& options) {
    fs::create_directories(root_ / folder);
    mountinfo_ += "30 25 0:26 / " + (root_ / folder).string() + " rw,relatime shared:9 - " + type + " " + type + " " +
                  options + "\n";
  }
  Result<CgroupTree> detect() {
    file("mountinfo", mountinfo_);
    return CgroupTree::detect({.mountinfo = (root_ / "mountinfo").string(), .disks = {"/proc"}});
  }
  std::string at(const std::string& path) { return (root_ / path).string(); }

  void pure_v2() {
    mount("cg", "cgroup2", "rw,nsdelegate");
    file("cg/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma\n");
    file("cg/cgroup.subtree_control");
  }

  fs::path root_;
  std::string mountinfo_;
};

TEST_F(Machine, SeparateV1HierarchiesGiveOneFolderEach) {
  for (const char* c : {"cpu", "cpuacct", "memory", "pids", "freezer", "blkio"})
    mount(std::string("cg/") + c, "cgroup", std::string("rw,") + c);
  auto tree = detect();
  ASSERT_TRUE(tree) << tree.error().text();
  EXPECT_EQ(tree->version(), CgroupVersion::v1);
  EXPECT_TRUE(tree->missing().empty());
  EXPECT_EQ(tree->layout().memory, at("cg/memory/isola"));
  EXPECT_EQ(tree->layout().io, at("cg/blkio/isola"));
  EXPECT_EQ(tree->layout().folders().size(), 5U);  // without blkio
  EXPECT_FALSE(tree->layout().swap_accounting);
}

TEST_F(Machine, ControllersThatShareAMountShareTheFolder) {
  mount("cg/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct");
  mount("cg/memory", "cgroup", "rw,memory");
  mount("cg/pids", "cgroup", "rw,pids");
  mount("cg/freezer", "cgroup", "rw,freezer");
  file("cg/memory/memory.memsw.limit_in_bytes");
  auto tree = detect();
  ASSERT_TRUE(tree);
  EXPECT_EQ(tree->layout().cpu, at("cg/cpu,cpuacct/isola"));
  EXPECT_EQ(tree->layout().cpuacct, tree->layout().cpu);
  EXPECT_EQ(tree->layout().folders().size(), 4U);
  EXPECT_TRUE(tree->layout().swap_accounting);
}

TEST_F(Machine, HybridWithoutOurControllersOnV2IsV1) {
  for (const char* c : {"cpu", "memory", "pids", "freezer"})
    mount(std::string("cg/") + c, "cgroup", std::string("rw,") + c);
  mount("cg/systemd", "cgroup", "rw,name=systemd");
  mount("cg/unified", "cgroup2", "rw");
  file("cg/unified/cgroup.controllers", "hugetlb\n");
  auto tree = detect();
  ASSERT_TRUE(tree);
  EXPECT_EQ(tree->version(), CgroupVersion::v1);
  EXPECT_TRUE(tree->missing().empty());
}

TEST_F(Machine, PureV2HasOneFolder) {
  pure_v2();
  auto tree = detect();
  ASSERT_TRUE(tree);
  EXPECT_EQ(tree->version(), CgroupVersion::v2);
  EXPECT_TRUE(tree->missing().empty());
  EXPECT_EQ(tree->layout().folders(), std::vector<std::string>{at("cg/isola")});
  EXPECT_EQ(tree->layout().io, at("cg/isola"));
}

TEST_F(Machine, V2HandsControllersDownAndWritesLimits) {
  pure_v2();
  auto tree = detect();
  ASSERT_TRUE(tree);
  // Folders of a real cgroup file system come with their files; here they are laid out beforehand.
  file("cg/isola/cgroup.subtree_control");
  ASSERT_TRUE(tree->prepare());
  EXPECT_EQ(text_of("cg/cgroup.subtree_control"), "+cpu +memory +pids +io");
  EXPECT_EQ(text_of("cg/isola/cgroup.subtree_control"), "+cpu +memory +pids +io");
  for (const char* f : {"cgroup.procs", "cpu.max", "memory.max", "memory.swap.max", "pids.max"})
    file(std::string("cg/isola/x/") + f);
  file("cg/isola/x/memory.current", "4096\n");
  file("cg/isola/x/pids.current", "3\n");
  auto group = tree->adopt("x");
  ASSERT_TRUE(group) << group.error().text();
  auto set = group->set({.cpus = 1.5, .memory = 64 << 20, .pids = 10});
  EXPECT_TRUE(set) << set.error().text();
  EXPECT_EQ(text_of("cg/isola/x/cpu.max"), "150000 100000");
  EXPECT_EQ(text_of("cg/isola/x/memory.max"), "67108864");
  EXPECT_EQ(text_of("cg/isola/x/memory.swap.max"), "0");
  EXPECT_EQ(text_of("cg/isola/x/pids.max"), "10");
  EXPECT_EQ(group->limits().value(), (CgroupLimits{.cpus = 1.5, .memory = 64 << 20, .pids = 10}));

  // A limit that swap goes past is none.
  file("cg/isola/x/memory.swap.max", "max\n");
  EXPECT_EQ(group->limits()->memory, 0U);
  file("cg/isola/x/memory.swap.max", "0\n");

  file("cg/isola/x/memory.current", "99999999\n");
  EXPECT_EQ(group->set({.memory = 64 << 20}).error().code, Code::exhausted);
  EXPECT_EQ(group->set({.pids = 2}).error().code, Code::exhausted);
  EXPECT_EQ(text_of("cg/isola/x/memory.max"), "67108864");
  group->release();
}

TEST_F(Machine, V2StatsComeFromOneFolder) {
  pure_v2();
  auto tree = detect();
  file("cg/isola/x/cgroup.procs", "12\n34\n");
  file("cg/isola/x/cpu.stat", "usage_usec 1234\nuser_usec 1000\nnr_periods 9\nnr_throttled 7\n");
  file("cg/isola/x/memory.current", "4096\n");
  file("cg/isola/x/memory.events", "low 0\nhigh 0\nmax 5\noom 2\noom_kill 1\n");
  file("cg/isola/x/pids.current", "2\n");
  auto group = tree->adopt("x");
  ASSERT_TRUE(group);
  auto stats = group->stats();
  ASSERT_TRUE(stats) << stats.error().text();
  EXPECT_EQ(stats->cpu_usec, 1234U);
  EXPECT_EQ(stats->cpu_throttled, 7U);
  EXPECT_EQ(stats->oom_kills, 1U);
  EXPECT_EQ(stats->memory_peak_bytes, 0U);  // this kernel does not say
  EXPECT_EQ(group->processes().value(), (std::vector<pid_t>{12, 34}));
  group->release();
}

TEST_F(Machine, SaysWhichControllersAreMissingAndRefuses) {
  mount("cg/cpu", "cgroup", "rw,cpu");
  mount("cg/freezer", "cgroup", "rw,freezer");
  auto tree = detect();
  ASSERT_TRUE(tree);
  EXPECT_EQ(tree->missing(), (std::vector<std::string>{"memory", "pids"}));
  auto group = tree->create("x", {});
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code, Code::unsupported);
  EXPECT_NE(group.error().text().find("memory, pids"), std::string::npos);
  EXPECT_FALSE(fs::exists(root_ / "cg/cpu/isola"));
}

TEST_F(Machine, IoNoteSaysWhatHolds) {
  mount("cg/cpu", "cgroup", "rw,cpu");
  EXPECT_NE(detect()->io_note().find("no block io controller"), std::string::npos);
  CgroupLayout v1{.version = CgroupVersion::v1, .io = "/x", .disk_devices = {"8:0"}};
  EXPECT_NE(v1.io_note().find("reads and direct writes only"), std::string::npos);
  CgroupLayout v2{.version = CgroupVersion::v2, .io = "/x", .disk_devices = {"8:0"}};
  EXPECT_EQ(v2.io_note(), "io limits hold for reads and writes");
  EXPECT_TRUE(v2.limits_all_io());
  v2.off_disk = "/nfs/blobs";
  EXPECT_NE(v2.io_note().find("not for /nfs/blobs"), std::string::npos) << v2.io_note();
  EXPECT_FALSE(v2.limits_all_io());
  EXPECT_FALSE(v1.limits_all_io());
  EXPECT_FALSE((CgroupLayout{.version = CgroupVersion::v2, .io = "", .disk_devices = {"8:0"}}.limits_all_io()));
  EXPECT_FALSE((CgroupLayout{.version = CgroupVersion::v2, .io = "/x", .disk_devices = {}}.limits_all_io()));
}

// What is written where on v2, and what is believed of it. The kernel's part is tried in cgroup_test.cc.
TEST_F(Machine, V2FreezesByItsOwnFiles) {
  pure_v2();
  file("cg/isola/x/cgroup.freeze", "0");
  file("cg/isola/x/cgroup.events", "populated 1\nfrozen 0\n");
  auto tree = detect();
  ASSERT_TRUE(tree);
  auto group = tree->known("x", false);
  auto events = group.freeze_events();
  ASSERT_TRUE(events) << events.error().text();
  EXPECT_TRUE(events->valid()) << "v2 tells when it is done";
  ASSERT_TRUE(group.begin_freeze());
  EXPECT_EQ(text_of("cg/isola/x/cgroup.freeze"), "1");
  EXPECT_FALSE(group.frozen().value());
  auto late = group.freeze(std::chrono::milliseconds(10));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::timeout);
  EXPECT_EQ(text_of("cg/isola/x/cgroup.freeze"), "0") << "what cannot be stopped goes on";
  file("cg/isola/x/cgroup.events", "populated 1\nfrozen 1\n");
  EXPECT_TRUE(group.frozen().value());
  EXPECT_TRUE(group.freeze());
  EXPECT_EQ(text_of("cg/isola/x/cgroup.freeze"), "1");
  ASSERT_TRUE(group.thaw());
  EXPECT_EQ(text_of("cg/isola/x/cgroup.freeze"), "0");
  fs::remove(root_ / "cg/isola/x/cgroup.events");
  EXPECT_FALSE(group.freeze_events());
  EXPECT_FALSE(group.frozen());
  group.release();
}

TEST_F(Machine, TheDoorOfV2IsItsFolder) {
  pure_v2();
  fs::create_directories(root_ / "cg/isola/x");
  auto tree = detect();
  ASSERT_TRUE(tree);
  auto group = tree->known("x", false);
  auto doors = group.doors();
  ASSERT_TRUE(doors) << doors.error().text();
  EXPECT_TRUE(doors->files.empty()) << "nobody walks in";
  ASSERT_TRUE(doors->folder.valid());
  EXPECT_EQ(fs::read_symlink("/proc/self/fd/" + std::to_string(doors->folder.get())), at("cg/isola/x"));
  EXPECT_TRUE(doors->enter()) << "nothing to do";
  fs::remove(root_ / "cg/isola/x");
  EXPECT_FALSE(group.doors());
  group.release();
}

TEST_F(Machine, FilesInMemoryAreNoPageCache) {
  pure_v2();
  file("cg/isola/x/memory.stat", "anon 100\nfile 5000\nfile_mapped 7\nshmem 1000\n");
  auto tree = detect();
  ASSERT_TRUE(tree);
  auto group = tree->known("x", false);
  EXPECT_EQ(group.page_cache().value(), 4000U);
  file("cg/isola/x/memory.stat", "anon 100\n");
  EXPECT_EQ(group.page_cache().value(), 0U);
  group.release();
}

TEST_F(Machine, V2GivesMemoryBackBeforeItGoes) {
  pure_v2();
  file("cg/isola/x/memory.current", "40960\n");
  file("cg/isola/x/memory.reclaim");
  auto tree = detect();
  ASSERT_TRUE(tree);
  auto group = tree->known("x", false);
  EXPECT_FALSE(group.destroy()) << "a folder of files, not of a kernel";
  EXPECT_EQ(text_of("cg/isola/x/memory.reclaim"), "40960");
  group.release();
}

TEST_F(Machine, V2WritesTrafficLimitsOfEachDisk) {
  pure_v2();
  file("mountinfo", mountinfo_);
  auto layout = find_cgroup_layout({.mountinfo = at("mountinfo"), .disks = {"/proc"}});
  ASSERT_TRUE(layout);
  layout->disk_devices = {"8:0"};
  file("cg/isola/x/io.max");
  auto group = CgroupTree(*layout).known("x", true);
  ASSERT_TRUE(group.set_io({.io_bytes_per_second = 1048576, .io_operations_per_second = 100}));
  EXPECT_EQ(text_of("cg/isola/x/io.max"), "8:0 rbps=1048576 wbps=1048576 riops=100 wiops=100");
  file("cg/isola/x/io.max");
  ASSERT_TRUE(group.set_io({.io_bytes_per_second = 4096}));
  EXPECT_EQ(text_of("cg/isola/x/io.max"), "8:0 rbps=4096 wbps=4096 riops=max wiops=max");
  file("cg/isola/x/io.max");
  ASSERT_TRUE(group.set_io({}));
  EXPECT_EQ(text_of("cg/isola/x/io.max"), "8:0 rbps=max wbps=max riops=max wiops=max") << "an old one is taken back";
  group.release();
}

TEST_F(Machine, EachDiskIsFoundOnceAndTheFirstPathDecides) {
  auto disks = [&](std::vector<std::string> paths) {
    auto layout = find_cgroup_layout({.disks = std::move(paths)});
    EXPECT_TRUE(layout);
    return std::pair(layout->disk_devices.size(), layout->off_disk);
  };
  const std::pair<size_t, std::string> none;
  EXPECT_EQ(disks({"/proc", at("")}), none);
  if (disks({at("")}) == none) GTEST_SKIP() << at("") << " is not on a disk";
  EXPECT_EQ(disks({at(""), at("not/there/yet"), "/proc"}), (std::pair<size_t, std::string>{1, "/proc"}));
}

// A limit that one of the disks lacks would be gone around there, so it must not pass for one.
TEST_F(Machine, ALimitOfIoIsOneOfAllDisks) {
  pure_v2();
  file("mountinfo", mountinfo_);
  auto layout = find_cgroup_layout({.mountinfo = at("mountinfo"), .disks = {"/proc"}});
  ASSERT_TRUE(layout);
  layout->disk_devices = {"8:0", "259:0"};
  CgroupTree tree(*layout);
  for (const char* name : {"cpu.max", "memory.max", "pids.max", "memory.swap.max"})
    file(std::string("cg/isola/x/") + name, "0\n");
  auto limit = [&](const std::string& text) {
    file("cg/isola/x/io.max", text);
    auto group = tree.known("x", true);
    auto limits = group.limits();
    group.release();
    EXPECT_TRUE(limits) << limits.error().text();
    return std::pair(limits->io_bytes_per_second, limits->io_operations_per_second);
  };
  const std::string first = "8:0 rbps=7 wbps=7 riops=3 wiops=3\n", other = "259:0 rbps=7 wbps=7 riops=3 wiops=3\n";
  EXPECT_EQ(limit(first + other), std::pair(uint64_t{7}, uint32_t{3}));
  EXPECT_EQ(limit(first), std::pair(uint64_t{0}, uint32_t{0}));
  EXPECT_EQ(limit("1" + first + other), std::pair(uint64_t{0}, uint32_t{0})) << "18:0 is another disk";
  EXPECT_EQ(limit(first + "259:0 rbps=7 wbps=9 riops=3 wiops=3\n"), std::pair(uint64_t{0}, uint32_t{3}));
}

TEST_F(Machine, MountPointsWithBlanksAreRead) {
  mount("c g/cpu", "cgroup", "rw,cpu");
  auto at_blank = mountinfo_.find("c g");
  mountinfo_.replace(at_blank, 3, "c\\040g");
  EXPECT_EQ(detect()->layout().cpu, at("c g/cpu/isola"));
}

TEST(CgroupName, NothingThatLeavesTheParent) {
  for (const char* good : {"a", "iabc123", "A_b.c-d"}) EXPECT_TRUE(is_cgroup_name(good)) << good;
  for (const char* bad : {"", ".", "..", "a/b", "/a", "-a", "a\n", "a b"}) EXPECT_FALSE(is_cgroup_name(bad)) << bad;
  EXPECT_FALSE(is_cgroup_name(std::string(65, 'a')));
}

}  // namespace
}  // namespace isola::kernel
