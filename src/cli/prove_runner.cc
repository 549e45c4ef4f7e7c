#include "cli/prove_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "gate/address.h"
#include "kernel/mount.h"
#include "kernel/process.h"

namespace isola::cli {

namespace {

// A cold birth is shown the program read-only, as the contract has it; a pooled one cannot be shown anything, and gets
// a copy of its own, which makes three programs about a read-only file of the host's pointless there.
constexpr const char* kShown = "/isola-hostile";
constexpr const char* kCopied = "/tmp/isola-hostile";
constexpr const char* kFloodsRecords = "connection-records";
constexpr const char* kNeedShownProgram[] = {"self-exe", "shebang-self-exe", "lease-shared"};

// Milliseconds. Whoever shall time out need not do so for long.
uint64_t timeout_of(const HostileProgram& program) { return program.expect == "times-out" ? 3000 : 60000; }
constexpr size_t kKeep = 64 << 10;

boundary::Limits small_limits() {
  return {.cpus = 1, .memory = 64 << 20, .pids = 64, .disk = 32 << 20, .open_files = 16384};
}

// What a breach could have changed on the host, as text to compare.
std::string host_facts() {
  utsname name{};
  ::uname(&name);
  std::string facts = name.nodename;
  for (const char* file :
       {"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory"})
    facts += "|" + read_file(file).value_or("?");
  return facts;
}

// The kernel's records of connections in the network of this process, which no limit counts.
uint64_t connection_records(pid_t pid) {
  auto text = read_file(fmt::format("/proc/{}/net/stat/nf_conntrack", pid)).value_or("");
  size_t line = text.find('\n');  // names of the columns first; "entries" is the first, in hexadecimal
  return line == std::string::npos ? 0 : std::strtoull(text.c_str() + line + 1, nullptr, 16);
}
constexpr uint64_t kMostRecords = 8192;

// The last line that begins with a word of the program's own.
std::string said(const std::string& output) {
  for (const char* word : {"BREACH ", "contained ", "untried "}) {
    size_t at = output.rfind(word);
    if (at != std::string::npos) return output.substr(at, output.find('\n', at) - at);
  }
  return output.substr(0, 160);
}

}  // namespace

Result<Ran> run_program(const std::string& program, std::vector<std::string> arguments,
                        const std::vector<std::string>& more_environment) {
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  arguments.insert(arguments.begin(), program);
  std::vector<char*> argv, envp;
  for (auto& argument : arguments) argv.push_back(argument.data());
  for (char** one = environ; *one; ++one) envp.push_back(*one);
  for (const auto& one : more_environment) envp.push_back(const_cast<char*>(one.c_str()));
  argv.push_back(nullptr), envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe.second.get(), 1);
  pid_t pid = -1;
  int failed = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed) return sys_error("cannot start " + program, failed);
  pipe.second.reset();
  Ran ran;
  char buffer[8192];
  for (ssize_t n; (n = ::read(pipe.first.get(), buffer, sizeof buffer)) > 0;)
    ran.output.append(buffer, static_cast<size_t>(n));
  int status = 0;
  ::waitpid(pid, &status, 0);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

Result<std::vector<HostileProgram>> list_programs(const std::string& binary) {
  ISOLA_TRY(Ran ran, run_program(binary, {"list", "--json"}));
  auto rows = nlohmann::json::parse(ran.output, nullptr, false);
  if (ran.code != 0 || !rows.is_array()) return fail(Code::corrupt, binary + " does not list its programs");
  std::vector<HostileProgram> programs;
  for (const auto& row : rows) {
    HostileProgram one{row.value("name", ""), row.value("class", ""), row.value("tries", ""), row.value("expect", "")};
    const auto needs = row.value("needs", nlohmann::json::array());
    one.outside = std::find(needs.begin(), needs.end(), "outside") != needs.end();
    one.has_control = row.value("control", false);
    one.leaks = row.value("leaks", "");
    one.leaks_most = row.value("leaks_most", size_t{0});
    programs.push_back(std::move(one));
  }
  return programs;
}

Result<ProveRunner> ProveRunner::open(const Common& common, const std::string& binary) {
  ISOLA_TRY(auto launcher,
            launcher::Client::connect_or_start({.data_dir = common.data_dir, .cache_dir = common.cache_dir}));
  return prepare(std::move(launcher), binary);
}

