// isola-scan-bench: a stream through the scanner, beside what it costs to move the same bytes.
//
// `pipe` is what a stream cannot do without: each piece once through the kernel, from one descriptor to another.
// `scan` does the same and looks at every piece; the difference is what scanning costs.
#include <benchmark/benchmark.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "scan/stream.h"

namespace isola::scan {
namespace {

constexpr size_t kPiece = 64 << 10, kTotal = 16 << 20;

enum Content { log_lines, base64_text, random_bytes };

std::string content(int which) {
  std::mt19937 random(7);
  std::string out;
  static constexpr std::string_view kWords[] = {"GET ",   "/v1/items/",   "200 ",  "connection ", "from ", "user=",
                                                "token ", "duration_ms=", "error", "\n",          "the ",  "https://"};
  static constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (out.size() < kTotal) {
    if (which == log_lines)
      out += random() % 3 ? std::string(kWords[random() % std::size(kWords)]) : std::to_string(random());
    else if (which == base64_text)
      out += kBase64[random() % 64];
    else
      out += static_cast<char>(random());
  }
  out.resize(kTotal);
  return out;
}

std::shared_ptr<const Automaton> automaton_of(int count, int length) {
  static std::vector<std::string> texts;
  texts.clear();
  std::mt19937 random(11);
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
  for (int i = 0; i < count; ++i) {
    std::string text;
    while (text.size() < static_cast<size_t>(length)) text += kLetters[random() % kLetters.size()];
    texts.push_back(text);
  }
  std::vector<Value> values;
  for (const auto& text : texts) values.push_back({"v", text});
  return Automaton::make(values).value();
}

void copy(benchmark::State& state) {
  std::string text = content(log_lines), out;
  for (auto _ : state)
    for (size_t at = 0; at < text.size(); at += kPiece) {
      out.clear();
      out.append(text, at, kPiece);
      benchmark::DoNotOptimize(out.data());
    }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}
BENCHMARK(copy);

void scan(benchmark::State& state) {
  std::string text = content(static_cast<int>(state.range(0))), out;
  auto automaton = automaton_of(static_cast<int>(state.range(1)), static_cast<int>(state.range(2)));
  std::vector<Hit> hits;
  for (auto _ : state) {
    Stream stream(automaton);
    for (size_t at = 0; at < text.size(); at += kPiece) {
      out.clear();
      stream.feed(std::string_view(text).substr(at, kPiece), out, hits);
      benchmark::DoNotOptimize(out.data());
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.SetLabel(std::to_string(automaton->states()) + " states");
}
BENCHMARK(scan)
    ->ArgNames({"content", "values", "length"})
    ->ArgsProduct({{log_lines, base64_text, random_bytes}, {1, 10, 100}, {40}})
    ->Args({log_lines, 10, 6})
    ->Args({log_lines, 10, 16});

// Through a pair of sockets and back, as the server's streams go.
void stream_through(benchmark::State& state, bool look) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return state.SkipWithError("no socket pair");
  int size = 1 << 20;
  ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  std::string text = content(log_lines), buffer(kPiece, '\0'), out;
  auto automaton = automaton_of(10, 40);
  std::vector<Hit> hits;
  Stream stream(automaton);
  for (auto _ : state)
    for (size_t at = 0; at < text.size(); at += kPiece) {
      if (::write(ends[0], text.data() + at, kPiece) != static_cast<ssize_t>(kPiece))
        return state.SkipWithError("write");
      for (size_t got = 0; got < kPiece;) {
        ssize_t n = ::read(ends[1], buffer.data() + got, kPiece - got);
        if (n <= 0) return state.SkipWithError("read");
        got += static_cast<size_t>(n);
      }
      if (!look) continue;
      out.clear();
      stream.feed(buffer, out, hits);
      benchmark::DoNotOptimize(out.data());
    }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  ::close(ends[0]);
  ::close(ends[1]);
}
BENCHMARK_CAPTURE(stream_through, pipe, false);
BENCHMARK_CAPTURE(stream_through, pipe_and_scan, true);

}  // namespace
}  // namespace isola::scan

BENCHMARK_MAIN();
