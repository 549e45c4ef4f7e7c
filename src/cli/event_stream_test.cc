#include "cli/event_stream.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

TEST(EventStream, EventsInAnyPieces) {
  std::string stream =
      ": listening\n\nevent: sandbox.created\ndata: {\"a\":1}\n\n: ping\n\ndata:one\r\ndata: two\r\n\r\nevent: x\n\n";
  for (size_t size : {size_t(1), size_t(7), stream.size()}) {
    std::string seen;
    EventStream events([&](const std::string& event, const std::string& data) { seen += event + "<" + data + ">"; });
    for (size_t at = 0; at < stream.size(); at += size) events.feed(std::string_view(stream).substr(at, size));
    EXPECT_EQ(seen, "sandbox.created<{\"a\":1}>message<one\ntwo>") << size;
  }
}

}  // namespace
}  // namespace isola::cli
