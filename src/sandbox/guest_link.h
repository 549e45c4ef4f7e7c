// The link to one guest under Asio, and its channels as coroutines see them, from any worker.
//
//   auto link = GuestLink::start(home, std::move(fds));              // home: the io_context that does its I/O
//   auto run = link->open(Op::run, encode(start));
//   ISOLA_CO_TRY(std::string started, co_await run->reply());
//   while (auto piece = co_await run->read()) …                      // what is not read is not granted: back-pressure
//   ISOLA_CO_TRY(std::string exit, co_await run->end());
//
// Dropping the last handle of a channel cancels it. What the guest says is untrusted: it is bounded by the channel's
// window, and a reply that does not decode is the caller's error to report.
//
// Whatever the guest sends as data goes through the sandbox's screening, if that is on, before anybody can read it:
// there is no other way to it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/task.h"
#include "boundary/boundary.h"
#include "guest/session.h"
#include "sandbox/bell.h"
#include "sandbox/screening.h"

namespace isola::sandbox {

class GuestLink;

class Channel {
 public:
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // The reply frame; an error if the channel ended without one.
  Task<Result<std::string>> reply();
  // One data frame, as the guest sent it (a piece of output, whole records); nullopt when no more will come: see end().
  Task<std::optional<std::string>> read_frame();
  // The same with a time limit: an empty string says that the time was up.
  Task<std::optional<std::string>> read_frame_for(std::chrono::milliseconds time);
  // Plain bytes: everything that is there, in one piece.
  Task<std::optional<std::string>> read();
  Task<std::optional<std::string>> read_for(std::chrono::milliseconds time);  // empty: the time was up
  Task<Result<std::string>> end();
  // Why nothing more of it is passed on, if that is so. Other ends that are not well are the service's own doing.
  std::optional<Error> kept_back() const;
  // Returns when everything is on its way to the guest.
  Task<Result<void>> write(std::string_view bytes);
  void close_write();
  void cancel();
  // Whose output it is, for the record of what is found in it. `withheld`: called where nothing more of it goes on,
  // while the command does.
  void belongs_to(std::string command, std::string task, std::function<void()> withheld);

 private:
  friend class GuestLink;
  Channel() = default;
  Task<std::optional<std::string>> take(std::chrono::milliseconds time, bool join);
  struct State;
  std::shared_ptr<State> state_;
};
using ChannelPtr = std::shared_ptr<Channel>;

class GuestLink : public std::enable_shared_from_this<GuestLink> {
 public:
  // `patience`: a guest that says nothing for so long while somebody waits is asked whether it is there; when it says
  // nothing for as long again, everything on the link fails with Code::timeout.
  // `screening`: null where nothing can be bound.
  static std::shared_ptr<GuestLink> start(boost::asio::io_context& home, boundary::Link fds,
                                          std::chrono::milliseconds patience = std::chrono::seconds(30),
                                          std::shared_ptr<const Screening> screening = nullptr);
  ~GuestLink();

  ChannelPtr open(guest::Op op, std::string args, uint32_t window = guest::kHostWindow);
  // An operation that is answered by its end alone.
  Task<Result<std::string>> call(guest::Op op, std::string args);
  // One whose result comes as data: collected up to `max` bytes.
  Task<Result<std::string>> collect(guest::Op op, std::string args, size_t max = 16 << 20);

  // Ends every channel and lets go of the pipes.
  void close(Error why = {Code::unavailable, "the link to the sandbox was closed"});
  bool closed() const;
  void may_be_silent(bool silent);  // it is frozen, or no longer
  boost::asio::io_context& home() { return home_; }

 private:
  friend class Channel;
  struct Io;
  GuestLink(boost::asio::io_context& home, std::shared_ptr<const Screening> screening)
      : home_(home), screening_(std::move(screening)) {}
  boost::asio::io_context& home_;
  std::shared_ptr<const Screening> screening_;
  std::shared_ptr<Io> io_;
};

// Typed calls: ISOLA_CO_TRY(guest::Stat stat, co_await call_for<guest::Stat>(*link, Op::stat, args));
template <typename Reply, typename Args>
Task<Result<Reply>> call_for(GuestLink& link, guest::Op op, Args args) {
  auto bytes = co_await link.call(op, guest::encode(args));
  if (!bytes) co_return std::unexpected(std::move(bytes).error());
  co_return guest::decode<Reply>(*bytes);
}

}  // namespace isola::sandbox
