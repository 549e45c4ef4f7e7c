// Two ends without sockets for the fuzz targets of relays: the input is what both ends say, in pieces.
//
// Each piece: a byte that says whose it is and, in its lower bits, how long; then the piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "gate/inspector.h"
#include "gate/relay.h"
#include "vault/binding_wire.h"
#include "vault/seal.h"

namespace isola::gate {

inline constexpr char kFuzzValue[] = "the-value-of-the-credential";

class StagedLeg : public Leg {
 public:
  std::string in, out;
  bool over = false;
  Moved read(char* to, size_t size) override {
    size = std::min({size, in.size(), size_t{1000}});
    if (size == 0) return {over ? Io::ended : Io::blocked};
    in.copy(to, size);
    in.erase(0, size);
    return {Io::moved, size};
  }
  Moved write(const char* from, size_t size) override {
    out.append(from, size);
    return {Io::moved, size};
  }
  void finish() override {}
};

class StagedPremises : public Premises {
 public:
  StagedPremises() {
    auto key = vault::KeyPair::make().value();
    vault::Binding binding;
    binding.id = "b", binding.secret = "s", binding.names = {"a.example"}, binding.path_prefix = "/key";
    binding.sealed = vault::seal(key.open_key(), kFuzzValue).value();
    bindings_ = Bindings::make(vault::encode_bindings({binding}), &key).value();
    searches_->set(*bindings_);
    egress_ = std::make_shared<const Egress>(
        parse_policy("deny a.example paths /secret\ndeny a.example methods DELETE\nallow a.example\n").value());
  }
  std::shared_ptr<const Egress> egress() const override { return egress_; }
  std::shared_ptr<const Bindings> bindings() const override { return bindings_; }
  std::shared_ptr<const Searches> searches() const override { return searches_; }
  void record(Event) override {}
  void want_values() override {}

 private:
  std::shared_ptr<const Egress> egress_;
  std::shared_ptr<const Bindings> bindings_;
  std::shared_ptr<Searches> searches_ = std::make_shared<Searches>();
};

// Plays the input. The value never goes to the client.
template <typename Make>
void play(std::string_view input, Make make) {
  static StagedPremises premises;
  Inspector inspector(premises, "a.example", Address::parse("203.0.113.10").value(), 443, false);
  StagedLeg client, server;
  auto relay = make(inspector, client, server);
  if (!relay) return;
  std::string said;  // by the client: what it knows already may come back to it
  auto state = Relay::State::going;
  auto pump = [&] {
    for (int i = 0; i < 200 && (state == Relay::State::going || state == Relay::State::again); ++i)
      if (state = relay->pump(); state == Relay::State::going) break;
  };
  while (!input.empty() && state == Relay::State::going) {
    auto first = static_cast<uint8_t>(input[0]);
    size_t size = std::min<size_t>((first & 0x7f) * 8 + 1, input.size() - 1);
    (first & 0x80 ? server : client).in += input.substr(1, size);
    if (!(first & 0x80)) said += input.substr(1, size);
    input.remove_prefix(1 + size);
    pump();
  }
  client.over = server.over = true;
  pump();
  if (said.find(kFuzzValue) == std::string::npos && client.out.find(kFuzzValue) != std::string::npos) std::abort();
}

}  // namespace isola::gate
