// isola run: one command in a fresh sandbox, as if it ran here: input, output, exit code, signals, terminal.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/units.h"
#include "cli/api.h"
#include "cli/collected_output.h"
#include "cli/commands.h"
#include "cli/inner_command.h"
#include "cli/parse.h"
#include "cli/register.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/waiting_output.h"
#include "guest/client.h"
#include "image/recipes.h"
#include "image/template_cache.h"
#include "kernel/mount.h"
#include "launcher/client.h"

namespace isola::cli {

namespace {

struct Shown {
  std::vector<Fd> trees;
  std::vector<std::string> targets;
};

Result<Shown> open_mounts(const std::vector<std::string>& mounts) {
  Shown shown;
  for (const auto& text : mounts) {
    ISOLA_TRY(Mount mount, parse_mount(text));
    // No link is followed, here as everywhere: what it leads to could be another thing at any moment.
    struct stat st{};
    if (::lstat(mount.host.c_str(), &st) == 0 && S_ISLNK(st.st_mode))
      return fail(Code::invalid, "--mount-ro " + mount.host + ": that is a symbolic link; name what it leads to");
    ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, mount.host));
    shown.trees.push_back(std::move(tree));
    shown.targets.push_back(mount.inside);
  }
  return shown;
}

Result<launcher::LaunchRequest> request_of(const Common& common, const RunOptions& options) {
  launcher::LaunchRequest request{.cold = options.cold, .allow_unquotaed = options.allow_unquotaed};
  ISOLA_TRY(request.limits, limits_of(options));
  auto wish = parse_boundary_wish(options.boundary.empty() ? "auto" : options.boundary);
  if (!wish) return fail(Code::invalid, "--boundary must be auto, jail, gvisor, uml, microvm or strongest");
  request.boundary.wish = *wish;
  std::string name = options.template_name.empty() ? "base" : options.template_name;
  auto found = image::TemplateCache(common.cache_dir).find(name);
  if (!found && found.error().code == Code::not_found)
    return fail(Code::not_found,
                "there is no template '" + name + "' here; `isola template ls` shows what there is" +
                    (image::find_recipe(name) ? ", `isola template build " + name + "` makes it" : ""));
  if (!found) return std::unexpected(found.error());
  request.digest = found->digest;
  return request;
}

void set_size(guest::Start& start) {
  if (auto size = terminal_size()) start.rows = size->rows, start.cols = size->cols;
}

void print_latency(const launcher::LaunchReply& reply, std::chrono::nanoseconds connect,
                   std::chrono::nanoseconds launch, std::chrono::nanoseconds first) {
  std::fprintf(stderr, "%s sandbox %s, %s birth (boundary: %s, %s %s)\n", "isola:", reply.id.c_str(),
               std::string(to_string(reply.birth)).c_str(), std::string(to_string(reply.kind)).c_str(),
               reply.engine.name.c_str(), reply.engine.version.c_str());
  auto line = [](std::string_view name, std::chrono::nanoseconds time) {
    std::fprintf(stderr, "  %-14s %10s\n", std::string(name).c_str(), format_duration(time).c_str());
  };
  for (int i = 0; i < static_cast<int>(Step::count_); ++i) {
    auto step = static_cast<Step>(i);
    if (reply.latency.of(step).count() > 0) line(to_string(step), reply.latency.of(step));
  }
  line("= launcher", reply.latency.total());
  line("connect", connect);
  line("launch", launch);
  line("first output", first);
}

constexpr auto kPatience = std::chrono::milliseconds(2000);  // with a reader of what has ended

// One command and everything that happens around it while it runs.
class Session {
 public:
  Session(launcher::Client& launcher, guest::PipeClient& guest, const std::string& id)
      : launcher_(launcher), guest_(guest), id_(id) {}

  Result<guest::Exit> run(const guest::Start& start);
  bool was_left() const { return interrupts_ >= kLeaveAfter; }
  std::chrono::steady_clock::time_point first_output{};
  bool collect = false;  // keeps the output instead of printing it
  CollectedOutput collected;
  const std::optional<launcher::Ended>& ended() const { return ended_; }
  bool reader_left() const { return unwritten_ && unwritten_->sys_errno == EPIPE; }

