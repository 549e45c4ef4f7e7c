#include "boundary/uml/uml_kernel.h"

#include <stdlib.h>
#include <unistd.h>

#include <memory>

#include "boundary/program_output.h"
#include "boundary/versions.h"

namespace isola::boundary::uml {

namespace {

constexpr char kUsualPlace[] = "/var/cache/isola/tools/uml/linux";
constexpr char kMark[] = "-isola";  // of our configuration: another kernel would lack what the guest needs

}  // namespace

Result<std::string> parse_kernel_version(const std::string& text) {
  std::string version = text.substr(0, text.find_first_of(" \r\n"));
  if (version.empty() || version[0] < '0' || version[0] > '9')
    return fail(Code::unsupported, "that is no user-mode Linux: it does not tell its version");
  if (!version.ends_with(kMark))
    return fail(Code::unsupported, "the kernel " + version + " was not made by `./dev up --boundary uml`");
  return version;
}

std::string UmlKernel::concern() const {
  auto known = known_concern(Program::kernel, version);
  return known.empty() ? "" : "in uml: " + known;
}

Result<UmlKernel> UmlKernel::find() {
  const char* named = ::getenv("ISOLA_UML");
  const std::string path = named && *named ? named : kUsualPlace;
  if (path == "none" || ::access(path.c_str(), F_OK) < 0)
    return fail(Code::not_found,
                "there is no user-mode Linux kernel (`./dev up --boundary uml` builds one; ISOLA_UML names another)");
  std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), ::free);
  if (!real || ::access(real.get(), X_OK) < 0) return sys_error("cannot use " + path);
  UmlKernel kernel{.program = real.get(), .disk = {}, .version = {}};
  kernel.disk = kernel.program.substr(0, kernel.program.rfind('/') + 1) + "disk.ext4";
  if (::access(kernel.disk.c_str(), R_OK) < 0) return sys_error("the kernel has no disk beside it: " + kernel.disk);
  if (::access("/dev/net/tun", R_OK | W_OK) < 0)
    return sys_error("a user-mode Linux kernel needs /dev/net/tun for its network");
  ISOLA_TRY(std::string text, output_of(kernel.program, "--version"));
  auto version = parse_kernel_version(text);
  if (!version) return std::unexpected(version.error().in(path));
  kernel.version = std::move(*version);
  return kernel;
}

}  // namespace isola::boundary::uml
