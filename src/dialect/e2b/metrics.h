// What sandboxes use, now and before, as both planes show it.
//
//   ISOLA_CO_TRY(auto past, co_await metrics->of(box));     // oldest first; the last one is of now
//
// Whoever is asked for is looked at every five seconds from then on, for as long as somebody asks again now and then;
// all others cost nothing. One that is paused answers what was seen before. Any worker.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sandbox/bell.h"
#include "sandbox/service.h"

namespace isola::e2b {

struct Measured {
  store::Millis at = 0;
  int cpus = 1;
  double cpu_percent = 0;  // of all its CPUs together, since the look before
  uint64_t memory_used = 0, memory_total = 0, disk_used = 0, disk_total = 0;
  uint64_t memory_cache = 0;  // copies of files; not in memory_used
};

// What was seen of one sandbox.
class History {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kKept = 360;  // half an hour
  static constexpr auto kEvery = std::chrono::seconds(5), kFresh = std::chrono::seconds(1);
  static constexpr auto kShortest = std::chrono::milliseconds(100);  // what is less says nothing of the CPU

  // Its share of the time since the look before; nothing: this is the first, or follows too soon to count as one.
  std::optional<double> cpu_share(uint64_t cpu_usec, Clock::time_point now);
  void add(Measured measured, Clock::time_point now);
  bool is_fresh(Clock::time_point now) const { return newest_ && now - looked_ < kFresh; }
  const std::optional<Measured>& newest() const { return newest_; }
  std::vector<Measured> all() const;  // in steps, and the newest

 private:
  std::optional<std::pair<uint64_t, Clock::time_point>> before_;
  std::deque<Measured> steps_;
  Clock::time_point step_{}, looked_{};
  std::optional<Measured> newest_;
};

class Metrics : public std::enable_shared_from_this<Metrics> {
 public:
  explicit Metrics(std::shared_ptr<sandbox::Service> service) : service_(std::move(service)) {}

  Task<Result<std::vector<Measured>>> of(sandbox::BoxPtr box);
  // Of each what is newest, by id; of one that was never seen and sleeps there is nothing.
  Task<std::map<std::string, Measured>> newest_of(std::vector<sandbox::BoxPtr> boxes);

 private:
  using Clock = History::Clock;
  struct Seen {
    History history;
    std::string project;
    Clock::time_point asked;
    bool looking = false;  // somebody is at it
    uint64_t number = 0;   // of whoever looks at it: one that was given up and begun again has another
  };
  // Whether there was a look before, so that what it says of the CPU is known. One at a time: whoever comes meanwhile
  // waits for it, and has what it saw.
  Task<Result<bool>> look(sandbox::BoxPtr box);
  Task<Result<bool>> measure(sandbox::BoxPtr box);
  void make_room(const std::string& project);  // under mutex_
  Task<Result<void>> look_at_all(const std::vector<sandbox::BoxPtr>& boxes);
  void begin(const sandbox::BoxPtr& box);
  Task<void> keep_looking(std::weak_ptr<sandbox::Box> box, std::string id, uint64_t number);

  std::shared_ptr<sandbox::Service> service_;
  std::mutex mutex_;
  std::map<std::string, Seen> seen_;  // under mutex_
  uint64_t begun_ = 0;                // under mutex_
  sandbox::Bell looked_;
};

}  // namespace isola::e2b