Result<ProveRunner> ProveRunner::open(const Common& common, const std::string& binary, ProvingGround& ground) {
  Result<launcher::Client> launcher = fail(Code::internal, "not started");
  ground.at_home([&] {
    launcher = launcher::Client::connect_or_start({.data_dir = ground.data_dir(), .cache_dir = common.cache_dir});
  });
  if (!launcher) return std::unexpected(launcher.error());
  ISOLA_TRY(ProveRunner runner, prepare(std::move(*launcher), binary));
  runner.ground_ = &ground;
  return runner;
}

Result<ProveRunner> ProveRunner::prepare(launcher::Client launcher, const std::string& binary) {
  ProveRunner runner(std::move(launcher));
  runner.binary_ = binary;
  ISOLA_TRY(runner.binary_bytes_, read_file(binary, 256 << 20));
  // The canary: a file of the host with a secret that nobody inside may ever print.
  char path[] = "/tmp/isola-canary-XXXXXX";
  if (!::mkdtemp(path)) return sys_error("cannot make a canary");
  runner.canary_ = std::string(path) + "/canary";
  unsigned char random[16];
  if (::getrandom(random, sizeof random, 0) != sizeof random) return sys_error("cannot make a secret");
  for (unsigned char c : random) runner.secret_ += fmt::format("{:02x}", c);
  ISOLA_CHECK(replace_file(runner.canary_, runner.secret_, 0644));
  runner.host_facts_ = host_facts();
  return runner;
}

ProveRunner::~ProveRunner() {
  if (canary_.empty()) return;  // moved from
  if (!neighbour_.id.empty()) (void)launcher_.kill(neighbour_.id);
  if (ground_) (void)launcher_.shutdown(true);
  ::unlink(canary_.c_str());
  ::rmdir(canary_.substr(0, canary_.rfind('/')).c_str());
}

// Parked jails are made in the background; a pooled birth waits for one.
Result<void> ProveRunner::await_parked(const std::string& digest) {
  ISOLA_CHECK(launcher_.park(digest, 2));
  for (int i = 0; i < 500; ++i) {
    ISOLA_TRY(auto all, launcher_.list());
    for (const auto& one : all)
      if (one.parked && one.digest == digest && one.state == State::running) return {};
    ::poll(nullptr, 0, 10);
  }
  return fail(Code::timeout, "no jail was parked");
}

Result<ProveRunner::Box> ProveRunner::launch(const std::string& digest, Birth birth) {
  if (birth == Birth::pooled) ISOLA_CHECK(await_parked(digest));
  launcher::LaunchRequest request{
      .digest = digest, .limits = small_limits(), .cold = birth == Birth::cold, .allow_unquotaed = true};
  Fd shown;
  std::vector<int> trees;
  if (birth == Birth::cold) {
    ISOLA_TRY(shown, kernel::clone_tree(AT_FDCWD, binary_));
    request.shown_targets = {kShown};
    trees = {shown.get()};
  }
  ISOLA_TRY(auto sandbox, launcher_.launch(request, trees));
  if (sandbox.reply.birth != birth) return fail(Code::internal, "the sandbox has another birth than it should");
  Box box{sandbox.reply.id, "", 0,
          std::make_unique<guest::PipeClient>(std::move(sandbox.link.from_guest), std::move(sandbox.link.to_guest))};
  ISOLA_CHECK(box.guest->hello());
  ISOLA_TRY(box.pid, process_of(box.id));
  box.program = birth == Birth::cold ? kShown : kCopied;
  if (birth != Birth::cold) ISOLA_CHECK(box.guest->write_file({.path = kCopied, .mode = 0755}, binary_bytes_));
  if (ground_) ISOLA_CHECK(launcher_.set_policy({.id = box.id, .policy = gate::kEvasionPolicy}));
  return box;
}

