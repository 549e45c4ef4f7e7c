#include "gate/sandbox.h"

#include <linux/netfilter_ipv4.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "gate/dns_stream.h"

// From linux/netfilter_ipv6/ip6_tables.h, which does not go together with the C library's headers.
constexpr int kOriginalDestination6 = 80;

namespace isola::gate {

namespace {

constexpr int kAtOnce = 64;  // connections or datagrams per event: then it is somebody else's turn
constexpr auto kWantPause = std::chrono::milliseconds(500);
constexpr auto kExpiryPause = std::chrono::minutes(1);  // the longest between two looks at what expires
constexpr size_t kMaxStreams = 16;                      // DNS over TCP
constexpr double kSmallestBurst = 128 << 10;
constexpr Share::Quota kFlows{.little = 32}, kHelloBytes{.little = 64 << 10, .most = 4 << 20},
    kInsideBytes{.little = 4 << 20, .most = 96 << 20}, kPipes{.little = 16, .most = PipePool::kMost / 4};

uint32_t random_start() {
  uint32_t out = 0;
  if (::getrandom(&out, sizeof out, 0) != sizeof out)
    out = static_cast<uint32_t>(Clock::now().time_since_epoch().count());
  return out;
}

// Where a redirected connection was going.
std::optional<std::pair<Address, uint16_t>> destination_of(const Fd& fd, bool six) {
  SocketAddress to;
  to.size = sizeof to.storage;
  if (::getsockopt(fd.get(), six ? IPPROTO_IPV6 : IPPROTO_IP, six ? kOriginalDestination6 : SO_ORIGINAL_DST, to.get(),
                   &to.size) < 0)
    return std::nullopt;
  auto address = Address::of(to.get());
  if (!address) return std::nullopt;
  return std::pair(*address, ntohs(reinterpret_cast<const sockaddr_in*>(&to.storage)->sin_port));
}

bool has_closed(const Bindings& bindings) {
  return std::ranges::any_of(bindings.all(), [](const auto& bound) { return bound->closed; });
}

void refuse(Fd fd) {
  linger now{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

}  // namespace

Result<std::unique_ptr<Sandbox>> Sandbox::make(Shared& shared, std::string id, boundary::IslandSockets sockets,
                                               Terms terms) {
  std::string bindings = terms.bindings;
  std::unique_ptr<Sandbox> out(new Sandbox(shared, std::move(id), std::move(sockets), std::move(terms)));
  (void)out->set_bindings(bindings);
  ISOLA_CHECK(out->start());
  return out;
}

Sandbox::Sandbox(Shared& shared, std::string id, boundary::IslandSockets sockets, Terms terms)
    : shared_(shared),
      id_(id),
      sockets_(std::move(sockets)),
      egress_(std::move(terms.egress)),
      past_json_(std::move(terms.past)),
      birth_(std::move(terms.birth)),
      incomplete_(terms.incomplete),
      recorder_(std::move(id), shared.sink),
      resolver_({.upstream = shared.upstream,
                 .now = [this] { return shared_.loop.now(); },
                 .egress = [this] { return egress_; },
                 .denied =
                     [this](const std::string& name, const Verdict& verdict) {
                       record({.kind = Event::Kind::denied,
                               .protocol = Event::Protocol::dns,
                               .name = name,
                               .port = 53,
                               .reason = verdict.reason,
                               .rule = verdict.rule});
                     },
                 .ipv6 = sockets_.tcp6.valid(),
                 .start = random_start(),
                 .pools = &shared.resolver}),
      flow_share_(shared.flows, kFlows),
      hello_bytes_(shared.hello_bytes, kHelloBytes),
      inside_bytes_(shared.inside_bytes, kInsideBytes),
      pipes_(shared.pipes_used, kPipes) {
  apply_limits();
}

Sandbox::~Sandbox() {
  for (auto& [fd, handler] : listeners_) {
    shared_.loop.remove(fd);
    shared_.loop.retire(std::move(handler));
  }
  for (const auto& timer : {tokens_timer_, rest_timer_, expiry_timer_})
    if (timer) shared_.loop.cancel(*timer);
  // Flows and streams refer to us, so they go before us, and no event of this turn may find them.
  while (!flows_.empty()) flows_.begin()->first->stop();
  while (!streams_.empty()) stream_ended(*streams_.begin()->first);
  flush_events(true);
}

Result<void> Sandbox::listen(const Fd& fd, std::function<void()> action) {
  if (!fd) return {};
  auto handler = std::make_unique<Callback>([action = std::move(action)](uint32_t) { action(); });
  ISOLA_CHECK(shared_.loop.add(fd.get(), EPOLLIN, *handler));
  listeners_.emplace_back(fd.get(), std::move(handler));
  return {};
}

Result<void> Sandbox::start() {
  ISOLA_CHECK(sockets_.start_answering());
  // What is accepted has the options of where it was accepted.
  for (const Fd* fd : {&sockets_.tcp4, &sockets_.tcp6}) {
    if (!*fd) continue;
    const int on = 1;
    if (::setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0 ||
        ::setsockopt(fd->get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) < 0)
      return sys_error("cannot prepare the socket for connections");
  }
  ISOLA_CHECK(listen(sockets_.tcp4, [this] { accept(sockets_.tcp4, false); }));
  ISOLA_CHECK(listen(sockets_.tcp6, [this] { accept(sockets_.tcp6, true); }));
  for (const Fd* fd : {&sockets_.dns_udp4, &sockets_.dns_udp6})
    ISOLA_CHECK(listen(*fd, [this, fd] { datagrams(*fd); }));
  for (const Fd* fd : {&sockets_.dns_tcp4, &sockets_.dns_tcp6})
    ISOLA_CHECK(listen(*fd, [this, fd] { accept_dns(*fd); }));
  return {};
}

void Sandbox::apply_limits() {
  limits_ = egress_->limits();
  auto bytes = static_cast<double>(limits_.bytes_per_second);
  bandwidth_.set(bytes, std::max(bytes / 4, kSmallestBurst));
  new_connections_.set(limits_.connections_per_second, std::max(limits_.connections_per_second, 16u));
}

// Once, when there is a key. What an earlier gate had and this one has not is searched for by nobody: then nothing can
// be said of what comes out.
void Sandbox::read_past() {
  if (!shared_.key || past_json_.empty()) return;
  auto past = Bindings::make(std::exchange(past_json_, ""), &*shared_.key);
  if (past) searches_->set(**past);
  if (past && !has_closed(**past)) return;
  past_lost_ = "values that were bound to the sandbox could not be opened";
  log::error("gate", "{}: {}{}", id_, past_lost_, past ? "" : ": " + past.error().message);
}

std::string Sandbox::set_bindings(const std::string& json) {
  bindings_json_ = json;
  auto made = Bindings::make(json, shared_.key ? &*shared_.key : nullptr);
  bindings_ = made ? std::move(*made) : std::make_shared<const Bindings>();
  read_past();
  searches_->set(*bindings_);
  searches_->set_missing(!made ? made.error().message
                         : has_closed(*bindings_) || incomplete_
                             ? "values that are bound to the sandbox could not be opened"
                         : !past_json_.empty() ? "the vault's key is not here yet"
                                               : past_lost_);
  watch_expiry();
  if (made) return "";
  log::error("gate", "{} goes without its bindings: {}", id_, made.error().message);
  return made.error().message;
}

// Nobody has to say so: connections that a credential went out on do not outlive it, whoever else runs.
void Sandbox::watch_expiry() {
  if (expiry_timer_) shared_.loop.cancel(*std::exchange(expiry_timer_, std::nullopt));
  const int64_t now = milliseconds_now();
  int64_t next = 0;
  for (const auto& bound : bindings_->all())
    if (bound->binding.expires > now && (next == 0 || bound->binding.expires < next)) next = bound->binding.expires;
  if (next == 0) return;
  // The machine's clock may be set meanwhile.
  const auto pause = std::min<Clock::duration>(std::chrono::milliseconds(next - now), kExpiryPause);
  expiry_timer_ = shared_.loop.after(pause, [this] {
    expiry_timer_.reset();
    watch_expiry();
    tell_flows();
  });
}

void Sandbox::tell_flows() {
  std::vector<Flow*> all;
  for (auto& [flow, owned] : flows_) all.push_back(flow);
  for (auto* flow : all) flow->bindings_changed();
}

void Sandbox::key_came() { (void)set_bindings(std::string(bindings_json_)); }

std::string Sandbox::set_terms(std::shared_ptr<const Egress> egress, const std::string& bindings, bool cut,
                               bool incomplete) {
  // What was complete once stays so: what is missing since then is still searched for as it was.
  const bool completed = incomplete_ && !incomplete;
  incomplete_ = incomplete_ && incomplete;
  const bool others = completed || bindings != bindings_json_;
  egress_ = std::move(egress);
  apply_limits();
  const std::string trouble = others ? set_bindings(bindings) : "";
  tokens_came();
  if (others) tell_flows();
  if (!cut) return trouble;
  std::vector<Flow*> all;
  for (auto& [flow, owned] : flows_) all.push_back(flow);
  // Flows that ended just now are still there until the turn is over, and do nothing any more.
  for (auto* flow : all)
    if (flows_.contains(flow)) flow->judge_again();
  return trouble;
}

void Sandbox::record(Event event) {
  searches_->blot(event);
  recorder_.record(std::move(event), shared_.loop.now());
}

// Every request asks until there is one: once in a while is enough.
void Sandbox::want_values() {
  const auto now = shared_.loop.now();
  if (wanted_ != Clock::time_point{} && now - wanted_ < kWantPause) return;
  wanted_ = now;
  if (shared_.want) shared_.want(id_);
}

Result<Authority*> Sandbox::authority() {
  if (!authority_) {
    if (!shared_.key) return fail(Code::unavailable, "the vault's key is not here yet");
    auto seed = shared_.key->derive("sandbox-ca", id_ + birth_);
    ISOLA_TRY(authority_, Authority::make(seed.view(), id_));
  }
  return &*authority_;
}

// ---- connections ----------------------------------------------------------------------------------------------------

void Sandbox::accept(const Fd& listener, bool six) {
  // One, as asking for more than there are is not cheap; more and more of them where they keep coming.
  at_once_ =
      shared_.loop.turn() - std::exchange(accepted_, shared_.loop.turn()) <= 1 ? std::min(2 * at_once_, kAtOnce) : 1;
  for (int i = 0; i < at_once_; ++i) {
    Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!client) return errno == EAGAIN ? void() : rest();
    auto to = destination_of(client, six);
    if (!to) {  // not redirected: nobody may dial the gate itself
      refuse(std::move(client));
      continue;
    }
    auto reason = Reason::allowed;
    if (!new_connections_.take(shared_.loop.now())) reason = Reason::too_fast;
    if (flows_.size() >= limits_.connections || !flow_share_.may_take()) reason = Reason::too_many_connections;
    if (reason != Reason::allowed) {
      auto* entry = resolver_.names().behind(to->first);
      record({.kind = Event::Kind::denied,
              .name = entry ? entry->name : "",
              .address = entry ? "" : to->first.text(),
              .port = to->second,
              .reason = reason});
      refuse(std::move(client));
      continue;
    }
    auto owned = std::make_unique<Flow>(*this, std::move(client), to->first, to->second);
    Flow& flow = *owned;
    flows_[&flow] = std::move(owned);
    (void)flow_share_.take();
    flow.since = shared_.loop.now();
    flow.place = shared_.young.insert(shared_.young.end(), &flow);
    flow.start();
  }
}

// No descriptors or no memory for another connection: asking again at once would only burn time.
void Sandbox::rest() {
  if (rest_timer_) return;
  for (auto& [fd, handler] : listeners_) (void)shared_.loop.change(fd, 0, *handler);
  rest_timer_ = shared_.loop.after(std::chrono::milliseconds(100), [this] {
    rest_timer_.reset();
    for (auto& [fd, handler] : listeners_) (void)shared_.loop.change(fd, EPOLLIN, *handler);
  });
}

void Sandbox::is_young(Flow& flow) {
  if (flow.young) return;
  flow.young = true;
  flow.since = shared_.loop.now();
  shared_.young.splice(shared_.young.end(), shared_.old, flow.place);
}

void Sandbox::grown_up(Flow& flow) {
  if (!flow.young) return;
  flow.young = false;
  flow.since = shared_.loop.now();
  shared_.old.splice(shared_.old.end(), shared_.young, flow.place);
}

void Sandbox::active(Flow& flow) {
  // To the second is good enough, and most calls end here.
  if (flow.young || shared_.loop.now() - flow.since < std::chrono::seconds(1)) return;
  flow.since = shared_.loop.now();
  shared_.old.splice(shared_.old.end(), shared_.old, flow.place);
}

void Sandbox::flow_ended(Flow& flow) {
  (flow.young ? shared_.young : shared_.old).erase(flow.place);
  if (flow.waits_for_tokens) std::erase(waiting_, &flow);
  auto it = flows_.find(&flow);
  auto owned = std::move(it->second);
  flows_.erase(it);
  flow_share_.give_back();
  shared_.loop.retire(std::move(owned));
}

void Sandbox::wait_for_tokens(Flow& flow) {
  if (!std::exchange(flow.waits_for_tokens, true)) waiting_.push_back(&flow);
  if (tokens_timer_) return;
  // Some at a time: a flow that woke for every byte would cost more than it brings.
  double wanted = std::max(1.0, std::min<double>(static_cast<double>(limits_.bytes_per_second) / 50, 64 << 10));
  tokens_timer_ = shared_.loop.after(bandwidth_.until(wanted) + std::chrono::milliseconds(1), [this] {
    tokens_timer_.reset();
    tokens_came();
  });
}

void Sandbox::tokens_came() {
  // Going round: whoever got nothing this time is first the next.
  for (auto* flow : std::exchange(waiting_, {})) {
    flow->waits_for_tokens = false;
    shared_.loop.again(*flow);
  }
}

std::optional<PipePool::Pipe> Sandbox::take_pipe() {
  if (!pipes_.take()) return std::nullopt;
  if (auto pipe = shared_.pipes.take()) return std::move(*pipe);
  pipes_.give_back();
  return std::nullopt;
}

void Sandbox::give_pipe_back(std::optional<PipePool::Pipe> pipe) {
  if (pipe) shared_.pipes.give_back(std::move(*pipe));
  pipes_.give_back();
}

// ---- DNS ------------------------------------------------------------------------------------------------------------

void Sandbox::datagrams(const Fd& socket) {
  char buffer[2048];
  for (int i = 0; i < kAtOnce; ++i) {
    SocketAddress from;
    from.size = sizeof from.storage;
    ssize_t n = ::recvfrom(socket.get(), buffer, sizeof buffer, MSG_TRUNC, from.get(), &from.size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    if (static_cast<size_t>(n) > sizeof buffer) continue;
    resolver_.answer(std::string_view(buffer, static_cast<size_t>(n)),
                     [fd = socket.get(), from, alive = std::weak_ptr(alive_)](const std::string& reply) {
                       if (alive.expired() || reply.empty()) return;
                       (void)::sendto(fd, reply.data(), reply.size(), MSG_DONTWAIT | MSG_NOSIGNAL, from.get(),
                                      from.size);
                     });
  }
}

void Sandbox::accept_dns(const Fd& listener) {
  for (int i = 0; i < kAtOnce; ++i) {
    Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!client) return errno == EAGAIN ? void() : rest();
    auto reason = Reason::allowed;
    if (!new_connections_.take(shared_.loop.now())) reason = Reason::too_fast;
    if (streams_.size() >= kMaxStreams || !flow_share_.may_take()) reason = Reason::too_many_connections;
    if (reason != Reason::allowed) {
      record({.kind = Event::Kind::denied,
              .protocol = Event::Protocol::dns,
              .address = boundary::kOwnAddress4,
              .port = 53,
              .reason = reason});
      refuse(std::move(client));
      continue;
    }
    auto stream = std::make_unique<DnsStream>(*this, std::move(client));
    DnsStream& raw = *stream;
    streams_[&raw] = std::move(stream);
    (void)flow_share_.take();
    if (!raw.start()) stream_ended(raw);
  }
}

void Sandbox::stream_ended(DnsStream& stream) {
  auto it = streams_.find(&stream);
  if (it == streams_.end()) return;
  auto owned = std::move(it->second);
  streams_.erase(it);
  flow_share_.give_back();
  owned->close();
  shared_.loop.retire(std::move(owned));
}

}  // namespace isola::gate
