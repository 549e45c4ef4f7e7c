// isola-guest as an object: the loop, the link and the table of operations. main.cc makes one and runs it; the fuzz
// target makes one without a link and feeds it bytes.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "guest/agent/loop.h"
#include "guest/agent/mux.h"
#include "guest/agent/process.h"

namespace isola::guest {

class Agent {
 public:
  explicit Agent(std::string sandbox_id);

  Loop& loop() { return loop_; }
  Mux& mux() { return mux_; }
  const std::string& id() const { return id_; }
  // A new link. Whoever was restored as another sandbox learns its name here: the launcher keeps it as the domain name.
  // `preface`: bytes that come before its hello.
  void next_generation(std::string_view preface = {});
  void rename(std::string id);
  // One round: waits for events (not at all when there is work left), then lets every ready channel do a slice.
  void round(bool may_wait);
  void child_ended() { reap_ = true; }

 private:
  Result<Mux::Opened> open(Op op, std::string_view args);
  Result<Mux::Opened> open_process(Op op, std::string_view args);

  Loop loop_;
  ProcessTable processes_;
  Mux mux_;
  std::string id_;
  std::string domain_;  // as it was last seen
  uint32_t generation_ = 0;
  bool reap_ = false;
};

// A result that may be larger than a frame: sent as data, then an empty end.
Mux::Opened bulk(std::string bytes);
inline Mux::Opened done(std::string result = {}) { return {nullptr, std::move(result)}; }

}  // namespace isola::guest
