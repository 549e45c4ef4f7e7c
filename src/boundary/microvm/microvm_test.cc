#include "boundary/microvm/microvm.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/file.h"
#include "boundary/microvm/command_line.h"
#include "boundary/microvm/monitor.h"

namespace isola::boundary::microvm {
namespace {

TEST(Machine, TellsWhatItIs) {
  auto machine = parse_versions("kernel 6.1.0-55-cloud-amd64\nqemu 7.2.22\nfrom /usr/bin/qemu-system-x86_64 1 2\n");
  ASSERT_TRUE(machine);
  EXPECT_EQ(machine->kernel_version, "6.1.0-55-cloud-amd64");
  EXPECT_EQ(machine->qemu_version, "7.2.22");
  EXPECT_EQ(machine->concern(), "");
  machine->qemu_version = "7.2.4";
  EXPECT_NE(machine->concern().find("CVE"), std::string::npos);
  const std::string words = "qemu 7.2.22\nkernel 6.1.0-18-cloud-amd64\nbuild #1 SMP PREEMPT_DYNAMIC Debian ";
  EXPECT_EQ(parse_versions(words + "6.1.76-1 (2024-02-01)\n")->concern(), "");
  EXPECT_NE(parse_versions(words + "6.1.69-1 (2023-12-30)\n")->concern().find("Linux 6.1.69-1"), std::string::npos);
  for (const char* bad : {"", "kernel 6.1\n", "qemu 7.2\n", "what is this"}) EXPECT_FALSE(parse_versions(bad)) << bad;
}

TEST(Machine, NoneIsSaid) {
  ::setenv("ISOLA_MICROVM", "none", 1);
  auto none = Machine::find();
  ::unsetenv("ISOLA_MICROVM");
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("./dev up --boundary microvm"), std::string::npos) << none.error().message;
}

TEST(Machine, WithoutKvmByWish) {
  ::setenv("ISOLA_MICROVM_ACCEL", "tcg", 1);
  Machine machine;
  machine.recall_kvm();
  ::unsetenv("ISOLA_MICROVM_ACCEL");
  EXPECT_FALSE(machine.kvm);
  EXPECT_NE(machine.why_not.find("ISOLA_MICROVM_ACCEL"), std::string::npos);
}

TEST(Machine, TicksAreThoseOfAProcessor) {
  EXPECT_GT(ticks_per_millisecond(), 300'000u);
  EXPECT_LT(ticks_per_millisecond(), 10'000'000u);
}

class MicrovmCommandLine : public ::testing::Test {
 protected:
  MicrovmCommandLine() {
    spec_.id = "i0123456789abcdefghij";
    spec_.blob = "/secret/place.erofs";
    spec_.layer = "/secret/layer";
    spec_.limits = {.cpus = 1, .memory = 300 << 20, .pids = 100, .open_files = 500};
    machine_.folder = "/secret/machine";
    shape_ = shape_for(spec_.limits);
  }
  bool has(const std::string& part) const {
    return std::ranges::any_of(words_, [&](const auto& word) { return word.find(part) != std::string::npos; });
  }
  Machine machine_;
  LaunchSpec spec_;
  Shape shape_;
  std::vector<std::string> words_;
};

TEST_F(MicrovmCommandLine, HasWhatTheGuestNeedsAndNothingOfTheHost) {
  words_ = command_line(machine_, shape_, spec_, true);
  EXPECT_TRUE(has("ISOLA_PROCESSES=100 ISOLA_FILES=500"));
  EXPECT_TRUE(has("tcg,"));
  EXPECT_TRUE(has("tsc_early_khz=")) << "else it may hang";
  EXPECT_FALSE(has("secret")) << "the guest, or whoever takes QEMU over, can read it";
  EXPECT_FALSE(has(spec_.id)) << "what is restored as another sandbox has the same";
  EXPECT_FALSE(has("ipv6.disable=1"));
  EXPECT_FALSE(has("-incoming"));
  EXPECT_TRUE(has("share=on"));
  EXPECT_TRUE(has("-no-reboot"));
  for (const char* never : {"usb", "pci", "vga", "vnc", "listen", "server=on", "user,"})
    EXPECT_FALSE(has(never)) << never;
  words_ = command_line(machine_, shape_, spec_, false);
  EXPECT_TRUE(has("ipv6.disable=1")) << "else connections would wait instead of being refused";
}

TEST_F(MicrovmCommandLine, OneThatIsRestoredMapsTheImagesMemoryPrivately) {
  spec_.memory = MemoryImage{};
  words_ = command_line(machine_, shape_, spec_, true);
  EXPECT_TRUE(has("mem-path=/memory/ram.img,share=off,merge=off"));
  EXPECT_TRUE(has("-incoming"));
}

TEST_F(MicrovmCommandLine, WithKvmThereIsNothingToHelpTheTranslationAlong) {
  machine_.kvm = true;
  words_ = command_line(machine_, shape_, spec_, true);
  EXPECT_FALSE(has("tsc_early_khz"));
  EXPECT_FALSE(has("mitigations=off")) << "programs inside are to be kept apart from each other";
  EXPECT_FALSE(has("tcg"));
}

TEST(MicrovmShape, IsReadAsItWasWritten) {
  const Shape shape{.memory = 243 << 20, .processors = 2};
  EXPECT_EQ(parse_shape(describe(shape)).value(), shape);
  for (const char* bad : {"", "memory 0\nprocessors 1\n", "memory 4095\nprocessors 1\n", "memory 1048576\n",
                          "memory 1048576\nprocessors 0\n", "memory 1048576\nprocessors 4000\n"})
    EXPECT_FALSE(parse_shape(bad)) << bad;
}

// Whatever QEMU's `open` was compiled to: what is missing here goes past the library, and a restore fails.
TEST(MicrovmPreload, StandsInForEveryFormOfOpen) {
  void* library = ::dlopen(ISOLA_MICROVM_PRELOAD, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  for (const char* name : {"open", "open64", "__open_2", "__open64_2", "fallocate", "fallocate64"}) {
    void* here = ::dlsym(library, name);
    Dl_info info{};
    ASSERT_TRUE(here && ::dladdr(here, &info) != 0) << name;
    EXPECT_STREQ(info.dli_fname, ISOLA_MICROVM_PRELOAD) << name;
  }
  ::dlclose(library);
}

TEST(MicrovmMemory, LeavesRoomForQemu) {
  for (uint64_t limit : {kLeastMemory, uint64_t{512} << 20, uint64_t{64} << 30}) {
    EXPECT_LE(guest_memory(limit), limit - (64 << 20));
    EXPECT_GT(guest_memory(limit), limit / 2);
    EXPECT_EQ(guest_memory(limit) % (1 << 20), 0u);
  }
}

// The other end is QEMU, or whoever took it over.
class MicrovmMonitor : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ours_ = Fd(pair[0]);
    theirs_ = Fd(pair[1]);
  }
  void say(const std::string& text) const { ASSERT_TRUE(write_all(theirs_.get(), text)); }
  // Answers each line that comes with what `reply` makes of its id.
  template <typename Reply>
  std::thread answer(int lines, Reply reply) {
    return std::thread([this, lines, reply] {
      std::string heard;
      for (int i = 0; i < lines;) {
        char some[1000];
        ssize_t n = ::recv(theirs_.get(), some, sizeof some, 0);
        if (n <= 0) return;
        heard.append(some, static_cast<size_t>(n));
        for (size_t end; (end = heard.find('\n')) != std::string::npos; heard.erase(0, end + 1), ++i)
          (void)write_all(theirs_.get(), reply(text_in(heard.substr(0, end), "id")));
      }
    });
  }
  Fd ours_, theirs_;
};

TEST_F(MicrovmMonitor, FindsItsAnswerAmongOthers) {
  say("{\"QMP\": {\"version\": {}}}\n{\"return\": {}, \"id\": \"somebody else's\"}\n");
  auto other = answer(2, [](const std::string& id) {
    return "{\"event\": \"STOP\"}\r\n{\"return\": {\"status\": \"completed\"}, \"id\": \"" + id + "\"}\r\n";
  });
  Monitor monitor(std::move(ours_), std::chrono::seconds(20));
  auto greeted = monitor.greet();
  EXPECT_TRUE(greeted) << greeted.error().message;
  auto told = monitor.tell("query-migrate");
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(text_in(*told, "status"), "completed");
  other.join();
}

TEST_F(MicrovmMonitor, SaysWhatWasRefused) {
  auto other = answer(1, [](const std::string& id) {
    return "{\"id\": \"" + id + "\", \"error\": {\"class\": \"GenericError\", \"desc\": \"no \x1b such thing\"}}\n";
  });
  Monitor monitor(std::move(ours_), std::chrono::seconds(20));
  auto told = monitor.tell("cont");
  other.join();
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error().code, Code::unsupported);
  EXPECT_NE(told.error().message.find("no ? such thing"), std::string::npos) << told.error().message;
}

