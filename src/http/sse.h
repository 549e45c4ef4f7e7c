// Server-sent events on top of a streamed reply.
//
//   SseWriter events(ex);
//   co_await events.open();
//   co_await events.send({.event = "exit", .data = json, .id = "7"});
//   co_await events.keep_alive();          // a comment, when there was nothing to say for a while
#pragma once

#include <string>
#include <string_view>

#include "http/exchange.h"

namespace isola::http {

struct SseEvent {
  std::string_view event;  // empty: "message", the default
  std::string_view data;   // several lines become several data: lines
  std::string_view id;
};
// The text of one event. Line ends inside event and id would forge fields: they become spaces.
std::string sse_text(const SseEvent& event);

class SseWriter {
 public:
  explicit SseWriter(Exchange& exchange) : exchange_(exchange) {}
  Task<Result<void>> open(int status = 200);
  Task<Result<void>> send(SseEvent event);
  Task<Result<void>> keep_alive();

 private:
  Exchange& exchange_;
};

}  // namespace isola::http
