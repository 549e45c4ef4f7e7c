// What all connections of a server share, and what those of one worker share.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>

#include "http/server.h"

namespace isola::http {

class Connection;

// One worker's part; touched on that worker only.
struct Lane {
  Lane(boost::asio::io_context& context, const AccessSink& access_sink)
      : io(context), access_log(context, access_sink) {}
  boost::asio::io_context& io;
  AccessLog access_log;
  using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::ip::tcp, boost::asio::io_context::executor_type>;
  std::vector<Acceptor*> acceptors;  // owned by their coroutines
  std::list<Connection*> connections;
  size_t turned_away = 0;  // being told 503 right now
  bool stopping = false;
};

struct Server::Core : std::enable_shared_from_this<Server::Core> {
  Core(Workers& w, ServerOptions o, Router r) : workers(w), options(std::move(o)), router(std::move(r)) {}
  Workers& workers;
  ServerOptions options;
  Router router;
  size_t max_connections = 0;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::string> addresses;
  uint16_t first_port = 0;
  bool started = false, stopped = false;

  std::atomic<size_t> connections = 0;
  std::mutex mutex;
  std::condition_variable empty;
  std::shared_ptr<boost::asio::ssl::context> tls;  // under mutex

  std::shared_ptr<boost::asio::ssl::context> tls_now() {
    std::lock_guard lock(mutex);
    return tls;
  }
  using Acceptors = std::vector<std::pair<Lane*, std::unique_ptr<Lane::Acceptor>>>;
  Result<void> listen(boost::asio::ip::tcp::endpoint& at, const std::string& name, Acceptors& all);
  static Task<void> accept(std::shared_ptr<Core> core, Lane& lane, std::unique_ptr<Lane::Acceptor> acceptor);
  void gone() {
    if (connections.fetch_sub(1) == 1) {
      std::lock_guard lock(mutex);
      empty.notify_all();
    }
  }
};

}  // namespace isola::http
