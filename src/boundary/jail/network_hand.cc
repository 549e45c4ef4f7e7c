#include "boundary/jail/network_hand.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/codec.h"
#include "boundary/jail/furnish.h"
#include "kernel/capability.h"
#include "kernel/fault.h"
#include "kernel/helper.h"

namespace isola::boundary::jail {

namespace {

constexpr std::string_view kReady = "+";
constexpr std::string_view kAsk = "?", kAskTapped = "T";

// Entering a namespace (and a proc of its own, see network.cc), and configuring it.
constexpr uint64_t kCapabilities = kernel::capability(CAP_SYS_ADMIN) | kernel::capability(CAP_NET_ADMIN);

Result<void> confine(int socket) {
  // A helper that held a link, a lock or a pidfd would keep it alive.
  ISOLA_CHECK(kernel::close_all_but({socket}));
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0) return sys_error("cannot bind to the launcher");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return sys_error("cannot give up privileges");
  ::prctl(PR_SET_NAME, "isola-network", 0, 0, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ISOLA_CHECK(kernel::limit_bounding_set(kCapabilities));
  return kernel::set_capabilities(kCapabilities, kCapabilities, 0);
}

// The sockets in the order of the message; the v6 ones are missing on a host without IPv6.
std::vector<Fd*> in_order(IslandSockets& sockets, bool ipv6) {
  if (!ipv6) return {&sockets.tcp4, &sockets.dns_udp4, &sockets.dns_tcp4};
  return {&sockets.tcp4, &sockets.dns_udp4, &sockets.dns_tcp4, &sockets.tcp6, &sockets.dns_udp6, &sockets.dns_tcp6};
}

Result<void> make_network(const IslandNetwork& network, int netns, int wire, int answer) {
  struct stat st{};
  if (::fstat(netns, &st) < 0) return sys_error("cannot look at a network namespace");
  ISOLA_TRY(auto made, network.make_and_describe(netns, wire));
  Writer out;
  out.u8(static_cast<uint8_t>(kNetworked));
  out.u64(st.st_ino);
  out.str(made.description);
  out.u8(made.tap.valid() ? 1 : 0);
  std::vector<int> fds;
  for (const Fd* fd : in_order(made.sockets, made.sockets.tcp6.valid())) fds.push_back(fd->get());
  if (made.tap) fds.push_back(made.tap.get());
  // Whoever asked may have given up.
  (void)kernel::send_message(answer, out.take(), fds);
  return {};
}

// Each shape, prepared once.
struct Networks {
  IslandNetwork alone, wired, tapped;
};

int work(int socket, const Networks& networks) {
  for (;;) {
    auto message = kernel::receive_message(socket, 16);
    if (!message || message->bytes.empty()) return 0;  // the launcher is gone
    const auto& fds = message->fds;
    const bool tapped = message->bytes == kAskTapped;
    if ((message->bytes != kAsk && !tapped) || fds.size() < 2 || fds.size() > 3) continue;
    const bool wired = fds.size() == 3;
    int netns = fds[0].get(), answer = fds[1].get();
    const IslandNetwork& network = tapped ? networks.tapped : wired ? networks.wired : networks.alone;
    if (auto made = make_network(network, netns, wired ? fds[2].get() : -1, answer); !made)
      (void)kernel::send_message(answer, encode_error(made.error()));
  }
}

}  // namespace

Result<std::shared_ptr<NetworkHand>> NetworkHand::start() {
  ISOLA_TRY(auto pair, kernel::socket_pair());
  ISOLA_TRY(auto child, kernel::spawn(0, [&] {
              int socket = pair.second.get();
              auto networks = [&]() -> Result<Networks> {
                ISOLA_CHECK(confine(socket));
                ISOLA_TRY(auto alone, IslandNetwork::prepare());
                ISOLA_TRY(auto wired, IslandNetwork::prepare(IslandNetwork::Shape::wired));
                ISOLA_TRY(auto tapped, IslandNetwork::prepare(IslandNetwork::Shape::tapped));
                return Networks{std::move(alone), std::move(wired), std::move(tapped)};
              }();
              (void)kernel::send_message(socket, networks ? kReady : std::string_view(networks.error().message));
              return networks ? work(socket, *networks) : 1;
            }));
  std::shared_ptr<NetworkHand> hand(new NetworkHand(std::move(child), std::move(pair.first)));
  pair.second.reset();
  // One that cannot confine itself would only die and be replaced, for ever.
  auto word = kernel::receive_message(hand->socket_.get());
  if (!word || word->bytes != kReady)
    return fail(Code::internal, "the helper that makes networks cannot work: " +
                                    (word && !word->bytes.empty() ? word->bytes : "it died"));
  return hand;
}

NetworkHand::~NetworkHand() { end(); }

bool NetworkHand::alive() const {
  pollfd death{death_fd(), POLLIN, 0};
  return ::poll(&death, 1, 0) == 0;
}

void NetworkHand::give_up() const { (void)kernel::send_signal(child_.pidfd.get(), SIGKILL); }

void NetworkHand::end() {
  (void)kernel::send_signal(child_.pidfd.get(), SIGKILL);
  kernel::wait_for(std::exchange(child_.pid, -1));
  for (int pidfd : waiting_) (void)kernel::send_signal(pidfd, SIGKILL);
  waiting_.clear();
}

Result<void> ask_for_network(int hand, int answer, IslandNetwork::Shape shape, int wire) {
  if (int e = kernel::fault::at("ask_network")) return sys_error("cannot ask for the network", e);
  Fd netns(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!netns) return sys_error("cannot open the network namespace");
  std::vector<int> fds = {netns.get(), answer};
  if (shape == IslandNetwork::Shape::wired) fds.push_back(wire);
  const auto word = shape == IslandNetwork::Shape::tapped ? kAskTapped : kAsk;
  if (auto sent = kernel::send_message(hand, word, fds); !sent)
    return std::unexpected(sent.error().in("the helper that makes networks"));
  return {};
}

Result<HandMade> decode_network(kernel::Message message) {
  Reader in(message.bytes);
  HandMade made;
  in.u8();
  made.netns = in.u64();
  made.description = in.str();
  const size_t taps = in.u8();
  auto sockets = in_order(made.sockets, message.fds.size() > 3 + taps);
  if (!in.done() || taps > 1 || message.fds.size() != sockets.size() + taps)
    return fail(Code::corrupt, "the helper that makes networks said something unreadable");
  for (size_t i = 0; i < sockets.size(); ++i) *sockets[i] = std::move(message.fds[i]);
  if (taps) made.tap = std::move(message.fds.back());
  return made;
}

}  // namespace isola::boundary::jail