 private:
  using Clock = std::chrono::steady_clock;
  std::shared_ptr<guest::Run> begin(const guest::Start& start, bool held);
  void put(int fd, std::string_view bytes);
  void write_out();
  void watch();
  guest::PipeClient::Milliseconds patience() const;
  void let_reader_take_the_rest();
  void expect_end();
  void miss(uint64_t bytes);
  void read_stdin();
  void handle_signal();
  void hear_launcher();

  launcher::Client& launcher_;
  guest::PipeClient& guest_;
  std::string id_;
  std::shared_ptr<guest::Run> run_;
  Fd signals_;
  bool stdin_open_ = true, terminal_ = false;
  std::optional<launcher::Ended> ended_;
  std::optional<Error> lost_, unwritten_;  // the launcher; our output
  WaitingOutput output_;
  int waits_for_ = -1;  // descriptor of the output that has no room now
  int interrupts_ = 0;
  bool awaited_ = false;
  // Somebody wanted it to end, and it has: from here on its reader is waited for only while it takes something.
  std::optional<Result<guest::Exit>> over_;
  Clock::time_point leave_at_;
};

void Session::put(int fd, std::string_view bytes) {
  if (collect) {
    collected.add(fd == STDERR_FILENO ? CollectedOutput::err : CollectedOutput::out, bytes);
    return;
  }
  if (first_output == std::chrono::steady_clock::time_point{}) first_output = std::chrono::steady_clock::now();
  output_.add(fd, bytes);
  write_out();
}

// Never waits: a reader that takes its time must keep neither signals nor the launcher from being heard.
void Session::write_out() {
  auto taken = output_.write_some();
  if (!taken) unwritten_ = taken.error();
  if (taken && *taken) leave_at_ = Clock::now() + kPatience;
}

guest::PipeClient::Milliseconds Session::patience() const {
  if (!over_) return guest::PipeClient::Milliseconds(-1);
  auto left = std::chrono::ceil<guest::PipeClient::Milliseconds>(leave_at_ - Clock::now());
  return std::max(left, guest::PipeClient::Milliseconds(0));
}

// The sandbox has ended, and what it wrote before is here: as long as somebody takes it and wants nothing else of us.
void Session::let_reader_take_the_rest() {
  while (!output_.empty()) {
    auto taken = output_.write_some();
    if (!taken || output_.empty()) return;
    pollfd ready[] = {{output_.fd(), POLLOUT, 0}, {signals_.get(), POLLIN, 0}};
    if (::poll(ready, 2, static_cast<int>(kPatience.count())) <= 0 || ready[1].revents) return;
  }
}

// The end of its output may never come, since nobody takes that; the end of the command does.
void Session::expect_end() {
  auto over = [this](Result<std::string_view> end) {
    over_ = end ? guest::decode<guest::Exit>(*end) : std::unexpected(std::move(end).error());
    leave_at_ = Clock::now() + kPatience;
  };
  guest_.session().open(guest::Op::wait, guest::encode(guest::Pid{run_->pid()}), {.end = over});
}

// Only with a guest that cannot make the command wait: it wrote faster than the sandbox keeps what is not read yet.
void Session::miss(uint64_t bytes) {
  if (collect) return collected.add_lost(bytes);
  std::fprintf(stderr, "isola: %llu bytes of output were lost\n", static_cast<unsigned long long>(bytes));
}

void Session::read_stdin() {
  char buffer[64 << 10];
  size_t room = std::min(sizeof buffer, guest_.session().sendable(run_->channel()));
  if (room == 0) return;
  ssize_t n = ::read(STDIN_FILENO, buffer, room);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) {
    stdin_open_ = false;
    guest_.ignore(STDIN_FILENO);
    guest_.close_stdin(run_);
    return;
  }
  guest_.session().send(run_->channel(), std::string_view(buffer, static_cast<size_t>(n)));
}

