#include "gate/bindings.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/field_value.h"
#include "gate/request_path.h"
#include "vault/binding_wire.h"

namespace isola::gate {

namespace {

constexpr char kUsualPort[] = "443";

Result<Bound> prepare(vault::Binding binding, const vault::KeyPair* key) {
  Bound out;
  for (const auto& name : binding.names) {
    ISOLA_TRY(Rule rule, make_rule("allow", name, "", false));
    if (rule.kind != Rule::Kind::name && rule.kind != Rule::Kind::below)
      return fail(Code::invalid, "a binding is for names");
    out.names.push_back(std::move(rule));
  }
  ISOLA_TRY(out.ports, make_ports(binding.ports.empty() ? kUsualPort : binding.ports));
  if (!binding.path_prefix.empty()) {
    ISOLA_TRY(binding.path_prefix, normal_path(binding.path_prefix));
  }
  if (binding.sealed.empty()) {
    out.trouble = "the vault could not open it";
  } else if (!key) {
    out.trouble = "the vault's key is not here yet";
    out.closed = true;
  } else if (auto opened = vault::open_sealed(*key, binding.sealed); !opened) {
    out.trouble = opened.error().message;
    out.closed = true;
  } else if (opened->empty()) {
    out.trouble = "the value is empty";
  } else {
    out.value = std::move(*opened);
    out.unsendable = vault::stands_in_header(binding.place) && !is_field_value(out.value.view());
    if (out.unsendable) out.trouble = vault::kUnsendable;
  }
  binding.sealed.clear();
  // Another value, or one that lives longer, is no other binding.
  out.until = std::exchange(binding.until, 0);
  out.due = std::exchange(binding.due, 0);
  binding.serial.clear();
  binding.mark.clear();
  binding.print.clear();
  out.binding = std::move(binding);
  return out;
}

}  // namespace

// Of AWS's three parts the second signs and the third is sent.
std::vector<std::string_view> Bound::searched() const {
  std::string_view all = value.view();
  if (binding.place != vault::Place::sigv4) return {all};
  std::vector<std::string_view> out;
  if (size_t colon = all.find(':'); colon != all.npos) {
    all.remove_prefix(colon + 1);
    out.push_back(all.substr(0, all.find(':')));
    if (size_t next = all.find(':'); next != all.npos) out.push_back(all.substr(next + 1));
  }
  return out;
}

bool Bound::is_for(std::string_view name, uint16_t port) const {
  return ports.contain(port) &&
         std::any_of(names.begin(), names.end(), [&](const Rule& rule) { return rule.matches_name(name); });
}

bool Bound::fits(std::string_view method, std::string_view path) const {
  const auto& methods = binding.methods;
  return (methods.empty() || std::find(methods.begin(), methods.end(), method) != methods.end()) &&
         is_under(path, binding.path_prefix);
}

Result<std::shared_ptr<const Bindings>> Bindings::make(const std::string& encoded, const vault::KeyPair* key) {
  auto out = std::make_shared<Bindings>();
  ISOLA_TRY(auto list, vault::decode_bindings(encoded));
  std::vector<scan::Value> values;
  std::set<std::string_view> known;  // in what `all_` holds
  size_t total = 0;
  for (auto& one : list) {
    ISOLA_TRY(Bound bound, prepare(std::move(one), key));
    if (!known.contains(bound.value.view()) && total + bound.value.size() > kMostValues) {
      bound.value = vault::Secret();
      bound.trouble = "the values of one sandbox have at most 16 KiB together";
    }
    const bool fresh = !known.contains(bound.value.view());
    out->all_.push_back(std::make_shared<const Bound>(std::move(bound)));
    if (!fresh) continue;
    total += out->all_.back()->value.size();
    known.insert(out->all_.back()->value.view());
  }
  for (const auto& bound : out->all_) {
    if (bound->value.empty()) continue;
    for (auto part : bound->searched()) values.push_back({bound->binding.id, part});
  }
  if (!values.empty()) {
    ISOLA_TRY(auto automaton, scan::Automaton::make(values));
    if (!automaton->empty()) out->automaton_ = std::move(automaton);
  }
  return out;
}

bool Bindings::any_for(std::string_view name, uint16_t port) const {
  return std::any_of(all_.begin(), all_.end(), [&](const auto& bound) { return bound->is_for(name, port); });
}

bool Bindings::has_placeholders() const {
  return std::any_of(all_.begin(), all_.end(), [](const auto& bound) { return !bound->binding.placeholder.empty(); });
}

bool Bindings::guards() const {
  return std::any_of(all_.begin(), all_.end(), [](const auto& bound) {
    return !bound->binding.placeholder.empty() && !bound->binding.unguarded;
  });
}

bool Bindings::has(const vault::Binding& binding) const {
  return std::any_of(all_.begin(), all_.end(), [&](const auto& bound) { return bound->binding == binding; });
}

}  // namespace isola::gate
