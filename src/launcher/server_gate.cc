// Requests about the network, answered by the gate's keeper.
#include "base/log.h"
#include "gate/event.h"
#include "launcher/server.h"

namespace isola::launcher {

namespace {
constexpr size_t kMostWaiting = 1024;        // events that a watcher does not read; what comes then is only counted
constexpr size_t kMostUnacknowledged = 512;  // records that are with a server at a time
}  // namespace

void Server::set_gate(GateKeeper& gate, EventSpool& spool) {
  gate_ = &gate;
  spool_ = &spool;
  gate.on_event = [this](const gate::Event& event) { heard_gate(event); };
  gate.on_left = [this](const std::string& sandbox) { cells_.let_go(sandbox); };
}

bool Server::dispatch_gate(OwnerId id, uint32_t tag, Op op, Reader in) {
  if (op != Op::set_policy && op != Op::gate_report && op != Op::gate_events && op != Op::certificate &&
      op != Op::scan_channel && op != Op::revoke && op != Op::gate_ack)
    return false;
  auto refuse = [&](Code code, const char* why) {
    reply(id, tag, fail(code, why));
    return true;
  };
  if (!gate_) return refuse(Code::unsupported, "this launcher has no gate");
  if (op == Op::gate_events) {
    GateWatch watch;
    decode(in, watch);
    if (!in.done()) return refuse(Code::invalid, "unreadable request");
    watch_gate(id, tag, watch);
    return true;
  }
  if (op == Op::gate_ack) {
    uint64_t number = in.u64();
    if (in.done()) acknowledge(id, number);
    return true;
  }
  if (op == Op::scan_channel) {
    if (!in.done()) return refuse(Code::invalid, "unreadable request");
    auto made = gate_->scan_channel();
    std::vector<Fd> ends;
    if (made) ends.push_back(std::move(*made));
    reply(id, tag, made ? Result<std::string>(std::string()) : std::unexpected(made.error()), std::move(ends));
    return true;
  }
  if (op == Op::gate_report || op == Op::certificate) {
    std::string sandbox = in.str();
    if (!in.done()) return refuse(Code::invalid, "unreadable request");
    if (!may_ask_of(id, sandbox)) return refuse(Code::not_found, "there is no such sandbox");
    auto answer = [this, id, tag](const Result<std::string>& result) {
      Writer out;
      if (result) out.str(*result);
      reply(id, tag, result ? Result<std::string>(out.take()) : result);
    };
    op == Op::certificate ? gate_->certificate(sandbox, answer) : gate_->report(sandbox, answer);
    return true;
  }
  if (op == Op::revoke) {
    RevokeRequest request;
    decode(in, request);
    if (!in.done()) return refuse(Code::invalid, "unreadable request");
    if (!may_ask_of(id, request.id)) return refuse(Code::not_found, "there is no such sandbox");
    gate_->revoke(request, [this, id, tag](const Result<std::string>& result) { reply(id, tag, result); });
    return true;
  }
  PolicyRequest request;
  decode(in, request);
  if (!in.done()) return refuse(Code::invalid, "unreadable request");
  if (!may_ask_of(id, request.id)) return refuse(Code::not_found, "there is no such sandbox");
  // There is one writer: what a server has written down must not be changed behind its back.
  if (OwnerId keeper = keeper_of(request.id); keeper && connections_.at(keeper).process != connections_.at(id).process)
    return refuse(Code::denied, "a server keeps this sandbox's network: change it there, with a key of its project");
  gate_->set_policy(request, [this, id, tag](const Result<std::string>& result) {
    Writer out;
    if (result) out.str(*result);
    reply(id, tag, result ? Result<std::string>(out.take()) : result);
  });
  return true;
}

// The connection that hears of the gate and is of the process that has the sandbox.
OwnerId Server::keeper_of(const std::string& sandbox) const {
  auto owner = connections_.find(cells_.owner_of(sandbox));
  if (owner == connections_.end()) return 0;
  for (const auto& [id, watcher] : gate_watchers_)
    if (connections_.at(id).process == owner->second.process) return id;
  return 0;
}

bool Server::has_room(OwnerId id) const {
  auto connection = connections_.find(id);
  return connection != connections_.end() && connection->second.queue.size() < kMostWaiting;
}

void Server::send_gate_event(OwnerId id, const gate::Event& event, uint64_t number) {
  Writer out;
  encode(out, event);
  out.u64(number);
  reply(id, gate_watchers_.at(id).tag, out.take());
}

void Server::heard_gate(const gate::Event& event) {
  // What root runs for itself is in nobody's ledger.
  if (event.sandbox.empty() || cells_.open_to_user(event.sandbox)) {
    spool_->append(event);
    pass_on_records();
  }
  std::vector<OwnerId> ids;  // a reply may end a connection, and with it its watch
  for (const auto& [id, watcher] : gate_watchers_)
    if (id != recorder_ && !event.sandbox.empty() && may_ask_of(id, event.sandbox)) ids.push_back(id);
  for (OwnerId id : ids) {
    auto watcher = gate_watchers_.find(id);
    if (watcher == gate_watchers_.end()) continue;
    if (!has_room(id)) {
      watcher->second.lost.add(event);
      continue;
    }
    if (watcher->second.lost.count > 0) send_gate_event(id, watcher->second.lost.take(""), 0);
    if (gate_watchers_.contains(id)) send_gate_event(id, event, 0);
  }
}

// ---- records --------------------------------------------------------------------------------------------------------

// A server that comes back takes over from the one that it was, whose connection may not be gone yet.
void Server::watch_gate(OwnerId id, uint32_t tag, const GateWatch& watch) {
  gate_watchers_[id] = {tag, {}};
  reply(id, tag, std::string());
  if (!watch.keeps || !gate_watchers_.contains(id)) return;
  if (auto begun = spool_->open(true); !begun) {
    log::error("launcher", "records of the gate cannot be kept: {}", begun.error().message);
    return drop(id);  // it would believe that there are none
  }
  recorder_ = id;
  sent_.clear();
  if (watch.known >= spool_->next_number())
    spool_->skip_to(watch.known);
  else
    spool_->acknowledge(watch.known);
  spool_->rewind();
  pass_on_records();
}

void Server::acknowledge(OwnerId id, uint64_t number) {
  if (id != recorder_) return;
  while (!sent_.empty() && sent_.front() <= number) sent_.pop_front();
  spool_->acknowledge(number);
  pass_on_records();
}

void Server::pass_on_records() {
  while (recorder_ && sent_.size() < kMostUnacknowledged) {
    auto next = spool_->next();
    if (!next) return;
    sent_.push_back(next->number);
    send_gate_event(recorder_, next->event, next->number);  // which may end the connection
  }
}

}  // namespace isola::launcher
