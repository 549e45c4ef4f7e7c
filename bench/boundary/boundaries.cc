// Every boundary of this machine, in the same rows; and where there is an engine under it, that engine by hand.
#include <fmt/format.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#include "base/file.h"
#include "bench/boundary/engines.h"
#include "bench/stage.h"
#include "boundary/choice.h"

namespace isola::bench {

namespace {

constexpr char kAddress[] = "203.0.113.10";
constexpr uint32_t kAddressNumber = 0xcb00710a;
constexpr uint16_t kPort = 9000;
constexpr auto kEnginePatience = std::chrono::seconds(120);

struct Box {
  std::string id;
  std::unique_ptr<guest::PipeClient> guest;
};

class Boundaries {
 public:
  explicit Boundaries(Stage& stage) : stage_(stage), report_(stage.report()) {}

  Result<void> measure() {
    ISOLA_TRY(auto info, client().info());
    std::string engines;
    for (const auto& offer : info.boundaries) {
      if (!offer.offered) {
        report_.note(fmt::format("{}: not on this machine: {}", to_string(offer.kind), offer.missing));
        continue;
      }
      kinds_.push_back(offer.kind);
      engines += fmt::format("{}{} ({} {})", engines.empty() ? "" : ", ", to_string(offer.kind), offer.engine.name,
                             offer.engine.version);
    }
    report_.set_boundary(engines);
    report_.note("boundaries: " + engines);
    for (auto kind : kinds_)
      if (auto hand = ByHand::find(kind, stage_, stage_.digest(), "hello"); hand)
        by_hand_.emplace(kind, std::move(*hand));
    ISOLA_CHECK(creates());
    ISOLA_CHECK(images());
    ISOLA_CHECK(memory());
    ISOLA_CHECK(throughput());
    return work();
  }

 private:
  launcher::Client& client() { return stage_.launcher(); }
  static std::string word(BoundaryKind kind) { return std::string(to_string(kind)); }

  launcher::LaunchRequest request(BoundaryKind kind, const std::string& digest) const {
    launcher::LaunchRequest request{.digest = digest, .cold = true, .allow_unquotaed = true};
    request.boundary.wish = wish_for(kind);
    return request;
  }
  Result<Box> launch(const launcher::LaunchRequest& request) {
    ISOLA_TRY(auto sandbox, client().launch(request));
    Box box{sandbox.reply.id,
            std::make_unique<guest::PipeClient>(std::move(sandbox.link.from_guest), std::move(sandbox.link.to_guest))};
    box.guest->set_patience(kEnginePatience);
    return box;
  }
  Result<void> end(const Box& box) {
    ISOLA_CHECK(client().kill(box.id));
    return stage_.settle(0);
  }
  // What a shell line printed.
  static Result<std::string> said(Box& box, const std::string& script) {
    std::string text;
    auto hear = [&](std::string_view s) { text += s; };
    ISOLA_TRY(auto exit,
              box.guest->run({.argv = {"/bin/sh", "-c", script}, .announce = false}, {.out = hear, .err = hear}));
    if (exit.code != 0) return fail(Code::internal, "failed inside: " + text.substr(0, 500));
    return text;
  }

  // ---- create and run ----

