// One suite for all providers: whatever enforces, enforces the same.
#include "image/layer_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <functional>
#include <map>
#include <string_view>

#include "base/fd.h"
#include "base/file.h"
#include "base/ids.h"
#include "image/layer_test.h"
#include "image/loop.h"
#include "image/spawn.h"
#include "image/tree.h"
#include "kernel/fault.h"

namespace isola::image {
namespace {

namespace fault = kernel::fault;

// Mounts of the tests are seen by nobody else, and go with the process.
class PrivateMounts : public testing::Environment {
  void SetUp() override {
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0) << "these tests run as root";
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new PrivateMounts);

class LayerStoreTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    dir_ = "/var/tmp/isola-layers-" + new_sandbox_id();
    options_.provider = GetParam();
    options_.store_bytes = 1024 * MiB;
    options_.reserve_bytes = 1;
    auto store = open();
    if (!store && store.error().code == Code::unsupported && options_.provider == "project-quota")
      GTEST_SKIP() << store.error().message;
    ASSERT_TRUE(store) << store.error().message;
    store_ = std::move(*store);
  }
  void TearDown() override {
    fault::disarm();
    store_.reset();
    EXPECT_EQ(mounts_below(dir_), 0u);
    EXPECT_EQ(loops_below(dir_), 0u);
    auto removed = remove_tree(dir_);
    EXPECT_TRUE(removed) << removed.error().message;
  }
  Result<std::unique_ptr<LayerStore>> open() { return open_layer_store(dir_, options_, AllowUnquotaedDisk()); }
  std::string create(const std::string& id, uint64_t bytes = 16 * MiB) {
    auto layer = store_->create(id, {.bytes = bytes});
    EXPECT_TRUE(layer) << layer.error().message;
    return layer.value_or("");
  }
  std::vector<std::string> list() { return store_->list().value(); }
  // Runs f as another launcher would be: own process, own mount namespace, ended without any clean-up.
  int in_other_process(const std::function<bool()>& f) {
    pid_t pid = ::fork();
    if (pid == 0) {
      bool good = ::unshare(CLONE_NEWNS) == 0 && f();
      ::_exit(good ? 0 : 1);
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    return status;
  }

  std::string dir_;
  StoreOptions options_;
  std::unique_ptr<LayerStore> store_;
};

// A copy has everything as it was, is not touched by what comes after, and outlives its source.
TEST_P(LayerStoreTest, ACopyStaysAsItWas) {
  std::string layer = create("one");
  std::string upper = layer + "/upper";
  ASSERT_TRUE(replace_file(upper + "/file", "before", 0640));
  ASSERT_EQ(::chown((upper + "/file").c_str(), 1000, 1001), 0);
  ASSERT_EQ(::mknod((upper + "/whiteout").c_str(), S_IFCHR, 0), 0);
  ASSERT_EQ(::link((upper + "/file").c_str(), (upper + "/same").c_str()), 0);
  ASSERT_EQ(::setxattr(upper.c_str(), "trusted.overlay.opaque", "y", 1, 0), 0);
  auto copied = store_->copy("one", "frozen");
  ASSERT_TRUE(copied) << copied.error().message;
  ASSERT_TRUE(replace_file(upper + "/file", "after", 0640));
  ASSERT_TRUE(replace_file(upper + "/new", "after"));
  EXPECT_EQ(list(), (std::vector<std::string>{"frozen", "one"}));
  ASSERT_TRUE(store_->destroy("one"));
  auto path = store_->path("frozen");
  ASSERT_TRUE(path) << path.error().message;
  std::string frozen = *path + "/upper";
  EXPECT_EQ(read_file(frozen + "/file").value_or("missing"), "before");
  EXPECT_FALSE(read_file(frozen + "/new"));
  struct stat file{}, same{}, whiteout{};
  ASSERT_EQ(::stat((frozen + "/file").c_str(), &file), 0);
  ASSERT_EQ(::stat((frozen + "/same").c_str(), &same), 0);
  ASSERT_EQ(::lstat((frozen + "/whiteout").c_str(), &whiteout), 0);
  EXPECT_EQ(file.st_uid, 1000u);
  EXPECT_EQ(file.st_gid, 1001u);
  EXPECT_EQ(file.st_mode & 07777, 0640u);
  EXPECT_EQ(file.st_ino, same.st_ino);
  EXPECT_TRUE(S_ISCHR(whiteout.st_mode));
  EXPECT_EQ(whiteout.st_rdev, 0u);
  char opaque = 0;
  EXPECT_EQ(::getxattr(frozen.c_str(), "trusted.overlay.opaque", &opaque, 1), 1);
  EXPECT_EQ(opaque, 'y');
  // A copy of a copy, as a sandbox that was resumed makes one.
  EXPECT_FALSE(store_->copy("frozen", "frozen"));
  EXPECT_FALSE(store_->copy("one", "other"));
  EXPECT_FALSE(store_->copy("frozen", "../x"));
  ASSERT_TRUE(store_->sync("frozen"));
  ASSERT_TRUE(store_->destroy("frozen"));
  EXPECT_TRUE(list().empty());
}

// Whoever copies may be killed in the middle: the layer's own sandbox writes on.
TEST_P(LayerStoreTest, ACopyThatIsKilledHoldsNobody) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  std::string upper = create("one") + "/upper";
  ASSERT_TRUE(replace_file(upper + "/file", "before"));
  int status = in_other_process([&] {
    if (!fault::arm("layer_held:1:" + std::to_string(SIGKILL))) return false;
    return store_->copy("one", "frozen").has_value();
  });
  fault::disarm();
  // Only this kind holds anything.
  EXPECT_EQ(WIFSIGNALED(status), std::string_view(GetParam()) == "ext4-file") << status;
  ASSERT_TRUE(replace_file(upper + "/file", "after"));
  auto again = store_->copy("one", "copy");
  EXPECT_TRUE(again) << again.error().message;
  for (const auto& id : list()) EXPECT_TRUE(store_->destroy(id)) << id;
}

