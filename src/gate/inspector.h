// Decides about each request of one connection that is looked into, and sets credentials in those that may have them.
//
//   Decision decision = inspector.judge(request);         // takes away what the sandbox must not say itself
//   if (decision.status) answer with it;                  // recorded already
//   ISOLA_CHECK(inspector.inject(request, decision, body)); // the body only where decision.wants_body
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gate/bindings.h"
#include "gate/event.h"
#include "gate/request.h"
#include "gate/screen.h"
#include "gate/searches.h"

namespace isola::gate {

// Where a connection belongs: asked anew for each request, so that a change counts at once.
class Premises {
 public:
  virtual ~Premises() = default;
  virtual std::shared_ptr<const Egress> egress() const = 0;
  virtual std::shared_ptr<const Bindings> bindings() const = 0;
  // What answers are searched for: more than what is bound now.
  virtual std::shared_ptr<const Searches> searches() const = 0;
  virtual void record(Event event) = 0;
  // A value that does not last is over, or soon will be: whoever makes them is told. When it is there, bindings() has
  // it and the connection is looked at again.
  virtual void want_values() = 0;
};

struct Decision {
  int status = 0;  // of the answer; 0: it passes
  Reason reason = Reason::allowed;
  std::string text;                                 // in words, for whoever asked
  std::vector<std::shared_ptr<const Bound>> bound;  // whose values are set
  bool wants_body = false;                          // before it can be signed
  bool searched = false;                            // its answer is, and must be readable for that
  bool waits = false;  // for a value that is being made: to be judged again when it may be there
};

// The answer to a request that does not pass: JSON in one line.
std::string refusal_body(const Decision& decision);

// Without the server's word for how: it is as little searched as the rest.
inline constexpr const char* kEncodedAnswer =
    "the answer is encoded and cannot be searched for the sandbox's credentials";

class Inspector {
 public:
  static constexpr size_t kMaxSignedBody = 1 << 20;
  static constexpr int64_t kLongestWait = 6000;  // milliseconds, of a request for a value

  Inspector(Premises& premises, std::string name, Address address, uint16_t port, bool cleartext)
      : premises_(premises), name_(std::move(name)), address_(address), port_(port), cleartext_(cleartext) {}

  Decision judge(Request& request);
  // A decision of somebody else's (a head that cannot be read), recorded.
  Decision refuse(int status, Reason reason, std::string text, const Request* request = nullptr,
                  const Bound* bound = nullptr, std::string rule = "");
  // What changed since the decision counts: it may refuse.
  Decision inject(Request& request, const Decision& decision, std::optional<std::string_view> body);

  // For what comes back.
  Screen screen();

  // Bindings whose values went out here, and one of them that is not in force any more.
  const std::vector<std::shared_ptr<const Bound>>& used() const { return used_; }
  bool is_revoked() const;
  bool is_over() const;  // the time of one of them is
  const std::string& name() const { return name_; }
  uint16_t port() const { return port_; }
  bool cleartext() const { return cleartext_; }

 private:
  bool is_for_us(std::string_view authority) const;
  Decision judge_again(const Request& request, const Decision& decision);
  Decision judge_bindings(Request& request, const std::string& path);
  bool is_narrow(const Egress& egress) const;
  void tell(Event::Kind kind, Reason reason, const Request* request, const Bound* bound, std::string rule);

  Premises& premises_;
  std::string name_;
  Address address_;
  uint16_t port_;
  bool cleartext_;
  std::vector<std::shared_ptr<const Bound>> used_;
};

}  // namespace isola::gate
