#include "control_fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <mqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "image/loop.h"
#include "kernel/netlink.h"
#include "kernel/nftables.h"
#include "probe.h"

namespace isola::hostile {
namespace {

void raise_interface(const char* name) {
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  ::strncpy(request.ifr_name, name, sizeof request.ifr_name - 1);
  must(::ioctl(fd, SIOCGIFFLAGS, &request) == 0, "look at an interface");
  request.ifr_flags |= IFF_UP;
  must(::ioctl(fd, SIOCSIFFLAGS, &request) == 0, "raise an interface");
  ::close(fd);
}

int bound_socket(int family, int type, int& port) {
  int fd = ::socket(family, type | SOCK_CLOEXEC, 0), on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  sockaddr_storage address{};
  socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  address.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET)
    reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  else
    reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
  must(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0, "bind a service");
  must(type != SOCK_STREAM || ::listen(fd, 8) == 0, "listen");
  must(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0, "look at a service's port");
  port = ntohs(family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                 : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
  return fd;
}

// Answers everybody, until its parent is gone. The parent goes on only when that is sure: it may be done at once, and a
// server that came too late to hear of it would keep the output open for ever.
void serve(int tcp, int tcp6, int udp) {
  int ready[2];
  must(::pipe2(ready, O_CLOEXEC) == 0, "make a pipe");
  if (::fork() != 0) {
    ::close(ready[1]);
    char word = 0;
    must(::read(ready[0], &word, 1) == 1, "hear of the service");
    ::close(ready[0]);
    return;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  must(::write(ready[1], "r", 1) == 1, "tell that the service is there");
  ::close(ready[0]);
  ::close(ready[1]);
  pollfd sockets[] = {{tcp, POLLIN, 0}, {tcp6, POLLIN, 0}, {udp, POLLIN, 0}};
  while (::poll(sockets, 3, -1) > 0) {
    for (int i : {0, 1}) {
      if (!(sockets[i].revents & POLLIN)) continue;
      int peer = ::accept(sockets[i].fd, nullptr, nullptr);
      if (::send(peer, "host", 4, MSG_NOSIGNAL) == 4) ::shutdown(peer, SHUT_WR);
      char rest[512];
      while (::recv(peer, rest, sizeof rest, 0) > 0) {
      }
      ::close(peer);
    }
    if (sockets[2].revents & POLLIN) {
      sockaddr_storage from{};
      socklen_t size = sizeof from;
      char question[512];
      if (::recvfrom(udp, question, sizeof question, 0, reinterpret_cast<sockaddr*>(&from), &size) >= 0)
        ::sendto(udp, "host", 4, 0, reinterpret_cast<sockaddr*>(&from), size);
    }
  }
  ::_exit(0);
}

void prepare_network(Stage& stage) {
  raise_interface("lo");
  int tcp_port = 0, tcp6_port = 0, udp_port = 0;
  int tcp = bound_socket(AF_INET, SOCK_STREAM, tcp_port), tcp6 = bound_socket(AF_INET6, SOCK_STREAM, tcp6_port),
      udp = bound_socket(AF_INET, SOCK_DGRAM, udp_port);
  serve(tcp, tcp6, udp);
  stage.variables.push_back(fmt::format("ISOLA_CANARY_TCP=127.0.0.1 {}", tcp_port));
  stage.variables.push_back(fmt::format("ISOLA_CANARY_METADATA=127.0.0.1 {}", tcp_port));
  stage.variables.push_back(fmt::format("ISOLA_CANARY_TCP6=::1 {}", tcp6_port));
  stage.variables.push_back(fmt::format("ISOLA_CANARY_UDP=127.0.0.1 {}", udp_port));
  stage.variables.push_back("ISOLA_CANARY_PING=127.0.0.2 0");
  // A wire, whose other end is a descriptor that nobody reads.
  int wire = ::open("/dev/net/tun", O_RDWR);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  must(wire >= 0 && ::ioctl(wire, TUNSETIFF, &request) == 0, "make a wire");
  int unix_socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ::memcpy(address.sun_path + 1, "host-service", 12);
  must(::bind(unix_socket, reinterpret_cast<sockaddr*>(&address),
              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 13)) == 0 &&
           ::listen(unix_socket, 8) == 0,
       "listen on an abstract socket");
}

// Set before the handler can run.
std::string g_witness;

void believe_sender(int, siginfo_t* info, void*) {
  // As naive as can be: whoever says that it has no pid is the host; and any kill will do.
  if (info->si_pid == 0 || info->si_code == SI_USER) {
    int fd = ::open(g_witness.c_str(), O_WRONLY | O_CREAT, 0644);
    if (fd >= 0) ::close(fd);
  }
}

// A file as a disk, open until this process ends: the kernel then lets it go.
void prepare_disk(const Stage& stage) {
  std::string file = stage.top + "/disk";
  int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  must(fd >= 0 && ::ftruncate(fd, 1 << 20) == 0, "make a file for a disk");
  ::close(fd);
  static auto disk = image::attach_loop(file, image::LoopMode::read_only);
  must(disk.has_value(), "attach a disk");
}

// One rule that turns a port elsewhere is enough: from then on the kernel records everything.
void prepare_tracking() {
  kernel::NftBatch nft("naive");
  nft.chain({.name = "out", .kind = kernel::NftChain::Kind::nat_output});
  nft.rule("out", kernel::NftRule().protocol(IPPROTO_TCP).port(1).redirect(2));
  auto netfilter = kernel::NetlinkSocket::open(NETLINK_NETFILTER);
  must(netfilter && netfilter->run(nft.take()), "make packet rules");
}

}  // namespace

void prepare_outside(const Program& program, Stage& stage) {
  if (program.flags & kControlNetwork)
    prepare_network(stage);
  else
    raise_interface("lo");
  if (program.flags & kControlDisk) prepare_disk(stage);
  if (program.flags & kControlTracking) prepare_tracking();
  char name[65] = "control-host";
  must(::sethostname(name, ::strlen(name)) == 0, "name the host");
  stage.variables.push_back(fmt::format("ISOLA_HOST_WORDS=isola-control,hostile_control_test,{}", stage.shared));
  stage.variables.push_back("ISOLA_HOST_NAME=control-host");
  stage.variables.push_back("SERVICE_API_KEY=not-for-you");
  int fd = ::open((stage.root + "/etc/hostname").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  must(fd >= 0 && ::write(fd, "control-host\n", 13) == 13, "write /etc/hostname");
  ::close(fd);
}

void prepare_fixtures(const Program& program, Stage& stage) {
  // Something like the two pipes of a link: open in process 1, and big enough to take a write.
  static int link_pipe[2];
  must(::pipe(link_pipe) == 0, "make a link");
  if (program.flags & kControlTarget) {
    pid_t target = ::fork();
    if (target == 0) {
      ::syscall(SYS_close_range, 0, ~0u, 0);
      while (true) ::pause();
    }
    stage.variables.push_back(fmt::format("ISOLA_TARGET_PID={}", target));
  }
  if (program.flags & kControlIpc) {
    must(::shmget(0x15014, 4096, IPC_CREAT | 0600) >= 0, "make shared memory");
    mq_attr attr{};
    attr.mq_maxmsg = 1;
    attr.mq_msgsize = 16;
    must(::mq_open("/isola-neighbour", O_RDWR | O_CREAT, 0600, &attr) != static_cast<mqd_t>(-1),
         "make a message queue");
  }
  if (program.flags & kControlLock) {
    int fd = ::open((stage.root + "/locked").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    must(fd >= 0 && ::flock(fd, LOCK_EX) == 0, "lock a file");
  }
  if (program.flags & kControlWitness) {
    g_witness = stage.root + "/witness";
    stage.variables.push_back("ISOLA_WITNESS=/witness");
    struct sigaction action{};
    action.sa_sigaction = believe_sender;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    must(::sigaction(SIGRTMIN + 1, &action, nullptr) == 0, "listen for a signal");
  }
  if (program.flags & kControlNaiveReader) stage.variables.push_back("ISOLA_RACE_PATH=/tmp/race");
}

void naive_read(const Stage& stage) {
  std::string name = stage.canary.substr(stage.canary.rfind('/'));
  auto text = slurp(stage.root + "/tmp/race" + name);
  if (!text || *text != stage.secret) return;
  int fd = ::open((stage.root + "/witness").c_str(), O_WRONLY | O_CREAT, 0644);
  if (fd >= 0) ::close(fd);
}

[[noreturn]] void give_up(const char* what) {
  ::dprintf(1, "control: %s: %s\n", what, ::strerror(errno));
  ::_exit(99);
}

void must(bool worked, const char* what) {
  if (!worked) give_up(what);
}

}  // namespace isola::hostile