// The sandbox beside, which must live on whatever happens; on a proving ground it may reach what the others may not.
Result<void> ProveRunner::move_in_beside(const std::string& digest) {
  if (neighbour_digest_ == digest) return {};
  if (!neighbour_.id.empty()) (void)launcher_.kill(neighbour_.id);
  neighbour_ = {};
  ISOLA_TRY(neighbour_, launch(digest, Birth::cold));
  neighbour_digest_ = digest;
  if (!ground_) return {};
  ISOLA_CHECK(launcher_.set_policy({.id = neighbour_.id, .policy = gate::kNeighbourPolicy}));
  others_address_.clear();
  auto keep = [&](std::string_view piece) { others_address_ += piece; };
  ISOLA_TRY(auto exit, neighbour_.guest->run({.argv = {neighbour_.program, "resolve", gate::kNeighboursName}},
                                             {.out = keep, .err = keep}));
  while (others_address_.ends_with('\n')) others_address_.pop_back();
  if (exit.code != 0 || !gate::Address::parse(others_address_))
    return fail(Code::internal, "the neighbour does not reach what it may: " + others_address_);
  return {};
}

Result<pid_t> ProveRunner::process_of(const std::string& id) {
  ISOLA_TRY(auto all, launcher_.list());
  for (const auto& one : all)
    if (one.id == id) return one.pid;
  return fail(Code::not_found, "the launcher does not know the sandbox that it made");
}

ProveRunner::Outcome ProveRunner::execute(Box& box, const HostileProgram& program) {
  Outcome outcome;
  auto keep = [&](std::string_view piece) {
    outcome.bytes += piece.size();
    if (program.name == kFloodsRecords)
      outcome.most_records = std::max(outcome.most_records, connection_records(box.pid));
    if (outcome.output.size() < kKeep) outcome.output.append(piece.substr(0, kKeep - outcome.output.size()));
  };
  guest::Start start{
      .argv = {box.program, program.name},
      .env = {"ISOLA_CANARY_FILE=" + canary_, fmt::format("ISOLA_HOST_PIDS={}", ::getpid()), "ISOLA_WORK=/tmp",
              "ISOLA_HOST_WORDS=" + canary_.substr(0, canary_.rfind('/')), "ISOLA_RACE_PATH=/tmp/isola-race"},
      .cwd = "/tmp",
      .timeout_ms = timeout_of(program),
      .grace_ms = 200};
  if (!others_address_.empty()) start.env.push_back("ISOLA_OTHERS_ADDRESS=" + others_address_);
  outcome.exit = box.guest->run(start, {.out = keep, .err = keep});
  return outcome;
}

Proof ProveRunner::judge(const HostileProgram& program, const Outcome& outcome) const {
  using enum Proof::Verdict;
  std::string line = said(outcome.output);
  if (outcome.output.find(secret_) != std::string::npos) return {breach, "the host's secret was printed"};
  bool limited = program.expect == "killed-by-limit", floods = program.expect == "floods";
  if (!outcome.exit) {  // the sandbox itself ended
    if (limited) return {held, "the sandbox was ended by a limit"};
    return {error, outcome.exit.error().message};
  }
  const guest::Exit& exit = *outcome.exit;
  if (program.expect == "times-out") return exit.timed_out ? Proof{held, "ended by the timeout"} : Proof{error, line};
  // At its memory limit a sandbox may crawl (its own program's pages are thrown out and read again) instead of dying.
  if (exit.timed_out && limited) return {held, "at its limit until the timeout ended it"};
  if (exit.timed_out && !floods) return {error, "it did not end within its time: " + line};
  // A killer that nobody asked for is the memory limit's: never a breach, whatever the program was up to.
  if (exit.signal == SIGKILL && (limited || exit.oom_hint)) return {held, "killed by a limit"};
  if (floods && (exit.timed_out || exit.code == 0)) return {held, fmt::format("{} bytes of output", outcome.bytes)};
  if (exit.code == 10) return {held, line};
  if (exit.code == 77) return {untried, line};
  if (exit.code == 0) return {breach, line};
  return {error, fmt::format("exit code {}, signal {}: {}", exit.code, exit.signal, line)};
}

std::string ProveRunner::neighbour_answers() {
  auto exit = neighbour_.guest->run({.argv = {"true"}});
  return exit && exit->code == 0 ? "" : "the neighbour no longer answers";
}

