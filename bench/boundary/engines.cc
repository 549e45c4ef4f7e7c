#include "bench/boundary/engines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "bench/peers.h"
#include "boundary/box/archive.h"
#include "boundary/gvisor/runsc.h"
#include "boundary/uml/uml_kernel.h"
#include "image/tree.h"
#include "kernel/process.h"

namespace isola::bench {

Result<Piped> Piped::start(const std::vector<std::string>& argv) {
  Piped one;
  one.start_ = Clock::now();
  ISOLA_TRY(auto in, kernel::make_pipe());
  ISOLA_TRY(auto out, kernel::make_pipe());
  std::vector<char*> words;
  for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.first.get(), 0);
  ::posix_spawn_file_actions_adddup2(&actions, out.second.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions, out.second.get(), 2);
  int failed = ::posix_spawnp(&one.pid_, words[0], &actions, nullptr, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed) return sys_error("cannot start " + argv[0], failed);
  one.in_ = std::move(in.second);
  one.out_ = std::move(out.first);
  return one;
}

Piped::Piped(Piped&& other) noexcept
    : start_(other.start_),
      pid_(std::exchange(other.pid_, -1)),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)),
      heard_(std::move(other.heard_)) {}

Piped::~Piped() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Piped::take(const char* bytes, size_t count) {
  heard_.text.append(bytes, count);
  double now = micros_since(start_);
  auto mark = [&](double& when, const char* word) {
    if (when == 0 && heard_.text.find(word) != std::string::npos) when = now;
  };
  mark(heard_.hello, "hello");
  mark(heard_.begin, "begin");
  mark(heard_.end, "end");
}

Result<void> Piped::say(const std::string& text) { return write_all(in_.get(), text); }

Result<void> Piped::hear(const std::string& word) {
  char bytes[4096];
  while (heard_.text.find(word) == std::string::npos) {
    ssize_t n = ::read(out_.get(), bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::internal, "it ended: " + heard_.text.substr(0, 500));
    take(bytes, static_cast<size_t>(n));
  }
  return {};
}

