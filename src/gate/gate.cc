#include "gate/gate.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <deque>
#include <map>

#include "base/log.h"
#include "gate/confine.h"
#include "gate/control.h"
#include "gate/sandbox.h"
#include "kernel/process.h"

namespace isola::gate {

namespace {

constexpr auto kTick = std::chrono::seconds(1);
constexpr auto kYoungLimit = std::chrono::seconds(30), kIdleLimit = std::chrono::seconds(3600);
constexpr size_t kMaxQueued = 8192;        // messages that the launcher does not read
constexpr size_t kDescriptorsPerFlow = 6;  // two sockets, two pipes
constexpr size_t kDescriptorsReserved = 64;

class Gate {
 public:
  Gate(Loop& loop, Upstream& upstream, Fd control, size_t max_flows)
      : loop_(loop),
        control_(std::move(control)),
        handler_([this](uint32_t events) { control_ready(events); }),
        shared_{.loop = loop,
                .upstream = upstream,
                .sink = [this](const Event& event) { tell(event); },
                .max_flows = max_flows} {}

  Result<void> start() {
    ISOLA_CHECK(loop_.add(control_.get(), EPOLLIN, handler_));
    tick();
    return {};
  }

 private:
  // ---- from the launcher ----
  void control_ready(uint32_t events) {
    if (events & EPOLLOUT) flush();
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    auto message = kernel::receive_message(control_.get(), kMaxControl);
    if (!message && message.error().sys_errno == EAGAIN) return;
    // Whoever started us is gone, and with it the right to let anything through.
    if (!message || message->bytes.empty()) return loop_.stop();
    Reader in(message->bytes);
    auto op = static_cast<ControlOp>(in.u8());
    uint32_t tag = in.u32();
    auto done =
        in.ok() ? obey(op, in, std::move(message->fds)) : Result<std::string>(fail(Code::corrupt, "unreadable"));
    if (tag == 0) {
      if (!done) log::error("gate", "{}", done.error().message);
      return;
    }
    Writer out;
    out.u8(0);
    out.u32(tag);
    out.u8(done ? 0 : 1);
    out.str(done ? *done : done.error().message);
    send(out.take());
  }

  Result<std::string> obey(ControlOp op, Reader in, std::vector<Fd> fds) {
    switch (op) {
      case ControlOp::add: {
        AddSandbox request;
        decode(in, request);
        if (!in.done()) break;
        ISOLA_TRY(auto egress, read_egress(request.policy, request.ceiling));
        ISOLA_TRY(auto sockets, sockets_from(std::move(fds), request.sockets));
        sandboxes_.erase(request.id);
        auto sandbox = std::make_unique<Sandbox>(shared_, request.id, std::move(sockets), std::move(egress));
        ISOLA_CHECK(sandbox->start());
        sandboxes_[request.id] = std::move(sandbox);
        return "";
      }
      case ControlOp::policy: {
        SetPolicy request;
        decode(in, request);
        if (!in.done()) break;
        ISOLA_TRY(auto egress, read_egress(request.policy, request.ceiling));
        ISOLA_TRY(Sandbox * sandbox, find(request.id));
        sandbox->set_egress(std::move(egress), request.cut);
        return "";
      }
      case ControlOp::remove: {
        std::string id = in.str();
        if (!in.done()) break;
        sandboxes_.erase(id);
        return "";
      }
      case ControlOp::report: {
        std::string id = in.str();
        if (!in.done()) break;
        ISOLA_TRY(Sandbox * sandbox, find(id));
        return sandbox->report();
      }
    }
    return fail(Code::corrupt, "unreadable request");
  }

  Result<Sandbox*> find(const std::string& id) {
    auto it = sandboxes_.find(id);
    if (it == sandboxes_.end()) return fail(Code::not_found, "the gate knows no sandbox " + id);
    return it->second.get();
  }

  // ---- to the launcher ----
  void tell(const Event& event) {
    if (queue_.size() >= kMaxQueued) {
      ++dropped_;
      return;
    }
    Writer out;
    out.u8(1);
    out.u32(std::exchange(dropped_, 0));
    encode(out, event);
    send(out.take());
  }

  void send(std::string message) {
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) flush();
  }

  void flush() {
    while (!queue_.empty()) {
      auto sent = kernel::send_message(control_.get(), queue_.front());
      if (!sent && sent.error().sys_errno == EAGAIN) break;
      if (!sent) return loop_.stop();
      queue_.pop_front();
    }
    bool wants = !queue_.empty();
    if (wants == waits_for_room_) return;
    waits_for_room_ = wants;
    (void)loop_.change(control_.get(), wants ? EPOLLIN | EPOLLOUT : EPOLLIN, handler_);
  }

  // ---- time ----
  void tick() {
    expire(shared_.young, kYoungLimit);
    expire(shared_.old, kIdleLimit);
    loop_.after(kTick, [this] { tick(); });
  }
  void expire(std::list<Flow*>& flows, Clock::duration limit) {
    while (!flows.empty() && loop_.now() - flows.front()->since > limit) flows.front()->expire();
  }

  Loop& loop_;
  Fd control_;
  Callback handler_;
  Shared shared_;
  std::deque<std::string> queue_;
  uint32_t dropped_ = 0;
  bool waits_for_room_ = false;
  std::map<std::string, std::unique_ptr<Sandbox>> sandboxes_;  // last: they still have something to tell when they go
};

size_t flows_that_fit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) < 0) return 64;
  size_t all = static_cast<size_t>(files.rlim_cur);
  return all > 2 * kDescriptorsReserved ? (all - kDescriptorsReserved) / kDescriptorsPerFlow : 8;
}

}  // namespace

Result<void> run_gate(GateOptions options) {
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_NAME, "isola-gate", 0, 0, 0);
  int flags = ::fcntl(options.control.get(), F_GETFL);
  if (flags < 0 || ::fcntl(options.control.get(), F_SETFL, flags | O_NONBLOCK) < 0 ||
      ::fcntl(options.control.get(), F_SETFD, FD_CLOEXEC) < 0)
    return sys_error("the gate has no control socket");
  ISOLA_TRY(Loop loop, Loop::make());
  ISOLA_TRY(auto upstream, make_upstream(loop, options.servers));
  if (options.confine) ISOLA_CHECK(confine(options.user));
  Gate gate(loop, *upstream, std::move(options.control), flows_that_fit());
  ISOLA_CHECK(gate.start());
  return loop.run();
}

}  // namespace isola::gate
