// The guest's end of the link with its I/O: moves bytes between the Mux and the two pipes (or standard in and out), and
// makes the pipes anew when the launcher asks for it.
//
// Over standard in and out nothing can be opened anew: there the stream begins with a mark (base/mark.h), and wherever
// the mark comes again a new generation begins, which is answered with the mark and a hello. There, too, the guest can
// be given a name and another mark (Naming): by the relay of a guest that was started without a name, or that was
// restored from a checkpoint and knows only those of the sandbox that it was. Marks are the same over a line of packets
// (guest/packet_line.h) and over a virtual machine's serial line, which are one descriptor for both.
//
// Over pipes the request is SIGRTMIN+1 from outside: `is_from_host` says how a signal from outside is told from one
// that a process inside sent.
#pragma once

#include <sys/signalfd.h>
#include <unistd.h>

#include <optional>

#include "base/error.h"
#include "base/fd.h"
#include "base/mark.h"
#include "guest/agent/agent.h"
#include "guest/agent/secrecy.h"
#include "guest/naming.h"
#include "guest/packet_line.h"

namespace isola::guest {

// What the guest speaks over.
struct LinkPlace {
  bool stdio = false;  // else the pipes at 3 to 6
  int packets = -1;    // a socket: a line of packets, and neither of those
  int device = -1;     // a serial line that loses nothing, for both directions
};

class LinkIo {
 public:
  LinkIo(Agent& agent, Secrecy& secrecy, LinkPlace place)
      : agent_(agent),
        secrecy_(secrecy),
        place_(place),
        marked_(place.stdio || place.packets >= 0 || place.device >= 0) {}
  Result<void> begin();
  void flush();     // what fits now; the rest goes when the pipe has room
  void reattach();  // new pipes over fds 3 to 6, new generation

 private:
  void on_in(uint32_t events);
  void on_out(uint32_t events);
  Result<void> watch();
  Result<void> take_stdio();
  Result<void> take_packets();
  Result<void> take_device();
  Result<void> await_mark();
  void feed(std::string_view bytes);
  void take_name();
  ssize_t read(char* into, size_t room) { return line_ ? line_->read(into, room) : ::read(in_, into, room); }
  ssize_t write(std::string_view bytes) {
    return line_ ? line_->write(bytes.data(), bytes.size()) : ::write(out_, bytes.data(), bytes.size());
  }

  Agent& agent_;
  Secrecy& secrecy_;
  LinkPlace place_;
  bool marked_;  // generations begin with a mark
  std::optional<PacketLine> line_;
  int in_ = kFdInRead, out_ = kFdOutWrite;
  bool waiting_ = false;
  bool synced_ = false;           // since the link is silent
  MarkedStream stream_;           // if marked_
  std::optional<Naming> naming_;  // that came just now
  MemberSource<LinkIo, &LinkIo::on_in> in_source_{this};
  MemberSource<LinkIo, &LinkIo::on_out> out_source_{this};
};

// New pipes over fds 3 to 6; the old out-pipe hangs up last, because that is what the launcher waits for before it
// opens the new ones.
bool make_new_pipes();

// The uid with which a signal from the host arrives: 65534 when we are in a user namespace (the host's root has no
// number here), 0 when we are not.
uint32_t host_signal_uid();

// A kill() by somebody outside our pid namespace has SI_USER and pid 0; nobody inside can set a code ≥ 0, nor send with
// pid 0. The uid matters as well: when a sender has used up the queue of pending signals, the kernel delivers without
// the information, and that reads as SI_USER, pid 0 and uid 0.
bool is_from_host(const signalfd_siginfo& signal, uint32_t host_uid);

}  // namespace isola::guest
