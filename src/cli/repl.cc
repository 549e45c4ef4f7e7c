// isola repl: cell after cell, with history, pictures where the terminal shows them, and Ctrl-C for the running cell.
#include <editline/readline.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/file.h"
#include "cli/cell_signals.h"
#include "cli/code.h"
#include "cli/repl_input.h"

namespace isola::cli {

namespace {

constexpr int kHistory = 2000;

std::string history_file() {
  const char* home = std::getenv("HOME");
  if (!home) return {};
  std::string folder = std::string(home) + "/.local/state/isola";
  if (!make_dirs(folder, 0700)) return {};
  return folder + "/repl_history";
}

// Lines as somebody types them: edited, with a history, and left alone by a signal. Of a file or a pipe: as they are.
class Lines {
 public:
  enum class End { line, interrupted, over };
  explicit Lines(CellSignals& signals) : signals_(signals), typed_(::isatty(STDIN_FILENO)) {}

  End next(const std::string& prompt, std::string& line) {
    if (!typed_) return piped(line);
    state().reset();
    ::rl_callback_handler_install(prompt.c_str(), [](char* text) {
      state() = text ? std::optional<std::string>(text) : std::optional<std::string>();
      over() = !text;
      std::free(text);
      ::rl_callback_handler_remove();
    });
    for (over() = false; !state() && !over();) {
      pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
      if (::poll(ready, 2, -1) < 0 && errno == EINTR) continue;
      if (ready[1].revents) {
        auto number = signals_.take();
        ::rl_callback_handler_remove();
        std::fputs("\n", stderr);
        return number == SIGINT ? End::interrupted : End::over;
      }
      ::rl_callback_read_char();
    }
    if (!state()) return End::over;
    line = std::move(*state());
    return End::line;
  }

 private:
  End piped(std::string& line) {
    for (;;) {
      if (auto end = read_.find('\n'); end != std::string::npos) {
        line = read_.substr(0, end);
        read_.erase(0, end + 1);
        return End::line;
      }
      pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
      if (::poll(ready, 2, -1) < 0 && errno == EINTR) continue;
      if (ready[1].revents) return End::over;
      char buffer[4096];
      ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n > 0) {
        read_.append(buffer, static_cast<size_t>(n));
        continue;
      }
      if (read_.empty()) return End::over;
      line = std::exchange(read_, {});  // a last line without an end
      return End::line;
    }
  }
  // The library's callback knows no object.
  static std::optional<std::string>& state() {
    static std::optional<std::string> line;
    return line;
  }
  static bool& over() {
    static bool ended = false;
    return ended;
  }
  CellSignals& signals_;
  bool typed_;
  std::string read_;
};

// The next cell; nothing: the end of input.
std::optional<std::string> read_cell(Lines& lines, const std::string& prompt) {
  std::string cell;
  for (bool first = true;; first = false) {
    std::string line;
    auto end = lines.next(first ? prompt + "> " : std::string(prompt.size(), '.') + ". ", line);
    if (end == Lines::End::interrupted) return "";
    if (end == Lines::End::over) {
      if (first) return std::nullopt;
      return cell;
    }
    cell += line + "\n";
    if (!wants_more(cell)) break;
  }
  std::string kept = cell;
  while (!kept.empty() && kept.back() == '\n') kept.pop_back();
  if (!kept.empty()) ::add_history(kept.c_str());
  return cell;
}

int repl(const Common& common, CodeOptions options) {
  auto api = Api::open(common);
  if (!api) return complain(api.error().message);
  auto signals = CellSignals::open();
  if (!signals) return complain(signals.error().message);
  auto sandbox = CodeSandbox::open(*api, options);
  if (!sandbox) return complain(sandbox.error().message);
  const std::string contexts = "/v1/sandboxes/" + sandbox->id() + "/contexts";
  const bool own_context = options.context.empty();
  if (own_context) {
    auto made = api->send("POST", contexts, {{"language", options.language}});
    if (!made) return complain(made.error().message);
    options.context = made->value("id", "");
  }
  std::string file = history_file();
  ::rl_initialize();
  ::stifle_history(kHistory);
  if (!file.empty()) ::read_history(file.c_str());
  if (::isatty(STDIN_FILENO))
    std::fprintf(stderr, "%s in sandbox %s; Ctrl-D to leave, Ctrl-C to interrupt a cell\n", options.language.c_str(),
                 sandbox->id().c_str());
  int code = 0;
  std::atomic<bool> leaves = false;
  Lines lines(*signals);
  auto other = std::make_shared<Api>(api->another());
  while (auto cell = leaves ? std::nullopt : read_cell(lines, options.language)) {
    if (cell->find_first_not_of(" \t\n") == std::string::npos) continue;
    // Ctrl-C while a cell runs is for the cell; whoever wants us to end wants that first.
    CellSignals::Watch watch(*signals, [&](int number) {
      if (number != SIGINT) leaves = true;
      (void)other->send("POST", contexts + "/" + options.context + "/interrupt", nlohmann::json::object());
    });
    code = run_cell(*api, sandbox->id(), options, *cell, common.json);
  }
  if (own_context) (void)api->remove(contexts + "/" + options.context);
  if (!file.empty()) {
    mode_t before = ::umask(0077);
    ::write_history(file.c_str());
    ::umask(before);
  }
  return ::isatty(STDIN_FILENO) ? 0 : code;
}

}  // namespace

void add_repl(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<CodeOptions>();
  options->language = "python";
  auto* command = app.add_subcommand("repl", "Cell after cell in a sandbox's interpreter, with history");
  command->add_option("-l,--language", options->language, "python, javascript, typescript, bash, r, java")
      ->capture_default_str();
  command->add_option("-s,--sandbox", options->sandbox, "In this sandbox (default: a new one that is thrown away)");
  command->add_option("--context", options->context, "In this context of it (default: a new one)");
  command->add_option("--timeout", options->timeout, "Interrupt a cell after this time");
  command->add_option("--template", options->template_name, "For a new sandbox")->capture_default_str();
  add_server_options(*command, common);
  command->callback([=, &common, &code] { code = repl(common, *options); });
}

}  // namespace isola::cli
