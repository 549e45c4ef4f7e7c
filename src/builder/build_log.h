// What a build says, line by line, into the store: callers read it while it goes on, and afterwards.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "store/store.h"

namespace isola::builder {

class BuildLog {
 public:
  static constexpr uint64_t kMostLines = 5'000;
  static constexpr size_t kLongest = 2000;  // of a line

  BuildLog(store::Store& store, std::string build) : store_(store), build_(std::move(build)) {}

  void say(const std::string& level, const std::string& step, std::string_view text);
  // Output as it comes; what is no whole line yet waits for its rest. `whose`: of several programs at a time.
  void output(const std::string& step, std::string_view bytes, const std::string& whose = "");
  void end_output(const std::string& step, const std::string& whose = "");

 private:
  void add(std::vector<store::BuildLine>& lines, const std::string& level, const std::string& step,
           std::string_view text);
  void write(const std::vector<store::BuildLine>& lines);

  store::Store& store_;
  const std::string build_;
  uint64_t next_ = 0;
  std::map<std::string, std::string> pending_;  // by whose it is
};

}  // namespace isola::builder
