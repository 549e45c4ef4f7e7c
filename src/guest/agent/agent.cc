#include "guest/agent/agent.h"

#include <sys/utsname.h>

#include <algorithm>

#include "base/ids.h"
#include "guest/agent/files.h"
#include "guest/agent/net.h"
#include "guest/agent/procfs.h"
#include "guest/agent/watch.h"

namespace isola::guest {

namespace {

class BulkChannel : public Channel {
 public:
  explicit BulkChannel(std::string bytes) : bytes_(std::move(bytes)) {}
  Step step() override {
    auto part = std::string_view(bytes_).substr(at_, room());
    if (!part.empty()) send(part);
    at_ += part.size();
    if (at_ == bytes_.size()) finish(std::string());
    return part.empty() ? Step::idle : Step::again;
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

// Decodes the arguments and hands them on.
template <typename T, typename F>
Result<Mux::Opened> with(std::string_view args, F use) {
  auto message = decode<T>(args);
  if (!message) return std::unexpected(std::move(message).error());
  return use(*message);
}

std::string domain_name() {
  utsname names{};
  return ::uname(&names) == 0 ? names.domainname : "";
}

}  // namespace

Mux::Opened bulk(std::string bytes) { return {std::make_unique<BulkChannel>(std::move(bytes)), {}}; }

Agent::Agent(std::string sandbox_id)
    : processes_(loop_),
      mux_([this](Op op, std::string_view args) { return open(op, args); }),
      id_(std::move(sandbox_id)),
      domain_(domain_name()) {}

// What was written before was written in another sandbox, of which this one is a copy: it is not replayed here.
void Agent::rename(std::string id) {
  if (!id_.empty() && id != id_) processes_.forget_output();
  id_ = std::move(id);
}

void Agent::next_generation(std::string_view preface) {
  if (std::string now = domain_name(); now != domain_ && is_sandbox_id(now)) rename(domain_ = now);
  mux_.begin(id_, ++generation_, preface);
}

void Agent::round(bool may_wait) {
  if (mux_.channels() == 0) {
    mux_.relax();
    processes_.relax();
    OutputLog::relax();
  }
  loop_.wait(!may_wait || reap_ || mux_.has_ready() ? 0 : processes_.timeout_ms());
  if (reap_) reap_ = processes_.reap();
  processes_.check_deadlines();
  processes_.retire_late();
  mux_.run_ready();
  mux_.sweep();
}

Result<Mux::Opened> Agent::open(Op op, std::string_view args) {
  switch (op) {
    case Op::ping: return done(std::string(args.substr(0, 1024)));
    case Op::configure:
      return with<Configure>(args, [this](Configure& c) -> Result<Mux::Opened> {
        if (!c.id.empty()) rename(c.id.substr(0, 64));
        processes_.set_defaults(std::move(c.env));
        return done();
      });
    case Op::run:
    case Op::run_with_files:
    case Op::run_held:
    case Op::run_whole:
    case Op::start:
    case Op::attach:
    case Op::attach_held:
    case Op::processes:
    case Op::signal:
    case Op::wait:
    case Op::resize: return open_process(op, args);
    case Op::watch:
    case Op::watch_local:
      return with<Watch>(args, [&](Watch& w) { return open_watch(loop_, w, op == Op::watch_local); });
    case Op::dial:
      if (args.size() > sizeof(Dial::port))
        return with<DialPath>(args, [this](DialPath& d) { return open_dial(loop_, d); });
      return with<Dial>(args, [this](Dial& d) { return open_dial(loop_, {.port = d.port, .path = {}}); });
    case Op::ports: return bulk(encode(read_ports()));
    case Op::metrics: return done(encode(read_metrics()));
    case Op::none:
    case Op::quiesce:  // the Mux's own
    case Op::go_on:
    case Op::count_: return fail(Code::unsupported, "this guest does not know that operation");
    default: return open_file(op, args);
  }
}

Result<Mux::Opened> Agent::open_process(Op op, std::string_view args) {
  auto begin = [&](const Start& start, const std::vector<std::string>& files) -> Result<Mux::Opened> {
    ISOLA_TRY(auto process, processes_.start(start, files, op == Op::run_whole));
    Started started{.pid = static_cast<uint32_t>(process->pid())};
    if (op == Op::start) return done(encode(started));
    auto cursor = process->log().seek(0);
    const bool held = op == Op::run_held || op == Op::run_whole;
    auto reads = held ? ReaderChannel::Reads::held : ReaderChannel::Reads::output;
    return Mux::Opened{std::make_unique<ReaderChannel>(std::move(process), cursor, reads),
                       start.announce ? encode(started) : std::string()};
  };
  switch (op) {
    case Op::run:
    case Op::run_held:
    case Op::run_whole:
    case Op::start: return with<Start>(args, [&](const Start& start) { return begin(start, {}); });
    case Op::run_with_files:
      return with<StartWithFiles>(args, [&](const StartWithFiles& with) { return begin(with.start, with.files); });
    case Op::attach:
    case Op::attach_held:
      return with<Attach>(args, [&](const Attach& a) -> Result<Mux::Opened> {
        ISOLA_TRY(auto process, processes_.find(a.pid));
        Started started{.pid = a.pid, .first = process->log().begin()};
        auto cursor = process->log().seek(a.from);
        auto reads = op == Op::attach_held ? ReaderChannel::Reads::held : ReaderChannel::Reads::output;
        return Mux::Opened{std::make_unique<ReaderChannel>(std::move(process), cursor, reads), encode(started)};
      });
    case Op::wait:
      return with<Pid>(args, [&](const Pid& p) -> Result<Mux::Opened> {
        ISOLA_TRY(auto process, processes_.find(p.pid));
        return Mux::Opened{
            std::make_unique<ReaderChannel>(std::move(process), OutputLog::Cursor{}, ReaderChannel::Reads::end), {}};
      });
    case Op::signal:
      return with<Signal>(args, [&](const Signal& s) -> Result<Mux::Opened> {
        ISOLA_TRY(auto process, processes_.find(s.pid));
        ISOLA_CHECK(process->signal(s.signal, s.target));
        return done();
      });
    case Op::resize:
      return with<Resize>(args, [&](const Resize& r) -> Result<Mux::Opened> {
        ISOLA_TRY(auto process, processes_.find(r.pid));
        ISOLA_CHECK(process->resize(r.rows, r.cols));
        return done();
      });
    default: return bulk(encode(processes_.list()));
  }
}

}  // namespace isola::guest
