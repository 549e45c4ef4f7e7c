#include "gate/gate.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <deque>
#include <map>

#include "base/log.h"
#include "gate/confine.h"
#include "gate/control.h"
#include "gate/sandbox.h"
#include "gate/scan_channel.h"
#include "kernel/process.h"

namespace isola::gate {

namespace {

constexpr auto kTick = std::chrono::seconds(1);
constexpr auto kYoungLimit = std::chrono::seconds(30), kIdleLimit = std::chrono::seconds(3600);
constexpr size_t kEventsLittle = 64;
constexpr size_t kMostScanChannels = 1024;  // a server has one for each worker
constexpr size_t kDescriptorsPerSandbox = 6;
constexpr size_t kDescriptorsReserved = 64 + 2 * PipePool::kIdle;

class Gate {
 public:
  Gate(Loop& loop, Upstream& upstream, OwnAddresses& own, TlsSetup& tls, GateOptions options, size_t descriptors)
      : loop_(loop),
        control_(std::move(options.control)),
        handler_([this](uint32_t events) { control_ready(events); }),
        shared_{.loop = loop,
                .upstream = upstream,
                .own_addresses = own,
                .sink = [this](const Event& event) { tell(event); },
                .tls = tls,
                .want = [this](const std::string& id) { want(id); }},
        tell_after_(options.tell_after),
        events_most_(options.events_most),
        descriptors_(descriptors) {
    share_descriptors();
  }

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
    if (op == ControlOp::key) vault::wipe(message->bytes);
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
        ISOLA_TRY(auto sandbox, Sandbox::make(shared_, request.id, std::move(sockets),
                                              {std::move(egress), request.bindings, request.past, request.birth,
                                               request.incomplete}));
        sandboxes_[request.id] = std::move(sandbox);
        share_descriptors();
        return "";
      }
      case ControlOp::policy: {
        SetPolicy request;
        decode(in, request);
        if (!in.done()) break;
        ISOLA_TRY(auto egress, read_egress(request.policy, request.ceiling));
        ISOLA_TRY(Sandbox * sandbox, find(request.id));
        return sandbox->set_terms(std::move(egress), request.bindings, request.cut, request.incomplete);
      }
      case ControlOp::remove: {
        std::string id = in.str();
        if (!in.done()) break;
        sandboxes_.erase(id);
        share_descriptors();
        // Whoever asked for this listens to it until he has the answer.
        if (auto line = lines_.find(id); line != lines_.end()) {
          if (line->second.lost.count > 0) send(line->second.lost.take(id));
          if (line->second.waiting.used() == 0) lines_.erase(line);
        }
        return "";
      }
      case ControlOp::report: {
        std::string id = in.str();
        if (!in.done()) break;
        ISOLA_TRY(Sandbox * sandbox, find(id));
        return sandbox->report();
      }
      case ControlOp::key: {
        vault::Secret key(in.view());
        if (!in.done()) break;
        ISOLA_TRY(shared_.key, vault::KeyPair::from(std::move(key)));
        for (auto& [id, sandbox] : sandboxes_) sandbox->key_came();
        return "";
      }
      case ControlOp::scan: {
        if (!in.done() || fds.size() != 1) break;
        ISOLA_CHECK(take_scan_channel(std::move(fds[0])));
        return "";
      }
      case ControlOp::certificate: {
        std::string id = in.str();
        if (!in.done()) break;
        ISOLA_TRY(Sandbox * sandbox, find(id));
        ISOLA_TRY(Authority * authority, sandbox->authority());
        return authority->pem();
      }
    }
    return fail(Code::corrupt, "unreadable request");
  }

  Result<Sandbox*> find(const std::string& id) {
    auto it = sandboxes_.find(id);
    if (it == sandboxes_.end()) return fail(Code::not_found, "the gate knows no sandbox " + id);
    return it->second.get();
  }

  Result<void> take_scan_channel(Fd socket) {
    if (scans_.size() >= kMostScanChannels) return fail(Code::exhausted, "too many pass streams to the gate");
    auto find_searches = [this](const std::string& id) -> std::shared_ptr<const Searches> {
      auto it = sandboxes_.find(id);
      return it == sandboxes_.end() ? nullptr : it->second->searches();
    };
    auto closed = [this](ScanChannel& channel) {
      auto it = std::ranges::find_if(scans_, [&](const auto& one) { return one.get() == &channel; });
      if (it == scans_.end()) return;
      loop_.retire(std::move(*it));
      scans_.erase(it);
    };
    ISOLA_TRY(auto channel, ScanChannel::make(loop_, std::move(socket), std::move(find_searches), std::move(closed)));
    scans_.push_back(std::move(channel));
    return {};
  }

  // A connection takes two, and so does a pipe; the sockets of the sandboxes come first.
  void share_descriptors() {
    size_t pipes = std::min(PipePool::kMost, descriptors_ / 8);
    shared_.pipes_used.size = pipes, shared_.pipes_used.reserve = pipes / 4;
    size_t taken = kDescriptorsReserved + 2 * pipes + kDescriptorsPerSandbox * sandboxes_.size();
    size_t flows = descriptors_ > taken ? (descriptors_ - taken) / 2 : 0;
    shared_.flows.size = std::max<size_t>(flows, 8);
    shared_.flows.reserve = shared_.flows.size / 4;
  }

  // ---- to the launcher ----
  // Events of one sandbox that wait to be read, and those that found no room.
  struct Line {
    Line(Pool& pool, size_t most) : waiting(pool, {.little = kEventsLittle, .most = most}) {}
    Share waiting;
    Lost lost;
  };

  void tell(const Event& event) {
    auto& line = lines_.try_emplace(event.sandbox, events_, events_most_).first->second;
    if (line.waiting.take())
      send(event, event.sandbox);
    else
      line.lost.add(event);
  }
  // `told`: whose place in the line is free again when it is read; empty: it took none.
  void send(const Event& event, const std::string& told = "") {
    Writer out;
    out.u8(1);
    encode(out, event);
    send(out.take(), told);
  }
  // Values that do not last: the launcher has them made.
  void want(const std::string& id) {
    Writer out;
    out.u8(2);
    out.str(id);
    send(out.take());
  }
  void tell_lost() {
    for (auto it = lines_.begin(); it != lines_.end();) {
      auto& [sandbox, line] = *it++;
      if (line.lost.count > 0 && line.waiting.take()) send(line.lost.take(sandbox), sandbox);
    }
  }
  void was_told(const std::string& sandbox) {
    auto line = lines_.find(sandbox);
    if (line == lines_.end()) return;
    line->second.waiting.give_back();
    if (line->second.waiting.used() == 0 && line->second.lost.count == 0) lines_.erase(line);
  }

  void send(std::string message, std::string sandbox = "") {
    queue_.push_back({std::move(message), std::move(sandbox)});
    if (queue_.size() == 1) flush();
  }

  void flush() {
    while (!queue_.empty()) {
      auto sent = kernel::send_message(control_.get(), queue_.front().bytes);
      if (!sent && sent.error().sys_errno == EAGAIN) break;
      if (!sent) return loop_.stop();
      if (!queue_.front().sandbox.empty()) was_told(queue_.front().sandbox);
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
    auto& untold = shared_.untold;
    while (!untold.empty() && loop_.now() - *untold.front()->untold_since >= tell_after_) untold.front()->tell_bytes();
    for (auto& [id, sandbox] : sandboxes_) sandbox->flush_events();
    tell_lost();
    loop_.after(kTick, [this] { tick(); });
  }
  void expire(std::list<Flow*>& flows, Clock::duration limit) {
    while (!flows.empty() && loop_.now() - flows.front()->since > limit) flows.front()->expire();
  }

  Loop& loop_;
  Fd control_;
  Callback handler_;
  Shared shared_;
  Clock::duration tell_after_;
  size_t events_most_;
  size_t descriptors_;
  struct Outgoing {
    std::string bytes;
    std::string sandbox;  // whose event it is; empty: an answer
  };
  std::deque<Outgoing> queue_;
  Pool events_{.size = 8192, .reserve = 2048};
  std::map<std::string, Line> lines_;
  bool waits_for_room_ = false;
  std::vector<std::unique_ptr<ScanChannel>> scans_;
  std::map<std::string, std::unique_ptr<Sandbox>> sandboxes_;  // last: they still have something to tell when they go
};

// As many as there may be: whoever started us need not have needed as many.
Result<size_t> all_descriptors() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) < 0) return sys_error("cannot read the limit of descriptors");
  files.rlim_cur = files.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &files) < 0) return sys_error("cannot raise the limit of descriptors");
  return static_cast<size_t>(files.rlim_cur);
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
  ISOLA_TRY(auto own, OwnAddresses::open());
  ISOLA_TRY(size_t descriptors, all_descriptors());
  ISOLA_TRY(auto tls, TlsSetup::open(options.authorities));
  if (options.confine) ISOLA_CHECK(confine(options.user));
  Gate gate(loop, *upstream, own, tls, std::move(options), descriptors);
  ISOLA_CHECK(gate.start());
  return loop.run();
}

}  // namespace isola::gate
