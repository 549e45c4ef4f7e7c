// Three things happen at once, and the client waits: the output is read here, a thread forwards standard input and a
// thread forwards signals, each over a connection of its own.
#include "cli/remote_command.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/output_events.h"
#include "cli/table.h"

namespace isola::cli {

namespace {

using namespace std::chrono_literals;

constexpr int kTries = 6;                // to take up a broken connection, without anything new in between
constexpr size_t kInputPiece = 1 << 20;  // of standard input, per request

constexpr struct {
  int number;
  const char* name;
} kForwarded[] = {{SIGINT, "INT"},   {SIGTERM, "TERM"}, {SIGHUP, "HUP"},
                  {SIGQUIT, "QUIT"}, {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}};

// What the threads share.
class Shared {
 public:
  Shared() : stop_(::eventfd(0, EFD_CLOEXEC)) {}
  void start(const std::string& command) {
    std::lock_guard lock(mutex_);
    command_ = command;
    changed_.notify_all();
  }
  void finish() {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
    (void)!::eventfd_write(stop_.get(), 1);
  }
  // The command's id, once there is one; empty: it is over.
  std::string command() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over_ || !command_.empty(); });
    return over_ ? "" : command_;
  }
  bool over() {
    std::lock_guard lock(mutex_);
    return over_;
  }
  int stop_fd() const { return stop_.get(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string command_;
  bool over_ = false;
  Fd stop_;
};
using SharedPtr = std::shared_ptr<Shared>;

// True: there is something to read; false: it is over.
bool wait_for(int fd, const SharedPtr& shared) {
  for (;;) {
    pollfd ready[] = {{fd, POLLIN, 0}, {shared->stop_fd(), POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0 && errno == EINTR) continue;
    return !ready[1].revents;
  }
}

// All that is there now, up to a limit; empty at the end.
std::string read_input() {
  std::string bytes(kInputPiece, '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    ssize_t n = ::read(STDIN_FILENO, bytes.data() + have, bytes.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    have += static_cast<size_t>(n);
    pollfd more{STDIN_FILENO, POLLIN, 0};
    if (::poll(&more, 1, 0) <= 0) break;
  }
  bytes.resize(have);
  return bytes;
}

void forward_input(const SharedPtr& shared, Api api, const std::string& sandbox) {
  std::string command = shared->command();
  if (command.empty()) return;
  std::string target = "/v1/sandboxes/" + sandbox + "/commands/" + command + "/stdin";
  for (;;) {
    if (!wait_for(STDIN_FILENO, shared)) return;
    std::string bytes = read_input();
    bool end = bytes.empty();
    auto sent = api.request({.method = "POST",
                             .target = end ? target + "?eof=true" : target,
                             .body = std::move(bytes),
                             .type = "application/octet-stream",
                             .io_time = 0ms});  // a command reads its input when it likes
    if (!sent && sent.error().sys_errno && !shared->over())
      complain("standard input is not forwarded any more: " + sent.error().message);
    if (!sent || end) return;  // a command that has ended, or closed its input, wants none
  }
}

void forward_signals(const SharedPtr& shared, Api api, const std::string& sandbox, int signals) {
  int interrupts = 0;
  while (wait_for(signals, shared)) {
    signalfd_siginfo info{};
    if (::read(signals, &info, sizeof info) != sizeof info) continue;
    if (info.ssi_signo == SIGINT && ++interrupts >= kLeaveAfter) ::_exit(128 + SIGINT);
    std::string command = shared->command();
    if (command.empty()) return;
    for (const auto& known : kForwarded)
      if (known.number == static_cast<int>(info.ssi_signo))
        (void)api.request({.method = "POST",
                           .target = "/v1/sandboxes/" + sandbox + "/commands/" + command + "/signal",
                           .body = fmt::format("{{\"signal\":\"{}\"}}", known.name)});
  }
}

// A thread that is waited for, but not for ever: one that hangs on the network must not keep the user here.
class Helper {
 public:
  explicit Helper(std::function<void()> body) {
    std::packaged_task<void()> task(std::move(body));
    done_ = task.get_future();
    thread_ = std::thread(std::move(task));
  }
  Helper(Helper&&) = default;
  ~Helper() {
    if (!thread_.joinable()) return;
    if (done_.wait_for(2s) == std::future_status::ready)
      thread_.join();
    else
      thread_.detach();
  }

 private:
  std::future<void> done_;
  std::thread thread_;
};

Result<Fd> catch_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const auto& known : kForwarded) ::sigaddset(&set, known.number);
  if (::pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) return fail(Code::internal, "cannot block signals");
  Fd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return sys_error("cannot watch for signals");
  return fd;
}

// Reads the output to its end, over as many connections as it takes.
int follow(Api& api, const RemoteCommand& command, OutputPrinter& printer) {
  auto sink = [&](std::string_view piece) { return printer.feed(piece); };
  auto read = api.request({.method = "POST", .target = command.target, .body = command.body, .sink = sink});
  std::string base = "/v1/sandboxes/" + command.sandbox + "/commands/";
  uint64_t last = 0;
  for (int tries = 0;;) {
    if (printer.end()) return exit_code_of(*printer.end());
    if (const auto& unwritten = printer.unwritten()) {
      (void)api.request(
          {.method = "POST", .target = base + printer.command_id() + "/signal", .body = R"({"signal":"HUP"})"});
      return unwritten->sys_errno == EPIPE ? kReaderLeft : complain(unwritten->message);
    }
    Error lost = read ? Error{Code::unavailable, "the server ended the stream before the command's end"} : read.error();
    // What the server itself refused stays refused.
    bool broke = read || lost.sys_errno || lost.code == Code::unavailable || lost.code == Code::timeout ||
                 lost.code == Code::corrupt;
    if (!command.reattach || printer.command_id().empty() || !broke) return exit_code_of(lost, api.refusal());
    if (printer.seq() != last) tries = 0;
    last = printer.seq();
    if (++tries > kTries) return exit_code_of(lost, api.refusal());
    std::this_thread::sleep_for(100ms * (1 << tries));
    printer.cut();
    read = api.request({.target = fmt::format("{}{}/output?from={}&encoding={}&wait_for_reader=true", base,
                                              printer.command_id(), printer.seq(), command.encoded ? "base64" : "text"),
                        .sink = sink});
  }
}

}  // namespace

int run_remote(Api& api, const RemoteCommand& command) {
  auto signals = catch_signals();
  if (!signals) return complain(signals.error().message);
  auto shared = std::make_shared<Shared>();
  OutputPrinter printer({.encoded = command.encoded, .collect = command.json, .started = [&](const std::string& id) {
                           shared->start(id);
                         }});
  std::vector<Helper> helpers;
  // A helper that is left behind keeps what it uses; so does the descriptor, which lives as long as the process.
  int signal_fd = signals->release();
  helpers.emplace_back([shared, other = std::make_shared<Api>(api.another()), sandbox = command.sandbox, signal_fd] {
    forward_signals(shared, std::move(*other), sandbox, signal_fd);
  });
  if (command.input)
    helpers.emplace_back([shared, other = std::make_shared<Api>(api.another()), sandbox = command.sandbox] {
      forward_input(shared, std::move(*other), sandbox);
    });
  int code = follow(api, command, printer);
  shared->finish();
  if (command.json && printer.end()) print_json(printer.result());
  return code;
}

}  // namespace isola::cli
