// Requests about the network, answered by the gate's keeper.
#include "gate/event.h"
#include "launcher/server.h"

namespace isola::launcher {

namespace {
constexpr size_t kMostWaiting = 1024;  // events that a watcher does not read; then they are dropped, and counted
}

void Server::set_gate(GateKeeper& gate) {
  gate_ = &gate;
  gate.on_event = [this](std::string_view event) { send_gate_event(event); };
}

bool Server::dispatch_gate(OwnerId id, uint32_t tag, Op op, Reader in) {
  if (op != Op::set_policy && op != Op::gate_report && op != Op::gate_events) return false;
  auto refuse = [&](Code code, const char* why) {
    reply(id, tag, fail(code, why));
    return true;
  };
  if (!gate_) return refuse(Code::unsupported, "this launcher has no gate");
  if (op == Op::gate_events) {
    if (!in.done()) return refuse(Code::invalid, "unreadable request");
    gate_watchers_[id] = {tag, 0};
    reply(id, tag, std::string());
    return true;
  }
  if (op == Op::gate_report) {
    std::string sandbox = in.str();
    if (!in.done()) return refuse(Code::invalid, "unreadable request");
    if (!may_ask_of(id, sandbox)) return refuse(Code::not_found, "there is no such sandbox");
    gate_->report(sandbox, [this, id, tag](const Result<std::string>& result) {
      Writer out;
      if (result) out.str(*result);
      reply(id, tag, result ? Result<std::string>(out.take()) : result);
    });
    return true;
  }
  PolicyRequest request;
  decode(in, request);
  if (!in.done()) return refuse(Code::invalid, "unreadable request");
  if (!may_ask_of(id, request.id)) return refuse(Code::not_found, "there is no such sandbox");
  gate_->set_policy(request, [this, id, tag](const Result<std::string>& result) {
    reply(id, tag, result ? Result<std::string>("") : result);
  });
  return true;
}

void Server::send_gate_event(std::string_view event) {
  Reader in(event);
  uint32_t dropped_by_gate = in.u32();
  std::string_view rest = in.rest();
  gate::Event read;
  Reader whole(rest);
  decode(whole, read);
  std::vector<OwnerId> ids;  // a reply may end a connection, and with it its watch
  for (const auto& [id, watcher] : gate_watchers_) ids.push_back(id);
  for (OwnerId id : ids) {
    auto it = gate_watchers_.find(id);
    if (it == gate_watchers_.end()) continue;
    auto& [tag, dropped] = it->second;
    dropped += dropped_by_gate;
    auto connection = connections_.find(id);
    if (connection == connections_.end() || !may_ask_of(id, read.sandbox)) continue;
    if (connection->second.queue.size() >= kMostWaiting) {
      ++dropped;
      continue;
    }
    Writer out;
    out.u32(std::exchange(dropped, 0));
    out.bytes(rest);
    reply(id, tag, out.take());
  }
}

}  // namespace isola::launcher
