// What was measured, as a table for people and as JSON for programs.
//
//   Samples bare;  bare.add(412.5);
//   report.timing("create", "bare vfork+exec+reap", bare);
//   report.goal("cold ≤ 10× bare", cold.p50() / bare.p50(), 10);
//
// Times are microseconds inside; the table picks the unit.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/error.h"

namespace isola::bench {

using Clock = std::chrono::steady_clock;
inline double micros(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }
inline double micros_since(Clock::time_point start) { return micros(Clock::now() - start); }

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  size_t count() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  double percentile(double p) const;  // nearest rank; 0 when there are none
  double p50() const { return percentile(50); }
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
};

// The median of a[i] / b[i]: what slowed one round down slowed both.
double paired_ratio(const Samples& a, const Samples& b);

class Report {
 public:
  void timing(std::string group, std::string name, const Samples& micros, std::string note = {});
  void value(std::string group, std::string name, double value, std::string unit, std::string note = {});
  void goal(std::string name, double ratio, double limit, std::string note = {});
  void note(std::string text);  // printed now, and kept
  void progress(const std::string& text) const;

  std::string table() const;  // Markdown
  Result<void> write_json(const std::string& path, const std::string& mode) const;
  bool all_met() const;
  void set_boundary(std::string name) { boundary_ = std::move(name); }  // what the numbers are of; the jail

 private:
  struct Row {
    std::string group, name, unit, note;
    size_t count = 0;
    double p50 = 0, p95 = 0, p99 = 0;
    bool is_timing = false;
  };
  struct Goal {
    std::string name, note;
    double ratio, limit;
  };
  std::string boundary_ = "jail";
  std::vector<Row> rows_;
  std::vector<Goal> goals_;
  std::vector<std::string> notes_;
};

}  // namespace isola::bench
