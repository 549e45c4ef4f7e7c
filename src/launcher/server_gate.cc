// Requests about the network, answered by the gate's keeper.
#include "gate/event.h"
#include "launcher/server.h"

namespace isola::launcher {

namespace {
constexpr size_t kMostWaiting = 1024;  // events that a watcher does not read; what comes then is only counted
constexpr auto kTellLost = std::chrono::seconds(1);
}  // namespace

void Server::set_gate(GateKeeper& gate) {
  gate_ = &gate;
  gate.on_event = [this](const gate::Event& event) { heard_gate(event); };
  gate.on_left = [this](const std::string& sandbox) {
    // The last word of it, which cannot wait for room.
    auto lost = gate_->take_lost(sandbox);
    OwnerId keeper = keeper_of(sandbox);
    if (lost && keeper) send_gate_event(keeper, *lost, true);
    cells_.let_go(sandbox);
  };
}

bool Server::dispatch_gate(OwnerId id, uint32_t tag, Op op, Reader in) {
  if (op != Op::set_policy && op != Op::gate_report && op != Op::gate_events && op != Op::certificate &&
      op != Op::scan_channel && op != Op::revoke)
    return false;
  auto refuse = [&](Code code, const char* why) {
    reply(id, tag, fail(code, why));
    return true;
  };
  if (!gate_) return refuse(Code::unsupported, "this launcher has no gate");
  if (op == Op::gate_events) {
    if (!in.done()) return refuse(Code::invalid, "unreadable request");
    gate_watchers_[id] = {tag, {}};
    reply(id, tag, std::string());
    auto self = connections_.find(id);
    if (self == connections_.end()) return true;  // it was gone before it had its answer
    for (const auto& [other, connection] : connections_)
      if (connection.process == self->second.process)
        for (const auto& sandbox : cells_.owned_by(other)) tell_lost_soon(sandbox);
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

void Server::send_gate_event(OwnerId id, const gate::Event& event, bool keeps) {
  Writer out;
  encode(out, event);
  out.u8(keeps);
  reply(id, gate_watchers_.at(id).tag, out.take());
}

void Server::heard_gate(const gate::Event& event) {
  OwnerId keeper = keeper_of(event.sandbox);
  std::vector<OwnerId> ids;  // a reply may end a connection, and with it its watch
  for (const auto& [id, watcher] : gate_watchers_)
    if (may_ask_of(id, event.sandbox)) ids.push_back(id);
  for (OwnerId id : ids) {
    auto watcher = gate_watchers_.find(id);
    if (watcher == gate_watchers_.end()) continue;
    if (!has_room(id)) {
      if (id == keeper)
        gate_->note_lost(event), tell_lost_soon(event.sandbox);
      else
        watcher->second.lost.add(event);
      continue;
    }
    if (watcher->second.lost.count > 0) send_gate_event(id, watcher->second.lost.take(""), false);
    if (gate_watchers_.contains(id)) send_gate_event(id, event, id == keeper);
  }
  // A server that is away hears at least how much it has missed.
  if (!keeper) gate_->note_lost(event);
}

void Server::tell_lost(const std::string& sandbox) {
  OwnerId keeper = keeper_of(sandbox);
  if (!keeper || !gate_) return;
  if (!has_room(keeper)) return tell_lost_soon(sandbox);
  if (auto lost = gate_->take_lost(sandbox)) send_gate_event(keeper, *lost, true);
}

void Server::tell_lost_soon(const std::string& sandbox) {
  lost_of_.insert(sandbox);
  if (lost_of_.size() > 1) return;
  loop_.after(kTellLost, [this] {
    for (const auto& one : std::exchange(lost_of_, {})) tell_lost(one);
  });
}

}  // namespace isola::launcher
