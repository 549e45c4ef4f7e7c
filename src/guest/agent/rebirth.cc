#include "guest/agent/rebirth.h"

#include <fcntl.h>
#include <linux/random.h>
#include <sys/ioctl.h>
#include <time.h>

#include <cstring>

#include "base/fd.h"
#include "guest/naming.h"

namespace isola::guest {

namespace {

#ifndef RNDRESEEDCRNG
#define RNDRESEEDCRNG _IO('R', 0x07)
#endif

Result<void> reseed(std::string_view randomness) {
  if (randomness.size() != kRandomness) return fail(Code::invalid, "there is too little randomness, or too much");
  Fd device(::open("/dev/urandom", O_RDWR | O_CLOEXEC));
  if (!device) return sys_error("cannot open the random device");
  alignas(rand_pool_info) char bytes[sizeof(rand_pool_info) + kRandomness] = {};
  auto* pool = reinterpret_cast<rand_pool_info*>(bytes);
  pool->entropy_count = static_cast<int>(8 * kRandomness);
  pool->buf_size = static_cast<int>(kRandomness);
  std::memcpy(bytes + sizeof(rand_pool_info), randomness.data(), kRandomness);
  if (::ioctl(device.get(), RNDADDENTROPY, bytes) < 0) return sys_error("cannot add randomness");
  // Else the old state would be used for up to a minute more.
  if (::ioctl(device.get(), RNDRESEEDCRNG) < 0) return sys_error("cannot use the new randomness");
  return {};
}

}  // namespace

Result<void> awake_at(int64_t nanoseconds, std::string_view randomness) {
  ISOLA_CHECK(reseed(randomness));
  constexpr int64_t kSecond = 1'000'000'000;
  const timespec now{.tv_sec = nanoseconds / kSecond, .tv_nsec = nanoseconds % kSecond};
  if (nanoseconds <= 0 || ::clock_settime(CLOCK_REALTIME, &now) < 0) return sys_error("cannot set the clock");
  return {};
}

}  // namespace isola::guest
