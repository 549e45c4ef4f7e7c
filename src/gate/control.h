// What launcher and gate say to each other, over an inherited socket pair (SOCK_SEQPACKET, one message each).
//
// To the gate: {u8 op, u32 tag, arguments}. From it: {u8 0, u32 tag, u8 status, text} for each tag that is not 0, and
// {u8 1, Event}, and {u8 2, sandbox} when it needs values for it that do not last (vault/minting.h).
//
// The gate reads what strangers send, so the launcher takes nothing that it says for granted.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/codec.h"
#include "base/fd.h"
#include "boundary/network.h"
#include "gate/event.h"

namespace isola::gate {

enum class ControlOp : uint8_t {
  add,
  policy,
  remove,
  report,
  key,          // 32 bytes, which open what is sealed to them; the first message, and again when the vault is unlocked
  certificate,  // of a sandbox's authority: PEM is the answer
  scan,         // a descriptor: somebody passes streams of sandboxes over it (scan_frames.h)
};
inline constexpr size_t kMaxControl = 200 << 10;

// One sandbox: its sockets (descriptors of the message, in the order of IslandSockets; `sockets` has a bit for each
// that is there) and what it may reach.
struct AddSandbox {
  std::string id;
  std::string policy, ceiling;  // as text; an empty ceiling is none
  uint8_t sockets = 0;
  std::string bindings;  // vault::encode_bindings, with what is sealed; empty: none
  std::string past;      // the same of those that were revoked: their values are searched for, and never sent
  std::string birth;     // tells apart two lives of one id: each has an authority of its own
  // Bindings that an earlier gate may have used are missing: streams of this sandbox wait for them.
  bool incomplete = false;
};

struct SetPolicy {
  std::string id;
  std::string policy, ceiling;
  bool cut = false;      // connections that the new policy denies end at once
  std::string bindings;  // connections that had a credential which is not among them end at once in any case
  bool incomplete = false;
};

void encode(Writer& out, const AddSandbox& v);
void decode(Reader& in, AddSandbox& v);
void encode(Writer& out, const SetPolicy& v);
void decode(Reader& in, SetPolicy& v);

// Both ways between sockets and a list of descriptors.
std::vector<int> descriptors_of(const boundary::IslandSockets& sockets, uint8_t& present);
Result<boundary::IslandSockets> sockets_from(std::vector<Fd> fds, uint8_t present);

// A policy under a ceiling from their texts; an empty ceiling allows everything.
Result<std::shared_ptr<const Egress>> read_egress(const std::string& policy, const std::string& ceiling);

}  // namespace isola::gate
