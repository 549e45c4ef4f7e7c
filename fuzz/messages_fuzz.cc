// What our own processes say to each other, from a peer that lies: serve to the launcher, the launcher to the gate, the
// gate to the launcher. The first byte chooses the message. What can be read at all is written and read again, and must
// then be the same: a reader that forgets a field, or takes what no writer says, is found by that.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "gate/control.h"
#include "gate/scan_frames.h"
#include "launcher/protocol.h"

using namespace isola;

namespace {

using launcher::decode, launcher::encode;  // for Error, which is of no room's

template <typename Message>
void stable(std::string_view input) {
  Message first{};
  Reader in(input);
  decode(in, first);
  if (!in.done()) return;
  Writer once;
  encode(once, first);
  Message second{};
  Reader again(once.data());
  decode(again, second);
  if (!again.done()) std::abort();
  Writer twice;
  encode(twice, second);
  if (once.data() != twice.data()) std::abort();
}

constexpr std::array kMessages = {
    stable<launcher::LaunchRequest>,   stable<launcher::LaunchReply>,    stable<launcher::CheckpointRequest>,
    stable<launcher::CheckpointReply>, stable<launcher::ImageSummary>,   stable<launcher::PackReply>,
    stable<launcher::VolumeSummary>,   stable<launcher::SandboxSummary>, stable<launcher::StatsReply>,
    stable<launcher::Ended>,           stable<launcher::InfoReply>,      stable<launcher::PolicyRequest>,
    stable<launcher::RevokeRequest>,   stable<launcher::VaultState>,     stable<Error>,
    stable<gate::AddSandbox>,          stable<gate::SetPolicy>,          stable<gate::Event>,
    stable<gate::ScanReply>,
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  kMessages[data[0] % kMessages.size()](std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
