// isola serve, isola up: the server in the foreground, or in the background with a word about it.
#include "server/serve.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "cli/register.h"
#include "cli/server_url.h"
#include "cli/table.h"
#include "kernel/process.h"
#include "launcher/client.h"
#include "server/config.h"

namespace isola::cli {

namespace {

constexpr char kConfigFile[] = "/etc/isola.toml";  // read if it is there and no other was named

struct Options {
  std::string config_file;
  std::map<std::string, std::string> flags;  // by name of the setting
  int ready_fd = -1;
};

// Every setting is a flag, too. --data and --cache are common to all commands.
std::shared_ptr<Options> add_settings(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("--config", options->config_file, "TOML file with settings (or ISOLA_CONFIG)");
  for (const auto& setting : server::settings()) {
    if (setting.name == "data" || setting.name == "cache") continue;
    std::string name(setting.name), help = std::string(setting.help) + " [" + std::string(setting.kind) + "]";
    app.add_option_function<std::string>(
        server::flag_of(setting), [options, name](const std::string& text) { options->flags[name] = text; }, help);
  }
  return options;
}

Result<server::Config> load(const Common& common, const Options& options) {
  std::string file = options.config_file;
  if (const char* named = std::getenv("ISOLA_CONFIG"); named && file.empty()) file = named;
  if (file.empty() && ::access(kConfigFile, F_OK) == 0) file = kConfigFile;
  std::vector<server::Given> flags;
  for (const auto& [name, text] : options.flags) flags.push_back({name, text, "the command line"});
  if (common.data_given) flags.push_back({"data", common.data_dir, "the command line"});
  if (common.cache_given) flags.push_back({"cache", common.cache_dir, "the command line"});
  return server::load_config(file, flags);
}

// Serves, and says in DIR/server.url where for as long as it does.
Result<void> serve_on(const server::Config& config, const Common& common, const Options& options, int ready_fd) {
  std::optional<ServerUrl> place;
  if (make_dirs(config.data, 0711)) {
    auto claimed = ServerUrl::claim(config.data);
    if (!claimed && claimed.error().code == Code::exists) {
      Fd ready(ready_fd);
      if (ready) (void)write_all(ready.get(), claimed.error().message + "\n");
      return std::unexpected(claimed.error());
    }
    if (claimed) place.emplace(std::move(*claimed));
  }
  return server::serve({.config = config,
                        .reload = [&] { return load(common, options); },
                        .ready_fd = ready_fd,
                        .on_ready =
                            [&](const std::string& url) {
                              if (place) (void)place->publish(url);
                            }});
}

int serve(const Common& common, const Options& options) {
  auto config = load(common, options);
  if (!config) return complain(config.error().message);
  auto served = serve_on(*config, common, options, options.ready_fd);
  if (!served) return complain(served.error().message);
  return 0;
}

// One that a failed start left behind would wait a minute for somebody to speak to it. If somebody has come meanwhile
// and has a sandbox there, it stays, and ends by itself after that.
void end_unused_launcher(const std::string& data) {
  auto left = launcher::Client::connect(data);
  if (!left) return;
  if (auto info = left->info(); info && info->live == 0) (void)left->shutdown(false);
}

// The server as a daemon: waits for its word, prints where it is.
int up(const Common& common, const Options& options) {
  auto config = load(common, options);
  if (!config) return complain(config.error().message);
  auto word = kernel::make_pipe();
  if (!word) return complain(word.error().message);
  std::string log_path = config->data + "/server.log";
  if (auto made = make_dirs(config->data, 0711); !made) return complain(made.error().message);
  Fd log(::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log) return complain(sys_error("cannot open " + log_path).error().message);
  const std::string key_file = config->data + "/key";
  const bool first = ::access(key_file.c_str(), F_OK) != 0;
  const bool launcher_ran = launcher::Client::connect(config->data).has_value();
  pid_t pid = ::fork();
  if (pid < 0) return complain("cannot go into the background");
  if (pid == 0) {
    ::setsid();
    if (::fork() != 0) ::_exit(0);
    Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    ::dup2(null.get(), 0);
    ::dup2(null.get(), 1);
    ::dup2(log.get(), 2);
    word->first.reset();
    int ready = word->second.release();
    auto served = serve_on(*config, common, options, ready);
    ::_exit(served ? 0 : 1);
  }
  word->second.reset();
  ::waitpid(pid, nullptr, 0);
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = ::read(word->first.get(), buffer, sizeof buffer)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    answer.append(buffer, static_cast<size_t>(n));
  }
  while (answer.ends_with('\n')) answer.pop_back();
  if (!answer.starts_with("ready ")) {
    if (!launcher_ran) end_unused_launcher(config->data);
    return complain("the server did not start: " + (answer.empty() ? "see " + log_path : answer));
  }
  std::string url = answer.substr(6);
  if (common.json) {
    print_json({{"url", url}, {"key_file", config->data + "/key"}, {"log", log_path}});
    return 0;
  }
  auto launcher = launcher::Client::connect(config->data);
  auto info = launcher ? launcher->info() : Result<launcher::InfoReply>(std::unexpected(launcher.error()));
  std::printf("Isola is up.\n  API       %s\n  key       %s/key\n  log       %s\n  boundary  %s\n", url.c_str(),
              config->data.c_str(), log_path.c_str(),
              info ? boundary::names_of(info->boundaries).c_str() : info.error().message.c_str());
  if (auto key = read_file(key_file); first && key)
    std::printf("  the first key, kept there: %s\n", key->substr(0, key->find('\n')).c_str());
  return 0;
}

// The server that runs on the data directory, and everything that it started.
int down(const Common& common) {
  struct stat there{};
  if (::stat(common.data_dir.c_str(), &there) < 0)
    return complain("there is no data directory " + common.data_dir + ": " + std::strerror(errno));
  if (auto pid = find_server(common.data_dir)) {
    auto process = kernel::open_pidfd(*pid);
    if (process) {
      (void)kernel::send_signal(process->get(), SIGTERM);
      pollfd gone{process->get(), POLLIN, 0};
      if (::poll(&gone, 1, 60'000) <= 0)
        return complain("the server does not stop; see " + common.data_dir + "/server.log");
    }
  }
  auto launcher = launcher::Client::connect(common.data_dir);
  if (launcher) {
    if (auto stopped = launcher->shutdown(true); !stopped) return complain(stopped.error().message);
  }
  if (common.json)
    print_json({{"down", true}, {"data", common.data_dir}});
  else
    std::printf(
        "Isola is down; no sandbox of %s runs any more (those that are paused, snapshots and volumes are kept).\n",
        common.data_dir.c_str());
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, Common& common, int& code) {
  auto* serve_command = app.add_subcommand("serve", "Run the sandbox server in the foreground");
  auto options = add_settings(*serve_command);
  serve_command->add_option("--ready-fd", options->ready_fd, "Tell this descriptor when ready")->group("");
  serve_command->callback([&common, &code, options] { code = serve(common, *options); });
  auto* up_command = app.add_subcommand("up", "Start the sandbox server in the background");
  auto up_options = add_settings(*up_command);
  up_command->callback([&common, &code, up_options] { code = up(common, *up_options); });
  app.add_subcommand("down", "Stop the server, its launcher and all its sandboxes")->callback([&common, &code] {
    code = down(common);
  });
}

}  // namespace isola::cli
