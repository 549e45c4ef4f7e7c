#include "vault/binding_wire.h"

#include "base/codec.h"

namespace isola::vault {

namespace {

constexpr uint8_t kForm = 1;  // of the bytes: what an older launcher kept may have another
constexpr size_t kMaxBytes = 160 << 10;

// The fields in their one order, for both ways.
template <typename Field>
void each_text(auto& binding, Field field) {
  for (auto* text : {&binding.id, &binding.secret, &binding.ports, &binding.path_prefix, &binding.field,
                     &binding.format, &binding.placeholder, &binding.audience, &binding.actor, &binding.sealed,
                     &binding.identity, &binding.serial, &binding.mark, &binding.print})
    field(*text);
}

void write(Writer& out, const Binding& binding) {
  each_text(binding, [&](const std::string& text) { out.str(text); });
  out.strs(binding.names);
  out.strs(binding.methods);
  out.u8(static_cast<uint8_t>(binding.place));
  const bool guarded = !binding.placeholder.empty() && !binding.unguarded;
  for (bool flag : {binding.blocks, guarded, binding.unsearched}) out.u8(flag ? 1 : 0);
  for (int64_t number : {binding.expires, binding.until, binding.due}) out.i64(number);
}

Binding read(Reader& in) {
  Binding binding;
  each_text(binding, [&](std::string& text) { text = in.str(); });
  binding.names = in.strs();
  binding.methods = in.strs();
  binding.place = static_cast<Place>(in.u8());  // one that there is not is refused by check_binding
  bool guarded = false;
  for (bool* flag : {&binding.blocks, &guarded, &binding.unsearched}) *flag = in.u8() != 0;
  binding.unguarded = !binding.placeholder.empty() && !guarded;
  for (int64_t* number : {&binding.expires, &binding.until, &binding.due}) *number = in.i64();
  return binding;
}

std::unexpected<Error> unreadable(const char* what) { return fail(Code::corrupt, std::string("unreadable ") + what); }

}  // namespace

std::string encode_bindings(const std::vector<Binding>& bindings) {
  if (bindings.empty()) return {};
  Writer out;
  out.u8(kForm);
  out.u32(static_cast<uint32_t>(bindings.size()));
  for (const auto& binding : bindings) write(out, binding);
  return out.take();
}

Result<std::vector<Binding>> decode_bindings(std::string_view bytes) {
  std::vector<Binding> bindings;
  if (bytes.empty()) return bindings;
  if (bytes.size() > kMaxBytes) return fail(Code::invalid, "the bindings are too large");
  Reader in(bytes);
  if (in.u8() != kForm) return unreadable("bindings");
  const uint32_t count = in.u32();
  if (count > kMaxBindings) return fail(Code::invalid, "a sandbox has at most 256 bindings");
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    Binding binding = read(in);
    if (!in.ok()) break;
    ISOLA_CHECK(check_binding(binding));
    bindings.push_back(std::move(binding));
  }
  if (!in.done()) return unreadable("bindings");
  return bindings;
}

std::string encode_reasons(const Reasons& reasons) {
  if (reasons.empty()) return {};
  Writer out;
  for (const auto& [id, why] : reasons) {
    out.str(id);
    out.str(why);
  }
  return out.take();
}

Result<Reasons> decode_reasons(std::string_view bytes) {
  Reasons reasons;
  Reader in(bytes);
  while (in.ok() && !in.done()) {
    std::string id = in.str(), why = in.str();
    if (in.ok()) reasons[std::move(id)] = std::move(why);
  }
  if (!in.ok()) return unreadable("reasons");
  return reasons;
}

}  // namespace isola::vault
