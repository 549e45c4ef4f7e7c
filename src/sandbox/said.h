// What another thread says once, for a coroutine to hear.
//
//   auto said = std::make_shared<Said>();
//   ISOLA_CO_CHECK(ledger.flush(Said::hear(said)));
//   …
//   ISOLA_CO_TRY(uint64_t mark, co_await heard(said));
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "ledger/chain_writer.h"
#include "sandbox/bell.h"

namespace isola::sandbox {

struct Said {
  std::mutex mutex;
  Bell bell;
  std::optional<Result<uint64_t>> answer;

  static ledger::ChainWriter::Done hear(const std::shared_ptr<Said>& self) {
    return [self](Result<uint64_t> said) {
      {
        std::lock_guard lock(self->mutex);
        self->answer = std::move(said);
      }
      self->bell.ring();
    };
  }
};

inline Task<Result<uint64_t>> heard(std::shared_ptr<Said> said) {
  for (;;) {
    uint64_t ticket = said->bell.ticket();
    {
      std::lock_guard lock(said->mutex);
      if (said->answer) co_return *said->answer;
    }
    co_await said->bell.wait(ticket);
  }
}

}  // namespace isola::sandbox
