// One living sandbox: its record, its link, its timers. Shared; every method may be called from any worker.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/task.h"
#include "ledger/usage.h"
#include "sandbox/caller.h"
#include "sandbox/guest_link.h"
#include "sandbox/launcher_link.h"
#include "sandbox/task_spans.h"
#include "store/records.h"

namespace isola::sandbox {

using store::Millis;
inline Millis now_millis() { return milliseconds_now(); }

// The state of a thing does not allow what was asked: another call has to come first.
inline std::unexpected<Error> conflict(std::string message) {
  return fail(Code::unavailable, std::move(message), EBUSY);
}

inline std::unexpected<Error> has_ended(const std::string& id) {
  return fail(Code::not_found, "sandbox " + id + " has ended");
}

// What was given into its memory would be in the image.
inline std::unexpected<Error> no_image_of_exposed(const std::string& id) {
  return conflict("sandbox " + id +
                  " is exposed: the value of a secret was given into it, and would be in an image of its memory; "
                  "allow_exposed makes it nevertheless");
}

struct CommandInfo {
  std::string id;  // `c` + 12 of [a-z0-9]; the guest keeps it in the process's tag (command_tag.h)
  uint32_t pid = 0;
  std::string command;  // as a person would type it
  std::string task, actor, user, cwd;
  std::string key = {};  // of whoever started it
  bool pty = false;
  Millis started = 0, ended = 0;  // ended 0: running
  guest::Exit exit;
  std::string stopped;      // why we ended it, if we did
  bool takes_input = true;  // false: it was started without, or its end was sent
  bool counted = true;      // by budgets and usage; false: the service's own
  uint64_t oom_kills = 0;   // that the kernel had counted in the sandbox before it
};

// What it used. Accounts (accounts.h) reads and writes it, under its mutex.
struct Meter {
  launcher::StatsReply last;
  Millis at = 0, written = 0;                  // of the last charge, of the last row
  bool frozen = false;                         // its wall time stands still
  std::map<std::string, ledger::Usage> fresh;  // by task: not in a row yet
  ledger::Usage total;                         // fresh and all rows
  std::map<std::string, uint64_t> taken;       // commands in `fresh` whose start the ledger was not told, by task
  std::map<std::string, int> running;          // commands, by task
};

class CodeRun;

class Box : public std::enable_shared_from_this<Box> {
 public:
  Box(boost::asio::io_context& home, store::SandboxRecord record);
  ~Box();

  const std::string& id() const { return id_; }
  const std::string& project() const { return project_; }
  const std::string& made_by() const { return made_by_; }
  boost::asio::io_context& home() { return home_; }

  store::SandboxRecord record() const;
  // A part of it, without a copy of the rest. `part` must not call the box.
  template <typename F>
  auto of_record(F part) const {
    std::lock_guard lock(mutex_);
    return part(record_);
  }
  std::string task() const {
    return of_record([](const auto& r) { return r.task; });
  }
  void change(const std::function<void(store::SandboxRecord&)>& change);
  State state() const;
  // Only from the state that the caller believes it to be in. false: it is in another one by now.
  bool change_from(State expected, const std::function<void(store::SandboxRecord&)>& change);

  // A text made from the record, kept until that changes: many ask again and again how one sandbox is. `slot`: which of
  // the texts that there are.
  static constexpr size_t kTexts = 2;
  using Make = std::function<std::string(const store::SandboxRecord&)>;
  std::shared_ptr<const std::string> text(size_t slot, const Make& make);

  // How long its guest may say nothing while somebody waits for it.
  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }
  // Before its first link.
  void set_screening(std::shared_ptr<Screening> screening) { screening_ = std::move(screening); }
  const std::shared_ptr<Screening>& screening() const { return screening_; }  // or nothing
  // The link, made anew where it broke. Whoever asks while it is shut waits, but for `the_one` who shut it. One that is
  // ending has none any more, but for whoever asks for its last word.
  enum class Asks : uint8_t { anybody, the_one, last_word };
  Task<Result<std::shared_ptr<GuestLink>>> link(LauncherLink& launcher, Asks who = Asks::anybody);
  void set_link(std::shared_ptr<GuestLink> link);
  // Nobody is to be blamed for the silence of a frozen sandbox.
  void link_may_be_silent(bool silent);
  void drop_link();
  // Everybody who waits on it hears `why`.
  void close_link(Error why);
  // Whether link() made a new one since this was last asked.
  bool has_new_link();

  // Verbs that change what it is come one after the other. The end waits for nobody.
  class Turn {
   public:
    explicit Turn(std::shared_ptr<Box> box) : box_(std::move(box)) {}
    Turn(Turn&& other) noexcept : box_(std::move(other.box_)) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { release(); }
    void release();

   private:
    std::shared_ptr<Box> box_;
  };
  Task<Turn> turn();
  // On its way into an image or out of one: nobody gets a link meanwhile.
  class Shut {
   public:
    explicit Shut(std::shared_ptr<Box> box) : box_(std::move(box)) { box_->set_shut(true); }
    Shut(const Shut&) = delete;
    Shut& operator=(const Shut&) = delete;
    ~Shut() { open(); }
    void open();

