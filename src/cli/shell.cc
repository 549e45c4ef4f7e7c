// isola shell: feels like ssh. Binary messages are keys and screen, text messages are about them.
#include "cli/shell.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cli/escape.h"
#include "cli/inner_command.h"
#include "cli/register.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace isola::cli {

using nlohmann::json;
using namespace std::chrono_literals;

namespace {

constexpr int kTries = 6;
constexpr std::string_view kEnd = "\x04";  // a terminal knows no other end of input

class TerminalSession {
 public:
  TerminalSession(Api& api, const TerminalRequest& request) : api_(api), request_(request), command_(request.attach) {}
  int run();

 private:
  enum class Outcome { ended, left, lost };
  Result<void> connect();
  Outcome pump();
  // Everything that has arrived; nothing: go on.
  std::optional<Outcome> hear();
  std::optional<Outcome> type();
  void tell_size();
  std::string target() const;

  Api& api_;
  const TerminalRequest& request_;
  std::unique_ptr<http::WebSocketClient> socket_;
  Fd signals_;
  EscapeScanner escape_;
  std::string command_, failure_;
  uint64_t seen_ = 0;  // bytes of the screen: where to go on after a lost connection
  int code_ = kFailed;
  bool terminal_ = false, input_ = true, heard_ = false;
  bool end_later_ = false;  // the input is over, and the other side has said nothing yet
};

std::string TerminalSession::target() const {
  http::Pairs query;
  if (!command_.empty()) {
    query = {{"attach", command_}, {"from", std::to_string(seen_)}};
  } else {
    auto size = terminal_size().value_or(TerminalSize{24, 80});
    query = {{"rows", std::to_string(size.rows)}, {"cols", std::to_string(size.cols)}};
    if (const char* term = std::getenv("TERM")) query.emplace_back("term", term);
    if (!request_.command.empty()) query.emplace_back("command", request_.command);
    if (!request_.cwd.empty()) query.emplace_back("cwd", request_.cwd);
    if (!request_.user.empty()) query.emplace_back("user", request_.user);
  }
  return "/v1/sandboxes/" + request_.sandbox + "/terminal?" + http::to_query(query);
}

Result<void> TerminalSession::connect() {
  bool again = !command_.empty();
  ISOLA_TRY(socket_, api_.websocket(target()));
  if (again) tell_size();
  return {};
}

void TerminalSession::tell_size() {
  if (auto size = terminal_size())
    (void)socket_->write(fmt::format(R"({{"type":"resize","rows":{},"cols":{}}})", size->rows, size->cols), true);
}

std::optional<TerminalSession::Outcome> TerminalSession::hear() {
  for (;;) {
    auto event = socket_->next(0ms);
    if (!event) return Outcome::lost;
    if (event->kind == http::WebSocketEvent::nothing) return std::nullopt;
    if (event->kind == http::WebSocketEvent::closed) return Outcome::lost;
    if (!event->text) {
      heard_ = true;
      if (std::exchange(end_later_, false) && !socket_->write(kEnd, false)) return Outcome::lost;
      seen_ += event->data.size();
      if (!put_out(STDOUT_FILENO, event->data)) {
        failure_ = "nobody reads the output";
        return Outcome::ended;
      }
      continue;
    }
    json word = json::parse(event->data, nullptr, false);
    std::string type = text_of(word, "type", "");
    if (auto seq = word.find("seq"); type == "gap" && seq != word.end() && seq->is_number_unsigned())
      seen_ = seq->get<uint64_t>();
    if (type == "start") command_ = text_of(word, "command_id", "");
    if (type == "exit") {
      failure_ = shown(text_of(word, "error", ""));
      auto exit = word.find("exit_code");
      if (exit != word.end() && exit->is_number_integer()) code_ = exit->get<int>();
      return Outcome::ended;
    }
  }
}

std::optional<TerminalSession::Outcome> TerminalSession::type() {
  char buffer[16 << 10];
  ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
  std::string keys;
  if (n <= 0) {
    input_ = false;
    // A shell that does not read yet would throw it away while it sets its terminal up.
    if (!heard_) {
      end_later_ = true;
      return std::nullopt;
    }
    keys = kEnd;
  } else {
    std::string_view typed(buffer, static_cast<size_t>(n));
    keys = terminal_ ? escape_.feed(typed) : std::string(typed);
  }
  if (!keys.empty() && !socket_->write(keys, false)) return Outcome::lost;
  if (escape_.left()) return Outcome::left;
  return std::nullopt;
}

TerminalSession::Outcome TerminalSession::pump() {
  for (;;) {
    // Bytes may have come along with the handshake or wait inside TLS, where poll does not see them.
    if (auto outcome = hear()) return *outcome;
    pollfd ready[] = {{socket_->fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}, {input_ ? STDIN_FILENO : -1, POLLIN, 0}};
    int some = ::poll(ready, 3, end_later_ ? 1000 : -1);
    if (some < 0) {
      if (errno == EINTR) continue;
      return Outcome::lost;
    }
    // Nor does every command say something first.
    if (some == 0 && std::exchange(end_later_, false) && !socket_->write(kEnd, false)) return Outcome::lost;
    if (ready[1].revents) {
      signalfd_siginfo info{};
      if (::read(signals_.get(), &info, sizeof info) != sizeof info) continue;
      if (info.ssi_signo != SIGWINCH) return Outcome::left;
      tell_size();
    }
    if (ready[2].revents)
      if (auto outcome = type()) return *outcome;
  }
}

int TerminalSession::run() {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : {SIGWINCH, SIGTERM, SIGHUP, SIGINT}) ::sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return complain("cannot watch for signals");
  if (auto connected = connect(); !connected) return complain(connected.error().message);
  terminal_ = ::isatty(STDIN_FILENO) != 0;
  std::optional<RawTerminal> raw;
  if (terminal_) raw.emplace();
  Outcome outcome = pump();
  for (int tries = 0; outcome == Outcome::lost && !command_.empty();) {
    if (std::exchange(heard_, false)) tries = 0;
    if (++tries > kTries) break;
    std::this_thread::sleep_for(100ms * (1 << tries));
    auto connected = connect();
    if (connected) {
      outcome = pump();
    } else if (connected.error().code == Code::not_found || connected.error().code == Code::denied) {
      failure_ = connected.error().message;  // the sandbox is gone
      break;
    }
  }
  raw.reset();
  if (outcome == Outcome::left) {
    (void)socket_->close();
    std::fprintf(stderr, "\nisola: left; it runs on: isola shell %s --attach %s\n", request_.sandbox.c_str(),
                 command_.c_str());
    return 0;
  }
  if (!failure_.empty()) return complain(failure_);
  if (outcome == Outcome::lost) return complain("the connection was lost");
  return code_;
}

}  // namespace

