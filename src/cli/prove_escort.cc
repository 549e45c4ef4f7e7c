#include "cli/prove_escort.h"

#include <dirent.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/file.h"

namespace isola::cli {

namespace {

using enum Proof::Verdict;

constexpr const char* kHold[] = {"inotify-instances", "inotify-watches", "pty-exhaustion"};
constexpr const char* kHoldSeconds = "60";  // at most: it is told when it was long enough
constexpr std::string_view kHolding = "holding";
constexpr uint64_t kFloodSeen = 1 << 20;       // so much of a flood has come: then another call is made
constexpr uint64_t kMostGrowth = 64ull << 20;  // of this process, which reads the floods
constexpr uint64_t kGiant = 1ull << 40;

uint64_t own_memory() {
  auto text = read_file("/proc/self/statm").value_or("");
  unsigned long total = 0, resident = 0;
  std::sscanf(text.c_str(), "%lu %lu", &total, &resident);
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

size_t files_in(const std::string& folder) {
  DIR* dir = ::opendir(folder.c_str());
  size_t count = 0;
  while (dir && ::readdir(dir)) ++count;
  if (dir) ::closedir(dir);
  return count;
}

// FNV-1a, as `link-frames` says it of what it wrote.
uint64_t sum_of(std::string_view bytes) {
  uint64_t sum = 0xcbf29ce484222325;
  for (unsigned char c : bytes) sum = (sum ^ c) * 0x100000001b3;
  return sum;
}

}  // namespace

bool Escort::holds() const { return std::ranges::find(kHold, name_) != std::end(kHold); }

std::vector<std::string> Escort::arguments() const {
  if (name_ == "inotify-instances") return {"1000", kHoldSeconds};
  if (name_ == "inotify-watches") return {"300000", kHoldSeconds};
  if (name_ == "pty-exhaustion") return {"2500", kHoldSeconds};
  return {};
}

Escort::Wrong Escort::breach_if_secret(const std::string& seen) const {
  if (seen.find(with_.secret) != std::string::npos) return Proof{breach, "a file call gave out the host's secret"};
  return std::nullopt;
}

// What a neighbour must hold before the program looks for it.
Result<void> Escort::before() {
  memory_before_ = own_memory();
  std::string what = name_ == "lock-visible"                                ? "lock"
                     : name_ == "sysv-visible" || name_ == "mqueue-visible" ? "ipc"
                     : name_ == "kill-all"                                  ? "still"
                                                                            : "";
  if (what.empty()) return {};
  auto said = std::make_shared<std::string>();
  auto keep = [said](std::string_view piece) { said->append(piece); };
  guest::Start start{.argv = {with_.neighbour_program, "hold", what}, .stdin_mode = guest::Stdin::pipe};
  holder_ = with_.neighbour.begin_run(start, {.out = keep, .err = keep});
  ISOLA_CHECK(with_.neighbour.pump_until([&] { return holder_->ended() || said->find(kHolding) != std::string::npos; },
                                         std::chrono::seconds(20)));
  if (holder_->ended()) return fail(Code::internal, "the neighbour cannot hold what is to be looked for: " + *said);
  return {};
}

Escort::Wrong Escort::end() {
  if (!holder_) return std::nullopt;
  auto answered = with_.neighbour.ping("still there?");  // also hears what became of the holder
  auto holder = std::exchange(holder_, nullptr);
  if (!answered || holder->ended()) return Proof{breach, "what the neighbour held is gone"};
  with_.neighbour.close_stdin(holder);
  auto exit = with_.neighbour.finish(holder);
  if (!exit || exit->code != 0) return Proof{error, "the neighbour did not end as it should"};
  return std::nullopt;
}

Escort::Wrong Escort::during(const guest::Run& run, const ProveRunner::Outcome& outcome) {
  if (name_ == "symlink-race") return race(run);
  if (holds()) return share(run, outcome);
  if (floods_) return answer_meanwhile(run, outcome);
  return std::nullopt;
}

// File calls on the path that is being swapped, for as long as it is.
Escort::Wrong Escort::race(const guest::Run& run) {
  std::string canary = with_.canary.substr(with_.canary.rfind('/') + 1);
  std::string path = kRacePath, host_folder = folder_of(with_.canary);
  size_t files_before = files_in(host_folder);
  int rounds = 0, seen = 0;
  for (; !run.ended(); ++rounds) {
    std::string all;
    auto list = with_.guest.list({.path = path, .depth = 2, .limit = 100},
                                 [&](const guest::Entry& e) { all += e.path + " " + e.stat.target + "\n"; });
    if (!list && list.error().code == Code::unavailable) break;  // the link is gone: the caller says so
    auto read = with_.guest.read_file({.path = path + "/" + canary, .length = 4096}, size_t{8192});
    if (read) all += *read, ++seen;
    (void)with_.guest.stat({.path = path + "/" + canary, .follow = true});
    (void)with_.guest.write_file({.path = path + "/written"}, "from outside");
    (void)with_.guest.write_file({.path = path + "/written", .how = guest::WriteMode::replace}, "from outside");
    (void)with_.guest.chmod({.path = path + "/written", .mode = 0600});
    if (auto wrong = breach_if_secret(all)) return wrong;
    if (files_in(host_folder) != files_before) return Proof{breach, "a file call wrote beside the host's canary"};
    (void)with_.guest.remove({.path = path + "/written"});
  }
  if (::access(with_.canary.c_str(), F_OK) != 0) return Proof{breach, "a file call removed the host's canary"};
  if (rounds < 10 || seen == 0)
    return Proof{error, fmt::format("only {} rounds of file calls ({} read) met the race", rounds, seen)};
  for (const char* twin : {"", ".twin"}) (void)with_.guest.remove({.path = path + twin, .recursive = true});
  if (::access(with_.canary.c_str(), F_OK) != 0) return Proof{breach, "removing the path removed the host's canary"};
  return std::nullopt;
}

// While it takes all that it can get, and holds it, the neighbour asks for its own share, again and again.
Escort::Wrong Escort::share(const guest::Run& run, const ProveRunner::Outcome& outcome) {
  auto holding = [&] { return outcome.output.find(kHolding) != std::string::npos; };
  for (bool last = false; !last;) {
    auto pumped = with_.guest.pump_until([&] { return run.ended() || holding(); }, std::chrono::milliseconds(300));
    if (run.ended() || (!pumped && pumped.error().code != Code::timeout)) break;
    last = holding();
    std::string said;
    auto keep = [&](std::string_view piece) { said += piece; };
    guest::Start start{.argv = {with_.neighbour_program, "own-share"}, .timeout_ms = 20000};
    auto exit = with_.neighbour.run(start, {.out = keep, .err = keep});
    if (!exit) return Proof{breach, "the neighbour no longer answers"};
    if (exit->code != 10) return Proof{exit->code == 0 ? breach : error, "own-share in the neighbour: " + said};
    if (!last) continue;
    (void)with_.guest.ping("still there?");  // hears whether it let go meanwhile
    asked_ = !run.ended();
    if (asked_) (void)with_.guest.signal(run.pid(), SIGUSR1, guest::Target::group);
  }
  return std::nullopt;
}

Escort::Wrong Escort::answer_meanwhile(const guest::Run& run, const ProveRunner::Outcome& outcome) {
  (void)with_.guest.pump_until([&] { return run.ended() || outcome.bytes >= kFloodSeen; });
  if (run.ended()) return std::nullopt;  // a small one
  with_.guest.set_patience(std::chrono::seconds(20));
  auto answer = with_.guest.ping("meanwhile");
  with_.guest.set_patience(std::chrono::milliseconds(-1));
  if (!answer) return Proof{breach, "no other call is answered during the flood: " + answer.error().message};
  return std::nullopt;
}

Escort::Wrong Escort::after(const ProveRunner::Outcome& outcome) {
  if (floods_)
    if (uint64_t now = own_memory(); now > memory_before_ + kMostGrowth)
      return Proof{breach, fmt::format("the reader of the flood grew by {} MiB", (now - memory_before_) >> 20)};
  if (!outcome.exit) return std::nullopt;
  // One that a limit killed before it had all never held anything.
  bool held = outcome.output.find(kHolding) != std::string::npos;
  if (holds() && held && outcome.exit->code == 10 && !asked_)
    return Proof{error, "it let go before the neighbour was asked for its share"};
  if (name_ == "link-frames") return compare_frames(outcome);
  if (name_ == "shebang-self-exe") return start_shebang();
  if (name_ == "daemon-outlives") return look_at_daemon();
  if (name_ == "sparse-giant") return look_at_giant(outcome);
  return look_at_files();
}

// Standard error has the frames and nothing else; standard output has them first, and then the program's own line.
Escort::Wrong Escort::compare_frames(const ProveRunner::Outcome& outcome) const {
  unsigned long size = 0, sum = 0;
  size_t line = outcome.out.rfind("contained link-frames: ");
  if (line == std::string::npos ||
      std::sscanf(outcome.out.c_str() + line, "contained link-frames: %lu bytes, sum %lx", &size, &sum) != 2)
    return Proof{error, "it does not say what it wrote"};
  if (size < 1000) return Proof{error, fmt::format("it wrote only {} bytes", size)};
  if (outcome.err.size() != size || sum_of(outcome.err) != sum)
    return Proof{breach, "frames on standard error did not arrive as they were written"};
  if (line != size || sum_of(std::string_view(outcome.out).substr(0, line)) != sum)
    return Proof{breach, "frames on standard output did not arrive as they were written"};
  return std::nullopt;
}

// The guest itself starts the script, and so runs itself, while somebody tries to open what runs.
Escort::Wrong Escort::start_shebang() {
  for (int round = 0; round < 10; ++round) {
    guest::Start script{.argv = {"/tmp/isola-shebang"}, .timeout_ms = 3000, .grace_ms = 100};
    auto victim = with_.guest.begin_run(script);
    std::string said;
    auto keep = [&](std::string_view piece) { said += piece; };
    guest::Start others{.argv = {with_.program, "others-exe"}, .env = with_.env, .timeout_ms = 20000};
    auto exit = with_.guest.run(others, {.out = keep, .err = keep});
    if (!exit) return Proof{error, "others-exe beside the script: " + exit.error().message};
    if (exit->code != 10) return Proof{exit->code == 0 ? breach : error, "others-exe beside the script: " + said};
    (void)with_.guest.finish(victim);  // it may run or be refused; the link must go on
    if (auto alive = with_.guest.ping("?"); !alive) return Proof{breach, "the script broke the link"};
  }
  return std::nullopt;
}

// That nothing of the sandbox lives on is looked at when it is destroyed; here, that there is something to look at.
Escort::Wrong Escort::look_at_daemon() {
  auto text = with_.guest.read_file({.path = "/tmp/isola-daemon.pid"}, size_t{64});
  int pid = text ? std::atoi(text->c_str()) : 0;
  if (pid <= 1) return Proof{error, "it left no daemon whose end could be seen"};
  return std::nullopt;
}

// A size is only a claim: reads end at what they were asked for, and at what the reader takes.
Escort::Wrong Escort::look_at_giant(const ProveRunner::Outcome& outcome) {
  const std::string path = "/tmp/isola-sparse";
  if (outcome.output.find("ftruncate: ") != std::string::npos) return std::nullopt;  // such a file cannot be made here
  auto stat = with_.guest.stat({.path = path});
  if (!stat) return Proof{error, stat.error().message};
  if (stat->size < kGiant) return Proof{error, fmt::format("{} has only {} bytes", path, stat->size)};
  auto part = with_.guest.read_file({.path = path, .offset = kGiant / 2, .length = 4096}, size_t{8192});
  if (!part || *part != std::string(4096, '\0')) return Proof{error, "a part of the giant file cannot be read"};
  auto whole = with_.guest.read_file({.path = path}, size_t{1} << 20);
  if (whole || whole.error().code != Code::exhausted) return Proof{breach, "a read of the giant file was not bounded"};
  auto listed = with_.guest.list({.path = "/tmp", .depth = 1, .limit = 1000}, [](const guest::Entry&) {});
  if (!listed) return Proof{error, "the folder of the giant file cannot be listed: " + listed.error().message};
  auto removed = with_.guest.remove({.path = path});
  if (!removed) return Proof{error, "the giant file cannot be removed: " + removed.error().message};
  return std::nullopt;
}

// File calls on what the program left lying about: an answer or a clean error, never a byte of the host.
Escort::Wrong Escort::look_at_files() {
  std::string left = name_ == "deep-path"       ? "/tmp/isola-deep"
                     : name_ == "odd-names"     ? "/tmp/isola-odd"
                     : name_ == "planted-links" ? "/tmp/isola-links"
                                                : "";
  if (left.empty()) return std::nullopt;
  std::string seen;
  std::vector<std::string> paths;
  (void)with_.guest.stat({.path = left});
  auto listed = with_.guest.list({.path = left, .depth = 3, .limit = 1000}, [&](const guest::Entry& entry) {
    seen += entry.path + " " + entry.stat.target + "\n";
    paths.push_back(entry.path);
  });
  if (listed && paths.empty()) return Proof{error, left + " is empty: it left nothing to look at"};
  for (const auto& path : paths) {
    if (seen.size() > (1 << 20)) break;
    if (auto bytes = with_.guest.read_file({.path = left + "/" + path, .length = 4096}, size_t{8192})) seen += *bytes;
    if (auto wrong = breach_if_secret(seen)) return wrong;
    (void)with_.guest.stat({.path = left + "/" + path, .follow = true});
    // Through a link, where there is one: what stands there on the host must stay as it is.
    if (name_ == "planted-links") (void)with_.guest.write_file({.path = left + "/" + path}, "overwritten");
  }
  if (auto wrong = breach_if_secret(seen)) return wrong;
  // Whether the sandbox still answers after that is asked by the runner, which knows what its limits may do to it.
  (void)with_.guest.remove({.path = left, .recursive = true});
  return std::nullopt;
}

}  // namespace isola::cli