  Result<void> creates() {
    report_.progress("creates");
    const std::string group = "Create → first output";
    const int rounds = stage_.pick(7, 25, 60);
    std::map<BoundaryKind, Samples> cold, inside, hand;
    for (int round = -1; round < rounds; ++round) {
      for (auto kind : kinds_) {
        auto start = Clock::now();
        ISOLA_TRY(Box box, launch(request(kind, stage_.digest())));
        ISOLA_TRY(auto timing, run_in(*box.guest, {kHello}, kHelloSays, start));
        ISOLA_TRY(auto again, run_in(*box.guest, {kHello}, kHelloSays, Clock::now()));
        if (round >= 0) cold[kind].add(timing.first), inside[kind].add(again.first);
        ISOLA_CHECK(end(box));
        if (auto it = by_hand_.find(kind); it != by_hand_.end()) {
          ISOLA_TRY(auto heard, it->second.run());
          if (round >= 0) hand[kind].add(heard.hello);
        }
      }
    }
    for (auto kind : kinds_) {
      const bool beside = by_hand_.contains(kind);
      double ratio = beside ? paired_ratio(cold[kind], hand[kind]) : 0;
      report_.timing(group, word(kind) + ", cold", cold[kind],
                     beside ? fmt::format("{:.2f}× {}", ratio, by_hand_.at(kind).name()) : "");
      if (beside) report_.timing(group, by_hand_.at(kind).name(), hand[kind]);
      if (kind == BoundaryKind::uml) report_.goal("uml, create → first output against the bare boot", ratio, 1.5);
      if (kind == BoundaryKind::gvisor) report_.goal("gvisor, create → first output against `runsc run`", ratio, 1.15);
    }
    for (auto kind : kinds_) report_.timing("A command in a living sandbox → first output", word(kind), inside[kind]);
    return {};
  }

  // ---- pause, resume, fork ----

  // A sandbox with `cat` in it, which gives lines back.
  struct Cat {
    Box box;
    std::shared_ptr<std::string> heard = std::make_shared<std::string>();
    std::shared_ptr<guest::Run> run;
  };
  static Result<void> echo(Cat& cat, const std::string& word) {
    ISOLA_CHECK(cat.box.guest->write_stdin(cat.run, word));
    return cat.box.guest->pump_until([&] { return cat.heard->find(word) != std::string::npos; }, kEnginePatience);
  }

  Result<void> images() {
    report_.progress("pause, resume, fork");
    const std::string group = "Standing still and going on";
    const int rounds = stage_.pick(5, 15, 40);
    for (auto kind : kinds_) {
      Samples freeze, pause, resume, snapshot, fork, hand;
      auto follow = [&](Cat& one) {
        return guest::RunCallbacks{.out = [heard = one.heard](std::string_view s) { *heard += s; }};
      };
      auto fresh = [&]() -> Result<Cat> {
        ISOLA_TRY(Box box, launch(request(kind, stage_.digest())));
        Cat one{.box = std::move(box)};
        one.run = one.box.guest->begin_run({.argv = {"cat"}, .stdin_mode = guest::Stdin::pipe}, follow(one));
        ISOLA_CHECK(echo(one, "there\n"));
        return one;
      };
      ISOLA_TRY(Cat cat, fresh());
      for (int i = 0; i < rounds; ++i) {
        auto start = Clock::now();
        ISOLA_CHECK(client().freeze(cat.box.id));
        ISOLA_CHECK(client().thaw(cat.box.id));
        freeze.add(micros_since(start));
      }
      report_.timing(group, word(kind) + ": freeze and thaw", freeze);
      // Another sandbox's memory, and the same line by the process that was in it.
      auto go_on = [&](const launcher::LaunchRequest& from, const Cat& before, const std::string& line) -> Result<Cat> {
        ISOLA_TRY(Box next, launch(from));
        Cat again{.box = std::move(next)};
        again.run = again.box.guest->begin_attach(before.run->pid(), before.run->seq(), follow(again));
        ISOLA_CHECK(echo(again, line));
        return again;
      };
      bool keeps = true;
      auto hand_it = by_hand_.find(kind);
      const bool beside = hand_it != by_hand_.end() && hand_it->second.restores();
      for (int i = 0; i < rounds && keeps; ++i) {
        ISOLA_CHECK(cat.box.guest->quiesce());
        auto start = Clock::now();
        auto saved = client().checkpoint({.id = cat.box.id, .memory = true, .keep_running = false});
        if (!saved) {
          report_.note(fmt::format("{}: {}", word(kind), saved.error().message));
          keeps = false;
          break;
        }
        pause.add(micros_since(start));
        ISOLA_CHECK(stage_.settle(0));
        if (beside && i == 0) ISOLA_CHECK(hand_it->second.keep());
        launcher::LaunchRequest from{.allow_unquotaed = true, .image = saved->image};
        start = Clock::now();
        ISOLA_TRY(auto next, go_on(from, cat, fmt::format("again {}\n", i)));
        resume.add(micros_since(start));
        if (beside) {
          ISOLA_TRY(double took, hand_it->second.restore());
          hand.add(took);
        }
        from.forked = true;
        start = Clock::now();
        ISOLA_TRY(auto child, go_on(from, cat, fmt::format("forked {}\n", i)));
        fork.add(micros_since(start));
        ISOLA_CHECK(end(child.box));
        ISOLA_CHECK(next.box.guest->quiesce());
        start = Clock::now();
        ISOLA_TRY(auto kept, client().checkpoint({.id = next.box.id, .memory = true, .keep_running = true}));
        snapshot.add(micros_since(start));
        ISOLA_CHECK(next.box.guest->go_on());
        ISOLA_CHECK(client().drop_image(kept.image));
        ISOLA_CHECK(client().drop_image(saved->image));
        // Each life of one sandbox is a layer more: the next round begins anew.
        ISOLA_CHECK(end(next.box));
        ISOLA_TRY(cat, fresh());
      }
      if (keeps) {
        report_.timing(group, word(kind) + ": pause (memory and files are kept)", pause);
        report_.timing(group, word(kind) + ": snapshot (it goes on)", snapshot);
        report_.timing(group, word(kind) + ": create from a warm image → first output", resume,
                       beside ? fmt::format("{:.2f}× runsc restore", paired_ratio(resume, hand)) : "");
        report_.timing(group, word(kind) + ": one more from the same image (fork)", fork);
      }
      if (beside && !hand.empty()) {
        report_.timing(group, "runsc restore", hand);
        report_.goal(word(kind) + ", create from a warm image against `runsc restore`", paired_ratio(resume, hand),
                     1.3);
      }
      ISOLA_CHECK(end(cat.box));
    }
    return {};
  }