// Three layers over each other, as of a sandbox that was forked and forked again, seen as it sees them.
TEST_P(LayerStoreTest, FilesInLayersOverEachOtherAreToldApart) {
  std::vector<std::string> below;
  std::string base = dir_ + "/base", root = dir_ + "/root";
  ASSERT_TRUE(make_dirs(base));
  ASSERT_TRUE(make_dirs(root));
  for (int generation = 1; generation <= 3; ++generation) {
    SCOPED_TRACE(generation);
    std::string id = "layer" + std::to_string(generation);
    auto layer = store_->create(id, {.bytes = 16 * MiB}, below);
    ASSERT_TRUE(layer) << layer.error().message;
    EXPECT_TRUE(list_dir(*layer + "/upper").value().empty());
    EXPECT_TRUE(list_dir(*layer + "/work").value().empty());
    auto lowers = store_->lowers(id, below);
    ASSERT_TRUE(lowers) << lowers.error().message;
    ASSERT_EQ(lowers->size(), below.size());
    std::string options = "upperdir=" + *layer + "/upper,workdir=" + *layer + "/work,lowerdir=";
    for (const auto& lower : *lowers) options += lower + ":";
    ASSERT_EQ(::mount("overlay", root.c_str(), "overlay", 0, (options + base).c_str()), 0) << options;
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(replace_file(root + "/" + id + "-" + std::to_string(i), "of " + id));
    EXPECT_TRUE(replace_file(root + "/newest", id));
    std::map<std::pair<dev_t, ino_t>, std::string> seen;
    auto names = list_dir(root).value();
    for (const auto& name : names) {
      struct stat st{};
      EXPECT_EQ(::stat((root + "/" + name).c_str(), &st), 0);
      auto [same, fresh] = seen.insert({{st.st_dev, st.st_ino}, name});
      EXPECT_TRUE(fresh) << name << " looks like " << same->second;
    }
    EXPECT_EQ(seen.size(), size_t(generation) * 5 + 1);
    EXPECT_EQ(read_file(root + "/newest").value_or(""), id);
    EXPECT_EQ(read_file(root + "/layer1-0").value_or(""), "of layer1");
    ASSERT_EQ(::umount2(root.c_str(), 0), 0);
    // What lies below is not written to, and may go as soon as nobody needs it for more layers.
    for (const auto& lower : below)
      EXPECT_EQ(read_file(store_->path(lower).value() + "/upper/newest").value_or(""), lower);
    ASSERT_TRUE(store_->sync(id));
    below.insert(below.begin(), id);
  }
  EXPECT_FALSE(store_->lowers("layer3", {"none", "none", "none"}));
}