void Session::handle_signal() {
  // One that comes before the command has started waits here for it: it is meant for the command.
  if (run_->pid() == 0) return guest_.ignore(signals_.get());
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof info) != sizeof info) return;
  if (info.ssi_signo == SIGWINCH) {
    guest::Start size;
    set_size(size);
    if (terminal_)
      guest_.session().open(guest::Op::resize, guest::encode(guest::Resize{run_->pid(), size.rows, size.cols}), {});
    return;
  }
  if (info.ssi_signo == SIGINT) ++interrupts_;
  guest::Signal signal{run_->pid(), static_cast<int32_t>(info.ssi_signo), guest::Target::group};
  guest_.session().open(guest::Op::signal, guest::encode(signal), {});
  // Who ends it while nobody reads wants to be gone with it; an interrupt that the command lives through does not.
  if (info.ssi_signo != SIGUSR1 && info.ssi_signo != SIGUSR2 && !output_.empty() && !std::exchange(awaited_, true))
    expect_end();
}

void Session::hear_launcher() {
  auto event = launcher_.next_event();
  if (!event) {
    lost_ = event.error();
  } else if (*event && (*event)->id == id_) {
    ended_ = **event;
  }
}

std::shared_ptr<guest::Run> Session::begin(const guest::Start& start, bool held) {
  guest::RunCallbacks on{.out = [this](std::string_view s) { put(STDOUT_FILENO, s); },
                         .err = [this](std::string_view s) { put(STDERR_FILENO, s); },
                         .gap = [this](uint64_t, uint64_t lost) { miss(lost); }};
  constexpr auto kByHand = guest::PipeClient::Credit::by_hand;
  return held ? guest_.begin_held_run(start, std::move(on), kByHand) : guest_.begin_run(start, std::move(on), kByHand);
}

void Session::watch() {
  guest_.on_readable(signals_.get(), [this] { handle_signal(); });
  // Standard input is read only as fast as the command takes it, and not before there is one: a guest that refuses to
  // start it so is asked again, and must get all of it then.
  bool room = run_->pid() != 0 && guest_.session().sendable(run_->channel()) > 0;
  if (stdin_open_ && room)
    guest_.on_readable(STDIN_FILENO, [this] { read_stdin(); });
  else
    guest_.ignore(STDIN_FILENO);
  if (waits_for_ >= 0) guest_.ignore(std::exchange(waits_for_, -1));
  if (output_.empty()) return guest_.consumed(run_);
  waits_for_ = output_.fd();
  guest_.on_writable(waits_for_, [this] { write_out(); });
}

Result<guest::Exit> Session::run(const guest::Start& start) {
  terminal_ = start.pty;
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGUSR1, SIGUSR2}) ::sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  signals_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return sys_error("cannot watch for signals");

  bool held = true;  // whoever reads slowly makes the command wait, as a pipe would
  run_ = begin(start, held);
  guest_.on_readable(launcher_.fd(), [this] { hear_launcher(); });
  while (!run_->ended() || !output_.empty()) {
    watch();
    auto pumped = guest_.pump(patience());
    if (unwritten_) return std::unexpected(*unwritten_);
    if (was_left()) return fail(Code::unavailable, "interrupted");
    if (ended_ || lost_) break;
    if (over_ && pumped && !*pumped && Clock::now() >= leave_at_) return *over_;
    if (!pumped) {
      // The link is gone; the launcher knows why, and says so as soon as everything is cleared away.
      while (!ended_ && !lost_) {
        pollfd ready{launcher_.fd(), POLLIN, 0};
        if (::poll(&ready, 1, 10000) <= 0) return std::unexpected(pumped.error());
        hear_launcher();
      }
      break;
    }
    // A sandbox that an earlier version parked.
    if (held && run_->ended() && !run_->result() && run_->result().error().code == Code::unsupported)
      run_ = begin(start, held = false);
  }
  let_reader_take_the_rest();
  if (run_->ended() && run_->result()) return run_->result();
  if (run_->ended() && !ended_ && !lost_) return run_->result();
  if (lost_) return std::unexpected(*lost_);
  return fail(Code::unavailable, "the sandbox ended: " + std::string(to_string(ended_->reason)));
}

