// A stream of bytes over packets, for a guest whose kernel has no other door than a network device (user-mode Linux):
// both ends speak Ethernet frames of a type of their own, one end on a raw socket inside, the other on a socket that
// the kernel's device writes to.
//
//   PacketLine line(socket);
//   line.read(into, room);    // like read(2): -1 with EAGAIN when there is nothing, 0 at the end
//   line.write(bytes, size);  // like write(2): -1 with EAGAIN while full() or the socket is
//
// A kernel that is short of memory throws packets away, so each says where in the stream it begins and how much its
// sender has taken; what was not taken is kept, and sent again when the other end complains of a gap or when nothing
// was heard for a while (remind()). Nobody sends more than kWindow bytes that were not taken, which is what the sockets
// between have room for.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace isola::guest {

class PacketLine {
 public:
  static constexpr size_t kWindow = 128 << 10;
  static constexpr size_t kMostData = 8000;    // of one packet
  static constexpr size_t kDeviceUnit = 8192;  // what the device must carry (its MTU)
  static constexpr uint16_t kType = 0x88b5;    // for experiments of one's own

  enum class End {
    greets,  // speaks first, as soon as it can be heard
    waits,   // sends nothing before that: it would be lost
  };
  // The socket is the caller's, non-blocking, and lives longer.
  PacketLine(int socket, End end);

  ssize_t read(char* into, size_t room);
  ssize_t write(const char* bytes, size_t size);
  // Nothing can be written until the other end has taken some: wait for the socket to be readable.
  bool full() const { return !heard_ || kept_.size() >= kWindow; }
  // Takes in what has arrived, without reading it: room in the window may come with it. False: nothing more comes.
  bool receive();
  bool has_more() const { return !pending_.empty(); }
  // Tells how much was taken, if that is news; called when there is nothing more to read for now.
  void acknowledge();
  // It could not be told for want of room: wait for the socket to be writable, and tell it then.
  bool owes_word() const { return told_ != expected_ - pending_.size(); }
  // Is somebody to be reminded, should nothing come?
  bool waiting() const { return !kept_.empty() || complained_; }
  // Sends the oldest packet that was not taken again: the answer tells what else is missing. Or complains again.
  void remind();

 private:
  enum Flag : uint8_t { kPlain = 0, kGap = 1 };
  bool send(uint64_t at, const char* bytes, size_t size, Flag flag);
  void take_in(const char* packet, size_t size);
  void send_again();

  int socket_;
  std::string pending_;      // arrived in order, not read
  uint64_t expected_ = 0;    // where the next packet begins
  uint64_t told_ = 0;        // how much the other end knows that we have taken
  std::string kept_;         // sent, not taken by the other end
  uint64_t kept_from_ = 0;   // where that begins
  bool complained_ = false;  // of the gap that we are at
  bool heard_;               // the other end is there
  bool ended_ = false;
};

}  // namespace isola::guest
