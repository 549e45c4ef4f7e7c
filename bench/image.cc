// Pause, resume, snapshot and fork, beside criu's own command line on the same jail (jail_peer.h) and on the same
// program outside of any sandbox, and beside starting that program anew.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/file.h"
#include "bench/jail_peer.h"
#include "bench/stage.h"
#include "boundary/jail/checkpoint.h"
#include "image/tree.h"

namespace isola::bench {

namespace {

const char* const kImageGroup = "Images";

struct Workload {
  std::string name;
  std::string digest;             // of the template that has the program
  std::vector<std::string> argv;  // says "ready" when it is, then waits
  uint64_t memory;
  int rounds;
  std::vector<std::string> probe = {"/bin/echo", "hello"};  // the first command after a resume; says kHelloSays
  bool on_host = true;                                      // which has the program, too
  bool many_forks = true;                                   // there is memory for them
};

// One sandbox in which the workload is ready.
struct Subject {
  std::string id;
  std::unique_ptr<guest::PipeClient> guest;
  std::shared_ptr<guest::Run> run = {};
  double program = 0;  // microseconds from its start until it was ready
};

Result<Subject> adopt(launcher::Sandbox sandbox) {
  return Subject{sandbox.reply.id, std::make_unique<guest::PipeClient>(std::move(sandbox.link.from_guest),
                                                                       std::move(sandbox.link.to_guest))};
}

Result<Subject> start(launcher::Client& client, const Workload& work) {
  launcher::LaunchRequest request{.digest = work.digest, .cold = true, .allow_unquotaed = true};
  request.limits.memory = work.memory;
  ISOLA_TRY(auto sandbox, client.launch(request));
  ISOLA_TRY(Subject box, adopt(std::move(sandbox)));
  auto heard = std::make_shared<std::string>();
  auto begun = Clock::now();
  box.run = box.guest->begin_run(
      {.argv = work.argv, .stdin_mode = guest::Stdin::pipe},
      {.out = [heard](std::string_view s) { *heard += s; }, .err = [heard](std::string_view s) { *heard += s; }});
  ISOLA_CHECK(box.guest->pump_until([&] { return heard->find("ready") != std::string::npos || box.run->ended(); },
                                    std::chrono::seconds(60)));
  if (box.run->ended()) {
    // One that the kernel ended says nothing itself.
    auto usage = client.stats(box.id);
    return fail(Code::internal, fmt::format("{} ended, having said '{}'; {} of its processes were killed for memory",
                                            work.name, *heard, usage ? usage->oom_kills : 0));
  }
  box.program = micros_since(begun);
  return box;
}

// A new sandbox of a snapshot, which stays what it is: its layer is copied.
launcher::LaunchRequest fork_of(const std::string& snapshot, const Workload& work) {
  launcher::LaunchRequest request{.allow_unquotaed = true, .image = snapshot, .forked = true};
  request.limits.memory = work.memory;
  return request;
}

// A paused sandbox as the server resumes it: under its own name, and its image is used up, layer and all.
launcher::LaunchRequest resume_of(const std::string& image, const std::string& sandbox) {
  return {.allow_unquotaed = true, .image = image, .id = sandbox, .spend = true};
}

// The same program outside, for criu's command line.
class Outside {
 public:
  static Result<Outside> start(const Workload& work, const std::string& folder) {
    Outside one;
    one.folder_ = folder;
    ISOLA_CHECK(make_dirs(folder));
    std::string out = folder + "/out";
    ::unlink(out.c_str());
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/zero", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    std::vector<char*> argv;
    for (const auto& word : work.argv) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    int failed = ::posix_spawnp(&one.pid_, argv[0], &actions, &attributes, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (failed) return sys_error("cannot start " + work.argv[0], failed);
    for (int i = 0; i < 60000; ++i) {
      if (read_file(out).value_or("").find("ready") != std::string::npos) return one;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return fail(Code::timeout, work.name + " did not come up outside");
  }
  Outside(Outside&& other) noexcept : pid_(std::exchange(other.pid_, -1)), folder_(std::move(other.folder_)) {}
  Outside& operator=(Outside&&) = delete;
  ~Outside() { end(); }

  Result<double> dump(const std::string& criu) {
    std::string images = folder_ + "/images";
    (void)image::remove_tree(images);
    ISOLA_CHECK(make_dirs(images));
    ISOLA_TRY(auto timing,
              run_program({.argv = {criu, "dump", "-t", std::to_string(pid_), "-D", images, "-o", "log"}}));
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
    return timing.exit;
  }
  Result<double> restore(const std::string& criu) {
    std::string images = folder_ + "/images";
    ::unlink((images + "/pid").c_str());
    ISOLA_TRY(auto timing,
              run_program({.argv = {criu, "restore", "-D", images, "-o", "log", "-d", "--pidfile", "pid"}}));
    ISOLA_TRY(std::string pid, read_file(images + "/pid"));
    pid_ = std::atoi(pid.c_str());
    return timing.exit;
  }
  void end() {
    if (pid_ <= 1) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

 private:
  Outside() = default;
  pid_t pid_ = -1;
  std::string folder_;
};

struct Steps {
  Samples steps[static_cast<size_t>(Step::count_)];
  void add(const Latency& latency) {
    for (size_t i = 0; i < static_cast<size_t>(Step::count_); ++i)
      steps[i].add(std::chrono::duration<double, std::micro>(latency.of(static_cast<Step>(i))).count());
  }
  void print(Report& report, const std::string& group) const {
    for (size_t i = 0; i < static_cast<size_t>(Step::count_); ++i)
      if (steps[i].p50() > 0) report.timing(group, std::string(to_string(static_cast<Step>(i))), steps[i]);
  }
};

double available_mib() {
  std::string text = read_file("/proc/meminfo").value_or("");
  size_t at = text.find("MemAvailable:");
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + 13, nullptr) / 1024;
}

// Before each turn of a pair: as much memory as the workload may have is free, and backed. Else whoever's turn comes
// when the page cache is full of images pays for clearing it, and in a virtual machine, whose host takes free memory
// away, whoever touches a page first pays for having it brought back.
Result<void> ready_memory(const Workload& work) {
  void* at = ::mmap(nullptr, work.memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return sys_error("cannot map memory");
  const bool good = ::madvise(at, work.memory, MADV_POPULATE_WRITE) == 0;
  ::munmap(at, work.memory);
  return good ? Result<void>{} : sys_error("cannot touch memory");
}

Result<void> forks(Stage& stage, const Workload& work, const std::string& image, int count, double cold) {
  Report& report = stage.report();
  std::atomic<int> left = count;
  const unsigned threads = std::min<unsigned>(2 * stage.cores(), static_cast<unsigned>(count));
  std::vector<std::vector<Subject>> boxes(threads);
  std::vector<launcher::Client> clients;
  for (unsigned i = 0; i < threads; ++i) {
    ISOLA_TRY(auto client, stage.connect());
    clients.push_back(std::move(client));
  }
  const double before = available_mib();
  auto begun = Clock::now();
  ISOLA_CHECK(in_parallel(threads, [&](unsigned thread) -> Result<void> {
    while (left.fetch_sub(1) > 0) {
      ISOLA_TRY(auto sandbox, clients[thread].launch(fork_of(image, work)));
      ISOLA_TRY(Subject box, adopt(std::move(sandbox)));
      ISOLA_CHECK(run_in(*box.guest, work.probe, kHelloSays));
      boxes[thread].push_back(std::move(box));
    }
    return {};
  }));
  double all = micros_since(begun);
  report.value(kImageGroup, fmt::format("{}: fork {}, all answer", work.name, count), all / 1000, "ms",
               fmt::format("of a snapshot that stays: {:.1f} ms each, {:.2f}× a cold start; {} at a time",
                           all / 1000 / count, all / count / cold, threads));
  if (count >= 20) {
    double charged = 0;
    for (const auto& some : boxes)
      for (const auto& box : some) {
        ISOLA_TRY(auto usage, stage.launcher().stats(box.id));
        charged += static_cast<double>(usage.memory_bytes) / (1 << 20) / count;
      }
    report.value(
        kImageGroup, fmt::format("{}: memory per fork ({} alive)", work.name, count), charged, "MiB",
        fmt::format("its control group: its own copy of what its processes had in memory, and the kernel's own; "
                    "MemAvailable fell by {:.2f} each",
                    (before - available_mib()) / count));
    if (work.name == "shell")
      report.goal(fmt::format("{}: each of {} forks, in ms", work.name, count), all / 1000 / count, 12);
  }
  boxes.clear();
  clients.clear();  // their sandboxes are ephemeral
  return stage.settle(0);
}

Result<pid_t> first_process(launcher::Client& client, const std::string& id) {
  ISOLA_TRY(auto all, client.list());
  for (const auto& one : all)
    if (one.id == id) return one.pid;
  return fail(Code::not_found, "there is no sandbox " + id);
}

struct DumpAndRestore {
  Samples dump, restore;
};

// The same processes in the same jail, by criu's command line.
Result<void> by_hand(Stage& stage, const Workload& work, JailPeer& peer, double& dumped, double& restored) {
  ISOLA_CHECK(stage.settle(0));
  ISOLA_TRY(Subject box, start(stage.launcher(), work));
  ISOLA_CHECK(box.guest->quiesce());
  ISOLA_TRY(pid_t pid, first_process(stage.launcher(), box.id));
  ISOLA_CHECK(ready_memory(work));
  ISOLA_TRY(dumped, peer.dump(pid));
  box = {};
  ISOLA_CHECK(stage.settle(0));
  ISOLA_CHECK(ready_memory(work));
  ISOLA_TRY(restored, peer.restore());
  peer.end();
  return peer.forget();  // the images would be in the page cache of the next turn
}

// A sandbox with its programs started, from a pool, beside an empty one from a pool.
Result<void> measure_pooled(Stage& stage, const Workload& work, const std::string& image) {
  Report& report = stage.report();
  auto& client = stage.launcher();
  Samples plain, warm;
  for (int round = -1; round < stage.pick(5, 15, 30); ++round) {
    for (bool started : {false, true}) {
      ISOLA_CHECK(client.park(started ? image : work.digest, 1));
      ISOLA_CHECK(stage.settle(1));
      auto begun = Clock::now();
      launcher::LaunchRequest request{.allow_unquotaed = true};
      (started ? request.image : request.digest) = started ? image : work.digest;
      request.forked = started;
      request.limits.memory = work.memory;
      ISOLA_TRY(auto sandbox, client.launch(request));
      const Birth birth = sandbox.reply.birth;
      ISOLA_TRY(Subject box, adopt(std::move(sandbox)));
      ISOLA_TRY(auto timing, run_in(*box.guest, work.probe, kHelloSays, begun));
      if (birth != Birth::pooled) return fail(Code::internal, "the pool was empty");
      if (round >= 0) (started ? warm : plain).add(timing.first);
      ISOLA_CHECK(client.park(started ? image : work.digest, 0));
      ISOLA_CHECK(client.kill(box.id));
      ISOLA_CHECK(stage.settle_with_none_parked());
    }
  }
  report.timing(kImageGroup, work.name + ": pooled, plain → first output", plain);
  report.timing(kImageGroup, work.name + ": pooled, with it started → first output", warm,
                fmt::format("{:.2f}× a plain one", paired_ratio(warm, plain)));
  report.goal(work.name + ": pooled with it started, against a plain pooled create", paired_ratio(warm, plain), 1.5);
  return {};
}

// A resume that left its image was not the one that is meant: it paid for a copy of the layer.
Result<void> is_used_up(launcher::Client& client, const std::string& image) {
  ISOLA_TRY(auto images, client.images());
  for (const auto& one : images)
    if (one.id == image) return fail(Code::internal, "a resume did not use up its image");
  return {};
}

// What forks are made of.
Result<std::string> make_snapshot(Stage& stage, const Workload& work) {
  ISOLA_CHECK(stage.settle(0));
  ISOLA_TRY(Subject box, start(stage.launcher(), work));
  ISOLA_CHECK(box.guest->quiesce());
  launcher::CheckpointRequest keep{.id = box.id, .keep_running = true};
  ISOLA_TRY(auto made, stage.launcher().checkpoint(keep));
  ISOLA_CHECK(stage.launcher().kill(box.id));
  ISOLA_CHECK(stage.settle(0));
  return made.image;
}

Result<void> measure(Stage& stage, const Workload& work, const boundary::jail::Criu& criu) {
  Report& report = stage.report();
  report.progress("images: " + work.name);
  ISOLA_TRY(auto peer, JailPeer::make(stage, criu, work.digest));
  Samples cold, program, pause, resume, snapshot;
  DumpAndRestore jail, bare;
  Steps pause_steps, resume_steps;
  double bytes = 0;
  auto& client = stage.launcher();
  for (int round = -1; round < work.rounds; ++round) {
    ISOLA_CHECK(stage.settle(0));
    ISOLA_CHECK(ready_memory(work));
    auto begun = Clock::now();
    ISOLA_TRY(Subject box, start(client, work));
    double cold_time = micros_since(begun), program_time = box.program;

    ISOLA_CHECK(box.guest->quiesce());
    begun = Clock::now();
    launcher::CheckpointRequest keep{.id = box.id, .keep_running = true};
    ISOLA_TRY(auto copy, client.checkpoint(keep));
    double snapshot_time = micros_since(begun);
    ISOLA_CHECK(client.drop_image(copy.image));
    ISOLA_CHECK(stage.settle(0));

    ISOLA_CHECK(ready_memory(work));
    begun = Clock::now();
    launcher::CheckpointRequest save{.id = box.id};
    ISOLA_TRY(auto saved, client.checkpoint(save));
    double pause_time = micros_since(begun);
    bytes = static_cast<double>(saved.memory_bytes);
    ISOLA_CHECK(stage.settle(0));

    ISOLA_CHECK(ready_memory(work));
    begun = Clock::now();
    auto wake = resume_of(saved.image, box.id);
    wake.limits.memory = work.memory;
    ISOLA_TRY(auto sandbox, client.launch(wake));
    auto latency = sandbox.reply.latency;
    ISOLA_TRY(Subject next, adopt(std::move(sandbox)));
    ISOLA_TRY(auto first, run_in(*next.guest, work.probe, kHelloSays, begun));
    ISOLA_CHECK(client.kill(next.id));
    ISOLA_CHECK(is_used_up(client, saved.image));

    double dumped = 0, restored = 0, bare_dumped = 0, bare_restored = 0;
    ISOLA_CHECK(by_hand(stage, work, *peer, dumped, restored));
    if (work.on_host) {
      ISOLA_CHECK(stage.settle(0));
      ISOLA_TRY(auto outside, Outside::start(work, stage.scratch() + "/criu"));
      ISOLA_TRY(bare_dumped, outside.dump(criu.program));
      ISOLA_TRY(bare_restored, outside.restore(criu.program));
      outside.end();
      ISOLA_CHECK(image::remove_tree(stage.scratch() + "/criu/images"));
    }
    if (round < 0) continue;
    cold.add(cold_time), program.add(program_time), snapshot.add(snapshot_time);
    pause.add(pause_time), resume.add(first.first);
    jail.dump.add(dumped), jail.restore.add(restored);
    bare.dump.add(bare_dumped), bare.restore.add(bare_restored);
    pause_steps.add(saved.latency), resume_steps.add(latency);
  }
  auto per_gib = [&](const Samples& times) {
    double gib = bytes / (1 << 30);
    return gib > 0.5 ? fmt::format("{:.2f} s per GiB", times.p50() / 1e6 / gib) : "";
  };
  auto beside = [&](const Samples& ours, const Samples& theirs) {
    std::string words = fmt::format("{:.2f}× criu's own of the jail", paired_ratio(ours, theirs)), size = per_gib(ours);
    return size.empty() ? words : words + ", " + size;
  };
  report.value(kImageGroup, work.name + ": memory image", bytes / (1 << 20), "MiB");
  report.timing(kImageGroup, work.name + ": cold start, ready", cold);
  report.timing(kImageGroup, work.name + ": of that, the program", program);
  report.timing(kImageGroup, work.name + ": pause", pause, beside(pause, jail.dump));
  report.timing(kImageGroup, work.name + ": snapshot", snapshot);
  report.timing(kImageGroup, work.name + ": resume → first output", resume,
                fmt::format("{}, {:.2f}× a cold start; under its own name, its image is used up",
                            beside(resume, jail.restore), paired_ratio(resume, cold)));
  report.timing(kImageGroup, work.name + ": criu dump (command line, the jail)", jail.dump, per_gib(jail.dump));
  report.timing(kImageGroup, work.name + ": criu restore (command line, the jail)", jail.restore,
                per_gib(jail.restore));
  if (work.on_host) {
    report.timing(kImageGroup, work.name + ": criu dump (command line, a bare process)", bare.dump,
                  "one process in no namespace of its own");
    report.timing(kImageGroup, work.name + ": criu restore (command line, a bare process)", bare.restore);
  }
  pause_steps.print(report, "Where a pause goes: " + work.name);
  resume_steps.print(report, "Where a resume goes: " + work.name);
  report.goal(work.name + ": resume → first output, against criu restore", paired_ratio(resume, jail.restore), 1.15);
  report.goal(work.name + ": pause, against criu dump", paired_ratio(pause, jail.dump), 1.2);
  if (!work.on_host)
    report.goal(work.name + ": resume → first output, against starting the program", paired_ratio(resume, program),
                0.4);
  peer.reset();
  ISOLA_TRY(std::string kept, make_snapshot(stage, work));
  ISOLA_CHECK(forks(stage, work, kept, 1, cold.p50()));
  if (work.many_forks) {
    ISOLA_CHECK(forks(stage, work, kept, stage.pick(20, 100, 100), cold.p50()));
    ISOLA_CHECK(measure_pooled(stage, work, kept));
  }
  return client.drop_image(kept);
}

// criu asks the kernel what it can each time, for tens of milliseconds, unless /run is a tmpfs that remembers. In this
// process's own mount namespace.
Result<void> tune_criu() {
  struct statfs run{};
  if (::statfs("/run", &run) == 0 && run.f_type == TMPFS_MAGIC) return {};
  if (::mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755") < 0) return sys_error("cannot mount /run");
  return {};
}

// Files alone. What nobody has changed since the last snapshot must not cost more because there is more of it; what was
// just written has to reach the disk, once.
Result<void> measure_files(Stage& stage) {
  Report& report = stage.report();
  report.progress("images: files");
  auto& client = stage.launcher();
  Samples plain, resumed, made, small, fresh, large;
  for (int round = 0; round < stage.pick(5, 15, 30); ++round) {
    ISOLA_CHECK(stage.settle(0));
    ISOLA_TRY(auto ran, create_and_run(client, stage.digest(), true));
    plain.add(ran.timing.first);
    auto snapshot = [&](Samples& times) -> Result<std::string> {
      ISOLA_CHECK(stage.settle(0));
      auto begun = Clock::now();
      ISOLA_TRY(auto image, client.checkpoint({.id = ran.reply.id, .memory = false, .keep_running = true}));
      times.add(micros_since(begun));
      return image.image;
    };
    ISOLA_TRY(std::string empty, snapshot(small));
    ISOLA_CHECK(run_in(*ran.guest, {"sh", "-c", "head -c 300M /dev/zero | tr '\\0' x >/root/large"}));
    ISOLA_TRY(std::string just_written, snapshot(fresh));
    ISOLA_TRY(std::string unchanged, snapshot(large));
    ISOLA_TRY(auto paused, client.checkpoint({.id = ran.reply.id, .memory = false}));
    auto from = [&](Samples& times, const launcher::LaunchRequest& request) -> Result<void> {
      ISOLA_CHECK(stage.settle(0));
      auto begun = Clock::now();
      ISOLA_TRY(auto sandbox, client.launch(request));
      ISOLA_TRY(Subject box, adopt(std::move(sandbox)));
      ISOLA_TRY(auto timing, run_in(*box.guest, {kHello}, kHelloSays, begun));
      times.add(timing.first);
      ISOLA_CHECK(client.kill(box.id));
      return {};
    };
    ISOLA_CHECK(from(resumed, resume_of(paused.image, ran.reply.id)));
    ISOLA_CHECK(is_used_up(client, paused.image));
    ISOLA_CHECK(from(made, {.cold = true, .allow_unquotaed = true, .image = empty}));
    for (const auto& image : {empty, just_written, unchanged}) ISOLA_CHECK(client.drop_image(image));
  }
  report.timing(kImageGroup, "files only: plain create → first output", plain);
  report.timing(
      kImageGroup, "files only: resume → first output", resumed,
      fmt::format("{:.2f}× a plain create; under its own name, its image is used up", paired_ratio(resumed, plain)));
  report.timing(kImageGroup, "files only: another sandbox of a snapshot → first output", made,
                fmt::format("{:.2f}× a plain create; the snapshot stays", paired_ratio(made, plain)));
  report.timing(kImageGroup, "files only: snapshot of an empty layer", small);
  report.timing(kImageGroup, "files only: snapshot of a layer with 300 MiB that did not change", large,
                fmt::format("{:.2f}× an empty one", paired_ratio(large, small)));
  report.timing(kImageGroup, "files only: snapshot of a layer with 300 MiB just written", fresh,
                "most of it: they are put on disk");
  report.goal("files only: resume, against a plain create", paired_ratio(resumed, plain), 3);
  report.goal("files only: snapshot with 300 MiB that did not change, against an empty one", paired_ratio(large, small),
              1.5);
  return {};
}

}  // namespace

Result<void> bench_image(Stage& stage) {
  const auto criu = boundary::jail::Criu::find();
  if (criu.program.empty()) {
    stage.report().note("images: no criu on this machine, nothing measured");
    return {};
  }
  ISOLA_CHECK(tune_criu());
  const int rounds = stage.pick(5, 15, 30);
  ISOLA_CHECK(measure_files(stage));
  Workload shell{"shell", stage.digest(), {"sh", "-c", "echo ready; exec sleep 100000"}, 512ull << 20, rounds};
  shell.probe = {kHello};
  ISOLA_CHECK(measure(stage, shell, criu));
  auto base = stage.borrow_template("base");
  if (!base) {
    stage.report().note("images: the template base is not built here, nothing measured with Python");
    return {};
  }
  auto python = [&](const std::string& name, const std::string& digest, const std::string& code, uint64_t memory,
                    int how_often) {
    return Workload{
        name, digest, {"python3", "-c", code + "\nprint('ready', flush=True)\ntime.sleep(100000)"}, memory, how_often};
  };
  ISOLA_CHECK(
      measure(stage, python("python", *base, "import json, re, os, sys, time, threading", 512ull << 20, rounds), criu));
  if (auto template_with_numpy = stage.borrow_template("code-interpreter")) {
    auto work = python("numpy+pandas", *template_with_numpy, "import time, numpy, pandas", 1ull << 30, rounds);
    work.on_host = false;
    ISOLA_CHECK(measure(stage, work, criu));
  } else {
    stage.report().note("images: the template code-interpreter is not built here, nothing measured with numpy");
  }
  for (uint64_t gib : stage.pick<std::vector<uint64_t>>({1}, {1}, {1, 4})) {
    // Filled in place: a copy of it all would be killed for memory.
    auto code = fmt::format(
        "import os, time\npiece = os.urandom(1 << 20)\nb = bytearray({} << 30)\n"
        "for at in range(0, len(b), len(piece)): b[at:at + len(piece)] = piece",
        gib);
    auto work = python(fmt::format("{} GiB", gib), *base, code, (gib + 1) << 30, stage.pick(1, 2, 4));
    work.many_forks = false;
    ISOLA_CHECK(measure(stage, work, criu));
  }
  return {};
}

}  // namespace isola::bench
