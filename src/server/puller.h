// Fetches images for builds: a process that stayed root does it (keeper.h), and this waits for what it says.
//
//   auto puller = std::make_shared<Puller>([&](const std::string& image, const std::string& own) { return
//   keeper.pull(image, own); }); ISOLA_CO_TRY(std::string name, co_await puller->pull("python:3.12"));     // a
//   template of this machine
//
// Any worker.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "base/task.h"

namespace isola::server {

// What `isola template pull --json` says: the name of a template, or why not.
Result<std::string> pulled_name(std::string_view report);

// Whether builds may have an image of that registry, and a sentence if not.
Result<void> check_registry(const std::vector<std::string>& registries, const std::string& image);

class Puller : public std::enable_shared_from_this<Puller> {
 public:
  using Start = std::function<Result<Fd>(const std::string& image, const std::string& credentials)>;
  explicit Puller(Start start) : start_(std::move(start)) {}
  Task<Result<std::string>> pull(std::string image, std::string credentials = {});

 private:
  Start start_;
};

}  // namespace isola::server
