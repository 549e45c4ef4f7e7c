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

Fd& random_device() {
  static Fd device;
  return device;
}

Result<void> reseed(std::string_view randomness) {
  if (randomness.size() != kRandomness) return fail(Code::invalid, "there is too little randomness, or too much");
  if (!random_device()) return fail(Code::unsupported, "this guest has no machine of its own");
  alignas(rand_pool_info) char bytes[sizeof(rand_pool_info) + kRandomness] = {};
  auto* pool = reinterpret_cast<rand_pool_info*>(bytes);
  pool->entropy_count = static_cast<int>(8 * kRandomness);
  pool->buf_size = static_cast<int>(kRandomness);
  std::memcpy(bytes + sizeof(rand_pool_info), randomness.data(), kRandomness);
  if (::ioctl(random_device().get(), RNDADDENTROPY, bytes) < 0) return sys_error("cannot add randomness");
  // Else the old state would be used for up to a minute more.
  if (::ioctl(random_device().get(), RNDRESEEDCRNG) < 0) return sys_error("cannot use the new randomness");
  return {};
}

}  // namespace

Result<void> expect_rebirth() {
  random_device() = Fd(::open("/dev/urandom", O_RDWR | O_CLOEXEC));
  if (!random_device()) return sys_error("cannot open the random device");
  return {};
}

Result<void> set_clock(int64_t nanoseconds) {
  constexpr int64_t kSecond = 1'000'000'000;
  const timespec now{.tv_sec = nanoseconds / kSecond, .tv_nsec = nanoseconds % kSecond};
  if (nanoseconds <= 0 || ::clock_settime(CLOCK_REALTIME, &now) < 0) return sys_error("cannot set the clock");
  return {};
}

Result<void> awake_at(int64_t nanoseconds, std::string_view randomness) {
  ISOLA_CHECK(reseed(randomness));
  return set_clock(nanoseconds);
}

}  // namespace isola::guest
