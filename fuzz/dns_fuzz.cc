// Questions of a stranger: every one that is answered is answered in at most 512 bytes, and repeats only the question.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "gate/dns.h"
#include "gate/name.h"

using namespace isola::gate;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  DnsQuestion question;
  if (parse_query(input, question) == QueryState::good) {
    if (question.is_name && isola::gate::normal_name(question.name).value() != question.name) std::abort();
    for (const DnsReply& reply :
         {DnsReply{.address = Address::v4(0xc6120001), .ttl = 30}, DnsReply{.pointer = "a.example"},
          DnsReply{.code = DnsCode::no_such_name, .why = std::string(4096, 'w')}})
      if (build_reply(question, reply).size() > 512) std::abort();
    (void)address_of_pointer(question.name);
  }
  std::string stream(input);
  for (;;) {
    auto message = take_framed(stream);
    if (!message || !*message) break;
    (void)parse_query(**message, question);
  }
  return 0;
}
