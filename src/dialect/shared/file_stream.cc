#include "dialect/shared/file_stream.h"

namespace isola::dialect {

Task<void> stream_file(http::Exchange& ex, sandbox::ChannelPtr channel, std::string_view type) {
  // A stranger's file: nobody shall show it as a page of this server.
  ex.set_header("X-Content-Type-Options", "nosniff");
  ex.set_header("Content-Disposition", "attachment");
  ex.begin(200, type);
  for (;;) {
    auto piece = co_await channel->read();
    if (!piece) break;
    if (auto sent = co_await ex.write(*piece); !sent) co_return;
  }
  auto end = co_await channel->end();
  if (!end)
    ex.abort();  // nobody must take a part for the whole
  else
    (void)co_await ex.finish();
}

}  // namespace isola::dialect
