// What a sandbox that does nothing costs, and whether the number of living ones makes a create slower.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/file.h"
#include "bench/stage.h"

namespace isola::bench {

namespace {

const char* const kDensityGroup = "Living side by side";

// A line "Name:   123 kB" of /proc/meminfo and its like, in KiB.
double field(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name + ":")) return std::strtod(line.c_str() + name.size() + 1, nullptr);
  return 0;
}

struct Memory {
  double available, slab, stacks, tables, percpu;
  static Memory now() {
    auto of = [](const char* name) { return field("/proc/meminfo", name); };
    return {of("MemAvailable"), of("Slab"), of("KernelStack"), of("PageTables"), of("Percpu")};
  }
};

// Memory control groups that were removed and that the kernel still holds.
double dying_groups() {
  std::ifstream pure("/sys/fs/cgroup/cgroup.stat");
  for (std::string line; std::getline(pure, line);)
    if (line.starts_with("nr_dying_descendants ")) return std::strtod(line.c_str() + 21, nullptr);
  double known = 0, there = 1;
  std::ifstream in("/proc/cgroups");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name, hierarchy;
    if (double count; words >> name >> hierarchy >> count && name == "memory") known = count;
  }
  std::error_code ignored;
  namespace fs = std::filesystem;
  for (fs::recursive_directory_iterator it("/sys/fs/cgroup/memory", ignored), end; it != end; it.increment(ignored))
    there += it->is_directory(ignored);
  return std::max(0.0, known - there);
}

struct Crowd {
  std::vector<launcher::Client> clients;
  std::vector<launcher::Sandbox> sandboxes;
};

Result<void> grow(Stage& stage, Crowd& crowd, size_t to) {
  if (crowd.clients.empty()) {
    ISOLA_TRY(auto client, stage.connect());
    crowd.clients.push_back(std::move(client));
  }
  while (crowd.sandboxes.size() < to) {
    ISOLA_TRY(auto one, crowd.clients[0].launch({.digest = stage.digest(), .cold = true, .allow_unquotaed = true}));
    crowd.sandboxes.push_back(std::move(one));
    if (crowd.sandboxes.size() % 250 == 0) stage.report().progress(fmt::format("{} alive", crowd.sandboxes.size()));
  }
  return {};
}

struct Costs {
  Samples cold, bare;
};

Result<Costs> costs(Stage& stage, int rounds) {
  Costs costs;
  Program bare{.argv = {stage.root() + kHello}};
  for (int round = -2; round < rounds; ++round) {
    ISOLA_CHECK(stage.settle(0));
    ISOLA_TRY(auto process, run_program(bare, kHelloSays));
    ISOLA_CHECK(stage.settle(0));
    ISOLA_TRY(auto ran, create_and_run(stage.launcher(), stage.digest(), true));
    ran.guest.reset();
    ISOLA_CHECK(stage.launcher().kill(ran.reply.id));
    if (round < 0) continue;
    costs.bare.add(process.exit);
    costs.cold.add(ran.timing.first);
  }
  return costs;
}

Result<void> count_mounts(Stage& stage, const std::string& id) {
  ISOLA_TRY(auto list, stage.launcher().list());
  for (const auto& one : list) {
    if (one.id != id) continue;
    std::set<std::string> own, outside;
    size_t mounts = 0;
    auto read = [](const std::string& path, std::set<std::string>& devices) {
      std::ifstream in(path);
      size_t lines = 0;
      for (std::string line; std::getline(in, line); ++lines) {
        std::istringstream words(line);
        std::string number, parent, device;
        words >> number >> parent >> device;
        devices.insert(device);
      }
      return lines;
    };
    ISOLA_TRY(auto info, stage.launcher().info());
    read(fmt::format("/proc/{}/mountinfo", info.pid), outside);
    mounts = read(fmt::format("/proc/{}/mountinfo", one.pid), own);
    std::erase_if(own, [&](const auto& device) { return outside.contains(device); });
    stage.report().value(
        kDensityGroup, "mounts in a jail", static_cast<double>(mounts), "",
        fmt::format("{} file systems of its own (superblocks; mqueue, unmounted, is one more)", own.size()));
    return {};
  }
  return fail(Code::internal, "the sandbox is not in the launcher's list");
}

