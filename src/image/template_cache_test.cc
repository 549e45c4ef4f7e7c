#include "image/template_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <filesystem>
#include <random>

#include "base/fd.h"
#include "base/file.h"
#include "base/hash/sha256.h"
#include "base/ids.h"
#include "image/blob_users.h"
#include "image/manifest.h"
#include "image/tree.h"

namespace isola::image {
namespace {

class TemplateCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = "/var/tmp/isola-cache-" + new_sandbox_id();
    ASSERT_TRUE(make_dirs(root_));
  }
  void TearDown() override { EXPECT_TRUE(remove_tree(root_)); }

  // A small root with a few kinds of files, the same each time but for the moment of making.
  static Result<std::vector<std::string>> small_tree(const BuildPlace& place, const Reporter& report) {
    report("packages");
    ISOLA_CHECK(make_dirs(place.root() + "/etc"));
    for (int i = 0; i < 50; ++i) {
      Fd fd(::open((place.root() + "/etc/" + std::to_string(i)).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
      ISOLA_CHECK(write_all(fd.get(), std::string(10'000, static_cast<char>('a' + i % 26))));
    }
    if (::symlink("etc/1", (place.root() + "/link").c_str()) < 0) return sys_error("cannot link");
    report("packages", "half", 50);
    if (::chown((place.root() + "/etc/2").c_str(), 1000, 1000) < 0) return sys_error("cannot chown");
    if (::chmod((place.root() + "/etc/2").c_str(), 04755) < 0) return sys_error("cannot chmod");
    // One file older than the build gives the time that all younger ones are set to.
    timeval old[2] = {{1'600'000'000, 0}, {1'600'000'000, 0}};
    if (::utimes((place.root() + "/etc/3").c_str(), old) < 0) return sys_error("cannot set a time");
    return std::vector<std::string>{"a=1", "b=2"};
  }
  Result<Template> build(const std::string& key = "k1", bool again = false, const Progress& progress = {}) {
    return TemplateCache(root_ + "/c")
        .build_from({.name = "t", .key = key, .distribution = "test"}, small_tree, progress, again);
  }
  // Folders in build/: a build in progress, or a leftover of one.
  size_t build_folders() {
    size_t n = 0;
    auto names = list_dir(root_ + "/c/build").value();
    for (const auto& name : names) {
      struct stat st;
      if (::lstat((root_ + "/c/build/" + name).c_str(), &st) == 0 && S_ISDIR(st.st_mode)) ++n;
    }
    return n;
  }

  std::string root_;
};

TEST_F(TemplateCacheTest, BuiltOnceAndFound) {
  TemplateCache cache(root_ + "/c");
  EXPECT_EQ(cache.find("t").error().code, Code::not_found);
  EXPECT_TRUE(cache.list().value().empty());
  auto made = build();
  ASSERT_TRUE(made) << made.error().message;
  auto found = cache.find("t");
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->digest, made->digest);
  EXPECT_EQ(found->packages, (std::vector<std::string>{"a=1", "b=2"}));
  EXPECT_EQ(sha256_file(cache.blob_path(found->digest)).value(), found->digest);
  EXPECT_TRUE(cache.verify("t"));
  EXPECT_EQ(build_folders(), 0u);
  int calls = 0;
  ASSERT_TRUE(build("k1", false, [&](const ProgressStep&) { ++calls; }));
  EXPECT_EQ(calls, 0) << "a current template is not made again";
  ASSERT_TRUE(build("k2", false, [&](const ProgressStep&) { ++calls; }));
  EXPECT_GT(calls, 0) << "a stale one is";
}

TEST_F(TemplateCacheTest, EqualTreesGiveEqualDigests) {
  std::string first = build().value().digest;
  EXPECT_EQ(build("k1", true).value().digest, first);
  EXPECT_EQ(list_dir(root_ + "/c/blobs").value().size(), 1u);
}

TEST_F(TemplateCacheTest, DamageIsFound) {
  TemplateCache cache(root_ + "/c");
  auto made = build().value();
  std::string blob = cache.blob_path(made.digest);
  {
    Fd fd(::open(blob.c_str(), O_RDWR | O_CLOEXEC));
    char c = 0;
    ASSERT_EQ(::pread(fd.get(), &c, 1, 5000), 1);
    c ^= 1;
    ASSERT_EQ(::pwrite(fd.get(), &c, 1, 5000), 1);
  }
  auto verified = cache.verify("t");
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code, Code::corrupt);
  EXPECT_NE(verified.error().message.find(blob), std::string::npos) << verified.error().message;
  ASSERT_EQ(::truncate(blob.c_str(), 4096), 0);
  EXPECT_EQ(cache.find("t").error().code, Code::corrupt);
  ASSERT_EQ(::unlink(blob.c_str()), 0);
  EXPECT_EQ(cache.find("t").error().code, Code::corrupt);
  ASSERT_TRUE(build());  // a broken one is simply made anew
  EXPECT_TRUE(cache.verify("t"));
}

TEST_F(TemplateCacheTest, BadManifestsAreNamed) {
  TemplateCache cache(root_ + "/c");
  auto made = build().value();
  std::string path = root_ + "/c/templates/t.json", good = read_file(path).value();
  for (const std::string& text : {std::string(), std::string("{}"), std::string("[1]"), good.substr(0, good.size() / 2),
                                  std::string("{\"format\": 1, \"name\": 5}")}) {
    ASSERT_TRUE(replace_file(path, text));
    auto found = cache.find("t");
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, Code::corrupt) << text;
    EXPECT_NE(found.error().message.find(path), std::string::npos);
  }
  ASSERT_TRUE(replace_file(root_ + "/c/templates/other.json", good));
  EXPECT_EQ(cache.find("other").error().code, Code::corrupt) << "a manifest under a wrong name";
  std::string newer = good;
  newer.replace(newer.find("\"format\": 1"), 11, "\"format\": 9");
  ASSERT_TRUE(replace_file(path, newer));
  EXPECT_EQ(cache.find("t").error().code, Code::unsupported);
  for (const char* name : {"", "..", "a/b", "A", ".hidden"})
    EXPECT_EQ(cache.find(name).error().code, Code::invalid) << name;
}

TEST_F(TemplateCacheTest, CollectKeepsWhatIsNamed) {
  TemplateCache cache(root_ + "/c");
  auto made = build().value();
  ASSERT_TRUE(make_dirs(root_ + "/tree"));
  ASSERT_TRUE(replace_file(root_ + "/tree/file", "hello"));
  auto other = cache.import_tree("other", root_ + "/tree", "k", {}).value();
  EXPECT_EQ(cache.list().value().size(), 2u);
  EXPECT_EQ(cache.collect().value(), 0u);
  ASSERT_TRUE(cache.remove("t"));
  ASSERT_TRUE(cache.remove("t"));
  EXPECT_EQ(cache.collect().value(), made.size);
  EXPECT_NE(::access(cache.blob_path(made.digest).c_str(), F_OK), 0);
  EXPECT_TRUE(cache.verify("other"));
  ASSERT_TRUE(replace_file(root_ + "/c/templates/bad.json", "?"));
  EXPECT_FALSE(cache.collect()) << "an unreadable manifest may name any blob";
}

// A sandbox that was paused, or one that lives, has a blob below it that no template names any more.
TEST_F(TemplateCacheTest, CollectKeepsWhatAnImageStandsOn) {
  TemplateCache cache(root_ + "/c");
  auto made = build().value();
  const std::string blobs = root_ + "/c/blobs", data = root_ + "/data", image = data + "/images/m1";
  ASSERT_TRUE(note_user(blobs, made.digest, data));
  ASSERT_TRUE(cache.remove("t"));
  ASSERT_TRUE(make_dirs(image) && make_dirs(data + "/run"));
  ASSERT_TRUE(replace_file(image + "/manifest.json", "{\"digest\": \"" + made.digest + "\"}"));
  EXPECT_EQ(cache.collect().value(), 0u);
  std::filesystem::remove_all(image);
  ASSERT_TRUE(replace_file(data + "/run/i1", "v6 " + made.digest));
  EXPECT_EQ(cache.collect().value(), 0u);
  EXPECT_EQ(::access(cache.blob_path(made.digest).c_str(), F_OK), 0);
  std::filesystem::remove_all(data + "/run/i1");
  EXPECT_EQ(cache.collect().value(), made.size);
}

TEST_F(TemplateCacheTest, AFailedBuildLeavesTheOldOneAndItsLog) {
  TemplateCache cache(root_ + "/c");
  auto made = build().value();
  auto failed = cache.build_from({.name = "t", .key = "k2"},
                                 [](const BuildPlace& place, const Reporter&) -> Result<std::vector<std::string>> {
                                   ISOLA_CHECK(replace_file(place.log(), "the reason\n"));
                                   ISOLA_CHECK(make_dirs(place.root() + "/half"));
                                   return fail(Code::internal, "no luck");
                                 },
                                 {});
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("no luck"), std::string::npos);
  EXPECT_EQ(read_file(root_ + "/c/build/t.log").value(), "the reason\n");
  EXPECT_EQ(cache.find("t").value().digest, made.digest);
  EXPECT_EQ(build_folders(), 0u);
}

// kill -9 at any moment: the name is either not there, or whole; the next build cleans up and succeeds.
TEST_F(TemplateCacheTest, AKilledBuildLeavesNothingHalfMade) {
  TemplateCache cache(root_ + "/c");
  auto check = [&](const std::string& when) {
    auto found = cache.find("t");
    if (found) {
      auto whole = cache.verify("t");
      EXPECT_TRUE(whole) << when << ": " << whole.error().message;
    } else {
      EXPECT_EQ(found.error().code, Code::not_found) << when << ": " << found.error().message;
    }
  };
  // Once at each report …
  size_t killed = 0;
  for (int at = 1;; ++at) {
    pid_t pid = ::fork();
    if (pid == 0) {
      int n = 0;
      auto made = build("k" + std::to_string(at), true, [&](const ProgressStep&) {
        if (++n == at) ::kill(::getpid(), SIGKILL);
      });
      ::_exit(made ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    check("killed at report " + std::to_string(at));
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ++killed;
  }
  EXPECT_GE(killed, 3u);
  EXPECT_EQ(build_folders(), 0u) << "the last, successful build removed the leftovers";
  // … and at random moments of the whole build, by a timer that kills.
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 15; ++i) {
    pid_t pid = ::fork();
    if (pid == 0) {
      itimerval timer{.it_interval = {}, .it_value = {0, static_cast<suseconds_t>(random() % 60'000 + 1)}};
      ::setitimer(ITIMER_REAL, &timer, nullptr);
      auto made = build("r" + std::to_string(i), true);
      ::_exit(made ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
    }
    check("killed at random");
  }
  ASSERT_TRUE(build("end"));
  EXPECT_EQ(build_folders(), 0u);
  ASSERT_TRUE(cache.collect());
  EXPECT_EQ(list_dir(root_ + "/c/blobs").value().size(), 1u);
}

TEST_F(TemplateCacheTest, TwoBuildsShareOneResult) {
  int started[2], go[2], waiting[2];
  ASSERT_EQ(::pipe2(started, O_CLOEXEC) | ::pipe2(go, O_CLOEXEC) | ::pipe2(waiting, O_CLOEXEC), 0);
  auto slow = [&](const BuildPlace& place, const Reporter& report) -> Result<std::vector<std::string>> {
    char c = 'x';
    (void)!::write(started[1], &c, 1);
    (void)!::read(go[0], &c, 1);
    return small_tree(place, report);
  };
  Template wanted{.name = "t", .key = "k"};
  auto start = [&](const Progress& progress) {
    pid_t pid = ::fork();
    if (pid == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pid == 0) ::_exit(TemplateCache(root_ + "/c").build_from(wanted, slow, progress) ? 0 : 1);
    return pid;
  };
  char c = 0;
  pid_t first = start({});
  ASSERT_EQ(::read(started[0], &c, 1), 1);
  pid_t second = start([&](const ProgressStep& step) {
    if (step.phase == "waiting") (void)!::write(waiting[1], "w", 1);
  });
  ASSERT_EQ(::read(waiting[0], &c, 1), 1);
  ASSERT_EQ(::write(go[1], "gg", 2), 2);  // one for each: who builds twice is told so, not stuck
  int status = -1;
  ::waitpid(first, &status, 0);
  EXPECT_EQ(status, 0);
  ::waitpid(second, &status, 0);
  EXPECT_EQ(status, 0);
  ::fcntl(started[0], F_SETFL, O_NONBLOCK);
  EXPECT_LT(::read(started[0], &c, 1), 0) << "the second one made nothing itself";
  for (int* p : {started, go, waiting}) ::close(p[0]), ::close(p[1]);
}

TEST(KnownTemplates, UnknownNameSaysWhichThereAre) {
  auto made = TemplateCache("/nonexistent").build("nosuch", {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::not_found);
  EXPECT_NE(made.error().message.find("base"), std::string::npos);
  EXPECT_EQ(known_templates(), (std::vector<std::string>{"base", "minimal", "code-interpreter", "containers"}));
}

}  // namespace
}  // namespace isola::image
