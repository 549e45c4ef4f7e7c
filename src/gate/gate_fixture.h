// A world (test_world.h) and a few names in it: what the tests of the whole gate begin with.
#pragma once

#include "gate/test_world.h"

namespace isola::gate::testing {

class GateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    world.emplace();
    world->outside->set("a.example", {"203.0.113.10"});
    world->outside->set("b.example", {"203.0.113.11"});
    world->outside->set("six.example", {"2001:db8:5::10"});
    world->outside->set("both.example", {"203.0.113.10", "2001:db8:5::10"});
  }
  std::optional<World> world;
};

}  // namespace isola::gate::testing
