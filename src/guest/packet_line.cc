#include "guest/packet_line.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace isola::guest {

namespace {

// Both ends are the same machine: its own order of bytes.
struct PacketHeader {
  uint8_t to[6], from[6];
  uint16_t type;
  uint8_t flag, reserved;
  uint64_t at;     // of the first byte, in the stream
  uint64_t taken;  // by the sender, of the other stream
  uint32_t size;
} __attribute__((packed));

}  // namespace

PacketLine::PacketLine(int socket, End end) : socket_(socket), heard_(end == End::greets) {
  if (heard_) (void)send(0, nullptr, 0, kPlain);
}

bool PacketLine::send(uint64_t at, const char* bytes, size_t size, Flag flag) {
  PacketHeader header{.to = {2, 'i', 's', 'o', 'l', 'a'},
                      .from = {2, 'i', 's', 'o', 'l', 'a'},
                      .type = htons(kType),
                      .flag = flag,
                      .reserved = 0,
                      .at = at,
                      .taken = expected_ - pending_.size(),
                      .size = static_cast<uint32_t>(size)};
  iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(bytes), size}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  ssize_t n;
  do n = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (errno == ENOBUFS || errno == ENOMEM) errno = EAGAIN;  // short of memory, for the moment
    return false;
  }
  told_ = header.taken;
  return true;
}

ssize_t PacketLine::write(const char* bytes, size_t size) {
  size_t done = 0;
  while (done < size) {
    if (full()) {
      errno = EAGAIN;
      break;
    }
    const size_t now = std::min({size - done, kMostData, kWindow - kept_.size()});
    if (!send(kept_from_ + kept_.size(), bytes + done, now, kPlain)) break;
    kept_.append(bytes + done, now);
    done += now;
  }
  return done > 0 || size == 0 ? static_cast<ssize_t>(done) : -1;
}

void PacketLine::take_in(const char* packet, size_t length) {
  PacketHeader header;
  if (length < sizeof header) return;
  std::memcpy(&header, packet, sizeof header);
  if (header.type != htons(kType) || header.size > length - sizeof header) return;
  heard_ = true;
  // What was taken can only grow, and only to what was sent.
  if (header.taken > kept_from_ && header.taken <= kept_from_ + kept_.size()) {
    kept_.erase(0, header.taken - kept_from_);
    kept_from_ = header.taken;
  }
  if (header.flag == kGap) send_again();
  if (header.size == 0) return;
  const uint64_t end = header.at + header.size;
  if (header.at > expected_) {  // one is missing before it
    if (!complained_) complained_ = send(kept_from_ + kept_.size(), nullptr, 0, kGap);
    return;
  }
  if (end <= expected_) {  // known: the other end has not heard that it was taken
    told_ = UINT64_MAX;
    return;
  }
  const size_t known = expected_ - header.at;
  const size_t fresh = header.size - known;
  if (pending_.size() + fresh > kWindow) return;  // more than it may
  pending_.append(packet + sizeof header + known, fresh);
  expected_ = end;
  complained_ = false;
}

bool PacketLine::receive() {
  static char packet[64 << 10];
  while (!ended_) {
    ssize_t n = ::recv(socket_, packet, sizeof packet, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    // A raw socket tells of a device that went down; there is no other.
    if (n < 0 && errno != EAGAIN && errno != ENOBUFS) ended_ = true;
    if (n == 0) ended_ = true;
    if (n <= 0) break;
    take_in(packet, static_cast<size_t>(n));
  }
  return !ended_;
}

ssize_t PacketLine::read(char* into, size_t room) {
  receive();
  if (pending_.empty()) {
    errno = EAGAIN;
    return ended_ ? 0 : -1;
  }
  const size_t n = std::min(room, pending_.size());
  std::memcpy(into, pending_.data(), n);
  pending_.erase(0, n);
  return static_cast<ssize_t>(n);
}

void PacketLine::acknowledge() {
  if (owes_word()) (void)send(kept_from_ + kept_.size(), nullptr, 0, kPlain);
}

void PacketLine::send_again() {
  for (size_t at = 0; at < kept_.size(); at += kMostData)
    if (!send(kept_from_ + at, kept_.data() + at, std::min(kMostData, kept_.size() - at), kPlain)) return;
}

void PacketLine::remind() {
  if (complained_) (void)send(kept_from_ + kept_.size(), nullptr, 0, kGap);
  if (!kept_.empty()) (void)send(kept_from_, kept_.data(), std::min(kMostData, kept_.size()), kPlain);
}

}  // namespace isola::guest
