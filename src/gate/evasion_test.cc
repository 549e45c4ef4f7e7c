// The evasion programs of tests/hostile against a gate alone, without a launcher or a jail around it: what a sandbox
// has of capabilities and filters does not help here. Each is also run where there is none, in a plain namespace with a
// default route, and must get through there, so that its failure inside means something.
#include <algorithm>

#include "gate/test_world.h"
#include "hostile/program.h"

namespace isola::gate::testing {
namespace {

using hostile::Program;

class EvasionTest : public ::testing::TestWithParam<const Program*> {
 protected:
  // One world for all: nothing that they do may last.
  static void SetUpTestSuite() {
    if (::geteuid() != 0) return;
    world = std::make_unique<World>();
    world->outside->set_names_for_evasions();
  }
  static void TearDownTestSuite() { world.reset(); }
  void SetUp() override {
    if (!world) GTEST_SKIP() << "needs root";
  }
  // Runs the program by `run` (inside somewhere) and says whether it got through; `how` is its own word.
  static bool gets_through(const std::function<std::string(std::function<std::string()>)>& run, std::string& how) {
    const Program& program = *GetParam();
    size_t before = world->outside->asked().size();
    how = run([&] {
      auto outcome = program.run(hostile::Args(std::span<char* const>()));
      return std::to_string(outcome.kind) + " " + outcome.how;
    });
    if (!program.leaks.empty())
      return world->outside->asked_with(std::string(program.leaks), before) > program.leaks_most;
    return how.starts_with("0 ");
  }
  static void expect_contained(const char* policy);
  static std::unique_ptr<World> world;
};
std::unique_ptr<World> EvasionTest::world;

void EvasionTest::expect_contained(const char* policy) {
  Box box = world->box(policy), neighbour = world->box(kNeighbourPolicy);
  auto others = neighbour.run([] { return resolve(kNeighboursName); });
  ASSERT_TRUE(is_address(others)) << others;
  std::string how;
  EXPECT_FALSE(gets_through(
      [&](const auto& body) {
        return box.run([&] {
          ::setenv("ISOLA_OTHERS_ADDRESS", others.c_str(), 1);
          return body();
        });
      },
      how))
      << how;
  EXPECT_TRUE(how.starts_with("10 ")) << "neither: " << how;
  world->remove(box), world->remove(neighbour);
}

TEST_P(EvasionTest, DoesNotGetThrough) { expect_contained(kEvasionPolicy); }

// Where everything is allowed but some names and addresses, it must not get to those.
TEST_P(EvasionTest, DoesNotGetThroughToWhatIsDenied) {
  if (GetParam()->leaks_most > 0) GTEST_SKIP() << "what it asks for is allowed there: it could as well connect";
  expect_contained(kDeniedPolicy);
}

TEST_P(EvasionTest, GetsThroughWhereThereIsNoGate) {
  if (!GetParam()->no_control.empty()) GTEST_SKIP() << GetParam()->no_control;
  std::string how;
  EXPECT_TRUE(gets_through(
      [&](const auto& body) {
        return world->run_plainly([&] {
          ::setenv("ISOLA_DNS", kNameServer, 1);
          ::setenv("ISOLA_DEVICE", kCableEnd, 1);
          ::setenv("ISOLA_OTHERS_ADDRESS", kForbidden, 1);
          return body();
        });
      },
      how))
      << how;
}

std::vector<const Program*> evasions() {
  std::vector<const Program*> out;
  for (const Program* program : hostile::all_programs())
    if (program->flags & hostile::kNeedsOutside) out.push_back(program);
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, EvasionTest, ::testing::ValuesIn(evasions()), [](const auto& info) {
  std::string name(info.param->name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_F(EvasionTest, AndWhatIsAllowedWorks) {
  Box box = world->box(kEvasionPolicy);
  EXPECT_EQ(box.run([] { return talk("a.example", kEchoPort, "hello"); }), "hello");
  auto hello = tls_hello("a.example");
  EXPECT_EQ(box.run([&] { return talk("a.example", kTlsPort, hello); }), hello);
  EXPECT_GE(evasions().size(), 50U);
}

}  // namespace
}  // namespace isola::gate::testing
