#include "sandbox/events.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>

namespace isola::sandbox {
namespace {

std::string next_of(Subscription& subscription) {
  boost::asio::io_context io;
  auto next = boost::asio::co_spawn(io, subscription.next_for(std::chrono::milliseconds(0)), boost::asio::use_future);
  io.run();
  auto event = next.get();
  return event ? event->data : "none";
}

TEST(EventBus, WhoIsTooSlowLosesTheOldestAndIsToldHowMany) {
  constexpr int kKept = 1024, kAll = kKept + 30;
  EventBus bus;
  auto slow = bus.subscribe("p"), quick = bus.subscribe("p", "i1"), other = bus.subscribe("q");
  for (int i = 0; i < kAll; ++i) {
    ledger::Event event;
    event.project = "p";
    event.sandbox = "i1";
    event.data = std::to_string(i);
    bus.publish(event);
    EXPECT_EQ(next_of(*quick), event.data);
  }
  EXPECT_EQ(slow->take_lost(), 30u);
  EXPECT_EQ(slow->take_lost(), 0u) << "once";
  for (int i = kAll - kKept; i < kAll; ++i) EXPECT_EQ(next_of(*slow), std::to_string(i));
  EXPECT_EQ(next_of(*slow), "none");
  EXPECT_EQ(quick->take_lost() + other->take_lost(), 0u);
  EXPECT_EQ(next_of(*other), "none");
}

}  // namespace
}  // namespace isola::sandbox
