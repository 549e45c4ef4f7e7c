// Where the time of a create went: every step of a launch has a name, and every launch carries the breakdown.
//
//   Stopwatch watch(latency);
//   ...make the cgroups...
//   watch.lap(Step::cgroups);
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isola {

enum class Step : uint8_t {
  layer,     // the writable layer, with its quota
  cgroups,   // control groups with their limits
  buckets,   // those who serve its buckets come up
  clone,     // the process and its namespaces
  identity,  // cgroup membership, id maps
  root,      // idmapped layers, overlay
  network,   // lo, routes, redirect rules, the gate's sockets; at the same time as
  furnish,   // inside: mounts, pivot_root, capabilities, seccomp (of the two, what ends last has what was left of it)
  verify,    // installed protections compared with the manifest
  exec,      // the guest program starts, or the engine that it will live in
  boot,      // the engine comes up, until the guest says its first word
  claim,     // a parked jail takes the caller's limits
  restore,   // processes and memory of an image
  relink,    // the restored guest's new link
  dump,      // checkpoint: processes and memory are saved; from the first that stops
  files,     // checkpoint: the writable layer is kept or copied, and on disk
  sums,      // checkpoint: checksums of the memory, which is on disk then
  commit,    // checkpoint: the manifest
  clear,     // pause: nothing is left of the sandbox
  count_,
};

std::string_view to_string(Step step);

class Latency {
 public:
  void add(Step step, std::chrono::nanoseconds time) { steps_[static_cast<size_t>(step)] += time; }
  std::chrono::nanoseconds of(Step step) const { return steps_[static_cast<size_t>(step)]; }
  std::chrono::nanoseconds total() const;

 private:
  std::array<std::chrono::nanoseconds, static_cast<size_t>(Step::count_)> steps_{};
};

class Stopwatch {
 public:
  explicit Stopwatch(Latency& latency) : latency_(latency), last_(std::chrono::steady_clock::now()) {}
  void lap(Step step) {
    auto now = std::chrono::steady_clock::now();
    latency_.add(step, now - last_);
    last_ = now;
  }

 private:
  Latency& latency_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace isola
