// What leaves a sandbox is searched for the values that are bound to it, or is not because none is. One for each
// sandbox, known to its link, which asks for every frame: a binding counts for streams that are open already.
//
//   if (screening->on()) stream = screening->open(home, handler);
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sandbox/scan_link.h"

namespace isola::sandbox {

class Screening {
 public:
  // Where something was found.
  struct Place {
    std::string stream;         // stdout, stderr, terminal, file, port, list
    std::string command, task;  // of a command
  };
  using Whose = std::function<Result<std::vector<std::string>>()>;
  using Report = std::function<void(const gate::ScanFound& found, const Place& place)>;

  // `whose`: the sandboxes whose values are searched for; asked when a stream begins. None: it goes unsearched. Where
  // that cannot be told, nothing passes.
  Screening(std::shared_ptr<ScanLink> scanner, Whose whose, Report report)
      : scanner_(std::move(scanner)), whose_(std::move(whose)), report_(std::move(report)) {}

  // For good: what was bound once may still be inside.
  void turn_on() { on_ = true; }
  bool on() const { return on_; }

  // Null: there is nothing to search for.
  Result<std::unique_ptr<ScanStream>> open(boost::asio::io_context& home, ScanStream::Handler handler) const {
    ISOLA_TRY(auto sandboxes, whose_());
    if (sandboxes.empty()) return nullptr;
    return scanner_->open(std::move(sandboxes), home, std::move(handler));
  }
  void report(const gate::ScanFound& found, const Place& place) const { report_(found, place); }

 private:
  std::shared_ptr<ScanLink> scanner_;
  Whose whose_;
  Report report_;
  std::atomic<bool> on_ = false;
};

}  // namespace isola::sandbox