Result<double> guest_memory(Stage& stage, size_t of) {
  ISOLA_TRY(auto list, stage.launcher().list());
  Samples pss;
  for (const auto& one : list) {
    if (pss.count() == of) break;
    pss.add(field(fmt::format("/proc/{}/smaps_rollup", one.pid), "Pss"));
  }
  return pss.p50();
}

}  // namespace

Result<void> bench_density(Stage& stage) {
  Report& report = stage.report();
  const size_t many = stage.pick<size_t>(200, 500, 2000);
  const int rounds = stage.pick(15, 30, 60);
  report.progress(fmt::format("{} living side by side", many));
  ISOLA_CHECK(stage.park(0));
  Crowd crowd;
  double dying_before = dying_groups();
  ISOLA_CHECK(grow(stage, crowd, 10));
  ISOLA_CHECK(count_mounts(stage, crowd.sandboxes[0].reply.id));
  ISOLA_TRY(auto few, costs(stage, rounds));
  auto before = Memory::now();
  auto start = Clock::now();
  ISOLA_CHECK(grow(stage, crowd, many));
  report.value(kDensityGroup, "creates per second of one client, one after the other",
               static_cast<double>(many - 10) / micros_since(start) * 1e6, "/s", "cold; without running anything");
  ISOLA_CHECK(stage.settle(0));
  auto after = Memory::now();
  ISOLA_TRY(double pss, guest_memory(stage, 20));
  ISOLA_TRY(auto crowded, costs(stage, rounds));

  auto each = [&](double Memory::* field, double sign) {
    return sign * (after.*field - before.*field) / static_cast<double>(many - 10);
  };
  double whole = each(&Memory::available, -1);
  report.value(
      kDensityGroup, fmt::format("memory per idle sandbox ({} of them)", many), whole, "KiB",
      fmt::format("by MemAvailable; of it the guest {:.0f} (PSS), slab {:.0f}, kernel stacks {:.0f}, page tables "
                  "{:.0f}, per-cpu {:.0f}",
                  pss, each(&Memory::slab, 1), each(&Memory::stacks, 1), each(&Memory::tables, 1),
                  each(&Memory::percpu, 1)));
  report.timing(kDensityGroup, "cold create with 10 alive: first output", few.cold);
  report.timing(kDensityGroup, fmt::format("cold create with {} alive: first output", many), crowded.cold);
  report.timing(kDensityGroup, "bare process with 10 alive", few.bare);
  report.timing(kDensityGroup, fmt::format("bare process with {} alive", many), crowded.bare);

  start = Clock::now();
  crowd.sandboxes.clear();
  crowd.clients.clear();
  auto give_up = Clock::now() + std::chrono::seconds(300);
  for (;;) {
    ISOLA_TRY(auto info, stage.launcher().info());
    if (info.live == 0 && info.cleaning == 0) break;
    if (Clock::now() > give_up) return fail(Code::timeout, "the sandboxes do not go away");
    ::usleep(10000);
  }
  report.value(kDensityGroup, fmt::format("ending all {}", many), micros_since(start) / 1e6, "s");
  ISOLA_CHECK(stage.settle(0));
  double dying = dying_groups() - dying_before;
  report.value(
      kDensityGroup, "dying memory control groups left", dying, "",
      fmt::format("after {} ended sandboxes; {:.0f} before, whoever's they are", many + 4 * rounds, dying_before));

  double factor = crowded.cold.p50() / few.cold.p50(), noise = crowded.bare.p50() / few.bare.p50();
  report.goal("memory per idle sandbox, MiB", whole / 1024, 2);
  report.goal(fmt::format("cold create with {} alive, against 10 alive", many), factor, 1.5,
              fmt::format("a bare process meanwhile: {:.2f}", noise));
  report.goal("dying memory control groups per hundred ended sandboxes",
              std::max(0.0, dying) * 100 / static_cast<double>(many), 0);
  if (many < 2000) report.note(fmt::format("reduced: {} sandboxes alive, 2,000 with --full", many));
  return {};
}

}  // namespace isola::bench
