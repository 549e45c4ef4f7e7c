// One sandbox, seen from the gate: its sockets, its policy, its resolver, its flows and its limits.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "boundary/network.h"
#include "gate/flow.h"
#include "gate/own_addresses.h"
#include "gate/recorder.h"
#include "gate/resolver.h"
#include "gate/searches.h"

namespace isola::gate {

// What all sandboxes of a gate share.
struct Shared {
  Loop& loop;
  Upstream& upstream;
  OwnAddresses& own_addresses;
  std::function<void(const Event&)> sink;
  TlsSetup& tls;
  std::function<void(const std::string& id)> want = {};  // values that do not last, of this sandbox's bindings
  std::optional<vault::KeyPair> key = {};                // the vault's, as soon as it is here
  // Each with a part that is only for those who have little (share.h). The gate sets flows by its descriptors.
  Pool flows = {};
  Pool hello_bytes = {.size = 64 << 20, .reserve = 16 << 20};
  Pool inside_bytes = {.size = 512 << 20, .reserve = 128 << 20};
  Pool pipes_used = {.size = PipePool::kMost, .reserve = PipePool::kMost / 4};
  ResolverPools resolver = {};
  PipePool pipes = {};
  std::list<Flow*> young = {}, old = {};  // least recently active first
  std::list<Flow*> untold = {};           // with bytes that no event has told yet, longest first
};

class DnsStream;

class Sandbox : public Premises {
 public:
  static constexpr size_t kWideFlows = 32;  // connections whose buffers in the kernel may grow as they like

  // What it may do, and on whose behalf. `birth`: tells apart two that had the same id.
  struct Terms {
    std::shared_ptr<const Egress> egress;
    std::string bindings;  // as they came
    std::string past;      // those that were revoked before this gate
    std::string birth;
    bool incomplete = false;  // bindings that an earlier gate had are missing
  };
  static Result<std::unique_ptr<Sandbox>> make(Shared& shared, std::string id, boundary::IslandSockets sockets,
                                               Terms terms);
  ~Sandbox() override;
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  Result<void> start();
  // Never refused for the sake of bindings: where they cannot be read it goes without any, and the answer says why.
  std::string set_terms(std::shared_ptr<const Egress> egress, const std::string& bindings, bool cut,
                        bool incomplete = false);
  // The vault's key came: values can be opened.
  void key_came();
  Result<Authority*> authority();
  std::string report() const { return recorder_.report(to_text(egress_->policy())); }

  // ---- for its flows ----
  Loop& loop() { return shared_.loop; }
  Share& hello_bytes() { return hello_bytes_; }
  bool has_many_flows() const { return flows_.size() > kWideFlows; }
  bool is_own(const Address& address) { return shared_.own_addresses.contains(address); }
  // None: it has its share already.
  std::optional<PipePool::Pipe> take_pipe();
  void give_pipe_back(std::optional<PipePool::Pipe> pipe);  // an empty one, or nothing if it had to be thrown away
  std::list<Flow*>& untold() { return shared_.untold; }
  Resolver& resolver() { return resolver_; }
  TokenBucket& bandwidth() { return bandwidth_; }
  Share& inside_bytes() { return inside_bytes_; }
  TlsSetup& tls() { return shared_.tls; }
  std::shared_ptr<const Egress> egress() const override { return egress_; }
  std::shared_ptr<const Bindings> bindings() const override { return bindings_; }
  // What its streams are searched for; still there when it is gone, for those that are open.
  std::shared_ptr<const Searches> searches() const override { return searches_; }
  // Whether a credential goes to this place, or once did: what comes from there is searched.
  bool looks_into(std::string_view name, uint16_t port) const {
    return bindings_->any_for(name, port) || searches_->any_for(name, port);
  }
  void record(Event event) override;
  void want_values() override;
  void flush_events(bool last = false) { recorder_.flush(shared_.loop.now(), last); }
  void wait_for_tokens(Flow& flow);
  void is_young(Flow& flow);
  void grown_up(Flow& flow);
  void active(Flow& flow);
  void flow_ended(Flow& flow);
  void stream_ended(DnsStream& stream);

 private:
  Sandbox(Shared& shared, std::string id, boundary::IslandSockets sockets, Terms terms);
  std::string set_bindings(const std::string& json);
  void accept(const Fd& listener, bool six);
  void rest();
  void accept_dns(const Fd& listener);
  void datagrams(const Fd& socket);
  Result<void> listen(const Fd& fd, std::function<void()> action);
  void apply_limits();
  void tokens_came();
  void tell_flows();
  void read_past();
  void watch_expiry();

  Shared& shared_;
  std::string id_;
  boundary::IslandSockets sockets_;
  std::shared_ptr<const Egress> egress_;
  std::string bindings_json_, past_json_, birth_;
  std::string past_lost_;  // why some of those cannot be searched for; empty: all can
  bool incomplete_ = false;
  std::shared_ptr<const Bindings> bindings_;
  std::shared_ptr<Searches> searches_ = std::make_shared<Searches>();
  std::optional<Authority> authority_;
  Clock::time_point wanted_{};  // when values were asked for last
  Recorder recorder_;
  Resolver resolver_;
  Share flow_share_, hello_bytes_, inside_bytes_, pipes_;
  TokenBucket bandwidth_, new_connections_;
  int at_once_ = 1;        // connections to accept
  uint64_t accepted_ = 0;  // the loop's turn that did
  Limits limits_;
  std::vector<std::pair<int, std::unique_ptr<Handler>>> listeners_;
  std::unordered_map<Flow*, std::unique_ptr<Flow>> flows_;
  std::unordered_map<DnsStream*, std::unique_ptr<DnsStream>> streams_;
  std::vector<Flow*> waiting_;  // for tokens
  std::optional<Loop::TimerId> tokens_timer_, rest_timer_, expiry_timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace isola::gate
