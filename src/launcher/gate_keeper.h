// The launcher's hand on the gate: starts `isola gate` when the first sandbox gets a policy, tells it which sockets and
// policies there are, and starts another with the same ones when it dies. Without it nothing gets out: what is not
// answered goes nowhere.
//
// Policies are also written to DIR/gate/<id>, so that a launcher that takes over gives its sandboxes back what they
// had. A policy is written down when the gate has taken it, and never before: what is in the file was in force, and a
// change that was under way when somebody died was never acknowledged and did not happen. Were it the other way round,
// a policy that the gate would not take could come into force at the next start.
//
// Bindings come and are written down as the server has them, sealed to the vault's key; for the gate they are opened
// and sealed again (Options::open), each time a gate or a change needs it and they are not at hand. Those that cannot
// be opened go without their values: a vault that is locked, or a source that does not answer, holds up neither a
// policy nor the revocation of another binding; what such a binding is for is refused until it can be opened.
//
// What is asked about one sandbox is done in the order in which it came, one thing at a time. While the gate is being
// restarted it waits; after a few seconds the answer is Code::unavailable, "try again". One that allows nothing is in
// force without a gate: it is answered at once, and the gate gets it when it can.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/fd.h"
#include "boundary/network.h"
#include "gate/event.h"
#include "kernel/process.h"
#include "launcher/event_loop.h"
#include "launcher/past_bindings.h"
#include "launcher/protocol.h"
#include "launcher/vault_keeper.h"
#include "vault/binding_wire.h"
#include "vault/seal.h"

namespace isola::launcher {

class GateKeeper {
 public:
  struct Options {
    std::string folder;            // of the policies
    std::string servers;           // name servers instead of the host's
    std::string authorities = {};  // a PEM file: certificates to trust upstream beside the machine's
    // VaultKeeper::open_bindings; without one there are none.
    std::function<void(const OpenRequest& request, std::function<void(Result<std::string>)> done)> open = {};
    std::function<vault::Secret()> key = {};  // of the gate; empty while the vault is locked
    // Another for each life of a sandbox, the same for all of that life: one that was resumed is not who it was.
    std::function<std::string(const std::string& id)> birth = {};
  };
  using Sockets = std::function<Result<const boundary::IslandSockets*>(const std::string& id)>;
  using Done = std::function<void(Result<std::string>)>;

  GateKeeper(EventLoop& loop, Options options, Sockets sockets)
      : loop_(loop), options_(std::move(options)), sockets_(std::move(sockets)) {}
  ~GateKeeper();
  GateKeeper(const GateKeeper&) = delete;
  GateKeeper& operator=(const GateKeeper&) = delete;

  // After the sandboxes of an earlier launcher were adopted.
  Result<void> restore();
  // In force for the next connection, and written down, when `done` is called.
  void set_policy(const PolicyRequest& request, Done done);
  // These bindings are gone: at once, before everything that was asked of it and waits, and for good. Nothing is opened
  // for it, so that no source that is slow to answer keeps a credential alive.
  void revoke(const RevokeRequest& request, Done done);
  void report(const std::string& id, Done done);
  void certificate(const std::string& id, Done done);
  // A socket whose other end the gate has: streams of sandboxes are passed over it (gate/scan_frames.h).
  Result<Fd> scan_channel();
  // The vault was unlocked: the gate gets its key, and the sandboxes what could not be opened before.
  void unlocked();
  // What sources say may be another by now, or may be readable at last.
  void open_all_again();
  // What is kept of bindings, and not sealed to this key, is sealed anew by `reseal`: done when nothing is left of it,
  // be it on its way to the gate.
  using Reseal = std::function<void(const std::string& bindings, Done done)>;
  void reseal(const vault::PublicKey& key, Reseal reseal, Done done);
  // The sandbox ends; its sockets are still there. True: the gate may have something to tell of its last moments, and
  // on_left says when it has.
  bool forget(const std::string& id);
  pid_t pid() const { return child_.pid; }

  // An event of the gate, as read.
  std::function<void(const gate::Event& event)> on_event;
  std::function<void(const std::string& id)> on_left;