  // ---- memory ----

  static double available() {
    std::ifstream file("/proc/meminfo");
    for (std::string name; file >> name;)
      if (double kib = 0; name == "MemAvailable:" && file >> kib) return kib * 1024;
    return 0;
  }
  Result<void> memory() {
    report_.progress("memory");
    const int count = stage_.pick(4, 8, 20);
    for (auto kind : kinds_) {
      std::vector<Box> boxes;
      double before = available();
      for (int i = 0; i < count; ++i) {
        ISOLA_TRY(Box box, launch(request(kind, stage_.digest())));
        ISOLA_CHECK(run_in(*box.guest, {kHello}, kHelloSays, Clock::now()));
        boxes.push_back(std::move(box));
      }
      double after = available(), counted = 0;
      for (auto& box : boxes) {
        ISOLA_TRY(auto stats, client().stats(box.id));
        counted += static_cast<double>(stats.memory_bytes);
      }
      report_.value("Memory of an idle sandbox", word(kind), (before - after) / count / (1 << 20), "MiB",
                    fmt::format("by MemAvailable, {} of them; counted against its limit: {:.1f} MiB", count,
                                counted / count / (1 << 20)));
      for (auto& box : boxes) ISOLA_CHECK(client().kill(box.id));
      ISOLA_CHECK(stage_.settle(0));
    }
    return {};
  }

  // ---- files and network ----

