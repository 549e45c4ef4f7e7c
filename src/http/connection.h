// One connection: reads heads, gives exchanges to the router, sends what they reply, and watches the clock. Everything
// here runs on the worker that accepted it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <memory>
#include <optional>

#include "http/buffer.h"
#include "http/exchange_state.h"
#include "http/server_core.h"
#include "http/transport.h"

namespace isola::http {

inline constexpr size_t kBodyBuffer = 64 << 10;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  struct Watch {
    Clock::time_point deadline = Clock::time_point::max();
    std::chrono::milliseconds time{};
    bool late = false;
  };
  Connection(std::shared_ptr<Server::Core> core, Lane& lane, Transport::Socket socket);
  ~Connection();

  static Task<void> run(std::shared_ptr<Connection> self);
  // The polite 503 of a full server.
  static Task<void> turn_away(std::shared_ptr<Connection> self);
  // For a graceful end: an idle connection goes now, a busy one after its exchange.
  void retire();
  void cut();  // at once

  // For Exchange.
  Task<Result<std::string_view>> body_some(Exchange::State& s);
  Task<Result<void>> send_reply(Exchange::State& s);
  Task<Result<void>> send_piece(Exchange::State& s, std::string_view bytes);
  Task<Result<void>> send_end(Exchange::State& s);
  // Sends no more; or takes no more either; or that, and found out by asking where a reply can be waited for.
  enum class Gone : uint8_t { silent, unreachable, asked };
  Task<void> gone(Exchange::State& s, Gone when);
  void reset();

  // The bytes, with deadlines.
  Task<Result<size_t>> fill(size_t room, std::chrono::milliseconds time);  // reads into the buffer; 0 at the end
  Task<Result<void>> send(std::string_view a, std::string_view b = {}, std::string_view c = {});
  // A deadline for the peer to send more, or to take more; each way has its own.
  void set_deadline(Watch& watch, std::chrono::milliseconds time);
  void clear_deadline(Watch& watch) { watch.deadline = Clock::time_point::max(); }
  void write_time(std::chrono::milliseconds time) { write_time_ = time; }  // of this exchange
  Watch& reading() { return reading_; }
  Watch& writing() { return writing_; }

  const ServerLimits& limits() const { return core_->options.limits; }
  Transport& transport() { return transport_; }
  Buffer& buffer() { return buffer_; }
  RequestParser& parser() { return parser_; }
  std::string_view peer() const { return peer_; }
  bool retiring() const { return retiring_; }
  const Exchange* exchange() const { return exchange_; }  // the one under way, if there is one

 private:
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  Task<bool> handshake();
  std::chrono::milliseconds idle_time() const;
  Task<bool> read_head();  // false: nothing more to serve here
  Task<bool> serve_one();  // false: nothing more to serve here
  Result<void> understand(Exchange::State& s);
  Task<Result<void>> send_tls(std::string_view a, std::string_view b, std::string_view c);
  Task<bool> drain(Exchange::State& s);
  Task<void> refuse(int status, std::string_view code, std::string_view message);
  Task<void> linger(bool unread);
  Task<void> ask_until_gone();
  Task<Result<void>> send_whole(Exchange::State& s);
  Task<Result<void>> send_packed(Exchange::State& s);
  Task<Result<void>> send_packed_piece(Exchange::State& s, std::string_view bytes);
  Task<Result<void>> send_chunk(Exchange::State& s, std::string_view bytes);
  std::unexpected<Error> give_up(Exchange::State& s, Error error);
  bool decide_packing(Exchange::State& s);
  void put_head(Exchange::State& s);
  void decide_keep(Exchange::State& s);
  void log(Exchange::State& s);
  void arm();
  void ring();
  // Whoever takes a long answer without sending more of the request is not slow, nor the other way round.
  void push(Watch& other);
  void stop_clock();

  std::shared_ptr<Server::Core> core_;
  Lane& lane_;
  std::list<Connection*>::iterator place_;
  Transport transport_;
  Buffer buffer_;
  RequestParser parser_;
  std::string peer_;
  std::string out_;
  boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, Transport::executor_type> timer_;
  Watch reading_, writing_;
  std::optional<std::chrono::milliseconds> write_time_;  // of the exchange, instead of the server's
  Clock::time_point armed_ = kNever;
  bool retiring_ = false, busy_ = false, keep_ = false, cut_ = false, served_ = false;
  const Exchange* exchange_ = nullptr;
  unsigned streak_ = 0;  // requests answered without ever waiting
};

}  // namespace isola::http
