#include "dialect/shared/input.h"

namespace isola::dialect {

Shares& waiting_input() {
  static Shares shares(size_t{128} << 20);
  return shares;
}

Result<Shares::Share> room_for_input(const std::string& project, size_t bytes) {
  auto share = waiting_input().of(project);
  ISOLA_CHECK(share.take_all(bytes, "stdin"));
  return share;
}

Task<Result<void>> feed(sandbox::ChannelPtr channel, std::string_view text) {
  constexpr size_t kPiece = 64 << 10;
  for (; !text.empty(); text.remove_prefix(std::min(kPiece, text.size())))
    ISOLA_CO_CHECK(co_await channel->write(text.substr(0, kPiece)));
  co_return Result<void>();
}

}  // namespace isola::dialect
