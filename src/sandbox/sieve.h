// Text that is put together further in than the link can see (the body of a reply in chunks, what code printed in
// several messages), searched once more as the one stream that it is to its reader.
//
//   Sieve sieve(box, "port");
//   ISOLA_CO_TRY(std::string out, co_await sieve.pass(piece));     // with what was held back before; may be empty
//   ISOLA_CO_TRY(std::string last, co_await sieve.end());
//
// Where nothing is bound to the sandbox everything passes as it is, and nobody is asked. One call after the other.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "sandbox/box.h"

namespace isola::sandbox {

class Sieve {
 public:
  Sieve(BoxPtr box, std::string stream);
  ~Sieve();
  Sieve(const Sieve&) = delete;
  Sieve& operator=(const Sieve&) = delete;

  Task<Result<std::string>> pass(std::string_view bytes);
  Task<Result<std::string>> end();

 private:
  struct State;
  Task<Result<std::string>> ask(std::string_view bytes, uint8_t flags);

  BoxPtr box_;
  std::string name_;
  std::shared_ptr<State> state_;
  std::unique_ptr<ScanStream> stream_;  // nothing: nothing was bound so far
};

}  // namespace isola::sandbox
