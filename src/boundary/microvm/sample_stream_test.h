// A stream as QEMU writes it when it saves a machine, by the pieces that matter here: `bytes` all of it, `rest` what is
// left when the guest's memory was taken out.
#pragma once

#include <string>

#include "boundary/microvm/state_stream.h"

namespace isola::boundary::microvm {

inline std::string big(uint64_t value, size_t size) {
  std::string bytes;
  for (size_t i = size; i-- > 0;) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}
inline std::string named(const std::string& name) { return static_cast<char>(name.size()) + name; }
inline std::string page(char fill) { return std::string(StateStream::kPage, fill); }

struct SampleStream {
  static constexpr uint64_t kMemory = 64 * 4096;

  std::string bytes = big(0x5145564d, 4) + big(3, 4) + "\7" + big(7, 4) + "microvm";
  std::string rest = bytes;
  void both(const std::string& more) { bytes += more, rest += more; }
  void gone(const std::string& more) { bytes += more; }

  void begin(uint64_t ram = kMemory) {
    both("\1" + big(2, 4) + named("ram") + big(0, 4) + big(4, 4));
    both(big((ram + 8192) | 0x04, 8) + named("rom") + big(8192, 8) + big(0xf000, 8) + named("ram") + big(ram, 8) +
         big(0, 8));
    end();
  }
  void end() { both(big(0x10, 8) + "\x7e" + big(2, 4)); }
  void part(char kind) { both(kind + big(2, 4)); }
};

}  // namespace isola::boundary::microvm