// The limit bounds what is written to the layer itself, whatever lies below.
TEST_P(LayerStoreTest, LayersBelowCountAgainstNoLimit) {
  std::string one = create("one", 16 * MiB);
  ASSERT_EQ(fill_bytes(one + "/upper/f", 12 * MiB).error, 0);
  ASSERT_TRUE(store_->sync("one"));
  ASSERT_TRUE(store_->create("two", {.bytes = 16 * MiB}, {"one"}));
  std::string two = store_->path("two").value();
  EXPECT_LT(store_->usage("two").value().bytes, 1 * MiB);
  auto limit = verify_limit(*store_, "two", 16 * MiB);
  EXPECT_TRUE(limit) << limit.error().message;
  EXPECT_EQ(fill_bytes(two + "/upper/f", 12 * MiB).error, 0);
  ASSERT_TRUE(store_->sync("two"));
  if (store_->enforces()) {
    EXPECT_GT(store_->usage("two").value().bytes, 11 * MiB);
    EXPECT_TRUE(out_of_space(fill_bytes(two + "/upper/g", 8 * MiB).error));
    if (store_->resize("two", {.bytes = 32 * MiB})) {  // ext4-file cannot always
      EXPECT_TRUE(verify_limit(*store_, "two", 32 * MiB));
      EXPECT_EQ(fill_bytes(two + "/upper/h", 8 * MiB).error, 0);
    }
  }
}

