// The one resolver that a sandbox has. Answers permitted names with synthetic addresses, looks real ones up itself, and
// never sends a denied name anywhere.
//
//   resolver.answer(datagram, [&](std::string reply) { … });
//   resolver.addresses("example.org", [&](const Answer& real) { … });   // for a connection
//
// Against data that leaves as questions: only names that a rule allows are looked up at all; questions, look-ups, and
// look-ups below one parent each have a rate. Below a wildcard whoever owns the zone reads what is asked for, whether
// it exists or not: there, new names and the bytes in them have a rate of their own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gate/dns.h"
#include "gate/names.h"
#include "gate/policy.h"
#include "gate/token_bucket.h"

namespace isola::gate {

struct DnsRates {
  double questions = 200, questions_burst = 1000;  // a second, of any kind
  double names = 20, names_burst = 400;            // that had to be looked up
  double below = 2, below_burst = 100;             // of these, below one parent
  double labels = 0.1, labels_burst = 100;         // names never asked for before, below one wildcard of the policy
  double letters = 4, letters_burst = 4096;        // and the bytes of what stands in front of it
};

// What all resolvers of a gate share.
struct ResolverPools {
  Pool lookups{.size = 4096, .reserve = 1024};  // under way
  Pool names{.size = 128 << 10, .reserve = 32 << 10};
};

class Resolver {
 public:
  // `denied`: told about every refusal.
  using Denied = std::function<void(const std::string& name, const Verdict& verdict)>;
  struct Parts {
    Upstream& upstream;
    std::function<Clock::time_point()> now;
    std::function<std::shared_ptr<const Egress>()> egress;
    Denied denied;
    bool ipv6 = true;    // the sandbox can connect by IPv6
    uint32_t start = 0;  // random: of the synthetic addresses
    ResolverPools* pools;
    DnsRates rates = {};
  };
  explicit Resolver(Parts parts);

  // A reply, or an empty text where silence is the answer.
  void answer(std::string_view query, std::function<void(std::string)> done);
  // The real addresses of a name that was judged already.
  void addresses(const std::string& name, std::function<void(const Answer&)> done);
  Names& names() { return names_; }

 private:
  void answer(DnsQuestion question, std::function<void(std::string)> done);
  bool may_look_up(const std::string& name);
  bool may_ask_below(const std::string& wildcard, const std::string& name);

  Parts parts_;
  Names names_;
  TokenBucket questions_, lookups_;
  Share under_way_;
  size_t waiting_ = 0;  // for look-ups, in all
  std::map<std::string, TokenBucket, std::less<>> below_;
  struct Wildcard {
    TokenBucket names, letters;
    bool is_full(Clock::time_point now, const DnsRates& rates) {
      return names.available(now) >= static_cast<uint64_t>(rates.labels_burst) &&
             letters.available(now) >= static_cast<uint64_t>(rates.letters_burst);
    }
  };
  std::map<std::string, Wildcard, std::less<>> wildcards_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // a look-up may come back when we are gone
};

}  // namespace isola::gate