int exit_code(const guest::Exit& exit) { return exit.signal ? 128 + exit.signal : exit.code; }

// The same shape as that of a command through the API.
void print_result(const guest::Exit& exit, const Session& session, const std::string& sandbox) {
  nlohmann::json out = session.collected.result();
  out["sandbox"] = sandbox;
  out["exit_code"] = exit_code(exit);
  if (exit.signal) out["signal"] = exit.signal;
  if (exit.oom_hint) out["killed_by_memory_limit"] = true;
  print_json(out);
}

int report_failure(const Error& error, const Session& session, const RunOptions& options) {
  if (session.reader_left()) return kReaderLeft;
  if (session.was_left()) return 128 + SIGINT;
  if (session.ended()) {
    switch (session.ended()->reason) {
      case EndReason::deadline:
        complain("the command took longer than " + options.timeout + " and was ended");
        return kTimedOut;
      case EndReason::oom: complain("the sandbox ran out of memory and was ended"); return 128 + SIGKILL;
      default: break;
    }
  }
  complain(error.message);
  if (error.code == Code::invalid && error.sys_errno != E2BIG)
    return kFailed;  // a bad user or folder, not a bad command
  if (error.sys_errno == ENOENT) return kNoSuchCommand;
  if (error.sys_errno == EACCES || error.sys_errno == ENOEXEC || error.sys_errno == E2BIG) return kCannotRun;
  return kFailed;
}

Result<void> open_network(launcher::Client& launcher, guest::PipeClient& guest, const std::string& id,
                          const NetChoice& net) {
  ISOLA_CHECK(launcher.set_policy({.id = id, .policy = net.policy}));
  for (const auto& [path, content] : net.files) {
    auto written = guest.write_file({.path = path, .parents = true}, content);
    if (!written) return std::unexpected(written.error());
  }
  return {};
}

}  // namespace

int run(const Common& common, const RunOptions& options) {
  if (common.json && options.terminal) return complain("--json and --tty do not go together");
  if (auto code = run_on_server(common, options)) return *code;
  using Clock = std::chrono::steady_clock;
  auto net = net_choice(options.net);
  if (!net) return complain(net.error().message);
  auto request = request_of(common, options);
  if (!request) return complain(request.error().message);
  auto shown = open_mounts(options.mounts);
  if (!shown) return complain(shown.error().message);
  request->shown_targets = shown->targets;
  std::vector<int> trees;
  for (const auto& tree : shown->trees) trees.push_back(tree.get());

  auto t0 = Clock::now();
  auto launcher = launcher::Client::connect_or_start({.data_dir = common.data_dir, .cache_dir = common.cache_dir});
  if (!launcher) return complain(launcher.error().message);
  auto t1 = Clock::now();
  auto sandbox = launcher->launch(*request, trees);
  if (!sandbox) return complain(sandbox.error().message);
  auto t2 = Clock::now();
  // The next one finds a parked jail waiting. (An engine takes memory even while it waits: none is kept unasked.)
  if (sandbox->reply.kind == BoundaryKind::jail)
    if (auto parked = launcher->park(request->digest, 1); !parked) complain(parked.error().message);

  guest::PipeClient guest(std::move(sandbox->link.from_guest), std::move(sandbox->link.to_guest));
  guest::Start start{.argv = options.command,
                     .env = options.env,
                     .cwd = options.cwd,
                     .user = options.user,
                     .stdin_mode = guest::Stdin::pipe,
                     .pty = options.terminal};
  if (!options.net.empty()) {
    if (auto opened = open_network(*launcher, guest, sandbox->reply.id, *net); !opened) {
      complain(opened.error().message);
      (void)launcher->kill(sandbox->reply.id);
      return kFailed;
    }
    start.env.insert(start.env.begin(), net->env.begin(), net->env.end());  // what the caller sets comes last, and wins
  }
  std::unique_ptr<RawTerminal> raw;
  if (options.terminal) {
    set_size(start);
    if (::isatty(STDIN_FILENO)) raw = std::make_unique<RawTerminal>();
    if (const char* term = ::getenv("TERM")) start.env.insert(start.env.begin(), std::string("TERM=") + term);
  }
  Session session(*launcher, guest, sandbox->reply.id);
  session.collect = common.json;
  auto exit = session.run(start);
  raw.reset();
  // The guest sees a kill that it did not ask for; whether that was the limit the kernel's count says.
  if (exit && exit->oom_hint)
    if (auto stats = launcher->stats(sandbox->reply.id)) exit->oom_hint = stats->oom_kills > 0;
  if (options.latency) {
    auto first = session.first_output == Clock::time_point{} ? Clock::now() : session.first_output;
    print_latency(sandbox->reply, t1 - t0, t2 - t1, first - t2);
  }
  if (common.json && exit) print_result(*exit, session, sandbox->reply.id);
  int code = exit ? exit_code(*exit) : report_failure(exit.error(), session, options);
  if (exit && exit->oom_hint) complain(kKilledText);
  // When this returns, nothing of the sandbox is left.
  if (!session.ended()) {
    auto gone = launcher->kill(sandbox->reply.id);
    if (!gone && gone.error().code != Code::not_found && gone.error().code != Code::unavailable)
      complain(gone.error().message);
  }
  return code;
}

