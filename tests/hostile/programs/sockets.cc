// Socket families that are a way round the gate, or a large and rarely tested part of the kernel.
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

void try_socket(Attempts& attempts, const char* name, int family, int type, int protocol) {
  int fd = ::socket(family, type | SOCK_CLOEXEC, protocol);
  attempts.add(name, fd);
  if (fd >= 0) ::close(fd);
}

Outcome raw(const Args&) {
  Attempts attempts;
  try_socket(attempts, "raw icmp", AF_INET, SOCK_RAW, IPPROTO_ICMP);
  try_socket(attempts, "raw ip", AF_INET, SOCK_RAW, IPPROTO_RAW);
  try_socket(attempts, "raw icmp6", AF_INET6, SOCK_RAW, IPPROTO_ICMPV6);
  return attempts.outcome();
}

Outcome packet(const Args&) {
  Attempts attempts;
  try_socket(attempts, "packet raw", AF_PACKET, SOCK_RAW, __builtin_bswap16(ETH_P_ALL));
  try_socket(attempts, "packet dgram", AF_PACKET, SOCK_DGRAM, 0);
  return attempts.outcome();
}

Outcome alg(const Args&) {
  Attempts attempts;
  try_socket(attempts, "AF_ALG", AF_ALG, SOCK_SEQPACKET, 0);
  return attempts.outcome();
}

Outcome vsock(const Args&) {
  Attempts attempts;
  try_socket(attempts, "AF_VSOCK stream", AF_VSOCK, SOCK_STREAM, 0);
  try_socket(attempts, "AF_VSOCK dgram", AF_VSOCK, SOCK_DGRAM, 0);
  return attempts.outcome();
}

// Families that nothing in a sandbox needs. EAFNOSUPPORT is containment: by a filter, or because there is none.
Outcome rare(const Args&) {
  Attempts attempts;
  struct {
    const char* name;
    int family, type;
  } families[] = {{"AF_KEY", AF_KEY, SOCK_RAW},
                  {"AF_XDP", AF_XDP, SOCK_RAW},
                  {"AF_TIPC", AF_TIPC, SOCK_RDM},
                  {"AF_RDS", AF_RDS, SOCK_SEQPACKET},
                  {"AF_BLUETOOTH", AF_BLUETOOTH, SOCK_RAW},
                  {"AF_CAN", AF_CAN, SOCK_RAW},
                  {"AF_SMC", AF_SMC, SOCK_STREAM},
                  {"AF_KCM", AF_KCM, SOCK_DGRAM},
                  {"AF_QIPCRTR", AF_QIPCRTR, SOCK_DGRAM},
                  {"AF_RXRPC", AF_RXRPC, SOCK_DGRAM},
                  {"AF_PPPOX", AF_PPPOX, SOCK_STREAM},
                  {"AF_NFC", AF_NFC, SOCK_RAW},
                  {"AF_X25", AF_X25, SOCK_SEQPACKET},
                  {"AF_APPLETALK", AF_APPLETALK, SOCK_DGRAM},
                  {"AF_LLC", AF_LLC, SOCK_DGRAM},
                  {"AF_PHONET", AF_PHONET, SOCK_DGRAM}};
  for (auto [name, family, type] : families) try_socket(attempts, name, family, type, family == AF_KEY ? 2 : 0);
  return attempts.outcome();
}

Outcome netlink(const Args&) {
  Attempts attempts;
  struct {
    const char* name;
    int protocol;
  } kinds[] = {{"NETLINK_AUDIT", NETLINK_AUDIT},
               {"NETLINK_NETFILTER", NETLINK_NETFILTER},
               {"NETLINK_KOBJECT_UEVENT", NETLINK_KOBJECT_UEVENT},
               {"NETLINK_XFRM", NETLINK_XFRM},
               {"NETLINK_CRYPTO", NETLINK_CRYPTO},
               {"NETLINK_CONNECTOR", NETLINK_CONNECTOR},
               {"NETLINK_GENERIC", NETLINK_GENERIC},
               {"NETLINK_SCSITRANSPORT", NETLINK_SCSITRANSPORT},
               {"NETLINK_SELINUX", NETLINK_SELINUX}};
  for (auto [name, protocol] : kinds) try_socket(attempts, name, AF_NETLINK, SOCK_RAW, protocol);
  return attempts.outcome();
}

// socket() takes an int: a filter that compares all 64 bits of the argument lets this one through.
Outcome high_bits(const Args&) {
  Attempts attempts;
  attempts.add("AF_PACKET with high bits", ::syscall(SYS_socket, 0x500000000L | AF_PACKET, SOCK_RAW, 0));
  attempts.add("AF_ALG with high bits", ::syscall(SYS_socket, 0x500000000L | AF_ALG, SOCK_SEQPACKET, 0));
  attempts.add("AF_VSOCK with high bits", ::syscall(SYS_socket, 0x500000000L | AF_VSOCK, SOCK_STREAM, 0));
  attempts.add("socketpair AF_ALG", ::syscall(SYS_socketpair, AF_ALG, SOCK_SEQPACKET, 0, nullptr));
  return attempts.outcome();
}

// Compiled into a pool that all of the machine share (net.core.bpf_jit_limit): whoever uses it up stops every launch.
Outcome filters(const Args&) {
  Attempts attempts;
  sock_filter all{BPF_RET | BPF_K, 0, 0, 0xffffffff};
  sock_fprog program{1, &all};
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  attempts.add("SO_ATTACH_FILTER", ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
  int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  attempts.add("SO_ATTACH_REUSEPORT_CBPF",
               ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program));
  attempts.add("SO_ATTACH_FILTER with high bits", ::syscall(SYS_setsockopt, fd, 0x500000000L | SOL_SOCKET,
                                                            0x500000000L | SO_ATTACH_FILTER, &program, sizeof program));
  return attempts.outcome();
}

constexpr Program kSocketPrograms[] = {
    {"socket-raw", "network", "opens raw IP sockets", "EPERM", raw},
    {"socket-packet", "network", "opens packet sockets", "EPERM", packet},
    {"socket-alg", "kernel", "opens the kernel's crypto sockets (AF_ALG; CVE-2026-31431)", "EPERM or EAFNOSUPPORT", alg,
     Expect::contained, kControlMayLack},
    {"socket-vsock", "network", "opens a socket to the hypervisor (AF_VSOCK)", "EPERM or EAFNOSUPPORT", vsock,
     Expect::contained, kControlMayLack},
    {"socket-rare", "kernel", "opens sockets of 16 families that nothing here needs", "EPERM or EAFNOSUPPORT", rare},
    {"socket-netlink", "kernel", "opens netlink sockets of audit, netfilter, uevents, xfrm and others",
     "EPERM or EAFNOSUPPORT", netlink},
    {"socket-filters", "kernel", "attaches filters to sockets, from a pool of the whole machine", "EPERM", filters},
    {"socket-high-bits", "seccomp", "asks for forbidden families with garbage in the upper half of the argument",
     "EPERM or EAFNOSUPPORT", high_bits},
};

}  // namespace

Family socket_programs() { return kSocketPrograms; }

}  // namespace isola::hostile
