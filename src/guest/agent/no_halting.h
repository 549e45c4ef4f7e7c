// Nobody inside a virtual machine halts its kernel: reboot(2) may restart and power off, which end the machine, and not
// stop everything while QEMU goes on.
//
// For every way into the kernel: the native numbers, those of x32, and those of 32-bit programs, with which the same
// number is another call and the same call has another number.
#pragma once

#include <linux/filter.h>

#include <array>

namespace isola::guest {

std::array<sock_filter, 11> no_halting_filter();

}  // namespace isola::guest
