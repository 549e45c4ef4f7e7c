#include "boundary/shared_calls.h"

#include <asm/unistd.h>
#include <sys/resource.h>
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

}  // namespace isola::boundary
