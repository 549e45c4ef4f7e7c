// One TCP connection of a sandbox on its way out: judged, resolved, connected, forwarded.
//
// The client's first bytes are held back until they are judged (TLS must say the name), while the connection outwards
// is made and the server may speak first. What follows a TLS hello is looked at until the server has taken it. After
// that a few bytes are read and written; many move by splice through a pipe that is there only while there is something
// in it: an idle flow costs two descriptors and a few hundred bytes.
//
// Where there are rules about requests, or a credential to be set, the flow is looked into instead (interception.h).
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "gate/client_hello.h"
#include "gate/first_line.h"
#include "gate/hello_walk.h"
#include "gate/interception.h"
#include "gate/lookup.h"
#include "gate/loop.h"
#include "gate/policy.h"

namespace isola::gate {

class Sandbox;

// Pipes that wait for work, so that a burst of data does not cost two system calls for a pipe.
class PipePool {
 public:
  struct Pipe {
    Fd read, write;
  };
  static constexpr size_t kSize = 64 << 10, kMost = 1024, kIdle = 128;
  Result<Pipe> take();
  void give_back(Pipe pipe);  // empty ones only

 private:
  std::vector<Pipe> free_;
};

class Flow : public Handler {
 public:
  Flow(Sandbox& sandbox, Fd client, Address to, uint16_t port);

  // From accept to the first decision. May end the flow at once.
  void start();
  void on_ready(uint32_t) override { pump(); }  // again, or tokens came
  // The policy has changed: ends if it would not be let through now.
  void judge_again();
  // The bindings have, or the time of one is over: ends if one that was used here is gone.
  void bindings_changed();
  // Takes too long to begin, or is idle.
  void expire();
  void stop() { finish(true); }

  // Where it stands in the gate's list of flows by age.
  std::list<Flow*>::iterator place;
  bool young = true;  // not yet connected, or its first bytes are not complete
  Clock::time_point since;
  bool waits_for_tokens = false;
  // In the gate's list of flows whose bytes were not told: since when.
  std::list<Flow*>::iterator untold_place;
  std::optional<Clock::time_point> untold_since;
  void tell_bytes();

 private:
  struct Side : Handler, Wire {
    explicit Side(Flow& owner) : flow(owner) {}
    void on_ready(uint32_t events) override { flow.side_ready(*this, events); }
    Flow& flow;
    bool eof = false;  // it has nothing more to say
  };
  // What one leg of a connection that is looked into moves.
  struct LegMeter : Meter {
    LegMeter(Flow& owner, uint64_t& to) : flow(owner), written(to) {}
    size_t room() override;
    void was_read(size_t bytes) override;
    void was_written(size_t bytes) override { written += bytes; }
    Flow& flow;
    uint64_t& written;
    uint64_t read = 0;
  };
  struct Direction {
    Side& from;
    Side& to;
    uint64_t& bytes;
    std::optional<PipePool::Pipe> pipe;
    size_t in_pipe = 0;
    bool ended = false;
    bool much = false;  // came in the last time
  };

  void side_ready(Side& side, uint32_t events);
  void resolved(const Answer& answer);
  void connect_next();
  void connected();
  bool looks_at_hello(const Egress& egress) const;
  bool must_say_name(const Egress& egress) const;
  void inspect();
  Verdict judge_hello(const ClientHello& hello);
  bool refused(const Verdict& verdict, const std::string& address = "");
  void inspected();
  bool send_held();
  bool may_hold();
  void look_at_server();
  bool pass_on_watched();
  bool walk_is_good();
  void moved();
  void pump();
  void pump_inside();
  bool begin_inside();
  void wait_to_let_go();
  void wait_for_value();
  bool take_for_inside(size_t bytes);
  void give_from_inside(size_t bytes);
  bool pump(Direction& direction);
  bool pass_little(Direction& direction, size_t room);
  bool copy(Direction& direction, size_t room);
  void release(Direction& direction);
  void end_if_done();
  void tell();
  void deny(const Verdict& verdict, const std::string& address = "");
  void finish(bool reset);

  Sandbox& sandbox_;
  std::shared_ptr<const Egress> egress_;
  Address asked_;
  uint16_t port_;
  std::string name_;         // empty: a literal address
  std::string server_name_;  // that TLS asked for there
  Side client_{*this}, server_{*this};
  uint64_t up_bytes_ = 0, down_bytes_ = 0;
  Direction up_{.from = client_, .to = server_, .bytes = up_bytes_},
      down_{.from = server_, .to = client_, .bytes = down_bytes_};
  std::vector<Address> candidates_;  // in reverse: the next one is at the back
  Address to_;                       // the real one
  std::optional<Address> own_;       // one of them that is the host's, and named by a rule
  Verdict verdict_;
  Reason hello_problem_ = Reason::allowed;    // where the policy only learns
  std::unique_ptr<ClientHelloReader> hello_;  // while the first bytes are judged
  std::unique_ptr<HelloWalk> walk_;           // after that, while another hello could follow
  FirstLine first_line_;                      // of one in clear that is guarded
  std::string held_;                          // the client's first bytes
  size_t attempts_ = 0;                       // to connect
  size_t charged_ = 0;                        // for them, in the sandbox's share
  std::optional<Loop::TimerId> timer_;        // of the attempt to connect; of bytes that wait (wait_to_let_go)
  bool connected_ = false, inspecting_ = false, verified_ = false, narrow_ = false;
  bool intercepts_ = false, cleartext_ = false;  // looked into; and it is not TLS
  bool guards_placeholders_ = false;             // looked into if it turns out to be HTTP in clear
  bool guards_tls_ = false;                      // … or TLS
  std::vector<std::string> protocols_;           // that TLS offered
  LegMeter client_meter_{*this, down_bytes_}, server_meter_{*this, up_bytes_};
  std::unique_ptr<Interception> inside_;
  size_t inside_bytes_ = 0;  // in the sandbox's share
  bool told_ = false, denied_ = false, done_ = false;
  uint64_t told_up_ = 0, told_down_ = 0;  // in events
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace isola::gate
