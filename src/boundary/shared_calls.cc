#include "boundary/shared_calls.h"

#include <asm/unistd.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>

#include <cerrno>

namespace isola::boundary {

// Lowering it is what cautious programs do, so they are told that it worked; whoever wants the value before as well
// would get garbage, and is refused.
std::array<kernel::SeccompCall, 2> core_limit_calls() {
  using kernel::ArgumentTest;
  using kernel::SeccompAction;
  auto none = [](uint8_t argument) { return ArgumentTest::masked64(argument, ~uint64_t{0}, 0); };
  return {{{.number = __NR_setrlimit, .rules = {{{ArgumentTest::is(0, RLIMIT_CORE)}, SeccompAction::error(0)}}},
           {.number = __NR_prlimit64,
            .rules = {{{none(2)}, SeccompAction::allow()},
                      {{ArgumentTest::is(1, RLIMIT_CORE), none(3)}, SeccompAction::error(0)},
                      {{ArgumentTest::is(1, RLIMIT_CORE)}, SeccompAction::error(EPERM)}}}}};
}

kernel::SeccompCall no_socket_filters_call() {
  using kernel::ArgumentTest;
  kernel::SeccompCall call{.number = __NR_setsockopt};
  for (uint32_t option : {SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF})
    call.rules.push_back(
        {{ArgumentTest::is(1, SOL_SOCKET), ArgumentTest::is(2, option)}, kernel::SeccompAction::error(EPERM)});
  return call;
}

// The bits lie in the lower half of each argument.
std::array<kernel::SeccompCall, 3> no_huge_pages_calls() {
  auto without = [](uint32_t number, uint8_t argument, uint32_t flag, int error) {
    return kernel::SeccompCall{
        .number = number,
        .rules = {{{kernel::ArgumentTest::masked(argument, flag, flag)}, kernel::SeccompAction::error(error)}}};
  };
  return {without(__NR_mmap, 3, MAP_HUGETLB, ENOMEM), without(__NR_memfd_create, 1, MFD_HUGETLB, EINVAL),
          without(__NR_shmget, 2, SHM_HUGETLB, ENOMEM)};
}

kernel::SeccompCall no_core_scheduling_call() {
  constexpr uint32_t kSchedCore = 62;  // PR_SCHED_CORE, since Linux 5.14; the option is an int
  return {.number = __NR_prctl,
          .rules = {{{kernel::ArgumentTest::is(0, kSchedCore)}, kernel::SeccompAction::error(EINVAL)}}};
}

}  // namespace isola::boundary
