#include "kernel/tap.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_arp.h>
#include <linux/if_ether.h>
#include <linux/if_tun.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <cstring>

#include "kernel/fault.h"

namespace isola::kernel {

Result<Fd> make_tap(const std::string& name, int number) {
  if (int e = fault::at("make_tap")) return sys_error("cannot make a network device (TAP)", e);
  Fd tap(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!tap) return sys_error("cannot open /dev/net/tun");
  if (::ioctl(tap.get(), TUNSETIFINDEX, &number) < 0) return sys_error("cannot number a network device (TAP)");
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
  // Whole frames, with sums, as long as the device says and no longer: whoever reads them knows nothing of offloads.
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL;
  if (::ioctl(tap.get(), TUNSETIFF, &request) < 0) return sys_error("cannot make a network device (TAP)");
  // The same in every namespace: a machine that is restored behind another device still knows who is at the other end.
  constexpr unsigned char kAddress[ETH_ALEN] = {0x52, 'i', 's', 'o', 'l', 'b'};
  request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
  std::memcpy(request.ifr_hwaddr.sa_data, kAddress, sizeof kAddress);
  if (::ioctl(tap.get(), SIOCSIFHWADDR, &request) < 0) return sys_error("cannot name a network device (TAP)");
  return tap;
}

}  // namespace isola::kernel
