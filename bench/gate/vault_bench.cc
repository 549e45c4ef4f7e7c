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
constexpr int kValues = 10, kLength = 40, kShort = 6, kThreads = 16;

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

std::shared_ptr<const scan::Automaton> automaton(size_t length) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
  std::mt19937 random(11);
  std::vector<std::string> texts(kValues);
  std::vector<scan::Value> values;
  for (auto& text : texts) {
    while (text.size() < length) text += kLetters[random() % kLetters.size()];
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
  std::string buffer(kPiece, '\0');
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
    if (values) stream.feed(buffer, hits);  // as the gate does: whoever asks it keeps the bytes
  }
  return static_cast<double>(text.size()) / micros_since(start);
}

// The same without the sockets, of bytes that are in the near caches, as those are that were just received.
double in_memory(const std::string& text, const std::shared_ptr<const scan::Automaton>& values) {
  constexpr size_t kNear = 4 * kPiece;
  std::vector<scan::Hit> hits;
  scan::Stream stream(values);
  const auto start = Clock::now();
  for (size_t at = 0; at < text.size(); at += kPiece)
    stream.feed(std::string_view(text).substr(at % kNear, kPiece), hits);
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
  ISOLA_TRY(auto ledger, ledger::Ledger::open(path, {.awaited_on_disk = true}));  // as `isola serve` has it
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
  // The time depends on the shortest value: those of usual tokens, and the shortest that are granted at all.
  auto values = automaton(kLength), shortest = automaton(kShort);
  Samples plain, scanned, short_ones, alone, alone_short;
  for (int round = 0; round < rounds; ++round) {
    ISOLA_TRY(double without, through_sockets(text, nullptr));
    ISOLA_TRY(double with, through_sockets(text, values));
    ISOLA_TRY(double with_short, through_sockets(text, shortest));
    plain.add(without), scanned.add(with), short_ones.add(with_short);
    alone.add(in_memory(text, values)), alone_short.add(in_memory(text, shortest));
  }
  // No goal: nothing of a sandbox comes out as fast as one thread talks to itself. The goal is held against streams of
  // sandboxes (bench/scan/stream.py).
  const std::string group =
      fmt::format("The scanner in one thread, {} MiB in pieces of 64 KiB, {} values", bytes >> 20, kValues);
  auto takes = [&](const Samples& with) {
    return fmt::format("takes {:.0f} %", 100 * (1 - paired_ratio(with, plain)));
  };
  report.value(group, "a pair of sockets, nothing searched", plain.p50(), "MB/s");
  report.value(group, fmt::format("a pair of sockets and the scanner, values of {} bytes", kLength), scanned.p50(),
               "MB/s", takes(scanned));
  report.value(group, fmt::format("a pair of sockets and the scanner, values of {} bytes", kShort), short_ones.p50(),
               "MB/s", takes(short_ones) + ": the worst case");
  report.value(group, fmt::format("the scanner alone, values of {} bytes", kLength), alone.p50(), "MB/s");
  report.value(group, fmt::format("the scanner alone, values of {} bytes", kShort), alone_short.p50(), "MB/s");
  return {};
}

Result<void> bench_ledger(int rounds, int entries, Report& report) {
  const std::string group = "Entries of the ledger, on the disk where they are waited for";
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
