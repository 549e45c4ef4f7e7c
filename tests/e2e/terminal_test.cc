// `isola run -t`: the caller's terminal and the command's are one.
#include <fmt/format.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>

#include "e2e/island.h"

namespace isola::e2e {
namespace {

// A program on a terminal of the test's own.
class OnTerminal {
 public:
  explicit OnTerminal(const Argv& argv, const ProgramOptions& options) {
    winsize size{33, 77, 0, 0};
    int master = -1;
    pid_ = ::forkpty(&master, nullptr, nullptr, &size);
    if (pid_ == 0) {
      for (const auto& entry : options.env) ::putenv(const_cast<char*>(entry.c_str()));
      std::vector<char*> words;
      for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
      words.push_back(nullptr);
      ::execv(words[0], words.data());
      ::_exit(253);
    }
    master_ = Fd(master);
  }
  ~OnTerminal() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
  }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  void type(const std::string& text) {
    EXPECT_EQ(::write(master_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void resize(uint16_t rows, uint16_t cols) {
    winsize size{rows, cols, 0, 0};
    ::ioctl(master_.get(), TIOCSWINSZ, &size);
  }
  bool shows(const std::string& text) {
    size_t from = seen_;
    bool found = eventually(
        [&] {
          pump();
          size_t at = screen_.find(text, from);
          if (at == std::string::npos) return false;
          seen_ = at + text.size();
          return true;
        },
        std::chrono::seconds(30));
    return found;
  }
  bool raw() {
    termios now{};
    return ::tcgetattr(master_.get(), &now) == 0 && !(now.c_lflag & (ECHO | ICANON | ISIG));
  }
  int finish() {
    int status = -1;
    bool ended = eventually([&] {
      pump();
      return ::waitpid(pid_, &status, WNOHANG) == pid_;
    });
    if (!ended) return -1;
    pid_ = -1;
    pump();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& screen() const { return screen_; }

 private:
  void pump() {
    pollfd ready{master_.get(), POLLIN, 0};
    while (::poll(&ready, 1, 20) > 0) {
      char buffer[4096];
      ssize_t n = ::read(master_.get(), buffer, sizeof buffer);
      if (n <= 0) return;
      screen_.append(buffer, static_cast<size_t>(n));
    }
  }
  Fd master_;
  pid_t pid_ = -1;
  std::string screen_;
  size_t seen_ = 0;
};

class TerminalTest : public SharedIsland {
 protected:
  OnTerminal on_terminal(Argv words) {
    return OnTerminal(island().run_words(std::move(words)), island().with_data({}));
  }
};

TEST_F(TerminalTest, ItIsOne) {
  auto terminal =
      on_terminal({"-t", "--", "sh", "-c", "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all; exit 5"});
  EXPECT_TRUE(terminal.shows("/dev/pts/0\r\n")) << terminal.screen();
  EXPECT_TRUE(terminal.shows("33 77\r\n")) << terminal.screen();
  EXPECT_TRUE(terminal.shows("all\r\n")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 5);
}

TEST_F(TerminalTest, WithoutTheFlagThereIsNone) {
  auto terminal = on_terminal({"--", "sh", "-c", "test -t 0 || test -t 1 || echo none"});
  EXPECT_TRUE(terminal.shows("none\r\n")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 0);
}

// Not a shell: a trap that runs while it waits in `read` ends the `read` of some, and with it the loop.
constexpr char kEchoes[] =
    "import os, signal, sys\n"
    "say = lambda text: os.write(1, (text + '\\n').encode())\n"
    "signal.signal(signal.SIGINT, lambda *_: say('interrupted'))\n"
    "signal.signal(signal.SIGWINCH, lambda *_: say('%d %d' % os.get_terminal_size()[::-1]))\n"
    "say('ready')\n"
    "for line in sys.stdin: say('<%s>' % line.rstrip())\n"
    "say('over')";

TEST_F(TerminalTest, TypingResizingInterrupting) {
  auto terminal = on_terminal({"-t", "--", "python3", "-c", kEchoes});
  ASSERT_TRUE(terminal.shows("ready\r\n")) << terminal.screen();
  EXPECT_TRUE(terminal.raw()) << "the caller's own terminal must not echo or act";
  terminal.type("hello\r");
  EXPECT_TRUE(terminal.shows("<hello>\r\n")) << terminal.screen();
  terminal.resize(50, 132);
  EXPECT_TRUE(terminal.shows("50 132\r\n")) << terminal.screen();
  terminal.type("\x03");
  EXPECT_TRUE(terminal.shows("interrupted\r\n")) << terminal.screen();
  terminal.type("\x04");
  EXPECT_TRUE(terminal.shows("over\r\n")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 0);
}

// Not a shell: between its last echo and the exec behind it, a shell may swallow an interrupt.
constexpr char kWaits[] =
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nprint('ready', flush=True)\nsignal.pause()";

TEST_F(TerminalTest, CtrlCEndsAnOrdinaryCommand) {
  auto terminal = on_terminal({"-t", "--", "python3", "-c", kWaits});
  ASSERT_TRUE(terminal.shows("ready\r\n"));
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(), 130);
}

// With -t but no terminal here: the command has one, the caller gets its output.
TEST_F(TerminalTest, FromAPipe) {
  auto done = island().run({"-t", "--", "sh", "-c", "tty"});
  EXPECT_EQ(done.out, "/dev/pts/0\r\n") << done.text();
  EXPECT_EQ(done.code, 0);
}

}  // namespace
}  // namespace isola::e2e