   private:
    std::shared_ptr<Box> box_;
  };
  bool is_shut() const;

  // The end: true for the first who comes with it, and only for that one. Not of one that sleeps: its processes are
  // gone, and that is no end. (Whoever ends a sleeping one says before that it is ending.)
  bool claim_end();
  void set_ended();
  Task<void> wait_ended();
  void set_ender(const Caller& caller);
  Caller ender() const;  // who asked for its end; nobody: it was time, or it went by itself

  // Activity: a call in progress holds a Use; the idle limit counts from the last one's end.
  class Use {
   public:
    explicit Use(std::shared_ptr<Box> box);
    Use(Use&& other) noexcept : box_(std::move(other.box_)) {}
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use();

   private:
    std::shared_ptr<Box> box_;
  };
  Use use() { return Use(shared_from_this()); }
  Millis last_active() const { return last_active_; }
  bool in_use() const { return uses_ > 0; }

  // A connection to one of its ports, which strangers may make: only so many, so that the calls of its owner, which
  // share the guest's channels (guest::kMaxChannels), always find one.
  static constexpr int kMostDials = 512;
  class Dial {
   public:
    explicit Dial(std::shared_ptr<Box> box) : box_(std::move(box)) {}
    Dial(Dial&&) noexcept = default;
    Dial(const Dial&) = delete;
    Dial& operator=(const Dial&) = delete;
    ~Dial() {
      if (box_) --box_->dials_;
    }

   private:
    std::shared_ptr<Box> box_;
  };
  std::optional<Dial> dial();  // nothing: there are as many as there may be

  // An earlier server, or a launcher that is gone, may have been pausing it: then its end is not the end.
  std::atomic<bool> may_be_paused = false;
  std::atomic<bool> disk_full = false;          // and the ledger says so
  std::atomic<bool> unasked = false;            // an earlier server had it, and nobody asked it yet what ran in it
  std::atomic<bool> lacks_certificate = false;  // of its gate, perhaps: it was frozen when it was to get it

  // Commands started through this server, or found in the guest after a restart.
  bool remember(const CommandInfo& command);                             // false: it was known already
  std::optional<CommandInfo> find_command(const std::string& id) const;  // by id, or by pid as text
  std::vector<CommandInfo> commands() const;
  bool command_ended(const std::string& id, const guest::Exit& exit);  // false: that was known already
  void forget_commands();                                              // another past: none of them was ever started
  void forget_oom_kills();                                             // another life: the kernel counts from 0
  void input_closed(const std::string& id);
  void command_stopped(const std::string& id, const std::string& why);
  // One watcher each, and only so many: each holds a channel of the guest until the command's end.
  static constexpr size_t kMostWatched = 256;
  enum class Watching : uint8_t { yes, already, full };
  Watching watch(const std::string& id);
  std::atomic<bool> makes_rounds = false;  // somebody looks after those that have none
  void unwatch(const std::string& id);

  // Code that runs inside an interpreter there, for whoever has to stop it.
  void add_code(const std::shared_ptr<CodeRun>& run);
  std::vector<std::shared_ptr<CodeRun>> code() const;
  // Of such code; of commands the box knows it.
  uint64_t task_begins(const std::string& task);
  void task_ends(const std::string& task, uint64_t born);
  // Whose commands ran between two moments (task_spans.h).
  std::vector<std::string> tasks_during(Millis from, Millis to) const;

  Meter& meter() { return meter_; }
  const Meter& meter() const { return meter_; }

  // What the ledger hears of it when whoever waits has the answer, or before anything else is told of it: its birth
  // first. Each is called once, in this order; none of them may call the box for more.
  void tell_later(std::function<void()> tell);
  void tell_birth();

  // Timers belong to the service, which arms them on the home worker.
  struct Timers;
  std::unique_ptr<Timers> timers;

 private:
  boost::asio::io_context& home_;
  const std::string id_, project_, made_by_;
  mutable std::mutex mutex_;
  store::SandboxRecord record_;
  struct Text {
    uint64_t version = 0;
    Millis last_active = 0;
    std::shared_ptr<const std::string> text;
  };
  uint64_t version_ = 1;  // of the record
  std::array<Text, kTexts> texts_;
  std::shared_ptr<GuestLink> link_;
  bool linking_ = false, new_link_ = false, busy_ = false, finishing_ = false, shut_ = false;
  void set_shut(bool shut);
  Caller ender_;
  std::chrono::milliseconds patience_{30000};
  std::shared_ptr<Screening> screening_;
  Bell link_bell_, turn_bell_, end_bell_;
  std::atomic<int> uses_{0}, dials_{0};
  std::atomic<Millis> last_active_{0};
  std::map<std::string, CommandInfo> commands_;
  std::set<std::string> watched_;
  std::vector<std::weak_ptr<CodeRun>> code_;
  TaskSpans spans_;
  std::deque<std::string> finished_;  // oldest first: only so many are remembered
  Meter meter_;
  std::atomic<bool> untold_ = false;
  std::mutex birth_mutex_;                      // held while it is told: whoever has more to tell waits for that
  std::vector<std::function<void()>> waiting_;  // for that
};
using BoxPtr = std::shared_ptr<Box>;

}  // namespace isola::sandbox
