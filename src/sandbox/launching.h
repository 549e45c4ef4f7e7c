// From the question to the launcher until the answer is among ours: the sweep leaves what it finds meanwhile alone. No
// longer than that: what nobody knows stays for as long as any of them is under way.
#pragma once

#include "sandbox/service.h"

namespace isola::sandbox {

struct Service::Launching {
  explicit Launching(Service& owner) : service(owner) {
    std::lock_guard lock(service.launch_mutex_);
    number = service.launches_++;
    service.launching_.insert(number);
  }
  ~Launching() {
    std::lock_guard lock(service.launch_mutex_);
    service.launching_.erase(number);
  }
  Launching(const Launching&) = delete;
  Launching& operator=(const Launching&) = delete;
  Service& service;
  uint64_t number = 0;
};

}  // namespace isola::sandbox
