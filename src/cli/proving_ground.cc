#include "cli/proving_ground.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>

#include "cli/prove_runner.h"

namespace isola::cli {

namespace {
constexpr char kNameServers[] = "ISOLA_NAME_SERVERS";
}

Result<std::unique_ptr<ProvingGround>> ProvingGround::open() {
  std::unique_ptr<ProvingGround> ground(new ProvingGround);
  ISOLA_TRY(ground->cable_, gate::Cable::make());
  ISOLA_TRY(ground->outside_, gate::Outside::open(ground->cable_.outside));
  ground->outside_->set_names_for_evasions();
  char path[] = "/tmp/isola-prove-XXXXXX";
  if (!::mkdtemp(path)) return sys_error("cannot make a folder for the proof");
  ground->data_dir_ = path;
  return ground;
}

ProvingGround::~ProvingGround() {
  std::error_code ignored;
  if (!data_dir_.empty()) std::filesystem::remove_all(data_dir_, ignored);
}

void ProvingGround::at_home(const std::function<void()>& body) const {
  gate::in_netns(cable_.gate, [&] {
    ::setenv(kNameServers, fmt::format("{}:53", gate::kNameServer).c_str(), 1);
    body();
    ::unsetenv(kNameServers);
  });
}

std::string ProvingGround::control(const HostileProgram& program, const std::string& binary) {
  if (!program.has_control) return "";
  auto known = controls_.find(program.name);
  if (known != controls_.end()) return known->second;
  size_t before = questions();
  Result<Ran> ran = fail(Code::internal, "not run");
  gate::in_netns(cable_.gate, [&] {
    ran = run_program(binary, {program.name},
                      {fmt::format("ISOLA_DNS={}", gate::kNameServer), fmt::format("ISOLA_DEVICE={}", gate::kCableEnd),
                       fmt::format("ISOLA_OTHERS_ADDRESS={}", gate::kForbidden)});
  });
  bool through = ran && (program.leaks.empty() ? ran->code == 0 : !leaked(program, before).empty());
  std::string why =
      through ? "" : "without a gate it did not get through either: " + (ran ? ran->output : ran.error().message);
  return controls_[program.name] = why;
}

std::string ProvingGround::leaked(const HostileProgram& program, size_t since) {
  if (program.leaks.empty()) return "";
  size_t seen = outside_->asked_with(program.leaks, since);
  return seen > program.leaks_most ? fmt::format("{} of its questions reached a name server outside", seen) : "";
}

}  // namespace isola::cli
