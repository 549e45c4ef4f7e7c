// isola-ledger-bench: entries per second. `append` does not wait for each, `durably` waits until its entry is in it;
// many threads share a commit. With `full` each commit waits for the disk.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "ledger/ledger.h"

namespace isola::ledger {
namespace {

// In the folder TMPDIR, or /var/tmp: a disk, not memory.
struct World {
  std::string folder;
  std::unique_ptr<Ledger> ledger;

  explicit World(sqlite::Sync sync) {
    const char* base = std::getenv("TMPDIR");
    folder = std::string(base ? base : "/var/tmp") + "/isola-ledger-bench-XXXXXX";
    if (!::mkdtemp(folder.data())) std::abort();
    if (!provide_key(folder + "/ledger.db", folder + "/ledger.key", ::getuid(), ::getgid())) std::abort();
    ledger = std::move(Ledger::open(folder + "/ledger.db", {.sync = sync}).value());
  }
  ~World() {
    ledger.reset();
    std::filesystem::remove_all(folder);
  }
};

Event entry() {
  return {.time = 1,
          .project = "default",
          .sandbox = "i0123456789abcdefghij",
          .task = "task",
          .actor = "k0123456789ab",
          .key = "k0123456789ab",
          .kind = Kind::egress_allowed,
          .data = R"({"what":"opened","protocol":"tcp","port":443,"reason":"allowed","name":"api.example.org"})"};
}

// Ten thousand at a time, and then until they are in the file.
void append(benchmark::State& state) {
  constexpr int kMany = 10'000;
  World world(sqlite::Sync::normal);
  for (auto _ : state) {
    for (int i = 0; i < kMany; ++i)
      if (!world.ledger->append(entry())) state.SkipWithError("refused");
    if (!world.ledger->flush()) state.SkipWithError("not written");
  }
  state.SetItemsProcessed(state.iterations() * kMany);
}
BENCHMARK(append)->UseRealTime();

std::unique_ptr<World> shared;

template <sqlite::Sync sync>
void durably(benchmark::State& state) {
  if (state.thread_index() == 0) shared = std::make_unique<World>(sync);
  for (auto _ : state)
    if (!shared->ledger->append_durably(entry())) state.SkipWithError("refused");
  state.SetItemsProcessed(state.iterations());
  if (state.thread_index() == 0) shared.reset();
}
BENCHMARK(durably<sqlite::Sync::normal>)->Name("durably/normal")->Threads(1)->Threads(16)->Threads(64)->UseRealTime();
BENCHMARK(durably<sqlite::Sync::full>)->Name("durably/full")->Threads(1)->Threads(16)->Threads(64)->UseRealTime();

void verify(benchmark::State& state) {
  World world(sqlite::Sync::normal);
  for (int i = 0; i < 20'000; ++i) (void)world.ledger->append(entry());
  if (!world.ledger->flush()) state.SkipWithError("not written");
  auto keys = VerificationKeys::read(world.folder + "/ledger.key").value();
  for (auto _ : state)
    if (!verify_file(world.folder + "/ledger.db", {.keys = &keys})->good()) state.SkipWithError("not whole");
  state.SetItemsProcessed(state.iterations() * 20'000);
}
BENCHMARK(verify)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace isola::ledger

BENCHMARK_MAIN();
