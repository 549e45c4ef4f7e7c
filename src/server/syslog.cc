#include "server/syslog.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <ctime>
#include <memory>

#include "base/file.h"
#include "base/light_file.h"
#include "base/log.h"
#include "ledger/export.h"

namespace isola::server {

namespace {

constexpr size_t kPortion = 256;
constexpr int kPatienceMillis = 10'000;
constexpr auto kRetryLeast = std::chrono::seconds(1), kRetryMost = std::chrono::seconds(30);

std::string moment(int64_t ms) {
  time_t seconds = ms / 1000;
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  size_t n = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(text, n), ms % 1000);
}

bool is_warning(ledger::Kind kind) {
  using ledger::Kind;
  return kind == Kind::egress_denied || kind == Kind::egress_lost || kind == Kind::secret_denied ||
         kind == Kind::scan_hit || kind == Kind::prove_failed || kind == Kind::ledger_gap ||
         kind == Kind::gate_restarted || kind == Kind::ledger_lost;
}

Result<Fd> connect_local(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX};
  if (path.size() >= sizeof address.sun_path) return fail(Code::invalid, "the path of the syslog socket is too long");
  path.copy(address.sun_path, path.size());
  for (int type : {SOCK_DGRAM, SOCK_STREAM}) {
    Fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    if (socket && ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return socket;
    if (errno != EPROTOTYPE) break;
  }
  return sys_error("cannot reach the syslog at " + path);
}

Result<Fd> connect_far(const SyslogTarget& target) {
  addrinfo hints{.ai_socktype = target.way == SyslogTarget::Way::udp ? SOCK_DGRAM : SOCK_STREAM};
  addrinfo* found = nullptr;
  if (int error = ::getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found); error != 0)
    return fail(Code::unavailable, "cannot find the syslog " + target.host + ": " + ::gai_strerror(error));
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, ::freeaddrinfo);
  for (addrinfo* one = found; one; one = one->ai_next) {
    Fd socket(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
    timeval patience{.tv_sec = kPatienceMillis / 1000};
    if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (socket && ::connect(socket.get(), one->ai_addr, one->ai_addrlen) == 0) return socket;
  }
  return sys_error("cannot reach the syslog " + target.host + ":" + target.port);
}

}  // namespace

Result<SyslogTarget> parse_syslog(std::string_view text) {
  auto bad = [&] { return fail(Code::invalid, "must be unix:PATH, udp:HOST:PORT or tcp:HOST:PORT"); };
  size_t colon = text.find(':');
  if (colon == std::string_view::npos) return bad();
  std::string_view way = text.substr(0, colon), rest = text.substr(colon + 1);
  if (way == "unix") {
    if (!rest.starts_with('/')) return bad();
    return SyslogTarget{SyslogTarget::Way::local, std::string(rest), ""};
  }
  if (way != "udp" && way != "tcp") return bad();
  size_t last = rest.rfind(':');
  if (last == std::string_view::npos || last == 0) return bad();
  std::string_view host = rest.substr(0, last), port = rest.substr(last + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  uint16_t number = 0;
  auto [at, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || at != port.data() + port.size() || number == 0) return bad();
  return SyslogTarget{way == "udp" ? SyslogTarget::Way::udp : SyslogTarget::Way::tcp, std::string(host),
                      std::string(port)};
}

std::string to_syslog(const ledger::Event& event, std::string_view host, int pid) {
  constexpr int kAudit = 13, kWarning = 4, kInformational = 6;
  int priority = kAudit * 8 + (is_warning(event.kind) ? kWarning : kInformational);
  return fmt::format("<{}>1 {} {} isola {} {} - {}", priority, moment(event.time), host.empty() ? "-" : host, pid,
                     to_string(event.kind), ledger::to_json_line(event));
}

SyslogExporter::SyslogExporter(SyslogTarget target, std::string position_file)
    : target_(std::move(target)), position_file_(std::move(position_file)) {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) == 0) host_ = name;
}

SyslogExporter::~SyslogExporter() { stop(); }

void SyslogExporter::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SyslogExporter::start(Read read, uint64_t newest) {
  read_ = std::move(read);
  {
    std::lock_guard lock(mutex_);
    newest_ = std::max(newest_, newest);
    position_ = newest;
    if (auto text = read_file(position_file_, 64))
      std::from_chars(text->data(), text->data() + text->size(), position_);
    else
      (void)replace_file_lightly(position_file_, std::to_string(newest) + "\n", 0600);
  }
  thread_ = std::thread([this] { run(); });
}

void SyslogExporter::written(uint64_t newest) {
  {
    std::lock_guard lock(mutex_);
    newest_ = std::max(newest_, newest);
  }
  wake_.notify_one();
}

uint64_t SyslogExporter::position() const {
  std::lock_guard lock(mutex_);
  return position_;
}

void SyslogExporter::run() {
  auto retry = kRetryLeast;
  bool away = false;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || newest_ > position_; });
      if (stop_) return;
    }
    auto sent = send_some();
    if (sent) {
      if (away) log::info("syslog", "the ledger is told again");
      away = false;
      retry = kRetryLeast;
      continue;
    }
    socket_.reset();
    if (!away) log::error("syslog", "entries of the ledger wait: {}", sent.error().message);
    away = true;
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, retry, [&] { return stop_; });
    retry = std::min<std::chrono::seconds>(retry * 2, kRetryMost);
  }
}

Result<void> SyslogExporter::send_some() {
  if (!socket_) ISOLA_CHECK(connect());
  const uint64_t from = position();
  ISOLA_TRY(auto events, read_(from, kPortion));
  uint64_t reached = from;
  Result<void> sent;
  for (const auto& event : events) {
    // Numbers that are missing at the beginning are in an older file.
    if (reached == from && event.seq > from + 1)
      log::warn("syslog", "entries {} to {} are in an older file and were not told: `isola audit export --after {}`",
                from + 1, event.seq - 1, from);
    sent = send(to_syslog(event, host_, ::getpid()));
    if (!sent) break;
    reached = event.seq;
  }
  {
    std::lock_guard lock(mutex_);
    position_ = events.empty() ? newest_ : reached;
  }
  if (reached != from) ISOLA_CHECK(replace_file_lightly(position_file_, std::to_string(reached) + "\n", 0600));
  return sent;
}

Result<void> SyslogExporter::connect() {
  auto socket = target_.way == SyslogTarget::Way::local ? connect_local(target_.host) : connect_far(target_);
  if (!socket) return std::unexpected(socket.error());
  socket_ = std::move(*socket);
  return {};
}

Result<void> SyslogExporter::send(const std::string& message) {
  int type = SOCK_DGRAM;
  socklen_t size = sizeof type;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_TYPE, &type, &size);
  // A stream needs to know where a message ends (RFC 6587, octet counting); a datagram must not be longer than one.
  constexpr size_t kLongestDatagram = 60'000;
  std::string framed = type == SOCK_STREAM ? fmt::format("{} {}", message.size(), message) : message;
  if (type == SOCK_DGRAM && framed.size() > kLongestDatagram) framed.resize(kLongestDatagram);
  for (size_t done = 0; done < framed.size();) {
    ssize_t n = ::send(socket_.get(), framed.data() + done, framed.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    // Over UDP a refusal is about an earlier message, and the next may arrive.
    if (n < 0 && target_.way == SyslogTarget::Way::udp && errno == ECONNREFUSED) return {};
    if (n < 0) return sys_error("the syslog takes no more");
    if (type == SOCK_DGRAM) break;
    done += static_cast<size_t>(n);
  }
  return {};
}

}  // namespace isola::server
