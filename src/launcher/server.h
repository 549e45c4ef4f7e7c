// The launcher's side of the conversation with its clients: accepts, checks who it is, reads requests, writes replies.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cells.h"
#include "launcher/event_loop.h"
#include "launcher/event_spool.h"
#include "launcher/gate_keeper.h"
#include "launcher/protocol.h"

namespace isola::launcher {

class VaultKeeper;

class Server {
 public:
  // `info` is what the launcher says of itself (counts are filled in here).
  Server(EventLoop& loop, Cells& cells, InfoReply info) : loop_(loop), cells_(cells), info_(std::move(info)) {}

  // Without one, requests about the network are refused.
  void set_gate(GateKeeper& gate, EventSpool& spool);
  // Without one, there are no secrets.
  void set_vault(VaultKeeper& vault);
  uid_t user() const { return user_; }
  // The socket belongs to `user`; besides root nobody else is listened to. One who is not root may neither show folders
  // of the host to a sandbox nor end the launcher, and knows nothing of what root runs for itself.
  Result<void> listen(const std::string& path, uid_t user);
  // Another user instead of that one.
  Result<void> admit(uid_t user);
  void send_event(OwnerId owner, const Ended& ended);
  size_t connections() const { return connections_.size(); }
  // A client asked the launcher to go.
  std::function<void(bool end_all)> on_shutdown;
  std::function<void()> on_change;

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<Fd> fds;
  };
  struct Connection {
    Fd socket;
    uid_t user = 0;
    pid_t process = 0;            // who connected; a server may have several connections
    bool waits_for_room = false;  // EPOLLOUT is on
    std::deque<Outgoing> queue;
    size_t queued_bytes = 0;
  };

  Result<void> hear();
  void accept();
  void receive(OwnerId id, uint32_t events);
  void handle(OwnerId id, kernel::Message message);
  void dispatch(OwnerId id, uint32_t tag, Op op, Reader in, std::vector<Fd> fds);
  bool dispatch_gate(OwnerId id, uint32_t tag, Op op, Reader in);
  bool dispatch_vault(OwnerId id, uint32_t tag, Op op, Reader in);
  void rotate_vault(RotatePhase phase, const std::function<void(Result<std::string>)>& answer);
  bool dispatch_images(OwnerId id, uint32_t tag, Op op, Reader in);
  bool dispatch_volumes(OwnerId id, uint32_t tag, Op op, Reader in);
  struct GateWatcher {
    uint32_t tag = 0;
    gate::Lost lost;  // of any sandbox: what was not sent, for one who only looks on
  };
  void heard_gate(const gate::Event& event);
  void send_gate_event(OwnerId id, const gate::Event& event, uint64_t number);
  bool has_room(OwnerId id) const;
  // Whoever owns the sandbox and listens to the gate keeps its policy: a server. 0: nobody does.
  OwnerId keeper_of(const std::string& sandbox) const;
  void watch_gate(OwnerId id, uint32_t tag, const GateWatch& watch);
  void acknowledge(OwnerId id, uint64_t number);
  void pass_on_records();
  void reply(OwnerId id, uint32_t tag, const Result<std::string>& result, std::vector<Fd> fds = {});
  void send(OwnerId id, std::string bytes, std::vector<Fd> fds);
  void flush(OwnerId id);
  void drop(OwnerId id);
  std::string list_page(const std::string& after, bool for_root) const;
  bool may_ask_of(OwnerId id, const std::string& sandbox) const;

  EventLoop& loop_;
  Cells& cells_;
  InfoReply info_;
  GateKeeper* gate_ = nullptr;
  VaultKeeper* vault_ = nullptr;
  std::map<OwnerId, GateWatcher> gate_watchers_;
  EventSpool* spool_ = nullptr;
  OwnerId recorder_ = 0;       // who keeps records; 0: nobody at the moment
  std::deque<uint64_t> sent_;  // to it, and not acknowledged
  Fd socket_;
  std::string path_;
  uid_t user_ = 0;
  OwnerId last_ = 0;
  std::map<OwnerId, Connection> connections_;
};

}  // namespace isola::launcher
