// What keeps watch over credentials, beside the gate: the scanner and the ledger. isola-scan-bench and
// isola-ledger-bench take them apart further.
#include "bench/gate/vault_bench.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "base/fd.h"
#include "ledger/ledger.h"
#include "scan/stream.h"

namespace isola::bench {

namespace {

constexpr size_t kPiece = 64 << 10;
constexpr int kValues = 10, kLength = 40, kThreads = 16;

std::string log_lines(size_t size) {
  std::mt19937 random(7);
  static constexpr std::string_view kWords[] = {
      "GET ", "/v1/items/", "200 ", "from ", "user=", "token ", "\n", "error", "the ", "https://"};
  std::string out;
  while (out.size() < size)
    out += random() % 3 ? std::string(kWords[random() % std::size(kWords)]) : std::to_string(random());
  out.resize(size / kPiece * kPiece);
  return out;
}

std::shared_ptr<const scan::Automaton> automaton() {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
  std::mt19937 random(11);
  std::vector<std::string> texts(kValues);
  std::vector<scan::Value> values;
  for (auto& text : texts) {
    while (text.size() < kLength) text += kLetters[random() % kLetters.size()];
    values.push_back({"v", text});
  }
  return scan::Automaton::make(values).value();
}

// MB a second.
Result<double> through_sockets(const std::string& text, const std::shared_ptr<const scan::Automaton>& values) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return sys_error("no pair of sockets");
  Fd in(ends[0]), out(ends[1]);
  int size = 1 << 20;
  ::setsockopt(in.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  std::string buffer(kPiece, '\0'), clean;
  std::vector<scan::Hit> hits;
  scan::Stream stream(values);
  const auto start = Clock::now();
  for (size_t at = 0; at < text.size(); at += kPiece) {
    if (::write(in.get(), text.data() + at, kPiece) != static_cast<ssize_t>(kPiece)) return sys_error("cannot write");
    for (size_t got = 0; got < kPiece;) {
      ssize_t n = ::read(out.get(), buffer.data() + got, kPiece - got);
      if (n <= 0) return sys_error("cannot read");
      got += static_cast<size_t>(n);
    }
    if (!values) continue;
    clean.clear();
    stream.feed(buffer, clean, hits);
  }
  return static_cast<double>(text.size()) / micros_since(start);
}

struct Place {
  std::string folder;
  Place() {
    const char* base = std::getenv("TMPDIR");
    folder = std::string(base ? base : "/var/tmp") + "/isola-gate-bench-XXXXXX";
    if (!::mkdtemp(folder.data())) std::abort();
  }
  ~Place() { std::filesystem::remove_all(folder); }
};

ledger::Event entry() {
  return {.time = 1,
          .project = "default",
          .sandbox = "i0123456789abcdefghij",
          .task = "task",
          .actor = "k0123456789ab",
          .key = "k0123456789ab",
          .kind = ledger::Kind::egress_allowed,
          .data = R"({"what":"opened","protocol":"tcp","port":443,"reason":"allowed","name":"api.example.org"})"};
}

// Entries a second. `threads` 0: nobody waits for one of them, only for all.
Result<double> entries_a_second(int threads, int entries) {
  Place place;
  const std::string path = place.folder + "/ledger.db";
  ISOLA_CHECK(ledger::provide_key(path, place.folder + "/ledger.key", ::getuid(), ::getgid()));
  ISOLA_TRY(auto ledger, ledger::Ledger::open(path, {.sync = sqlite::Sync::full}));
  const auto start = Clock::now();
  if (threads == 0) {
    for (int i = 0; i < entries; ++i) ISOLA_CHECK(ledger->append(entry()));
    ISOLA_CHECK(ledger->flush());
  }
  std::atomic<bool> refused = false;
  std::vector<std::thread> writers;
  for (int t = 0; t < threads; ++t)
    writers.emplace_back([&] {
      for (int i = 0; i < entries / threads; ++i)
        if (!ledger->append_durably(entry())) refused = true;
    });
  for (auto& writer : writers) writer.join();
  if (refused) return fail(Code::internal, "the ledger refused an entry");
  return static_cast<double>(entries) / micros_since(start) * 1e6;
}

}  // namespace

Result<void> bench_scanner(int rounds, size_t bytes, Report& report) {
  const std::string text = log_lines(bytes);
  auto values = automaton();
  Samples plain, scanned;
  for (int round = 0; round < rounds; ++round) {
    ISOLA_TRY(double without, through_sockets(text, nullptr));
    ISOLA_TRY(double with, through_sockets(text, values));
    plain.add(without), scanned.add(with);
  }
  const std::string group = fmt::format("A stream of {} MiB, searched for {} values", bytes >> 20, kValues);
  report.value(group, "through a pair of sockets", plain.p50(), "MB/s");
  report.value(group, "the same, and the scanner", scanned.p50(), "MB/s");
  report.goal("stream / stream with the scanner (it takes ≤ 10 %)", paired_ratio(plain, scanned), 1 / 0.9,
              fmt::format("it takes {:.0f} %", 100 * (1 - paired_ratio(scanned, plain))));
  return {};
}

Result<void> bench_ledger(int rounds, int entries, Report& report) {
  const std::string group = "Entries of the ledger, each commit on the disk";
  struct Way {
    int threads, entries;
    const char* name;
  };
  for (const auto& way : {Way{0, entries, "not waited for"}, Way{1, entries / 50, "waited for, one after the other"},
                          Way{kThreads, entries / 5, "waited for, by 16 at a time"}}) {
    Samples rates;
    for (int round = 0; round < rounds; ++round) {
      ISOLA_TRY(double rate, entries_a_second(way.threads, std::max(way.entries, way.threads)));
      rates.add(rate);
    }
    report.value(group, way.name, rates.p50(), "a second");
  }
  return {};
}

}  // namespace isola::bench
