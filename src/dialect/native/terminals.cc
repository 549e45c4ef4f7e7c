// A terminal over a WebSocket: binary messages are keys and screen, text messages are JSON about it.
//
//   GET /v1/sandboxes/{id}/terminal?cols=80&rows=24&command=bash     a new one
//   GET /v1/sandboxes/{id}/terminal?attach=c…&from=0                 one that is there
//
//   to us:  {"type":"resize","rows":50,"cols":132}
//   to you: {"type":"start","command_id":…,"pid":…}   {"type":"exit","exit_code":0}
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <nlohmann/json.hpp>

#include "dialect/native/api.h"
#include "dialect/native/output.h"
#include "dialect/native/query.h"
#include "dialect/native/views.h"
#include "dialect/shared/unread.h"
#include "http/websocket.h"

namespace isola::native {

using namespace boost::asio::experimental::awaitable_operators;
using nlohmann::json;
using sandbox::BoxPtr;
using sandbox::Running;

namespace {

constexpr size_t kLargestOrder = 4096;
constexpr size_t kMostKeys = 64 << 10;   // in one message
constexpr uint64_t kLongestSide = 4095;  // rows or columns

// 0: it is none.
uint16_t side_of(const json& order, const char* name) {
  auto at = order.find(name);
  if (at == order.end() || !at->is_number_unsigned() || at->get<uint64_t>() > kLongestSide) return 0;
  return at->get<uint16_t>();
}

Task<void> keys(sandbox::Service& service, http::WebSocket& socket, Running& running) {
  for (;;) {
    auto message = co_await socket.read();
    if (!message || !*message) co_return;
    if (!(*message)->text) {
      // A program that reads none of its keys must not hold what nobody waits for any more.
      auto sent = co_await (running.channel->write((*message)->data) || socket.gone());
      if (sent.index() == 1 || !std::get<0>(sent)) co_return;
      continue;
    }
    // What is typed is binary: an order is a few words, and nothing else is worth reading.
    if ((*message)->data.size() > kLargestOrder || !check_json_bound((*message)->data, {.depth = 2, .values = 16}))
      continue;
    json order = json::parse((*message)->data, nullptr, false);
    if (order.is_discarded() || !order.is_object() || !order["type"].is_string()) continue;
    const uint16_t rows = side_of(order, "rows"), cols = side_of(order, "cols");
    if (order["type"] == "resize" && rows > 0 && cols > 0) {
      guest::Resize size{running.info.pid, rows, cols};
      auto resized = [&]() -> ::isola::Task<void> {
        // Nobody is woken for its sake: a resume that its client leaves behind would be cut in half.
        auto link = co_await service.link_if_awake(running.box);
        if (link) (void)co_await (*link)->call(guest::Op::resize, guest::encode(size));
      };
      auto done = co_await (resized() || socket.gone());
      if (done.index() == 1) co_return;
    }
  }
}

// What is on the screen, and how it ended (`over`). All of it happens while keys() still reads: a WebSocket whose read
// was cancelled says nothing more.
Task<void> screen(sandbox::Service& service, http::WebSocket& socket, Running& running, bool& over) {
  const auto executor = co_await boost::asio::this_coro::executor;
  dialect::Unread unread(executor, service, running);
  for (;;) {
    auto frame = co_await running.channel->read_frame();
    if (!frame) break;
    std::string_view piece(*frame);
    auto read = read_piece(piece);
    if (!read) continue;
    if (read->stream == guest::Stream::gap) {
      // Whoever counts what came to be attached again from there has to count this, too.
      std::string gap = dump({{"type", "gap"}, {"lost_bytes", lost_in(*read)}, {"seq", read->seq}});
      if (auto sent = co_await socket.write(gap, true); !sent) co_return;
      continue;
    }
    unread.begins();
    auto sent = co_await socket.write(read->bytes, false);
    unread.ends();
    if (!sent) co_return;
  }
  auto end = co_await running.channel->end();
  auto exit = end ? guest::decode<guest::Exit>(*end) : Result<guest::Exit>(std::unexpected(end.error()));
  json last = {{"type", "exit"}};
  if (exit) {
    *exit = co_await service.judged(running.box, running.info.id, *exit);
    service.command_ended(running.box, running.info.id, *exit);
    last.update(view(*exit));
  } else {
    last["error"] = exit.error().message;
  }
  over = true;
  std::string text = dump(last);
  if (auto sent = co_await socket.write(text, true); !sent) co_return;
  (void)co_await socket.close();
}

Task<Result<void>> terminal(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_CHECK(ex.check_websocket());  // before anything is started for it
  ISOLA_CO_CHECK(
      only_queries(ex, {"attach", "from", "command", "cwd", "user", "task", "actor", "rows", "cols", "term"}));
  std::optional<Running> running;
  if (auto attach = ex.query("attach")) {
    ISOLA_CO_TRY(uint64_t from, query_sequence(ex));
    ISOLA_CO_TRY(Running found, co_await service.attach(box, std::string(*attach), from));
    running.emplace(std::move(found));
  } else {
    sandbox::CommandSpec spec;
    spec.shell = std::string(ex.query("command").value_or(""));
    if (spec.shell.empty()) spec.argv = {"/bin/bash", "-l"};
    spec.cwd = std::string(ex.query("cwd").value_or(""));
    spec.user = std::string(ex.query("user").value_or(""));
    spec.task = std::string(ex.query("task").value_or(""));
    spec.actor = std::string(ex.query("actor").value_or(""));
    spec.by = std::string(ex.noted("key"));
    spec.pty = true;
    spec.stdin_mode = guest::Stdin::pipe;
    ISOLA_CO_TRY(uint64_t rows, query_number(ex, "rows", 24, 1, kLongestSide));
    ISOLA_CO_TRY(uint64_t cols, query_number(ex, "cols", 80, 1, kLongestSide));
    spec.rows = static_cast<uint16_t>(rows);
    spec.cols = static_cast<uint16_t>(cols);
    spec.env["TERM"] = std::string(ex.query("term").value_or("xterm-256color"));
    auto started = co_await service.run(box, std::move(spec));
    if (!started) {
      explain_start(ex, started.error());
      co_return std::unexpected(std::move(started).error());
    }
    running.emplace(std::move(*started));
  }
  http::WebSocketOptions options;
  options.subprotocols = {"isola.terminal.v1"};
  options.max_message = kMostKeys;
  mark_untrusted(ex);
  auto socket = co_await ex.upgrade(options);
  if (!socket) {
    service.detach(std::move(*running));
    co_return std::unexpected(std::move(socket).error());
  }
  std::string text = dump({{"type", "start"}, {"command_id", running->info.id}, {"pid", running->info.pid}});
  (void)co_await (*socket)->write(text, true);
  bool over = false;
  co_await (keys(service, **socket, *running) || screen(service, **socket, *running, over));
  // The person has left; the terminal stays, to be attached again.
  if (!over) service.detach(std::move(*running));
  co_return Result<void>();
}

}  // namespace

void Api::add_terminals(http::RouteGroup& group) {
  group.add("GET", "/v1/sandboxes/{id}/terminal",
            handled(store::Scope::use, [service = service_](http::Exchange& ex) { return terminal(*service, ex); }));
}

}  // namespace isola::native
