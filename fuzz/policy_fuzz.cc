// The policy language, in both forms: whatever is understood is understood the same when it is printed and read again,
// and decides without failing.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "gate/policy.h"

using namespace isola::gate;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  for (bool json : {false, true}) {
    auto policy = json ? parse_policy_json(input) : parse_policy(input);
    if (!policy) continue;
    auto text = to_text(*policy);
    auto again = parse_policy(text);
    if (text.size() <= kMaxPolicyText && (!again || *again != *policy)) std::abort();
    auto round = parse_policy_json(to_json(*policy));
    if (text.size() <= kMaxPolicyText && (!round || *round != *policy)) std::abort();
    Egress egress(*policy);
    for (const char* address : {"8.8.8.8", "10.0.0.1", "169.254.169.254", "::1", "2001:db8::1"})
      for (const char* name : {"", "a.example", "dns.google"}) {
        auto verdict = egress.connect_address(name, Address::parse(address).value(), 443);
        // Whatever it says, nobody gets to the metadata service by a rule about something else.
        if (verdict.allowed() && std::string_view(address) == "169.254.169.254" &&
            text.find("169.254.169.254/32") == std::string::npos)
          std::abort();
        if (!*name) continue;
        (void)egress.connect_name(name, 443), (void)egress.may_resolve(name);
        // Nothing is looked into for nothing, and what is not looked into is not decided by requests.
        if (!egress.inspects(name, 443) && verdict.allowed() && !policy->learn &&
            egress.connect_name(name, 443).allowed() &&
            !egress.request(name, Address::parse(address).value(), 443, "GET", "/").allowed())
          std::abort();
      }
  }
  return 0;
}
