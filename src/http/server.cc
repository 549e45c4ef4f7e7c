#include "http/server.h"

#include <netinet/tcp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <thread>

#include "base/log.h"
#include "http/connection.h"
#include "http/server_core.h"
#include "http/tls.h"

namespace isola::http {

namespace asio = boost::asio;
using error_code = boost::system::error_code;
using namespace std::chrono_literals;

namespace {

constexpr int kBacklog = 4096;
constexpr size_t kTurnedAway = 64;  // at a time and worker: beyond it a full server only hangs up

// Files, pipes and links need descriptors too: a fifth of them, at least 64, stays free of strangers. And before
// anybody shows a key a connection can hold half a head: all of them together a quarter of the machine's memory at
// most.
size_t connection_limit() {
  constexpr size_t kEach = 64 << 10;
  const size_t memory = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t fit = std::max<size_t>(1024, memory / 4 / kEach);
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur == RLIM_INFINITY) return std::min<size_t>(100'000, fit);
  size_t all = files.rlim_cur;
  return std::min(fit, std::max<size_t>(16, all - std::min(all, std::max<size_t>(64, all / 5))));
}

constexpr int kTries = 20;  // to listen where somebody still does
constexpr auto kPause = 100ms;

std::unexpected<Error> cannot(std::string_view what, const std::string& address, const error_code& ec) {
  return sys_error(fmt::format("cannot {} {}", what, address), ec.value());
}

Result<void> open_listener(Lane::Acceptor& acceptor, const asio::ip::tcp::endpoint& at, bool shared,
                           const std::string& name) {
  error_code ec;
  acceptor.open(at.protocol(), ec);
  if (ec) return cannot("open a socket for", name, ec);
  acceptor.set_option(asio::socket_base::reuse_address(true), ec);
  if (at.protocol() == asio::ip::tcp::v6()) acceptor.set_option(asio::ip::v6_only(true), ec);
  if (shared) {
    acceptor.set_option(asio::detail::socket_option::boolean<SOL_SOCKET, SO_REUSEPORT>(true), ec);
    if (ec) return cannot("share the port of", name, ec);
  }
  acceptor.set_option(asio::ip::tcp::no_delay(true), ec);  // accepted sockets inherit it
  acceptor.bind(at, ec);
  if (ec) return cannot("listen on", name, ec);
  return {};
}

Result<asio::ip::tcp::endpoint> endpoint_of(const std::string& name) {
  ISOLA_TRY(auto where, parse_host_port(name));
  const std::string& host = where.first;
  error_code ec;
  auto address = asio::ip::make_address(host.empty() ? "0.0.0.0" : host == "localhost" ? "127.0.0.1" : host, ec);
  if (ec) return fail(Code::invalid, "an address to listen on is a number such as 127.0.0.1 or [::1], not " + name);
  return asio::ip::tcp::endpoint(address, where.second);
}

// Sockets of one user may share a port without being asked, so a second server would quietly take half of the first
// one's connections. One that shares with nobody finds out.
Result<void> probe(asio::io_context& io, const asio::ip::tcp::endpoint& at, const std::string& name) {
  Lane::Acceptor alone(io);
  ISOLA_CHECK(open_listener(alone, at, false, name));
  if (at.port() == 0) return {};
  error_code ec;
  alone.listen(1, ec);
  if (ec) return cannot("listen on", name, ec);
  return {};
}

// One that was killed a moment ago may not have let go of the address yet.
Result<void> with_patience(const std::function<Result<void>()>& listen) {
  auto listening = listen();
  for (int tries = 1; !listening && listening.error().sys_errno == EADDRINUSE && tries < kTries; ++tries) {
    std::this_thread::sleep_for(kPause);
    listening = listen();
  }
  return listening;
}

}  // namespace

Result<void> may_listen(const std::vector<std::string>& addresses) {
  asio::io_context io;
  for (const std::string& name : addresses) {
    ISOLA_TRY(auto at, endpoint_of(name));
    ISOLA_CHECK(with_patience([&] { return probe(io, at, name); }));
  }
  return {};
}

Server::Server(Workers& workers, ServerOptions options, Router router)
    : core_(std::make_shared<Core>(workers, std::move(options), std::move(router))) {}

Server::~Server() { stop(0ms); }

Result<void> Server::start() {
  Core& core = *core_;
  core.max_connections = core.options.limits.connections ? core.options.limits.connections : connection_limit();
  if (core.options.tls) ISOLA_CHECK(reload_tls());
  for (size_t i = 0; i < core.workers.size(); i++)
    core.lanes.push_back(std::make_unique<Lane>(core.workers[i], core.options.access_log));

  Core::Acceptors acceptors;
  for (const std::string& name : core.options.listen) {
    ISOLA_TRY(auto at, endpoint_of(name));
    ISOLA_CHECK(with_patience([&] { return core.listen(at, name, acceptors); }));
    auto address = at.address();
    core.addresses.push_back(address.is_v6() ? fmt::format("[{}]:{}", address.to_string(), at.port())
                                             : fmt::format("{}:{}", address.to_string(), at.port()));
    if (core.first_port == 0) core.first_port = at.port();
  }
  core.started = true;
  for (auto& [lane, acceptor] : acceptors) {
    asio::co_spawn(lane->io, Core::accept(core_, *lane, std::move(acceptor)), asio::detached);
  }
  return {};
}

Result<void> Server::Core::listen(asio::ip::tcp::endpoint& at, const std::string& name, Acceptors& all) {
  ISOLA_CHECK(probe(workers[0], at, name));
  error_code ec;
  Acceptors opened;
  for (auto& lane : lanes) {
    auto acceptor = std::make_unique<Lane::Acceptor>(lane->io);
    ISOLA_CHECK(open_listener(*acceptor, at, true, name));
    if (at.port() == 0) at = acceptor->local_endpoint(ec);
    acceptor->listen(kBacklog, ec);
    if (ec) return cannot("listen on", name, ec);
    opened.emplace_back(lane.get(), std::move(acceptor));
  }
  for (auto& one : opened) all.push_back(std::move(one));
  return {};
}

Task<void> Server::Core::accept(std::shared_ptr<Core> core, Lane& lane, std::unique_ptr<Lane::Acceptor> acceptor) {
  if (lane.stopping) co_return;
  lane.acceptors.push_back(acceptor.get());
  while (!lane.stopping) {
    Transport::Socket socket(lane.io);
    auto [ec] = co_await acceptor->async_accept(socket, kUse);
    if (lane.stopping) break;
    if (ec == asio::error::no_descriptors || ec == asio::error::no_memory || ec == asio::error::no_buffer_space) {
      // Trying again at once would fail at once. Somebody has to go first.
      log::warn("http", "cannot accept a connection: {}", ec.message());
      asio::steady_timer pause(lane.io, 100ms);
      co_await pause.async_wait(kUse);
      continue;
    }
    if (ec) continue;
    try {
      bool full = core->connections >= core->max_connections;
      auto connection = std::make_shared<Connection>(core, lane, std::move(socket));
      if (!full) {
        asio::co_spawn(lane.io, Connection::run(std::move(connection)), asio::detached);
      } else if (lane.turned_away < kTurnedAway) {
        asio::co_spawn(lane.io, Connection::turn_away(std::move(connection)), asio::detached);
      }
    } catch (const std::exception& e) {
      log::error("http", "cannot serve a connection: {}", e.what());  // no memory: this one goes, the listener stays
    }
  }
  std::erase(lane.acceptors, acceptor.get());
}

std::vector<std::string> Server::addresses() const { return core_->addresses; }
uint16_t Server::port() const { return core_->first_port; }
size_t Server::connections() const { return core_->connections; }
const Router& Server::router() const { return core_->router; }

Result<void> Server::reload_tls() {
  if (!core_->options.tls) return fail(Code::unsupported, "this server speaks no TLS");
  ISOLA_TRY(auto context, server_tls(*core_->options.tls));
  std::lock_guard lock(core_->mutex);
  core_->tls = std::move(context);
  return {};
}

void Server::cut_if(std::function<bool(const Exchange&)> which) {
  if (!core_->started || core_->stopped) return;
  for (auto& lane : core_->lanes) {
    asio::post(lane->io, [core = core_, lane = lane.get(), which] {
      auto all = lane->connections;
      for (Connection* connection : all)
        if (const Exchange* now = connection->exchange(); now && which(*now)) connection->cut();
    });
  }
}

void Server::stop(std::chrono::milliseconds grace) {
  Core& core = *core_;
  if (!core.started || core.stopped) return;
  core.stopped = true;
  auto on_lanes = [&](auto job) {
    for (auto& lane : core.lanes) {
      // The core stays for as long as the job waits.
      asio::post(lane->io, [core = core_, lane = lane.get(), job] { job(*lane); });
    }
  };
  auto wait = [&](std::chrono::milliseconds time) {
    std::unique_lock lock(core.mutex);
    return core.empty.wait_for(lock, time, [&] { return core.connections == 0; });
  };
  core.connections += core.lanes.size();  // whoever still listens may still get one
  on_lanes([&core](Lane& lane) {
    lane.stopping = true;
    lane.access_log.stop();
    error_code ec;
    for (auto* acceptor : lane.acceptors) acceptor->close(ec);
    auto all = lane.connections;  // retiring may end some
    for (Connection* connection : all) connection->retire();
    core.gone();
  });
  if (wait(grace)) return;
  on_lanes([](Lane& lane) {
    auto all = lane.connections;
    for (Connection* connection : all) connection->cut();
  });
  wait(2s);
}

}  // namespace isola::http
