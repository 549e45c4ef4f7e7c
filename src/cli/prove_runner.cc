#include "cli/prove_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/fsuid.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "boundary/choice.h"
#include "boundary/gvisor/runsc.h"
#include "cli/prove_escort.h"
#include "cli/prove_judge.h"
#include "cli/prove_leak.h"
#include "cli/remains.h"
#include "gate/address.h"
#include "kernel/fault.h"
#include "kernel/mount.h"
#include "kernel/process.h"
#include "launcher/id_ranges.h"

namespace isola::cli {

namespace {

// A cold birth is shown the program read-only, as the contract has it; a pooled one cannot be shown anything, and gets
// a copy of its own, which makes three programs about a read-only file of the host's pointless there.
constexpr const char* kShown = "/isola-hostile";
constexpr const char* kCopied = "/tmp/isola-hostile";
constexpr const char* kNeedsGate = "gate-port";
constexpr const char* kNeedsHostName = "leak-hostname";
constexpr const char* kFloodsRecords = "connection-records";
constexpr const char* kNeedShownProgram[] = {"self-exe", "shebang-self-exe", "lease-shared"};

// Milliseconds. Whoever shall time out need not do so for long.
uint64_t timeout_of(const HostileProgram& program) { return program.expect == "times-out" ? 3000 : 60000; }
constexpr size_t kKeep = 64 << 10;

// An engine needs some for itself.
boundary::Limits small_limits(const HostileProgram& program, BoundaryKind kind) {
  // Where files count by the space that they take, a smaller disk is full in seconds instead of minutes.
  uint64_t disk = program.name == "inode-filler" ? 12 << 20 : 32 << 20;
  const bool engine = kind != BoundaryKind::jail;
  return {.cpus = 1,
          .memory = (engine ? 256ULL : 64ULL) << 20,
          .pids = engine ? 256U : 64U,
          .disk = disk,
          .open_files = 16384};
}

// The kernel's records of connections in the network of this process, which no limit counts.
uint64_t connection_records(pid_t pid) {
  auto text = read_file(fmt::format("/proc/{}/net/stat/nf_conntrack", pid)).value_or("");
  size_t line = text.find('\n');  // names of the columns first; "entries" is the first, in hexadecimal
  return line == std::string::npos ? 0 : std::strtoull(text.c_str() + line + 1, nullptr, 16);
}
constexpr uint64_t kMostRecords = 8192;

// As the kernel would show it in a list of mounts.
std::string real_path(const std::string& path) {
  std::error_code failed;
  auto real = std::filesystem::weakly_canonical(path, failed);
  return failed ? path : real.string();
}

// The host's name without its domain; empty when it is one that every sandbox has, too, and so tells nothing.
std::string telling_host_name() {
  utsname host{};
  ::uname(&host);
  std::string name = host.nodename;
  name.resize(std::min(name.find('.'), name.size()));
  return name == "isola" || name == "localhost" ? "" : name;
}

// The paths of its control groups as the host sees them, which is what it would see itself without a namespace. Only
// those with its name: any other might happen to be part of what it may see.
Result<std::vector<std::string>> groups_of(pid_t pid, const std::string& id) {
  ISOLA_TRY(std::string text, read_file(fmt::format("/proc/{}/cgroup", pid)));
  std::vector<std::string> paths;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);  // "4:memory:/isola/…"
    at = end + 1;
    const size_t start = line.find('/');
    if (start == std::string::npos || line.find(id) == std::string::npos) continue;
    const std::string path = line.substr(start);
    if (std::ranges::find(paths, path) == paths.end()) paths.push_back(path);
  }
  if (paths.empty()) return fail(Code::internal, "the sandbox is in no control group of its name");
  return paths;
}

// As somebody who is nobody on this host, which is what a sandbox's users are.
std::string read_as_a_stranger(const std::string& path) {
  ::setfsgid(launcher::IdRanges::kFirst);
  ::setfsuid(launcher::IdRanges::kFirst);  // of this thread, and away with its power over files
  std::string text = read_file(path).value_or("");
  ::setfsuid(0);
  ::setfsgid(0);
  return text;
}

}  // namespace

Result<Ran> run_program(const std::string& program, std::vector<std::string> arguments,
                        const std::vector<std::string>& more_environment) {
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  arguments.insert(arguments.begin(), program);
  std::vector<char*> argv, envp;
  for (auto& argument : arguments) argv.push_back(argument.data());
  for (char** one = environ; *one; ++one)
    if (!std::string_view(*one).starts_with("ISOLA_SECRET_")) envp.push_back(*one);  // of the operator
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
    one.allowed_inside = row.value("allowed_inside", std::vector<std::string>());
    programs.push_back(std::move(one));
  }
  return programs;
}

