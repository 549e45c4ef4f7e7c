// The devices of a virtual machine, as a distribution's kernel has them: modules, and names that depend on the order in
// which they were found.
#include <dirent.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#if defined(__x86_64__)
#include <sys/io.h>
#endif
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/file.h"
#include "guest/agent/birth.h"
#include "guest/agent/no_halting.h"

namespace isola::guest {

namespace {

std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(folder);
  if (!dir) return names;
  while (const dirent* entry = ::readdir(dir))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  ::closedir(dir);
  std::ranges::sort(names);
  return names;
}

// Drivers look for their devices by themselves, some a moment after they were loaded.
template <typename Look>
Result<std::string> await_device(const char* what, Look look) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    std::string found = look();
    if (!found.empty()) return found;
    if (std::chrono::steady_clock::now() > deadline)
      return fail(Code::not_found, std::string("this machine has no ") + what);
    ::poll(nullptr, 0, 1);
  }
}

}  // namespace

Result<void> load_modules() {
  for (const auto& name : names_in("/modules")) {
    const std::string path = "/modules/" + name;
    Fd module(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!module || (::syscall(SYS_finit_module, module.get(), "", 0) < 0 && errno != EEXIST))
      return sys_error("cannot load " + path);
    module.reset();
    (void)::unlink(path.c_str());  // its memory is the sandbox's
  }
  return {};
}

Result<std::string> disk_with(std::string_view serial) {
  return await_device("disk of that kind", [&]() -> std::string {
    for (const auto& name : names_in("/sys/block")) {
      auto text = read_file("/sys/block/" + name + "/serial", 4096);
      if (text && text->substr(0, text->find('\n')) == serial) return "/dev/" + name;
    }
    return "";
  });
}

Result<Fd> open_serial_line() {
  ISOLA_TRY(std::string path, await_device("serial line", []() -> std::string {
              for (const auto& name : names_in("/sys/class/virtio-ports")) {
                auto text = read_file("/sys/class/virtio-ports/" + name + "/name", 4096);
                if (text && text->starts_with("isola")) return "/dev/" + name;
              }
              return "";
            }));
  Fd line(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!line) return sys_error("cannot open the link");
  return line;
}

void say_that_it_works() {
#if defined(__x86_64__)
  constexpr uint16_t kPort = 0xf4;
  constexpr uint8_t kWord = 21;  // boundary/microvm/command_line.h: kProbeCode
  if (::ioperm(kPort, 1, 1) == 0) __asm__ volatile("outb %0, %1" ::"a"(kWord), "Nd"(kPort));
#endif
  ::reboot(RB_POWER_OFF);
}

Result<void> forbid_halting() {
  auto code = no_halting_filter();
  sock_fprog program{.len = static_cast<unsigned short>(code.size()), .filter = code.data()};
  // Nothing speculative is to be had from such a filter.
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) < 0)
    return sys_error("cannot forbid halting");
  return {};
}

}  // namespace isola::guest
