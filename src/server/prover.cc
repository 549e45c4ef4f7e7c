#include "server/prover.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace isola::server {

namespace {

constexpr size_t kMostReport = 64 << 20;

Result<std::string> read_all(const Fd& from) {
  std::string text;
  char buffer[64 << 10];
  for (;;) {
    ssize_t n = ::read(from.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot read the report");
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMostReport) return fail(Code::exhausted, "the report is larger than expected");
  }
}

}  // namespace

Verdict judge(std::string_view report) {
  Verdict verdict;
  auto parsed = nlohmann::json::parse(report, nullptr, false);
  if (!parsed.is_array() || parsed.empty()) {
    verdict.why = "`isola prove` did not finish";
    return verdict;
  }
  std::string worst;
  for (const auto& one : parsed) {
    std::string word = one.is_object() ? one.value("verdict", "ERROR") : "ERROR";
    ++verdict.counts[word];
    // A breach is told before anything else.
    if (word == "held" || word == "untried" || (!worst.empty() && word != "BREACH")) continue;
    worst = one.is_object()
                ? fmt::format("{} of {} ({}, {}): {}", one.value("program", "?"), one.value("template", "?"),
                              one.value("birth", "?"), word, one.value("how", ""))
                : "unreadable";
  }
  verdict.passed = worst.empty() && verdict.counts["held"] > 0;
  verdict.why = verdict.passed  ? fmt::format("{} programs held, {} could not be tried", verdict.counts["held"],
                                              verdict.counts["untried"])
                : worst.empty() ? "nothing could be tried"
                                : worst;
  return verdict;
}

void ProofDoor::put() const { set_(closes_ ? failed_ : ""); }

void ProofDoor::heard(const Verdict& verdict) {
  std::lock_guard lock(mutex_);
  failed_ = verdict.passed ? "" : "this server's sandboxes are not proved to hold: " + verdict.why;
  put();
}

void ProofDoor::set_closes(bool closes) {
  std::lock_guard lock(mutex_);
  closes_ = closes;
  put();
}

Prover::Prover(Options options, Start start, Heard heard)
    : options_(options), start_(std::move(start)), heard_(std::move(heard)) {}

Prover::~Prover() { wait(); }

void Prover::wait() {
  if (thread_.joinable()) thread_.join();
}

void Prover::tick(std::chrono::steady_clock::time_point now) {
  if (running_) return;
  bool due = first_ ? options_.at_start : options_.every.count() > 0 && now - last_ >= options_.every;
  if (first_) last_ = now;
  first_ = false;
  if (!due) return;
  last_ = now;
  wait();  // over already
  running_ = true;
  thread_ = std::thread([this] { run(); });
}

void Prover::run() {
  log::info("server", "attacking our own sandboxes, to prove that they hold");
  Verdict verdict;
  auto report = start_();
  auto text = report ? read_all(*report) : Result<std::string>(std::unexpected(report.error()));
  if (text)
    verdict = judge(*text);
  else
    verdict.why = text.error().message;
  if (verdict.passed)
    log::info("server", "proved: {}", verdict.why);
  else
    log::error("server", "NOT proved: {}", verdict.why);
  heard_(verdict);
  running_ = false;
}

}  // namespace isola::server