Result<ProveRunner> ProveRunner::open(const Common& common, const std::string& binary, BoundaryKind kind) {
  ISOLA_TRY(auto launcher,
            launcher::Client::connect_or_start({.data_dir = common.data_dir, .cache_dir = common.cache_dir}));
  ISOLA_TRY(ProveRunner runner, prepare(std::move(launcher), binary, common, kind));
  ISOLA_TRY(runner.services_, HostServices::open());
  if (runner.services_->only_loopback())
    std::fputs("isola: this machine has no address but loopback: whether a wire leads to it cannot be shown\n", stderr);
  return runner;
}

Result<ProveRunner> ProveRunner::open(const Common& common, const std::string& binary, BoundaryKind kind,
                                      ProvingGround& ground) {
  Result<launcher::Client> launcher = fail(Code::internal, "not started");
  Common there = common;
  there.data_dir = ground.data_dir();
  ground.at_home([&] {
    launcher = launcher::Client::connect_or_start({.data_dir = there.data_dir, .cache_dir = there.cache_dir});
  });
  if (!launcher) return std::unexpected(launcher.error());
  ISOLA_TRY(ProveRunner runner, prepare(std::move(*launcher), binary, there, kind));
  runner.ground_ = &ground;
  return runner;
}

Result<ProveRunner> ProveRunner::prepare(launcher::Client launcher, const std::string& binary, const Common& common,
                                         BoundaryKind kind) {
  ISOLA_TRY(auto info, launcher.info());
  ISOLA_CHECK(boundary::choose({.wish = wish_for(kind)}, info.boundaries));
  ProveRunner runner(std::move(launcher));
  runner.kind_ = kind;
  kernel::fault::arm_from_environment();
  runner.data_dir_ = common.data_dir;
  runner.cache_dir_ = common.cache_dir;
  runner.binary_ = binary;
  ISOLA_TRY(runner.binary_bytes_, read_file(binary, 256 << 20));
  // The canary: a file of the host with a secret that nobody inside may ever print. Everybody may read it: if it were
  // root's alone, a sandbox that sees the host's files would still get no more than "permission denied".
  char path[] = "/tmp/isola-canary-XXXXXX";
  if (!::mkdtemp(path) || ::chmod(path, 0755) < 0) return sys_error("cannot make a canary");
  runner.canary_ = std::string(path) + "/canary";
  unsigned char random[16];
  if (::getrandom(random, sizeof random, 0) != sizeof random) return sys_error("cannot make a secret");
  for (unsigned char c : random) runner.secret_ += fmt::format("{:02x}", c);
  ISOLA_CHECK(replace_file(runner.canary_, runner.secret_, 0644));
  if (::chmod(runner.canary_.c_str(), 0644) < 0) return sys_error("cannot make a canary");
  if (read_as_a_stranger(runner.canary_) != runner.secret_)
    return fail(Code::internal, runner.canary_ + " cannot be read by everybody: a leak of it would go unseen");
  return runner;
}

ProveRunner::~ProveRunner() {
  if (canary_.empty()) return;  // moved from
  if (!neighbour_.id.empty()) (void)launcher_.kill(neighbour_.id);
  for (const auto& id : sources_) (void)launcher_.kill(id);
  for (const auto& [key, image] : images_) (void)launcher_.drop_image(image);
  if (ground_) (void)launcher_.shutdown(true);
  ::unlink(canary_.c_str());
  ::rmdir(folder_of(canary_).c_str());
}

// Parked jails are made in the background; a pooled birth waits for one.
Result<void> ProveRunner::await_parked(const std::string& digest) {
  ISOLA_CHECK(launcher_.park(digest, 2, kind_));
  for (int i = 0; i < (kind_ == BoundaryKind::jail ? 500 : 6000); ++i) {
    ISOLA_TRY(auto all, launcher_.list());
    for (const auto& one : all)
      if (one.parked && one.digest == digest && one.kind == kind_ && one.state == State::running) return {};
    ::poll(nullptr, 0, 10);
  }
  return fail(Code::timeout, "no jail was parked");
}

