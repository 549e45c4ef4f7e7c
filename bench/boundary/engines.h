// The engines under our boundaries, used by hand: the same program, the same files, without Isola around it.
//
//   ISOLA_TRY(auto engines, Engines::find(stage, digest));
//   if (engines.runsc) ISOLA_TRY(auto heard, engines.run(Engine::runsc, "echo begin; make; echo end"));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "bench/stage.h"
#include "boundary/state.h"

namespace isola::bench {

// When a program said what; microseconds from its start.
struct Heard {
  double hello = 0, begin = 0, end = 0, exit = 0;  // 0: never
  std::string text;
};

// A program with pipes, ended when this goes.
class Piped {
 public:
  static Result<Piped> start(const std::vector<std::string>& argv);
  Piped(Piped&& other) noexcept;
  Piped& operator=(Piped&&) = delete;
  ~Piped();
  Result<void> say(const std::string& text);
  // Reads until it has said the word, or ended (an error).
  Result<void> hear(const std::string& word);
  Heard finish();  // reads to its end

 private:
  Piped() = default;
  void take(const char* bytes, size_t count);

  Clock::time_point start_;
  pid_t pid_ = -1;
  Fd in_, out_;
  Heard heard_;
};

class ByHand {
 public:
  // For that boundary on this template; nothing where there is no engine to be used by hand (the reason is noted).
  static std::optional<ByHand> find(BoundaryKind kind, Stage& stage, const std::string& digest,
                                    const std::string& name);

  const std::string& name() const { return name_; }  // "runsc run"
  // A shell line on a fresh machine; without one it says hello, by the shortest way that there is.
  Result<Heard> run(const std::string& script = {});

  // `cat`, kept in memory, and started again: microseconds until it has given a line back.
  bool restores() const { return kind_ == BoundaryKind::gvisor; }
  Result<void> keep();
  Result<double> restore();

 private:
  ByHand() = default;
  Result<std::vector<std::string>> command(const std::string& script);
  Result<void> bundle(const std::vector<std::string>& argv);

  BoundaryKind kind_ = BoundaryKind::jail;
  std::string name_, folder_, root_, blob_;
  std::vector<std::string> engine_;  // its program and the words that come first
  int count_ = 0;
};

}  // namespace isola::bench
