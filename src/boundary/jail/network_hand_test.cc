#include "boundary/jail/network_hand.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>

#include "base/file.h"
#include "boundary/jail/furnish.h"

namespace isola::boundary::jail {
namespace {

// A process in a network namespace of its own that has asked for it to be configured, and waits.
struct Asking {
  kernel::Child child;
  Fd words;  // where the hand's word comes

  static Asking begin(NetworkHand& hand) {
    auto pair = kernel::socket_pair();
    auto asked = kernel::make_pipe();
    auto child = kernel::spawn(0, [&] {
      if (::unshare(CLONE_NEWNET) < 0 || !ask_for_network(hand.socket(), pair->second.get())) return 1;
      if (::write(asked->second.get(), "a", 1) != 1) return 1;
      for (;;) ::pause();
      return 0;
    });
    asked->second.reset();
    char word;
    EXPECT_EQ(::read(asked->first.get(), &word, 1), 1) << "it could not ask";
    Asking asking{std::move(*child), std::move(pair->first)};
    hand.expect(asking.child.pidfd.get());
    return asking;
  }
  ~Asking() {
    if (child.pid <= 0) return;
    (void)kernel::send_signal(child.pidfd.get(), SIGKILL);
    kernel::wait_for(child.pid);
  }
  Asking(kernel::Child c, Fd w) : child(std::move(c)), words(std::move(w)) {}
  Asking(Asking&& other) noexcept : child(std::move(other.child)), words(std::move(other.words)) {
    other.child.pid = -1;
  }
};

bool is_dead(int pidfd) {
  pollfd death{pidfd, POLLIN, 0};
  return ::poll(&death, 1, 10'000) == 1;
}

#define NEEDS_ROOT() \
  if (::geteuid() != 0) GTEST_SKIP() << "needs root"

TEST(NetworkHand, MakesWhatIsExpectedAndSaysWhere) {
  NEEDS_ROOT();
  auto hand = NetworkHand::start();
  ASSERT_TRUE(hand) << hand.error().message;
  auto network = IslandNetwork::prepare();
  ASSERT_TRUE(network);
  auto expected = network->expected();
  ASSERT_TRUE(expected) << expected.error().message;
  for (int i = 0; i < 3; ++i) {  // it is there for many
    auto asking = Asking::begin(**hand);
    auto message = kernel::receive_message(asking.words.get());
    ASSERT_TRUE(message);
    ASSERT_FALSE(message->bytes.empty());
    ASSERT_EQ(message->bytes[0], kNetworked) << decode_error(message->bytes).message;
    auto made = decode_network(std::move(*message));
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(made->description, *expected);
    struct stat st{};
    ASSERT_EQ(::stat(("/proc/" + std::to_string(asking.child.pid) + "/ns/net").c_str(), &st), 0);
    EXPECT_EQ(made->netns, st.st_ino);
    EXPECT_TRUE(made->sockets.tcp4);
    EXPECT_TRUE(made->sockets.dns_udp4);
    EXPECT_TRUE(made->sockets.dns_tcp4);
    ASSERT_TRUE(made->sockets.start_answering());
    // The launcher's own look agrees with the hand's.
    auto netns = kernel::open_namespace(asking.child.pid, "net");
    ASSERT_TRUE(netns);
    EXPECT_EQ(*network->describe(netns->get()), made->description);
    (*hand)->forget(asking.child.pidfd.get());
  }
}

TEST(NetworkHand, SaysWhatWentWrongAndGoesOn) {
  NEEDS_ROOT();
  auto hand = NetworkHand::start();
  ASSERT_TRUE(hand);
  auto pair = kernel::socket_pair();
  ASSERT_TRUE(pair);
  Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int fds[] = {null.get(), pair->second.get()};
  ASSERT_TRUE(kernel::send_message((*hand)->socket(), "?", fds));
  auto message = kernel::receive_message(pair->first.get());
  ASSERT_TRUE(message);
  ASSERT_EQ(message->bytes.substr(0, 1), std::string(1, kFailed));
  EXPECT_NE(decode_error(message->bytes).message.find("network namespace"), std::string::npos);
  auto asking = Asking::begin(**hand);
  message = kernel::receive_message(asking.words.get());
  ASSERT_TRUE(message);
  EXPECT_EQ(message->bytes.substr(0, 1), std::string(1, kNetworked));
}

TEST(NetworkHand, ItsDeathEndsThoseWhoWaitForIt) {
  NEEDS_ROOT();
  auto hand = NetworkHand::start();
  ASSERT_TRUE(hand);
  EXPECT_TRUE((*hand)->alive());
  // Stopped, so that it never answers.
  ASSERT_EQ(::kill((*hand)->pid(), SIGSTOP), 0);
  auto waiting = Asking::begin(**hand);
  auto done = Asking::begin(**hand);
  (*hand)->forget(done.child.pidfd.get());
  ASSERT_EQ(::kill((*hand)->pid(), SIGKILL), 0);
  EXPECT_TRUE(is_dead((*hand)->death_fd()));
  EXPECT_FALSE((*hand)->alive());
  (*hand)->end();
  EXPECT_TRUE(is_dead(waiting.child.pidfd.get()));
  pollfd alive{done.child.pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&alive, 1, 0), 0) << "one that has its answer lives on";
  // Whoever asks now is told so, and does not wait.
  auto pair = kernel::socket_pair();
  auto asked = ask_for_network((*hand)->socket(), pair->second.get());
  ASSERT_FALSE(asked);
  EXPECT_NE(asked.error().message.find("the helper that makes networks"), std::string::npos) << asked.error().message;
}

TEST(NetworkHand, HasTwoCapabilitiesAndFewDescriptors) {
  NEEDS_ROOT();
  Fd other(::open("/dev/null", O_RDONLY));  // not even close-on-exec
  auto hand = NetworkHand::start();
  ASSERT_TRUE(hand);
  auto asking = Asking::begin(**hand);
  ASSERT_TRUE(kernel::receive_message(asking.words.get()));  // by then it has all that it ever opens
  const std::string proc = "/proc/" + std::to_string((*hand)->pid());
  auto status = read_file(proc + "/status");
  ASSERT_TRUE(status);
  for (const char* set : {"CapPrm", "CapEff", "CapBnd"})
    EXPECT_NE(status->find(std::string(set) + ":\t0000000000201000\n"), std::string::npos) << *status;
  EXPECT_NE(status->find("NoNewPrivs:\t1\n"), std::string::npos);
  auto count = [&] {
    int open = 0;
    DIR* dir = ::opendir((proc + "/fd").c_str());
    while (dirent* entry = dir ? ::readdir(dir) : nullptr)
      open += entry->d_name[0] != '.' && std::atoi(entry->d_name) > 2;
    if (dir) ::closedir(dir);
    return open;
  };
  // What it answered with it closes after the answer.
  auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (count() > 5 && std::chrono::steady_clock::now() < give_up) ::sched_yield();
  EXPECT_EQ(count(), 5) << "its socket, its namespace for each of three shapes, a proc";
}

TEST(NetworkHand, RefusesToReadNonsense) {
  kernel::Message message;
  message.bytes = std::string(1, kNetworked) + "short";
  EXPECT_FALSE(decode_network(std::move(message)));
}

}  // namespace
}  // namespace isola::boundary::jail