TEST_P(LayerStoreTest, LayerIsEmptyAndOwnedByRoot) {
  EXPECT_EQ(store_->name(), GetParam());
  EXPECT_EQ(store_->enforces(), store_->name() != "unquotaed");
  ::umask(077);
  std::string layer = create("one");
  ::umask(022);
  EXPECT_EQ(list_dir(layer).value(), (std::vector<std::string>{"upper", "work"}));
  for (const char* part : {"/upper", "/work"}) {
    struct stat st;
    ASSERT_EQ(::stat((layer + part).c_str(), &st), 0);
    EXPECT_EQ(st.st_uid, 0u);
    EXPECT_EQ(st.st_gid, 0u);
    EXPECT_EQ(st.st_mode & 07777, 0755u);
    EXPECT_TRUE(list_dir(layer + part).value().empty());
  }
  struct stat st;
  ASSERT_EQ(::stat((dir_ + "/storage").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700u);
  EXPECT_EQ(store_->path("one").value(), layer);
  EXPECT_EQ(list(), std::vector<std::string>{"one"});
}

TEST_P(LayerStoreTest, BadRequestsAreRefused) {
  for (const char* id : {"", ".", "..", "a/b", "../x", "A", "-a", "a\n", "a b"}) {
    EXPECT_FALSE(store_->create(id, {.bytes = 16 * MiB})) << id;
    EXPECT_FALSE(store_->destroy(id)) << id;
    EXPECT_FALSE(store_->path(id)) << id;
  }
  EXPECT_FALSE(store_->create(std::string(65, 'a'), {.bytes = 16 * MiB}));
  EXPECT_EQ(store_->create("small", {.bytes = 100}).error().code, Code::invalid);
  EXPECT_EQ(store_->create("huge", {.bytes = UINT64_MAX}).error().code, Code::invalid);
  EXPECT_EQ(store_->path("none").error().code, Code::not_found);
  EXPECT_FALSE(store_->resize("none", {.bytes = 16 * MiB}));
  EXPECT_FALSE(store_->usage("none"));
  EXPECT_FALSE(store_->settle("none"));
  create("twice");
  EXPECT_TRUE(store_->settle("twice"));
  EXPECT_EQ(store_->create("twice", {.bytes = 16 * MiB}).error().code, Code::exists);
  EXPECT_EQ(list(), std::vector<std::string>{"twice"});
}

TEST_P(LayerStoreTest, BytesStopAtTheLimitAndNeighboursGoOn) {
  if (!store_->enforces()) GTEST_SKIP() << "enforces nothing, by its name";
  std::string full = create("full", 32 * MiB), neighbour = create("neighbour", 32 * MiB);
  auto f = fill_bytes(full + "/upper/f", 64 * MiB);
  EXPECT_TRUE(out_of_space(f.error)) << f.error;
  EXPECT_GE(f.amount, 24 * MiB);
  EXPECT_LE(f.amount, 33 * MiB);
  auto other = fill_bytes(neighbour + "/upper/f", 16 * MiB);
  EXPECT_EQ(other.error, 0);
  auto usage = store_->usage("full");
  ASSERT_TRUE(usage) << usage.error().message;
  EXPECT_GE(usage->bytes, 24 * MiB);
  EXPECT_LE(usage->bytes, 33 * MiB);
  // Who is full can make room again.
  ASSERT_EQ(::unlink((full + "/upper/f").c_str()), 0);
  f = fill_bytes(full + "/upper/g", 8 * MiB);
  EXPECT_EQ(f.error, 0);
}

TEST_P(LayerStoreTest, InodesAreBounded) {
  if (!store_->enforces()) GTEST_SKIP() << "enforces nothing, by its name";
  std::string full = create("full", 4 * MiB), neighbour = create("neighbour", 4 * MiB);
  auto f = fill_inodes(full + "/upper", 400'000);
  EXPECT_TRUE(out_of_space(f.error)) << f.error;
  EXPECT_GE(f.amount, 200u);
  EXPECT_EQ(fill_inodes(neighbour + "/upper", 200).error, 0);
  EXPECT_EQ(::unlink((full + "/upper/0").c_str()), 0);
  EXPECT_TRUE(store_->destroy("full"));
}

TEST_P(LayerStoreTest, AskingForInodesIsHonouredOrRefused) {
  auto layer = store_->create("few", {.bytes = 16 * MiB, .inodes = 256});
  if (!layer) {
    EXPECT_EQ(layer.error().code, Code::unsupported);
    EXPECT_TRUE(list().empty());
  } else if (store_->enforces()) {
    auto f = fill_inodes(*layer + "/upper", 1000);
    EXPECT_TRUE(out_of_space(f.error));
    EXPECT_LE(f.amount, 256u);
  }
}

TEST_P(LayerStoreTest, GrowsWhileInUse) {
  if (!store_->enforces()) GTEST_SKIP() << "enforces nothing, by its name";
  std::string layer = create("grow", 16 * MiB);
  Fd held(::open((layer + "/upper/held").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_LE(fill_bytes(layer + "/upper/f", 64 * MiB).amount, 17 * MiB);
  auto grown = store_->resize("grow", {.bytes = 48 * MiB});
  if (!grown && grown.error().sys_errno == EPERM) {
    // The refusal must not have moved the limit.
    EXPECT_FALSE(store_->resize("grow", {.bytes = 48 * MiB}));
    EXPECT_LE(fill_bytes(layer + "/upper/g", 64 * MiB).amount, 1 * MiB);
    GTEST_SKIP() << grown.error().message;
  }
  ASSERT_TRUE(grown) << grown.error().message;
  auto f = fill_bytes(layer + "/upper/g", 64 * MiB);
  EXPECT_TRUE(out_of_space(f.error));
  EXPECT_GE(f.amount, 24 * MiB);
  EXPECT_LE(f.amount, 34 * MiB);
  auto same = store_->resize("grow", {.bytes = 48 * MiB});
  EXPECT_TRUE(same);
  auto shrunk = store_->resize("grow", {.bytes = 16 * MiB});
  if (!shrunk) {
    EXPECT_EQ(shrunk.error().code, Code::unsupported);
  }
}

// The limit is read where it is enforced: one that somebody took away is seen.
TEST_P(LayerStoreTest, TheLimitInForceIsRead) {
  std::string layer = create("read", 16 * MiB);
  auto limit = store_->limit("read");
  ASSERT_TRUE(limit) << limit.error().message;
  EXPECT_EQ(*limit, store_->enforces() ? 16 * MiB : 0);
  EXPECT_TRUE(verify_limit(*store_, "read", 16 * MiB));
  if (!store_->enforces()) return;
  EXPECT_FALSE(verify_limit(*store_, "read", 32 * MiB));
  EXPECT_FALSE(verify_limit(*store_, "read", 8 * MiB));
  if (store_->resize("read", {.bytes = 32 * MiB})) {
    EXPECT_TRUE(verify_limit(*store_, "read", 32 * MiB));
  }
  if (store_->name() != "btrfs") return;
  auto taken = run({.argv = {"btrfs", "qgroup", "limit", "none", layer}, .what = "cannot take the limit away"});
  ASSERT_TRUE(taken) << taken.error().message;
  auto verified = verify_limit(*store_, "read", 32 * MiB);
  ASSERT_FALSE(verified);
  EXPECT_NE(verified.error().message.find("(none)"), std::string::npos) << verified.error().message;
}

TEST_P(LayerStoreTest, DestroyIsIdempotentAndWorksOnBusyLayers) {
  std::string layer = create("gone");
  Fd held(::open((layer + "/upper/held").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(held);
  std::string deep = layer + "/upper";
  for (int i = 0; i < 50; ++i) ASSERT_EQ(::mkdir((deep += "/d").c_str(), 0700), 0);
  auto gone = store_->destroy("gone");
  EXPECT_TRUE(gone) << gone.error().message;
  EXPECT_TRUE(store_->destroy("gone"));
  EXPECT_TRUE(store_->destroy("never"));
  EXPECT_TRUE(list().empty());
  EXPECT_EQ(store_->path("gone").error().code, Code::not_found);
  EXPECT_EQ(::write(held.get(), "x", 1), 1);  // who still has it open is not torn away
  held.reset();
  create("gone");
  EXPECT_TRUE(list_dir(store_->path("gone").value() + "/upper").value().empty());
}

TEST_P(LayerStoreTest, LayersOutliveTheProcess) {
  store_.reset();
  int status = in_other_process([&] {
    auto store = open();
    if (!store) return false;
    auto layer = (*store)->create("kept", {.bytes = 16 * MiB});
    if (!layer) return false;
    Fd fd(::open((*layer + "/upper/f").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    return fd && write_all(fd.get(), "hello").has_value();
  });
  ASSERT_EQ(status, 0);
  EXPECT_EQ(loops_below(dir_), 0u) << "a dead launcher leaves no loop device";
  store_ = open().value();
  EXPECT_EQ(list(), std::vector<std::string>{"kept"});
  EXPECT_EQ(read_file(store_->path("kept").value() + "/upper/f").value(), "hello");
  if (store_->enforces()) {
    EXPECT_TRUE(out_of_space(fill_bytes(store_->path("kept").value() + "/upper/g", 32 * MiB).error));
  }
  EXPECT_TRUE(store_->destroy("kept"));
}

// A launcher restarts while a sandbox of the old one still holds its layer.
TEST_P(LayerStoreTest, OpensAgainWhileALayerIsInUse) {
  store_.reset();
  int to_parent[2], to_child[2];
  ASSERT_EQ(::pipe2(to_parent, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(to_child, O_CLOEXEC), 0);
  pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a failing test leaves no child behind
    char c = 'n';
    if (::unshare(CLONE_NEWNS) == 0) {
      auto store = open();
      auto layer =
          store ? (*store)->create("live", {.bytes = 16 * MiB}) : Result<std::string>(fail(Code::internal, ""));
      Fd fd(layer ? ::open((*layer + "/upper/f").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1);
      c = fd ? 'y' : 'n';
      (void)!::write(to_parent[1], &c, 1);
      (void)!::read(to_child[0], &c, 1);
      (void)!::write(fd.get(), "later", 5);
      (void)!::write(to_parent[1], &c, 1);
    }
    (void)!::read(to_child[0], &c, 1);  // until it is killed
    ::_exit(0);
  }
  char c = 0;
  ASSERT_EQ(::read(to_parent[0], &c, 1), 1);
  EXPECT_EQ(c, 'y');
  size_t devices = loops_below(dir_);
  auto again = open();
  ASSERT_TRUE(again) << again.error().message;
  store_ = std::move(*again);
  auto path = store_->path("live");
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_EQ(loops_below(dir_), devices) << "the same device is used again";
  ASSERT_EQ(::write(to_child[1], "x", 1), 1);
  ASSERT_EQ(::read(to_parent[0], &c, 1), 1);
  EXPECT_EQ(read_file(*path + "/upper/f").value(), "later");
  EXPECT_TRUE(store_->destroy("live"));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  for (int end : {to_parent[0], to_parent[1], to_child[0], to_child[1]}) ::close(end);
}

TEST_P(LayerStoreTest, AFullMachineStopsNewLayers) {
  store_.reset();
  options_.reserve_bytes = UINT64_MAX;
  auto store = open();
  // A provider that proves itself at opening fails there; the others at the first layer.
  auto error = store ? (*store)->create("late", {.bytes = 16 * MiB}).error() : store.error();
  EXPECT_EQ(error.code, Code::exhausted) << error.message;
  EXPECT_NE(error.message.find("nearly full"), std::string::npos) << error.message;
}

TEST_P(LayerStoreTest, NoFaultInACreateLeavesAnything) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  create("warm");
  size_t loops = loops_below(dir_), mounts = mounts_below(dir_);
  for (const auto& below : {std::vector<std::string>(), {"warm"}}) {
    size_t failures = 0;
    for (int n = 1; n < 100; ++n) {
      ASSERT_TRUE(fault::arm("*:" + std::to_string(n) + ":" + std::to_string(EIO)));
      auto layer = store_->create("faulty", {.bytes = 16 * MiB}, below);
      bool reached = fault::asked() >= static_cast<uint64_t>(n);
      fault::disarm();
      if (layer) {
        EXPECT_FALSE(reached) << "fault " << n << " was swallowed";
        break;
      }
      ++failures;
      EXPECT_EQ(layer.error().sys_errno, EIO) << layer.error().message;
      EXPECT_EQ(list(), std::vector<std::string>{"warm"}) << "after fault " << n;
      EXPECT_EQ(loops_below(dir_), loops) << "after fault " << n;
      EXPECT_EQ(mounts_below(dir_), mounts) << "after fault " << n;
    }
    EXPECT_GE(failures, 3u);
    EXPECT_TRUE(store_->destroy("faulty"));
  }
}

TEST_P(LayerStoreTest, NoFaultInOpeningLeavesAnything) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  store_.reset();
  for (int n = 1; n < 100; ++n) {
    ASSERT_TRUE(remove_tree(dir_));
    ASSERT_TRUE(fault::arm("*:" + std::to_string(n) + ":" + std::to_string(ENOMEM)));
    auto store = open();
    bool reached = fault::asked() >= static_cast<uint64_t>(n);
    fault::disarm();
    if (store) {
      EXPECT_FALSE(reached) << "fault " << n << " was swallowed";
      break;
    }
    EXPECT_EQ(loops_below(dir_), 0u) << "after fault " << n;
    EXPECT_EQ(mounts_below(dir_), 0u) << "after fault " << n;
    EXPECT_NE(::access((dir_ + "/storage/store.btrfs").c_str(), F_OK), 0) << "after fault " << n;
    auto second = open();
    EXPECT_TRUE(second) << second.error().message;
  }
}

TEST_P(LayerStoreTest, AFailedDestroyCanBeRepeated) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  create("hard");
  for (int n = 1; n < 20; ++n) {
    ASSERT_TRUE(fault::arm("*:" + std::to_string(n) + ":" + std::to_string(EIO)));
    auto gone = store_->destroy("hard");
    fault::disarm();
    if (gone) break;
    EXPECT_EQ(list(), std::vector<std::string>{"hard"});
  }
  EXPECT_TRUE(list().empty());
}

INSTANTIATE_TEST_SUITE_P(Providers, LayerStoreTest, testing::Values("project-quota", "btrfs", "ext4-file", "unquotaed"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace isola::image
