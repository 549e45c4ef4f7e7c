// The network hand: a process of the launcher's that configures the networks of unborn jails, so that the launcher's
// one thread goes on with the next launch meanwhile. It lives as long as the launcher, with two capabilities and one
// socket.
//
//   ISOLA_TRY(auto hand, NetworkHand::start());
//   // the unborn jail, in its new network namespace; whoever reads the other end of `answer` hears the hand's word:
//   ISOLA_CHECK(ask_for_network(hand->socket(), answer));
//   // the launcher:
//   ISOLA_TRY(HandMade made, decode_network(std::move(message)));   // a message that begins with kNetworked
//
// What it made it reads back from the kernel, and tells; the launcher compares that with the protections, and the
// namespace with the one that process 1 is in. A hand that dies takes those with it who wait for its word.
#pragma once

#include <sys/types.h>

#include <memory>
#include <set>
#include <string>

#include "base/error.h"
#include "base/fd.h"
#include "boundary/network.h"
#include "kernel/process.h"

namespace isola::boundary::jail {

inline constexpr char kNetworked = 'N';

struct HandMade {
  IslandSockets sockets;
  std::string description;  // IslandNetwork::describe()
  ino_t netns = 0;          // of which namespace
  Fd tap;                   // of a tapped one: the engine's end
};

class NetworkHand {
 public:
  static Result<std::shared_ptr<NetworkHand>> start();
  NetworkHand(const NetworkHand&) = delete;
  NetworkHand& operator=(const NetworkHand&) = delete;
  ~NetworkHand();

  // For ask_for_network. It has a low number (base/fd.h: kKeptFrom), so that a child can have it for a moment.
  int socket() const { return socket_.get(); }
  pid_t pid() const { return child_.pid; }
  int death_fd() const { return child_.pidfd.get(); }  // readable when it is dead
  bool alive() const;

  // Processes, by pidfd, that wait for its word.
  void expect(int waiting) { waiting_.insert(waiting); }
  void forget(int waiting) { waiting_.erase(waiting); }
  // It lives and says nothing: it is killed, and its death is noticed like any other.
  void give_up() const;
  // When it is dead, or shall be: those who wait for its word would do so for ever, and end with it.
  void end();

 private:
  NetworkHand(kernel::Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}
  kernel::Child child_;
  Fd socket_;
  std::set<int> waiting_;
};

// The network namespace that the caller is in shall be configured; the hand's word (kNetworked or kFailed) goes to
// `answer`, a SOCK_SEQPACKET. `wire`: the namespace of an engine's end of the cable, for a wired one; -1: none.
Result<void> ask_for_network(int hand, int answer, IslandNetwork::Shape shape = IslandNetwork::Shape::alone,
                             int wire = -1);
Result<HandMade> decode_network(kernel::Message message);

}  // namespace isola::boundary::jail