bool ProveRunner::offers(Birth birth) {
  if (birth == Birth::cold || birth == Birth::pooled) return true;
  if (kind_ == BoundaryKind::gvisor) {
    auto runsc = boundary::gvisor::Runsc::find();
    return runsc && runsc->keeps_memory();
  }
  if (kind_ == BoundaryKind::microvm) return true;
  auto info = launcher_.info();
  return kind_ == BoundaryKind::jail && info && !info->checkpointer.empty();
}

// Made once of a sandbox in which something runs: by a pause, or by a checkpoint of one that goes on.
Result<std::string> ProveRunner::image_for(const std::string& digest, Birth birth, const HostileProgram& program) {
  auto& image = images_[{digest, birth}];
  if (!image.empty()) return image;
  ISOLA_TRY(Box box, launch(digest, Birth::pooled, program));
  ISOLA_CHECK(box.guest->start({.argv = {"sleep", "100000"}}));
  ISOLA_CHECK(box.guest->quiesce());
  launcher::CheckpointRequest request{.id = box.id, .keep_running = birth == Birth::forked};
  ISOLA_TRY(auto made, launcher_.checkpoint(request));
  if (request.keep_running) sources_.push_back(box.id);
  return image = made.image;
}

Result<ProveRunner::Box> ProveRunner::launch(const std::string& digest, Birth birth, const HostileProgram& program) {
  if (birth == Birth::pooled) ISOLA_CHECK(await_parked(digest));
  launcher::LaunchRequest request{
      .digest = digest, .limits = small_limits(program, kind_), .cold = birth == Birth::cold, .allow_unquotaed = true};
  request.boundary.wish = wish_for(kind_);
  if (birth == Birth::resumed || birth == Birth::forked) {
    ISOLA_TRY(request.image, image_for(digest, birth, program));
    request.digest.clear();
    request.forked = birth == Birth::forked;
  }
  std::vector<Fd> shown;
  bool leaks = false;
  if (birth == Birth::cold) {
    auto show = [&](const std::string& path, const std::string& inside) -> Result<void> {
      ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, path));
      shown.push_back(std::move(tree));
      request.shown_targets.push_back(inside);
      return {};
    };
    ISOLA_CHECK(show(binary_, kShown));
    // For the test that a leak is called one: this sandbox sees folders of the host's under their own names, and more.
    leaks = kernel::fault::at("prove_leak") != 0;
    if (leaks) ISOLA_CHECK(show(folder_of(canary_), folder_of(canary_)));
    if (leaks) ISOLA_CHECK(show(storage(), storage()));
  }
  std::vector<int> trees;
  trees.reserve(shown.size());
  for (const Fd& tree : shown) trees.push_back(tree.get());
  ISOLA_TRY(auto sandbox, launcher_.launch(request, trees));
  if (sandbox.reply.birth != birth) return fail(Code::internal, "the sandbox has another birth than it should");
  Box box;
  box.id = sandbox.reply.id;
  box.guest = std::make_unique<guest::PipeClient>(std::move(sandbox.link.from_guest), std::move(sandbox.link.to_guest));
  ISOLA_CHECK(box.guest->hello());
  ISOLA_TRY(box.pid, process_of(box.id));
  ISOLA_TRY(box.groups, groups_of(box.pid, box.id));
  if (leaks && services_) {
    ISOLA_TRY(box.leak, leak_into(box.pid, *services_));
  }
  box.program = birth == Birth::cold ? kShown : kCopied;
  if (!request.image.empty()) box.processes = 2;  // the one that ran when its image was made
  if (birth != Birth::cold) ISOLA_CHECK(box.guest->write_file({.path = kCopied, .mode = 0755}, binary_bytes_));
  if (ground_) ISOLA_CHECK(launcher_.set_policy({.id = box.id, .policy = gate::kEvasionPolicy}));
  return box;
}