void add_run(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<RunOptions>();
  auto* command = app.add_subcommand(
      "run", "Run one command in a fresh sandbox, then throw the sandbox away: isola run [OPTIONS] [--] COMMAND...");
  command->add_option("--template", options->template_name, "What the sandbox starts from (default base)")
      ->check([](const std::string& name) { return name.empty() ? std::string("a template needs a name") : ""; });
  command->add_option("--boundary", options->boundary,
                      "What stands between it and this machine: auto (default), jail (a shared kernel), gvisor, uml, "
                      "microvm, or strongest");
  command->add_option("--memory", options->memory,
                      "Memory limit, as 64M or 2G (default 512M, or half of a small machine's)");
  command->add_option("--cpus", options->cpus, "Processor limit, in cores (default 2, or 1 where there is one)");
  command->add_option("--disk", options->disk, "Limit of what it can write, as 64M or 2G (default 2G)");
  command->add_option("--pids", options->pids, "Limit of processes and threads");
  command->add_option("--open-files", options->open_files, "Limit of open files per process");
  command->add_option("--io", options->io, "Limit of disk traffic per second, as 50M (see `isola doctor`)");
  command->add_option("--timeout", options->timeout, "End it after this time, as 5s or 10m (exit code 124)");
  command->add_option("--env,-e", options->env, "NAME=value for the command; can be repeated")->allow_extra_args(false);
  command->add_option("--cwd,-w", options->cwd, "Working folder inside (default: the user's home)");
  command->add_option("--user,-u", options->user, "User inside: a name, or uid[:gid] (default root)");
  command->add_option("--net", options->net,
                      "What it may reach: none (default), all, package-registries, @FILE with a policy, or rules as "
                      "'allow *.example.org:443; allow 192.0.2.0/24'");
  command->add_option("--mount-ro", options->mounts, "HOST[:INSIDE]: show a folder or file of this machine, read-only")
      ->allow_extra_args(false);
  command->add_flag("-t,--tty", options->terminal, "Give the command a terminal");
  command->add_flag("--cold", options->cold, "Make a sandbox from nothing, even if a parked one waits");
  command->add_flag("--latency", options->latency, "Print where the time went");
  command->add_flag("--allow-unquotaed-disk", options->allow_unquotaed,
                    "Run even where nothing can limit what the sandbox writes (it could fill this machine's disk)");
  command->add_option("command", options->command, "The command and its arguments");  // for the help text
  add_server_options(*command, common);
  auto words = takes_inner_command(*command, 0);
  command->callback([options, words, &common, &code] {
    options->command = *words;
    if (options->command.empty()) {
      code = complain("run what? Give a command: isola run -- echo hello");
      return;
    }
    if (auto named = check_environment(options->env); !named) {
      code = complain(named.error().message);
      return;
    }
    code = run(common, *options);
  });
}

}  // namespace isola::cli