 private:
  struct Terms {
    std::string policy, ceiling;
    std::string bindings;    // sealed to the vault's key
    std::string opened;      // the same for the gate; never written down
    vault::Reasons trouble;  // which of them are missing there, and why
    vault::Reasons unsent;   // which of them are there, and cannot stand where they should
    bool is_open = false;    // whether the two are there
  };
  // Something that was asked: a change, or (without one) a question to the gate.
  struct Job {
    uint64_t number = 0;
    std::optional<PolicyRequest> change;
    bool reopens = false;   // the change is to what is in force when its turn comes, opened anew
    bool only_due = false;  // of that, only what does not last
    uint8_t question = 0;   // a gate::ControlOp
    Done done;              // empty: whoever asked has been told that it takes too long
    EventLoop::TimerId timer;
    std::string trouble;  // why it was not done yet
  };
  struct Entry {
    uint64_t serial = 0;                                 // an answer to what was asked before is not for it
    uint64_t born = 0;                                   // the same for as long as it is this sandbox's
    std::optional<Terms> kept;                           // in force, and written down
    std::optional<Terms> sent;                           // what the gate that runs now was told last
    std::deque<std::string> revoked;                     // ids that do not come back, be they on their way
    PastBindings past;                                   // what a gate had and has not any more
    bool told = false;                                   // the gate that runs now has its sockets
    bool had_a_gate = false;                             // another one had, and may have used its bindings
    bool opens_again = false;                            // a timer runs for bindings that could not be opened
    std::chrono::steady_clock::time_point not_before{};  // the gate may want other values again
    bool busy = false;                                   // something is under way, or is to be tried again soon
    std::deque<Job> jobs;
  };

  Result<void> start();
  void enqueue(const std::string& id, Job job);
  void wanted(const std::string& id);
  void ask(const std::string& id, uint8_t question, Done done);
  void give_key();
  struct Resealing {
    vault::PublicKey key;
    Reseal reseal;
    Done done;
    int passes = 0;
  };
  void reseal_after(const std::string& last, const std::shared_ptr<Resealing>& work);
  void open(const std::string& id, const Terms& terms, bool only_due, std::function<void(Result<Terms>)> done);
  void tell_made(const std::string& id, const std::string& before, const std::string& now);
  void open_again(const std::string& id);
  void open_again_later(const std::string& id);
  void late(const std::string& id, uint64_t number);
  void advance(const std::string& id);
  void advance_all();
  void do_change(const std::string& id, Entry& entry);
  void do_question(const std::string& id, Entry& entry);
  void add_kept(const std::string& id);
  void took(const std::string& id, Terms terms, const Result<std::string>& result);
  void finish_job(const std::string& id, const Result<std::string>& result);
  void put(const std::string& id, const Terms& terms, bool told, bool cut, Done done);
  void tell_now(const std::string& id, const Terms& terms, bool cut, Done done);
  void try_again(const std::string& id);
  void restart_after(std::chrono::milliseconds pause);
  void request(uint8_t op, const std::string& arguments, Done done, std::span<const int> fds = {});
  void ready(uint32_t events);
  void flush();
  void died();
  void look_for_hang();
  void hear_out();
  void hear(const gate::Event& event);
  void left(const std::string& id, uint64_t serial);
  Entry& entry_for(const std::string& id);
  // Nothing if it is another's by now.
  Entry* find(const std::string& id, uint64_t serial);
  void tell_restarted(const std::string& id);  // to whoever keeps records: some may be missing
  Result<void> keep(const std::string& id, const Terms& terms) const;

  EventLoop& loop_;
  Options options_;
  Sockets sockets_;
  kernel::Child child_;
  Fd socket_;
  std::map<std::string, Entry> entries_;
  // Forgotten here; the gate may still have something to tell.
  struct Leaving {
    uint64_t serial = 0;
    EventLoop::TimerId timer;
  };
  std::map<std::string, Leaving> leaving_;
  struct Outgoing {
    std::string bytes;
    std::vector<Fd> fds;
  };
  std::deque<Outgoing> queue_;
  bool waits_for_room_ = false;
  struct Call {
    Done done;
    std::chrono::steady_clock::time_point since;
  };
  std::map<uint32_t, Call> calls_;  // by tag: the oldest first
  std::optional<EventLoop::TimerId> patrol_;
  std::map<uint64_t, Done> revoking_;  // whoever waits for that: a gate that dies sends nothing any more either
  uint32_t last_tag_ = 0;
  uint64_t last_job_ = 0, last_serial_ = 0;
  std::chrono::steady_clock::time_point started_{};
  std::optional<EventLoop::TimerId> restart_;
};

}  // namespace isola::launcher