TEST_F(MicrovmMonitor, NobodyWaitsForEver) {
  Monitor silent(Fd(::dup(ours_.get())), std::chrono::milliseconds(50));
  EXPECT_EQ(silent.tell("stop").error().code, Code::timeout);
  std::thread noisy([this] { (void)write_all(theirs_.get(), std::string(100'000, 'x')); });
  Monitor patient(Fd(::dup(ours_.get())), std::chrono::seconds(20));
  EXPECT_EQ(patient.tell("stop").error().code, Code::corrupt);
  char some[4096];
  while (::recv(ours_.get(), some, sizeof some, MSG_DONTWAIT) > 0) {
  }
  noisy.join();
  theirs_.reset();
  while (::recv(ours_.get(), some, sizeof some, MSG_DONTWAIT) > 0) {
  }
  Monitor gone(std::move(ours_), std::chrono::seconds(20));
  EXPECT_FALSE(gone.tell("stop"));
}

TEST(MicrovmMonitorText, IsFoundOnlyWhereItIs) {
  EXPECT_EQ(text_in(R"({"return": {"status": "active", "n": 5}})", "status"), "active");
  EXPECT_EQ(text_in(R"({"n":5})", "n"), "");
  EXPECT_EQ(text_in(R"({"x":"unended)", "x"), "");
  EXPECT_EQ(text_in("", "x"), "");
}

}  // namespace
}  // namespace isola::boundary::microvm
