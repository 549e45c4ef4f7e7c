// Saving a machine, with a stand-in for QEMU that says what it is told to.
#include "boundary/microvm/saving.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "base/file.h"
#include "boundary/microvm/command_line.h"
#include "boundary/microvm/sample_stream_test.h"

namespace isola::boundary::microvm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kWhole = 1 << 20;

class MicrovmSaving : public ::testing::Test {
 protected:
  // What the stand-in answers to a command, without the id; may write to the pipe that it was given.
  using Does = std::function<std::string(int pipe)>;

  void SetUp() override {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ours_ = Fd(pair[0]);
    theirs_ = Fd(pair[1]);
    for (Fd* fd : {&files_.ram, &files_.state, &files_.shape}) *fd = Fd(::memfd_create("test", MFD_CLOEXEC));
    does_["query-memory-size-summary"] = says(R"("return": {"base-memory": 1048576})");
    does_["query-cpus-fast"] = says(R"("return": [{"cpu-index": 0}, {"cpu-index": 1}])");
    does_["query-migrate"] = says(R"("return": {"status": "completed"})");
  }
  void TearDown() override {
    theirs_alive_ = false;
    (void)::shutdown(theirs_.get(), SHUT_RDWR);
    if (qemu_.joinable()) qemu_.join();
  }
  static Does says(std::string words) {
    return [words = std::move(words)](int) { return words; };
  }
  static constexpr char kFine[] = R"("return": {})";

  Monitor begin() {
    qemu_ = std::thread([this] { be_qemu(); });
    return Monitor(std::move(ours_), seconds(20));
  }
  Result<void> save(const Patience& patience = {}, uint64_t most = kWhole) {
    auto monitor = begin();
    return save_machine(monitor, memory_, files_, most, patience);
  }
  std::vector<std::string> told() {
    const std::lock_guard lock(mutex_);
    return told_;
  }

  void be_qemu() {
    std::string heard;
    Fd pipe;
    for (;;) {
      char some[4096];
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      iovec piece{.iov_base = some, .iov_len = sizeof some};
      msghdr message{};
      message.msg_iov = &piece;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const ssize_t n = ::recvmsg(theirs_.get(), &message, MSG_CMSG_CLOEXEC);
      if (n <= 0) return;
      if (const cmsghdr* head = CMSG_FIRSTHDR(&message)) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
        pipe = Fd(fd);
      }
      heard.append(some, static_cast<size_t>(n));
      for (size_t end; (end = heard.find('\n')) != std::string::npos; heard.erase(0, end + 1))
        obey(heard.substr(0, end), pipe);
    }
  }
  void obey(const std::string& line, Fd& pipe) {
    const std::string command = text_in(line, "execute");
    {
      const std::lock_guard lock(mutex_);
      told_.push_back(command);
    }
    const auto found = does_.find(command);
    const std::string words = found == does_.end() ? kFine : found->second(pipe.get());
    if (command == "migrate") pipe.reset();
    (void)write_all(theirs_.get(), "{" + words + R"(, "id": ")" + text_in(line, "id") + "\"}\n");
  }

  Fd ours_, theirs_, memory_;
  SavedFiles files_;
  std::map<std::string, Does> does_;
  std::atomic<bool> theirs_alive_ = true;
  std::mutex mutex_;
  std::vector<std::string> told_;
  std::thread qemu_;
};

SampleStream whole_stream() {
  SampleStream sample;
  sample.begin(kWhole);
  sample.part('\3');
  sample.gone(big(0x3000 | 0x08, 8) + named("ram") + page('b'));
  sample.end();
  sample.both("\4devices");
  return sample;
}

// More than a pipe takes: it is read before there is an answer.
TEST_F(MicrovmSaving, OneThatAnswersOnlyWhenAllIsWrittenIsRead) {
  SampleStream sample = whole_stream();
  sample.both(std::string(8 << 20, 'd'));
  does_["migrate"] = [&](int pipe) {
    (void)write_all(pipe, sample.bytes);
    return kFine;
  };
  auto saved = save();
  ASSERT_TRUE(saved) << saved.error().message;
  struct stat st{};
  ASSERT_EQ(::fstat(files_.ram.get(), &st), 0);
  EXPECT_EQ(st.st_size, static_cast<off_t>(kWhole));
  std::string there(StateStream::kPage, '\0');
  ASSERT_EQ(::pread(files_.ram.get(), there.data(), there.size(), 0x3000), static_cast<ssize_t>(there.size()));
  EXPECT_EQ(there, page('b'));
  ASSERT_EQ(::fstat(files_.state.get(), &st), 0);
  EXPECT_EQ(st.st_size, static_cast<off_t>(sample.rest.size()));
  char shape[100] = {};
  ASSERT_GT(::pread(files_.shape.get(), shape, sizeof shape - 1, 0), 0);
  EXPECT_EQ(parse_shape(shape).value(), (Shape{.memory = kWhole, .processors = 2}));
}

TEST_F(MicrovmSaving, ARefusalIsNotWaitedFor) {
  Fd kept;
  does_["migrate"] = [&](int pipe) {
    kept = Fd(::dup(pipe));  // whoever could write is still there
    return R"("error": {"desc": "not this machine"})";
  };
  auto saved = save({.silence = seconds(300), .least = seconds(300)});
  ASSERT_FALSE(saved);
  EXPECT_NE(saved.error().message.find("migrate: not this machine"), std::string::npos) << saved.error().message;
}