int run_terminal(Api& api, const TerminalRequest& request) { return TerminalSession(api, request).run(); }

void add_shell(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<TerminalRequest>();
  auto* shell =
      app.add_subcommand("shell", "A terminal in a sandbox: isola shell [OPTIONS] ID [--] [COMMAND...]. ~. leaves it");
  shell->add_option("id", options->sandbox, "The sandbox: its id, the beginning of it, or its name")->required();
  shell->add_option("--cwd,-w", options->cwd, "Working folder inside (default: the user's home)");
  shell->add_option("--user,-u", options->user, "User inside: a name, or uid[:gid] (default root)");
  shell->add_option("--attach", options->attach, "Take up a terminal that was left, by its command's id");
  add_server_options(*shell, common);
  auto words = takes_inner_command(*shell, 1);
  shell->callback([=, &common, &code] {
    auto open = [&]() -> Result<int> {
      ISOLA_TRY(Api api, Api::open(common));
      TerminalRequest request = *options;
      ISOLA_TRY(request.sandbox, api.sandbox_id(options->sandbox));
      if (!request.attach.empty()) {
        ISOLA_TRY(request.attach, api.command_id(request.sandbox, options->attach));
      }
      for (const auto& word : *words) request.command += (request.command.empty() ? "exec " : " ") + quoted(word);
      // One word is a line for the shell, as with ssh.
      if (words->size() == 1) request.command = words->front();
      return run_terminal(api, request);
    };
    auto done = open();
    code = done ? *done : complain(done.error().message);
  });
}

}  // namespace isola::cli
