#include "sandbox/quiet_run.h"

#include "base/log.h"

namespace isola::sandbox {

std::string and_said(const QuietEnd& end) { return end.output.empty() ? "" : ", and said\n" + log::quoted(end.output); }

std::string own_words(std::string_view message) {
  const size_t line = message.find('\n');
  if (line == message.npos) return std::string(message);
  message = message.substr(0, line);
  if (message.ends_with(", and said")) message.remove_suffix(std::string_view(", and said").size());
  return std::string(message);
}

Task<Result<QuietEnd>> run_quietly(Service& service, BoxPtr box, CommandSpec spec) {
  ISOLA_CO_TRY(Running running, co_await service.run(box, std::move(spec)));
  QuietEnd end;
  for (;;) {
    auto piece = co_await running.channel->read_frame();
    if (!piece) break;
    if (piece->size() > guest::kPieceHeader) end.output.append(*piece, guest::kPieceHeader);
    if (end.output.size() > 2000) end.output.erase(0, end.output.size() - 2000);
  }
  ISOLA_CO_TRY(std::string bytes, co_await running.channel->end());
  ISOLA_CO_TRY(end.exit, guest::decode<guest::Exit>(bytes));
  end.exit = co_await service.judged(box, running.info.id, end.exit);
  service.command_ended(box, running.info.id, end.exit);
  co_return end;
}

}  // namespace isola::sandbox