Heard Piped::finish() {
  in_.reset();
  char bytes[4096];
  for (ssize_t n; (n = ::read(out_.get(), bytes, sizeof bytes)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    take(bytes, static_cast<size_t>(n));
  }
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  heard_.exit = micros_since(start_);
  return heard_;
}

std::optional<ByHand> ByHand::find(BoundaryKind kind, Stage& stage, const std::string& digest,
                                   const std::string& name) {
  ByHand hand;
  hand.kind_ = kind;
  hand.folder_ = stage.scratch() + "/by-hand-" + name;
  hand.blob_ = stage.scratch() + "/cache/blobs/" + digest + ".erofs";
  auto without = [&](const std::string& why) {
    stage.report().note(fmt::format("{}: no engine beside it: {}", to_string(kind), why));
    return std::nullopt;
  };
  if (auto made = make_dirs(hand.folder_); !made) return without(made.error().message);
  if (kind == BoundaryKind::gvisor) {
    auto runsc = boundary::gvisor::Runsc::find();
    if (!runsc) return without(runsc.error().message);
    auto root = stage.outside_root("by-hand-" + name, digest, true);
    if (!root) return without(root.error().message);
    ::umount((*root + "/proc").c_str());
    ::umount((*root + "/dev").c_str());
    hand.root_ = *root;
    hand.name_ = "runsc run";
    hand.engine_ = {runsc->program,     "--root=" + hand.folder_ + "/state", "--network=none",
                    "--ignore-cgroups", "--platform=" + runsc->platform,     "--overlay2=none"};
    if (!runsc->has_overlay2) hand.engine_.pop_back();
  } else if (kind == BoundaryKind::uml) {
    auto kernel = boundary::uml::UmlKernel::find();
    if (!kernel) return without(kernel.error().message);
    hand.name_ = "user-mode Linux booted by hand";
    // On one processor, as ours: it is several times slower when it changes. Its C library must not register
    // restartable sequences (our filter refuses that call): newer kernels of the host end its processes for them.
    hand.engine_ = {"env", "GLIBC_TUNABLES=glibc.pthread.rseq=0", "taskset", "-c", "1", kernel->program};
  } else {
    return kind == BoundaryKind::jail ? std::nullopt : without("not part of this benchmark yet");
  }
  return hand;
}

// Without a user namespace, in which the root's files would be nobody's, and without a filter and groups, which it has
// no use for.
Result<void> ByHand::bundle(const std::vector<std::string>& argv) {
  auto config = nlohmann::json::parse(oci_config(root_, argv));
  auto& part = config["linux"];
  for (const char* name : {"uidMappings", "gidMappings", "cgroupsPath", "resources", "seccomp"}) part.erase(name);
  auto& kinds = part["namespaces"];
  for (size_t i = kinds.size(); i-- > 0;)
    if (kinds[i]["type"] == "user") kinds.erase(i);
  return replace_file(folder_ + "/config.json", config.dump());
}

Result<std::vector<std::string>> ByHand::command(const std::string& script) {
  auto words = engine_;
  const std::string id = fmt::format("by-hand-{}-{}", ::getpid(), ++count_);
  if (kind_ == BoundaryKind::gvisor) {
    ISOLA_CHECK(
        bundle(script.empty() ? std::vector<std::string>{kHello} : std::vector<std::string>{"sh", "-c", script}));
    words.insert(words.end(), {"run", "--bundle", folder_, id});
    return words;
  }
  boundary::box::Archive archive;
  ISOLA_TRY(std::string init, read_file(own_folder() + "isola-bench-init", 16 << 20));
  archive.file("init", init, 0755);
  if (!script.empty()) archive.file("script", script, 0644);
  ISOLA_CHECK(replace_file(folder_ + "/initrd", archive.take()));
  words.insert(words.end(), {script.empty() ? "mem=456M" : "mem=1800M", "initrd=" + folder_ + "/initrd", "con=null",
                             "con0=null,fd:1", "ssl=null", "quiet", "uml_dir=" + folder_ + "/", "umid=" + id});
  if (!script.empty()) words.push_back("ubd0r=" + blob_);
  return words;
}

Result<Heard> ByHand::run(const std::string& script) {
  ISOLA_TRY(auto words, command(script));
  ISOLA_TRY(auto program, Piped::start(words));
  Heard heard = program.finish();
  if (script.empty() ? heard.hello == 0 : heard.end == 0)
    return fail(Code::internal, name_ + " failed: " + heard.text.substr(0, 500));
  return heard;
}

Result<void> ByHand::keep() {
  ISOLA_CHECK(bundle({"cat"}));
  ISOLA_CHECK(make_dirs(folder_ + "/image"));
  auto run = engine_, checkpoint = engine_;
  run.insert(run.end(), {"run", "--bundle", folder_, "kept"});
  checkpoint.insert(checkpoint.end(), {"checkpoint", "--image-path", folder_ + "/image", "kept"});
  ISOLA_TRY(auto program, Piped::start(run));
  ISOLA_CHECK(program.say("there\n"));
  ISOLA_CHECK(program.hear("there\n"));
  ISOLA_CHECK(run_program({.argv = checkpoint}));
  program.finish();
  return {};
}

Result<double> ByHand::restore() {
  const std::string id = fmt::format("restored-{}", ++count_);
  auto words = engine_, end = engine_;
  words.insert(words.end(), {"restore", "--bundle", folder_, "--image-path", folder_ + "/image", id});
  end.insert(end.end(), {"delete", "--force", id});
  auto start = Clock::now();
  ISOLA_TRY(auto program, Piped::start(words));
  ISOLA_CHECK(program.say("again\n"));
  ISOLA_CHECK(program.hear("again\n"));
  double took = micros_since(start);
  ISOLA_CHECK(run_program({.argv = end}));
  program.finish();
  return took;
}

}  // namespace isola::bench