// The sandbox beside, which must live on whatever happens; on a proving ground it may reach what the others may not.
Result<void> ProveRunner::move_in_beside(const std::string& digest) {
  if (neighbour_digest_ == digest) return {};
  if (auto left = finish(); !left.empty()) return fail(Code::internal, "of the neighbour before: " + left);
  ISOLA_TRY(neighbour_, launch(digest, Birth::cold, {}));
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

std::string ProveRunner::storage() const { return real_path(data_dir_) + "/storage"; }

// What a program inside is told of the host, to look for it.
std::vector<std::string> ProveRunner::variables(const Box& box) const {
  std::string words = folder_of(canary_) + "," + storage() + "," + real_path(cache_dir_) + "/";
  for (const auto& group : box.groups) words += "," + group;
  std::vector<std::string> env = {"ISOLA_CANARY_FILE=" + canary_, fmt::format("ISOLA_HOST_PIDS={}", ::getpid()),
                                  "ISOLA_WORK=/tmp", "ISOLA_HOST_WORDS=" + words,
                                  std::string("ISOLA_RACE_PATH=") + kRacePath};
  if (auto name = telling_host_name(); !name.empty()) env.push_back("ISOLA_HOST_NAME=" + name);
  if (!others_address_.empty()) env.push_back("ISOLA_OTHERS_ADDRESS=" + others_address_);
  if (services_) std::ranges::move(services_->variables(), std::back_inserter(env));
  return env;
}

Company ProveRunner::company(Box& box) {
  return {*box.guest, *neighbour_.guest, box.program, neighbour_.program, variables(box), canary_, secret_};
}

ProveRunner::Outcome ProveRunner::execute(Box& box, const HostileProgram& program, Escort& escort,
                                          std::optional<Proof>& wrong) {
  Outcome outcome;
  auto keep = [&](std::string& stream, std::string_view piece) {
    outcome.bytes += piece.size();
    if (program.name == kFloodsRecords)
      outcome.most_records = std::max(outcome.most_records, connection_records(box.pid));
    for (std::string* to : {&outcome.output, &stream})
      if (to->size() < kKeep) to->append(piece.substr(0, kKeep - to->size()));
  };
  guest::Start start{.argv = {box.program, program.name},
                     .env = variables(box),
                     .cwd = "/tmp",
                     .timeout_ms = timeout_of(program),
                     .grace_ms = 200};
  for (auto& word : escort.arguments()) start.argv.push_back(std::move(word));
  auto run = box.guest->begin_run(start, {.out = [&](std::string_view piece) { keep(outcome.out, piece); },
                                          .err = [&](std::string_view piece) { keep(outcome.err, piece); }});
  wrong = escort.during(*run, outcome);
  // Whoever can stop process 1 inside an engine keeps nobody waiting but itself.
  if (allowed_inside(program, kind_)) {
    constexpr auto kAnswer = std::chrono::seconds(30);
    auto ended =
        box.guest->pump_until([&] { return run->ended(); }, std::chrono::milliseconds(timeout_of(program)) + kAnswer);
    if (!ended) {
      outcome.exit = std::unexpected(ended.error());
      if (ended.error().code == Code::unavailable) outcome.end = end_of(box);
      return outcome;
    }
  }
  outcome.exit = box.guest->finish(run);
  if (!outcome.exit) outcome.end = end_of(box);
  return outcome;
}

std::string ProveRunner::neighbour_answers() {
  auto exit = neighbour_.guest->run({.argv = {"true"}});
  return exit && exit->code == 0 ? "" : "the neighbour no longer answers";
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

std::string ProveRunner::check_after(Box& box, const Outcome& outcome) {
  if (read_file(canary_).value_or("") != secret_) return "the host's canary was changed";
  if (auto what = changed(host_facts_, host_facts()); !what.empty()) return what + " was changed";
  if (auto why = neighbour_answers(); !why.empty()) return why;
  if (uint64_t records = std::max(outcome.most_records, connection_records(box.pid)); records > kMostRecords)
    return fmt::format("the kernel holds {} records of its connections", records);
  return "";
}

// It still runs a command; or it ended by a limit, where that may be.
std::string ProveRunner::check_sandbox(Box& box, const HostileProgram& program, Outcome& outcome) {
  if (!outcome.exit) return "";  // judged already
  // The limit's killer may still be at work among the processes of the sandbox: give the answer some tries. It may
  // also end the sandbox only now: what deep-path leaves may be more than its memory can hold when it is listed.
  bool limits = may_end_by_limit(program);
  for (int i = 0; i < (limits ? 50 : 1); ++i) {
    if (allowed_inside(program, kind_)) return "";  // it may have spoilt it
    auto exit = box.guest->run({.argv = {"true"}});
    if (exit && exit->code == 0) {
      if (program.expect != "times-out") return "";
      // Whatever an engine has is its own affair, and ends with it.
      if (kind_ != BoundaryKind::jail) return "";
      // Of whoever was ended by the timeout nothing may be left, soon after.
      size_t left = 0;
      for (int j = 0; j < 50; ++j) {
        left = processes_inside(box.pid).size();
        if (left <= box.processes) return "";
        ::poll(nullptr, 0, 100);
      }
      return fmt::format("{} processes are left after the timeout", left - box.processes);
    }
    if (!exit && exit.error().code == Code::unavailable) {
      outcome.end = end_of(box);
      if (limits && ended_by_limit(outcome, kind_)) return "";
      return fmt::format("the sandbox no longer answers ({})", outcome.end.empty() ? "it lives" : outcome.end);
    }
    ::poll(nullptr, 0, 100);
  }
  return "the sandbox no longer runs a command";
}

// Ends it, if it has not ended, and looks for what is left of it.
std::string ProveRunner::destroy(const Box& box) {
  auto info = launcher_.info();
  if (!info) return "the launcher no longer answers: " + info.error().message;
  Destroyed gone{.data_dir = data_dir_, .id = box.id, .launcher = info->pid, .processes = processes_inside(box.pid)};
  auto killed = launcher_.kill(box.id);
  if (!killed && killed.error().code != Code::not_found) return killed.error().message;
  return remains(gone);
}

std::string ProveRunner::finish() {
  if (neighbour_.id.empty()) return "";
  std::string left = destroy(neighbour_);
  neighbour_ = {};
  neighbour_digest_.clear();
  return left;
}

// Where nothing stands against the program it has to get through, or its failure inside says nothing: on this machine
// itself, where the services are. Told once per program.
std::string ProveRunner::control(const HostileProgram& program) {
  if (ground_) return ground_->control(program, binary_);
  if (!services_ || !HostServices::asked_by(program.name)) return "";
  auto [known, fresh] = controls_.try_emplace(program.name);
  if (!fresh) return known->second;
  auto ran = run_program(binary_, {program.name}, services_->variables());
  if (!ran || ran->code != 0)
    known->second = "this machine does not reach its own services: " + (ran ? ran->output : ran.error().message);
  return known->second;
}

// What is known before anything was tried.
std::optional<Proof> ProveRunner::without_a_sandbox(const HostileProgram& program, Birth birth) {
  using enum Proof::Verdict;
  if (birth != Birth::cold && std::ranges::find(kNeedShownProgram, program.name) != std::end(kNeedShownProgram))
    return Proof{untried, "only a cold birth can be shown a read-only file", true};
  if (kind_ == BoundaryKind::gvisor && program.name == kNeedsGate)
    return Proof{untried, "the gate listens at the other end of the cable, and not in its own kernel's network", true};
  if (program.name == kNeedsHostName && telling_host_name().empty())
    return Proof{untried, "this machine has a name that every sandbox has", true};
  if (auto why = services_ ? services_->lacks(program.name) : ""; !why.empty()) return Proof{untried, why, true};
  if (auto why = control(program); !why.empty()) return Proof{error, why};
  return std::nullopt;
}

Proof ProveRunner::run(const HostileProgram& program, const std::string& digest, Birth birth) {
  using enum Proof::Verdict;
  if (auto known = without_a_sandbox(program, birth)) return *known;
  auto prepared = [&]() -> Result<Box> {
    ISOLA_CHECK(move_in_beside(digest));
    ISOLA_TRY(Box box, launch(digest, birth, program));
    // The ports are listened on from the first policy on: before, there is nothing to take over.
    if (program.name == kNeedsGate) ISOLA_CHECK(launcher_.set_policy({.id = box.id, .policy = "default deny"}));
    return box;
  }();
  if (!prepared) return {error, prepared.error().message};
  Box box = std::move(*prepared);
  host_facts_ = host_facts();
  Escort escort(program, company(box));
  if (auto ready = escort.before(); !ready) {
    (void)destroy(box);
    return {error, ready.error().message};
  }
  size_t questions = ground_ ? ground_->questions() : 0;
  std::optional<Proof> wrong;
  Outcome outcome = execute(box, program, escort, wrong);
  Proof proof = judge(program, outcome, secret_, kind_);
  // In this order: what the program says counts least, what was seen of the host most.
  auto decide = [&](const std::optional<Proof>& other) {
    bool worse = other && (other->verdict == breach || proof.verdict == held);
    if (worse && proof.verdict != breach) proof = *other;
  };
  auto breach_if = [&](const std::string& why) {
    if (!why.empty()) decide(Proof{breach, why});
  };
  decide(wrong);
  decide(escort.after(outcome));
  decide(escort.end());
  if (ground_) breach_if(ground_->leaked(program, questions));
  breach_if(check_after(box, outcome));
  breach_if(check_sandbox(box, program, outcome));
  breach_if(destroy(box));
  return proof;
}

}  // namespace isola::cli