// Where the size is believed, a helper that is root reserves room for it.
TEST_F(MicrovmSaving, MoreMemoryThanItsLimitIsNotBelieved) {
  does_["query-memory-size-summary"] = says(R"("return": {"base-memory": 17592186044416})");
  auto saved = save();
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, Code::corrupt);
  EXPECT_NE(saved.error().message.find("more than its limit"), std::string::npos) << saved.error().message;
  struct stat st{};
  ASSERT_EQ(::fstat(files_.ram.get(), &st), 0);
  EXPECT_EQ(st.st_size, 0);
}

TEST_F(MicrovmSaving, PagesWithoutEndAreNotTaken) {
  SampleStream sample;
  sample.begin(kWhole);
  sample.part('\3');
  sample.gone(big(0x3000 | 0x08, 8) + named("ram") + page('b'));
  std::string more;
  for (int i = 0; i < 64; ++i) more += big(0x3000 | 0x08 | 0x20, 8) + page(static_cast<char>('a' + i % 8));
  does_["migrate"] = [bytes = sample.bytes, more](int pipe) {  // which may go on until TearDown
    if (!write_all(pipe, bytes)) return kFine;
    while (write_all(pipe, more)) {
    }
    return kFine;
  };
  (void)::signal(SIGPIPE, SIG_IGN);
  auto saved = save();
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, Code::corrupt) << saved.error().message;
  EXPECT_NE(saved.error().message.find("does not come to an end"), std::string::npos) << saved.error().message;
}

// Never silent for long, and never done.
TEST_F(MicrovmSaving, TheWholeHasItsTime) {
  const SampleStream sample = whole_stream();
  does_["migrate"] = [this, bytes = sample.bytes](int pipe) {
    for (char c : bytes) {
      if (!theirs_alive_ || !write_all(pipe, std::string_view(&c, 1))) break;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return kFine;
  };
  (void)::signal(SIGPIPE, SIG_IGN);
  auto saved = save({.silence = seconds(300), .least = milliseconds(50)});
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, Code::timeout) << saved.error().message;
}

TEST_F(MicrovmSaving, ItGoesOnWhenWhatWasGivenUpIsOver) {
  int asked = 0, refused = 0;
  does_["query-migrate"] = [&](int) {
    return ++asked < 4 ? R"("return": {"status": "cancelling"})" : R"("return": {"status": "cancelled"})";
  };
  does_["cont"] = [&](int) { return ++refused < 4 ? R"("error": {"desc": "Migration is not finalized yet"})" : kFine; };
  auto monitor = begin();
  auto goes_on = let_go_on(monitor, true);
  EXPECT_TRUE(goes_on) << goes_on.error().message;
  EXPECT_EQ(told(), (std::vector<std::string>{"migrate_cancel", "query-migrate", "query-migrate", "query-migrate",
                                              "query-migrate", "cont", "cont", "cont", "cont"}));
}

TEST_F(MicrovmSaving, OneThatNeverGoesOnIsNotWaitedForForEver) {
  does_["query-migrate"] = says(R"("return": {"status": "cancelling"})");
  does_["cont"] = says(R"("error": {"desc": "Migration is not finalized yet"})");
  auto monitor = begin();
  auto goes_on = let_go_on(monitor, true, milliseconds(50));
  ASSERT_FALSE(goes_on);
  EXPECT_NE(goes_on.error().message.find("not finalized"), std::string::npos) << goes_on.error().message;
}

TEST(MicrovmSaved, MemoryIsCopiedWithoutWhatIsEmpty) {
  constexpr uint64_t kSize = 8 << 20;
  Fd memory(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), kSize), 0);
  const std::string text(5000, 'x'), nothing(1 << 20, '\0');
  ASSERT_EQ(::pwrite(memory.get(), nothing.data(), nothing.size(), 1 << 20), 1 << 20);  // there, but empty
  for (off_t at : {off_t{4096}, off_t{3 << 20}, static_cast<off_t>(kSize) - 5000})
    ASSERT_EQ(::pwrite(memory.get(), text.data(), text.size(), at), 5000);
  char path[] = "/tmp/isola-microvm-test-XXXXXX";
  Fd copy(::mkstemp(path));
  ::unlink(path);
  ASSERT_EQ(::ftruncate(copy.get(), kSize), 0);
  auto copied = copy_memory(memory.get(), copy.get(), kSize);
  ASSERT_TRUE(copied) << copied.error().message;
  std::string a(kSize, 'a'), b(kSize, 'b');
  ASSERT_EQ(::pread(memory.get(), a.data(), kSize, 0), static_cast<ssize_t>(kSize));
  ASSERT_EQ(::pread(copy.get(), b.data(), kSize, 0), static_cast<ssize_t>(kSize));
  EXPECT_TRUE(a == b);
  struct stat st{};
  ASSERT_EQ(::fstat(copy.get(), &st), 0);
  EXPECT_LT(st.st_blocks * 512, 200 << 10);
}

}  // namespace
}  // namespace isola::boundary::microvm
