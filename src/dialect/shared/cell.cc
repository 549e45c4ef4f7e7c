#include "dialect/shared/cell.h"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <nlohmann/json.hpp>

#include "dialect/shared/text.h"
#include "interpreter/client.h"
#include "interpreter/events.h"

namespace isola::dialect {

using namespace boost::asio::experimental::awaitable_operators;
using interpreter::Conversation;
using nlohmann::json;

namespace {

// Whoever does not keep to what isola-kernels says is told to stop, and hardly waited for.
constexpr auto kLiarTime = std::chrono::seconds(1);

// Text counts as it is, all else as it came.
size_t weight(const json& event, const std::string& type, size_t line) {
  if (type != "stdout" && type != "stderr") return line;
  auto text = event.find("text");
  return text == event.end() ? 0 : text->get_ref<const std::string&>().size();
}

CellEnd failed(Error error, bool from_inside = false) {
  return {.left = false, .failure = std::move(error), .from_inside = from_inside};
}

// More came than isola-kernels would send: whoever speaks there is not it. The caller gets an end of ours.
Task<void> cut(CellCall& call, const UseEvent& use) {
  call.run.ended("interrupted", 0);
  json mark = {{"type", "truncated"}, {"limit_bytes", call.max_output}};
  bool taken = co_await use(mark);
  if (!taken) co_return;
  json end = {{"type", "end"},
              {"status", "interrupted"},
              {"message", "the cell said more than it may, and did not keep to that by itself: it was stopped"}};
  (void)co_await use(end);
}

}  // namespace

Task<CellEnd> follow(CellCall call, const UseEvent& use) {
  call.max_output = std::min(call.max_output, interpreter::kMostOutput);
  // Before it is sent: what may have run is in the ledger.
  call.run.started(call.language, call.context);
  Conversation talk(call.service, call.box, interpreter::longest_line(call.max_output));
  auto opened = co_await (talk.open(std::move(call.request)) || call.ex.left() || call.run.stopped());
  if (opened.index() != 0) co_await talk.interrupt();
  if (opened.index() == 1) co_return CellEnd{.left = true, .failure = {}};
  if (opened.index() == 2) co_return failed({Code::exhausted, std::get<2>(opened)});
  if (auto& there = std::get<0>(opened); !there) {
    call.run.ended("failure", 0);
    co_return failed(std::move(there).error());
  }
  for (size_t taken = 0;;) {
    auto first = co_await (talk.next(call.ping) || call.ex.left() || call.run.stopped());
    if (first.index() != 0) co_await talk.interrupt();
    if (first.index() == 1) co_return CellEnd{.left = true, .failure = {}};
    if (first.index() == 2) co_return failed({Code::exhausted, std::get<2>(first)});
    auto next = std::move(std::get<0>(first));
    if (!next) co_return failed(std::move(next).error());
    if (!*next) co_return failed({Code::unavailable, "the interpreter inside ended in the middle of a cell"});
    const std::string& text = **next;
    std::optional<json> event = json{{"type", "ping"}};
    if (!text.empty()) {
      auto line = interpreter::parse_line(text);
      if (!line) {
        co_await talk.interrupt(kLiarTime);
        co_return failed(std::move(line).error());
      }
      if (text_of(*line, "type") == "failure") {
        call.run.ended("failure", 0);
        co_return failed(interpreter::failure_of(*line), true);
      }
      event = interpreter::event_of(std::move(*line));
      taken += event ? weight(*event, text_of(*event, "type"), text.size()) : text.size();
    }
    if (taken > call.max_output + interpreter::kBeyondAtHost) {
      co_await talk.interrupt(kLiarTime);
      co_await cut(call, use);
      co_return CellEnd{};
    }
    if (!event) continue;
    const bool last = text_of(*event, "type") == "end";
    if (last) call.run.ended(text_of(*event, "status"), number_of(*event, "duration_ms"));
    bool wanted = co_await use(*event);
    if (!wanted) {
      co_await talk.interrupt();
      co_return CellEnd{.left = true, .failure = {}};
    }
    if (last) co_return CellEnd{};
  }
}

Task<Result<std::optional<json>>> ask_inside(sandbox::Service& service, http::Exchange& ex, sandbox::BoxPtr box,
                                             const json& request) {
  std::optional<json> answer;
  std::string text = dump(request);
  auto first = co_await (interpreter::ask_once(service, box, std::move(text)) || ex.left());
  if (first.index() == 1) co_return answer;
  ISOLA_CO_TRY(std::string line, std::move(std::get<0>(first)));
  ISOLA_CO_TRY(answer, interpreter::parse_line(line));
  co_return answer;
}

}  // namespace isola::dialect
