// A process that does one thing for a single-threaded caller who must not wait, and says how it went. It is a fork of
// the caller with few privileges and few descriptors; what it has to say comes over a socket that can be watched.
//
//   ISOLA_TRY(Helper helper, Helper::start({.name = "isola-sum"}, [](Helper::Talk&) { return sum_up(path); }));
//   // whenever helper.fd() is readable:
//   ISOLA_TRY(auto word, helper.next());
//   if (word.kind == Helper::kDone) use(word.bytes);
//
// On the way it can ask: talk.ask('N', bytes) sends a word and waits for the caller's answer(), and fails when the
// caller is gone. A helper that ends without kDone or kFailed was killed: next() says Code::unavailable.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::kernel {

class Helper {
 public:
  static constexpr char kDone = '+', kFailed = '!';

  struct Word {
    char kind = 0;
    std::string bytes;
    std::vector<Fd> fds = {};
  };
  // The helper's side.
  class Talk {
   public:
    explicit Talk(int socket) : socket_(socket) {}
    Result<void> say(char kind, std::string_view bytes) const;
    Result<void> ask(char kind, std::string_view bytes) const;  // an answer of "no" is an error, too
    // The last word, before the body is at its end: what it does then nobody waits for.
    Result<void> finish(std::string_view bytes);
    bool finished() const { return finished_; }
    int socket() const { return socket_; }

   private:
    int socket_;
    bool finished_ = false;
  };
  using Body = std::function<Result<std::string>(Talk&)>;

  struct Options {
    const char* name = "isola-helper";
    uint64_t capabilities = 0;  // the most that it and what it starts can have
    std::vector<int> keep;      // descriptors, besides 0 to 2
    int cgroup = -1;            // that it is born into (v2); -1: ours
  };
  // What a helper says that failed, for one that became another program and speaks for itself.
  static std::string failed_word(const Error& error);

  static Result<Helper> start(const Options& options, const Body& body);
  Helper() = default;
  Helper(Helper&&) = default;
  Helper& operator=(Helper&&) = default;
  // Lets go of it, alive or not: whoever wants it dead says kill(). Its parent waits for it (reap_strays).
  ~Helper() = default;

  int fd() const { return socket_.get(); }
  pid_t pid() const { return pid_; }
  bool valid() const { return socket_.valid(); }
  Result<Word> next();  // after kFailed and after its death: an error
  Result<void> answer(bool yes);
  void kill();
  // For who has to know when it has ended, after the last word: until then its children are not its parent's.
  Fd take_pidfd() { return std::move(pidfd_); }

 private:
  Fd socket_, pidfd_;
  pid_t pid_ = -1;
};

// What no helper of ours ever needs: modules, raw devices, the clock, rebooting, other security modules' rules.
extern const uint64_t kAllButMachine;

// Only 0 to 2 and these stay open.
Result<void> close_all_but(std::vector<int> keep);

}  // namespace isola::kernel
