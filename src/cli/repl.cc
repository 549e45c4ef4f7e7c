// isola repl: cell after cell, with history, pictures where the terminal shows them, and Ctrl-C for the running cell.
#include <editline/readline.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"
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

// The next cell; nullptr: the end of input.
std::unique_ptr<std::string> read_cell(const std::string& prompt) {
  auto cell = std::make_unique<std::string>();
  for (bool first = true;; first = false) {
    std::string shown = first ? prompt + "> " : std::string(prompt.size(), '.') + ". ";
    char* line = ::readline(shown.c_str());
    if (!line) return first ? nullptr : std::move(cell);
    std::string text = line;
    std::free(line);
    *cell += text + "\n";
    if (!wants_more(*cell)) break;
  }
  std::string kept = *cell;
  while (!kept.empty() && kept.back() == '\n') kept.pop_back();
  if (!kept.empty()) ::add_history(kept.c_str());
  return cell;
}

// Ctrl-C while a cell runs is for the cell.
class Interrupter {
 public:
  Interrupter(Api api, std::string target) : api_(std::move(api)), target_(std::move(target)) {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    thread_ = std::thread([this, set] {
      for (;;) {
        int number = 0;
        if (::sigwait(&set, &number) != 0 || over_) return;
        (void)api_.send("POST", target_, nlohmann::json::object());
      }
    });
  }
  ~Interrupter() {
    over_ = true;
    ::pthread_kill(thread_.native_handle(), SIGINT);
    thread_.join();
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  Api api_;
  std::string target_;
  sigset_t before_{};
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

int repl(const Common& common, CodeOptions options) {
  auto api = Api::open(common);
  if (!api) return complain(api.error().message);
  auto sandbox = CodeSandbox::open(*api, options);
  if (!sandbox) return complain(sandbox.error().message);
  const std::string contexts = "/v1/sandboxes/" + sandbox->id() + "/contexts";
  if (options.context.empty()) {
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
  while (auto cell = read_cell(options.language)) {
    if (cell->find_first_not_of(" \t\n") == std::string::npos) continue;
    Interrupter interrupter(api->another(), contexts + "/" + options.context + "/interrupt");
    code = run_cell(*api, sandbox->id(), options, *cell, common.json);
  }
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
