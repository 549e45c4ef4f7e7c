#include "gate/control.h"

#include <bit>

namespace isola::gate {

void encode(Writer& out, const AddSandbox& v) {
  out.str(v.id);
  out.str(v.policy);
  out.str(v.ceiling);
  out.u8(v.sockets);
  out.str(v.bindings);
  out.str(v.past);
  out.u8(v.incomplete);
  out.str(v.birth);
}
void decode(Reader& in, AddSandbox& v) {
  v.id = in.str();
  v.policy = in.str();
  v.ceiling = in.str();
  v.sockets = in.u8();
  v.bindings = in.str();
  v.past = in.str();
  v.incomplete = in.u8() != 0;
  v.birth = in.str();
}
void encode(Writer& out, const SetPolicy& v) {
  out.str(v.id);
  out.str(v.policy);
  out.str(v.ceiling);
  out.u8(v.cut);
  out.u8(v.incomplete);
  out.str(v.bindings);
}
void decode(Reader& in, SetPolicy& v) {
  v.id = in.str();
  v.policy = in.str();
  v.ceiling = in.str();
  v.cut = in.u8() != 0;
  v.incomplete = in.u8() != 0;
  v.bindings = in.str();
}

namespace {
template <typename S>
auto parts_of(S& s) {
  return std::array{&s.tcp4, &s.tcp6, &s.dns_udp4, &s.dns_udp6, &s.dns_tcp4, &s.dns_tcp6};
}
}  // namespace

std::vector<int> descriptors_of(const boundary::IslandSockets& sockets, uint8_t& present) {
  std::vector<int> out;
  present = 0;
  uint8_t bit = 1;
  for (const Fd* fd : parts_of(sockets)) {
    if (fd->valid()) out.push_back(fd->get()), present |= bit;
    bit = static_cast<uint8_t>(bit << 1);
  }
  return out;
}

Result<boundary::IslandSockets> sockets_from(std::vector<Fd> fds, uint8_t present) {
  if (present >= 1 << 6 || static_cast<size_t>(std::popcount(present)) != fds.size())
    return fail(Code::corrupt, "the sockets of a sandbox do not fit their description");
  boundary::IslandSockets out;
  size_t next = 0;
  uint8_t bit = 1;
  for (Fd* fd : parts_of(out)) {
    if (present & bit) *fd = std::move(fds[next++]);
    bit = static_cast<uint8_t>(bit << 1);
  }
  if (!out.tcp4 || !out.dns_udp4 || !out.dns_tcp4) return fail(Code::corrupt, "a sandbox without its IPv4 sockets");
  return out;
}

Result<std::shared_ptr<const Egress>> read_egress(const std::string& policy, const std::string& ceiling) {
  ISOLA_TRY(Policy own, parse_policy(policy));
  if (ceiling.empty()) return std::make_shared<const Egress>(std::move(own));
  auto above = parse_policy(ceiling);
  if (!above) return std::unexpected(above.error().in("the ceiling"));
  if (above->learn) return fail(Code::invalid, "the ceiling: a ceiling cannot learn, it would hold nothing back");
  return std::make_shared<const Egress>(std::move(own), std::move(*above));
}

}  // namespace isola::gate