  struct Flow {
    const char* name;
    std::string python;  // prints MB a second
  };
  static std::vector<Flow> flows(int megabytes) {
    const std::string head = fmt::format("import os, socket, time\nN = {} << 20\nblock = bytes(1 << 20)\n", megabytes);
    const std::string tell = "print(N / 1e6 / (time.monotonic() - start))\n";
    const std::string take =
        "got = 0\n"
        "while got < N:\n"
        "    n = len(s.recv(1 << 20))\n"
        "    if not n: raise SystemExit('cut off')\n"
        "    got += n\n";
    return {
        {"write a file (with fsync)", head +
                                          "start = time.monotonic()\n"
                                          "with open('/root/flow', 'wb', buffering=0) as f:\n"
                                          "    for i in range(N >> 20): f.write(block)\n"
                                          "    os.fsync(f.fileno())\n" +
                                          tell},
        {"read it again", head +
                              "start = time.monotonic()\n"
                              "with open('/root/flow', 'rb', buffering=0) as f:\n"
                              "    while f.read(1 << 20): pass\n" +
                              tell + "os.unlink('/root/flow')\n"},
        {"loopback inside", head +
                                "listener = socket.create_server(('127.0.0.1', 0))\n"
                                "if os.fork() == 0:\n"
                                "    c, _ = listener.accept()\n"
                                "    for i in range(N >> 20): c.sendall(block)\n"
                                "    os._exit(0)\n"
                                "s = socket.create_connection(listener.getsockname())\n"
                                "start = time.monotonic()\n" +
                                take + tell},
        {"from outside, through the gate",
         head + fmt::format("s = socket.create_connection(('{}', {}), 30)\n", kAddress, kPort) +
             "s.sendall(str(N).encode() + b'\\n')\n"
             "start = time.monotonic()\n" +
             take + tell},
    };
  }

  Result<void> throughput() {
    report_.progress("files and network");
    const int rounds = stage_.pick(3, 7, 15), megabytes = stage_.pick(64, 256, 256);
    auto all = flows(megabytes);
    for (auto kind : kinds_) {
      auto ask = request(kind, stage_.digest());
      ask.limits.memory = 1ull << 30;
      ISOLA_TRY(Box box, launch(ask));
      ISOLA_CHECK(client().set_policy({.id = box.id, .policy = fmt::format("allow {}:{}", kAddress, kPort)}));
      std::vector<Samples> rates(all.size());
      for (int round = -1; round < rounds; ++round)
        for (size_t i = 0; i < all.size(); ++i) {
          ISOLA_CHECK(box.guest->write_file({.path = "/root/flow.py"}, all[i].python));
          ISOLA_TRY(std::string text, said(box, "exec python3 /root/flow.py"));
          if (round >= 0) rates[i].add(std::atof(text.c_str()));
        }
      for (size_t i = 0; i < all.size(); ++i)
        report_.value(fmt::format("Throughput, {} MiB at a time", megabytes), word(kind) + ": " + all[i].name,
                      rates[i].p50(), "MB/s");
      ISOLA_CHECK(end(box));
    }
    return {};
  }

  // ---- work ----

