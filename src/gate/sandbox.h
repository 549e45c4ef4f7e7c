// One sandbox, seen from the gate: its sockets, its policy, its resolver, its flows and its limits.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "boundary/network.h"
#include "gate/flow.h"
#include "gate/recorder.h"
#include "gate/resolver.h"

namespace isola::gate {

// What all sandboxes of a gate share.
struct Shared {
  Loop& loop;
  Upstream& upstream;
  std::function<void(const Event&)> sink;
  size_t max_flows = 10'000;
  PipePool pipes = {};
  size_t flows = 0;
  std::list<Flow*> young, old;  // least recently active first
};

class DnsStream;

class Sandbox {
 public:
  Sandbox(Shared& shared, std::string id, boundary::IslandSockets sockets, std::shared_ptr<const Egress> egress);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  Result<void> start();
  void set_egress(std::shared_ptr<const Egress> egress, bool cut);
  std::string report() const { return recorder_.report(to_text(egress_->policy())); }

  // ---- for its flows ----
  Loop& loop() { return shared_.loop; }
  PipePool& pipes() { return shared_.pipes; }
  Resolver& resolver() { return resolver_; }
  TokenBucket& bandwidth() { return bandwidth_; }
  std::shared_ptr<const Egress> egress() const { return egress_; }
  void record(Event event) { recorder_.record(std::move(event), shared_.loop.now()); }
  void wait_for_tokens(Flow& flow);
  void is_young(Flow& flow);
  void grown_up(Flow& flow);
  void active(Flow& flow);
  void flow_ended(Flow& flow);
  void stream_ended(DnsStream& stream);

 private:
  void accept(const Fd& listener, bool six);
  void rest();
  void accept_dns(const Fd& listener);
  void datagrams(const Fd& socket);
  Result<void> listen(const Fd& fd, std::function<void()> action);
  void apply_limits();
  void tokens_came();

  Shared& shared_;
  std::string id_;
  boundary::IslandSockets sockets_;
  std::shared_ptr<const Egress> egress_;
  Recorder recorder_;
  Resolver resolver_;
  TokenBucket bandwidth_, new_connections_;
  Limits limits_;
  std::vector<std::pair<int, std::unique_ptr<Handler>>> listeners_;
  std::unordered_map<Flow*, std::unique_ptr<Flow>> flows_;
  std::unordered_map<DnsStream*, std::unique_ptr<DnsStream>> streams_;
  std::vector<Flow*> waiting_;  // for tokens
  std::optional<Loop::TimerId> tokens_timer_, rest_timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace isola::gate