// File calls on what the program left lying about: an answer or a clean error, never a byte of the host.
std::string ProveRunner::special_check(const HostileProgram& program, Box& box) {
  std::string left = program.name == "deep-path"       ? "/tmp/isola-deep"
                     : program.name == "odd-names"     ? "/tmp/isola-odd"
                     : program.name == "planted-links" ? "/tmp/isola-links"
                     : program.name == "sparse-giant"  ? "/var/tmp/isola-sparse"
                                                       : "";
  if (left.empty()) return "";
  std::string seen;
  (void)box.guest->stat({.path = left});
  (void)box.guest->list({.path = left, .depth = 3, .limit = 1000}, [&](const guest::Entry& entry) {
    seen += entry.path + " " + entry.stat.target + "\n";
    if (seen.size() > (1 << 20)) return;
    if (auto bytes = box.guest->read_file({.path = left + "/" + entry.path, .length = 4096}, size_t{8192}))
      seen += *bytes;
  });
  if (seen.find(secret_) != std::string::npos) return "a file call gave out the host's secret";
  auto removed = box.guest->remove({.path = left, .recursive = true});
  if (!removed && removed.error().code == Code::unavailable) return "a file call broke the link";
  return "";
}

// What a program leaves lying about (a hundred thousand nested folders) may be more than the sandbox's memory can hold:
// then the sandbox ends by its own limit, which is containment too. Empty: it did not end.
std::string ProveRunner::end_of(const Box& box) {
  // Told when everything is cleared away, which takes seconds for a hundred thousand nested folders.
  for (int i = 0; i < 600; ++i) {
    auto event = launcher_.next_event();
    if (!event) return event.error().message;
    if (*event && (*event)->id == box.id) return std::string(to_string((*event)->reason));
    if (*event) continue;
    pollfd ready{launcher_.fd(), POLLIN, 0};
    ::poll(&ready, 1, 100);
  }
  return "";
}

std::string ProveRunner::check_after(Box& box, const HostileProgram& program, const Outcome& outcome) {
  if (read_file(canary_).value_or("") != secret_) return "the host's canary was changed";
  if (host_facts() != host_facts_) return "a setting of the host was changed";
  if (auto why = neighbour_answers(); !why.empty()) return why;
  if (uint64_t records = std::max(outcome.most_records, connection_records(box.pid)); records > kMostRecords)
    return fmt::format("the kernel holds {} records of its connections", records);
  if (!outcome.exit) return "";  // ended by its limits: nothing left to ask
  if (auto why = special_check(program, box); !why.empty()) {
    std::string end = end_of(box);
    return end == to_string(EndReason::oom) ? "" : why + " (" + (end.empty() ? "the sandbox lives" : end) + ")";
  }
  // The limit's killer may still be at work among the processes of the sandbox: give the answer some tries.
  bool limits = program.expect != "contained";
  for (int i = 0; i < (limits ? 50 : 1); ++i) {
    auto exit = box.guest->run({.argv = {"true"}});
    if (exit && exit->code == 0) return "";
    if (!exit && exit.error().code == Code::unavailable) return limits ? "" : "the sandbox no longer answers";
    ::poll(nullptr, 0, 100);
  }
  return "the sandbox no longer runs a command";
}

Proof ProveRunner::run(const HostileProgram& program, const std::string& digest, Birth birth) {
  if (birth != Birth::cold && std::ranges::find(kNeedShownProgram, program.name) != std::end(kNeedShownProgram))
    return {Proof::Verdict::untried, "only a cold birth can be shown a read-only file"};
  if (auto why = ground_ ? ground_->control(program, binary_) : ""; !why.empty()) return {Proof::Verdict::error, why};
  auto prepared = [&]() -> Result<Box> {
    ISOLA_CHECK(move_in_beside(digest));
    return launch(digest, birth);
  }();
  if (!prepared) return {Proof::Verdict::error, prepared.error().message};
  Box box = std::move(*prepared);
  size_t questions = ground_ ? ground_->questions() : 0;
  Outcome outcome = execute(box, program);
  Proof proof = judge(program, outcome);
  std::string wrong = ground_ ? ground_->leaked(program, questions) : "";
  if (wrong.empty()) wrong = check_after(box, program, outcome);
  if (!wrong.empty() && proof.verdict != Proof::Verdict::breach) proof = {Proof::Verdict::breach, wrong};
  auto gone = launcher_.kill(box.id);
  if (!gone && gone.error().code != Code::not_found) return {Proof::Verdict::error, gone.error().message};
  return proof;
}

}  // namespace isola::cli