  Result<void> work() {
    report_.progress("work");
    auto base = stage_.borrow_template("base");
    if (!base) {
      report_.note("the template base is not built here: no work was measured");
      return {};
    }
    const int rounds = stage_.pick(3, 5, 9), units = stage_.pick(4, 12, 24);
    const std::pair<std::string, std::string> jobs[] = {
        {"compile and link C",
         fmt::format("set -e; rm -rf /root/w; mkdir -p /root/w; cd /root/w; i=0; while [ $i -lt {} ]; do "
                     "{{ echo '#include <stdio.h>'; echo '#include <string.h>'; j=0; while [ $j -lt 40 ]; do "
                     "echo \"int f${{i}}_$j(const char *s, int n) {{ int r = n; for (int k = 0; k < n; ++k) r = r * 31 "
                     "+ s[k % 7] + (int)strlen(s); if (r == $j) puts(s); return r; }}\"; j=$((j+1)); done; }} > u$i.c; "
                     "i=$((i+1)); done; echo 'int main(void) {{ return 0; }}' > main.c; "
                     "for f in *.c; do gcc -O1 -c $f; done; gcc -o program *.o; ./program",
                     units)},
        {"Python: JSON, text and sorting",
         fmt::format("python3 -c 'import json, re\n"
                     "rows = [dict(id=i, name=\"row %d\" % i, value=i * 7919 % 1000) for i in range({})]\n"
                     "text = json.dumps(rows)\n"
                     "back = sorted(json.loads(text), key=lambda r: (r[\"value\"], r[\"name\"]))\n"
                     "assert len(re.findall(\"row [0-9]+\", text)) == len(back)'",
                     60000 * stage_.pick(1, 2, 2))}};
    const std::string group = "Work inside (one processor's worth)";
    ISOLA_TRY(std::string plain, stage_.outside_root("boundary-work", *base, true));
    for (const auto& [name, script] : jobs) {
      const std::string line = "(" + script + ") >/dev/null 2>&1 || exit 1; echo end";
      Samples bare;
      for (int i = -1; i < rounds; ++i) {
        ISOLA_TRY(auto timing, run_program({.argv = {"/bin/sh", "-c", line}, .root = plain}));
        if (i >= 0) bare.add(timing.exit);
      }
      report_.timing(group, name + ": bare", bare, "in a chroot on the same template");
      for (auto kind : kinds_) {
        auto ask = request(kind, *base);
        ask.limits.memory = 2ull << 30;
        ISOLA_TRY(Box box, launch(ask));
        Samples ours, hand;
        for (int i = -1; i < rounds; ++i) {
          ISOLA_TRY(auto timing, run_in(*box.guest, {"/bin/sh", "-c", line}, "end\n", Clock::now()));
          if (i >= 0) ours.add(timing.exit);
        }
        ISOLA_CHECK(end(box));
        report_.timing(group, name + ": " + word(kind), ours, fmt::format("{:.2f}× bare", ours.p50() / bare.p50()));
        // The first time warms the files up there, too: both are looked at from the second on.
        auto engine = by_hand_.contains(kind) ? ByHand::find(kind, stage_, *base, "work-" + std::to_string(hands_++))
                                              : std::nullopt;
        if (!engine) continue;
        std::string all = line.substr(0, line.rfind("echo end")) + "echo begin; ";
        for (int i = 0; i < rounds; ++i) {
          ISOLA_TRY(auto heard, engine->run(all + line));
          hand.add(heard.end - heard.begin);
        }
        report_.timing(group, name + ": " + engine->name(), hand, fmt::format("{:.2f}× bare", hand.p50() / bare.p50()));
        report_.goal(fmt::format("{}, {} against {}", name, word(kind), engine->name()), ours.p50() / hand.p50(), 1.15);
      }
    }
    return {};
  }

  Stage& stage_;
  Report& report_;
  std::vector<BoundaryKind> kinds_;
  std::map<BoundaryKind, ByHand> by_hand_;
  int hands_ = 0;
};

// Whoever asks for so many bytes gets them.
void serve(int listener) {
  for (;;) {
    Fd connection(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection) return;
    char line[32] = "";
    if (::recv(connection.get(), line, sizeof line - 1, 0) <= 0) continue;
    const std::string block(1 << 20, 'x');
    for (long left = std::atol(line); left > 0;) {
      ssize_t n = ::send(connection.get(), block.data(), std::min<size_t>(block.size(), static_cast<size_t>(left)),
                         MSG_NOSIGNAL);
      if (n <= 0) break;
      left -= n;
    }
  }
}

}  // namespace

Result<void> make_outside() {
  if (::unshare(CLONE_NEWNET) < 0) return sys_error("cannot make a network of our own (this must run as root)");
  if (std::system(fmt::format("ip link set lo up && ip address add {}/32 dev lo", kAddress).c_str()) != 0)
    return fail(Code::unavailable, "cannot set up a network of our own");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(kAddressNumber);
  address.sin_port = htons(kPort);
  int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) < 0 ||
      ::listen(listener, 16) < 0)
    return sys_error("cannot listen");
  std::thread(serve, listener).detach();
  return {};
}

Result<void> bench_boundaries(Stage& stage) { return Boundaries(stage).measure(); }

}  // namespace isola::bench
