#include "boundary/choice.h"

#include <gtest/gtest.h>

namespace isola::boundary {
namespace {

const Offer kJail{.kind = BoundaryKind::jail, .offered = true, .engine = {"linux", "6.1"}};
const Offer kGvisor{.kind = BoundaryKind::gvisor, .offered = true, .engine = {"runsc", "1"}};
const Offer kNoGvisor{.kind = BoundaryKind::gvisor, .missing = "runsc is not installed"};
const Offer kFastVm{.kind = BoundaryKind::microvm, .offered = true, .engine = {"qemu", "8", true}};
const Offer kSlowVm{.kind = BoundaryKind::microvm, .offered = true, .engine = {"qemu", "8", false}};

BoundaryKind chosen(Choice choice, std::vector<Offer> offers) {
  auto kind = choose(choice, offers);
  EXPECT_TRUE(kind) << (kind ? "" : kind.error().message);
  return kind.value_or(BoundaryKind::uml);
}

Error refused(Choice choice, std::vector<Offer> offers) {
  auto kind = choose(choice, offers);
  EXPECT_FALSE(kind);
  return kind ? Error{} : kind.error();
}

TEST(Choice, AutomaticIsTheJailUnlessMoreIsAskedFor) {
  EXPECT_EQ(chosen({}, {kJail, kGvisor}), BoundaryKind::jail);
  EXPECT_EQ(chosen({}, {kJail, kGvisor, kSlowVm}), BoundaryKind::jail);
  EXPECT_EQ(chosen({}, {kJail, kFastVm}), BoundaryKind::jail);
  EXPECT_EQ(chosen({.at_least = BoundaryKind::gvisor}, {kJail, kFastVm}), BoundaryKind::microvm);
}

// Nobody gets a machine that is many times slower without having said so.
TEST(Choice, AutomaticIsNeverAMachineThatIsMadeUp) {
  auto alone = refused({.at_least = BoundaryKind::gvisor}, {kJail, kNoGvisor, kSlowVm});
  EXPECT_EQ(alone.code, Code::unsupported);
  EXPECT_NE(alone.message.find("without KVM"), std::string::npos) << alone.message;
  EXPECT_EQ(chosen({.at_least = BoundaryKind::gvisor}, {kJail, kGvisor, kSlowVm}), BoundaryKind::gvisor);
  EXPECT_EQ(chosen({.wish = BoundaryWish::microvm, .at_least = BoundaryKind::gvisor}, {kJail, kSlowVm}),
            BoundaryKind::microvm);
  EXPECT_EQ(chosen({.wish = BoundaryWish::strongest}, {kJail, kSlowVm}), BoundaryKind::microvm);
}

TEST(Choice, StrongestIsTheStrongestThereIs) {
  EXPECT_EQ(chosen({.wish = BoundaryWish::strongest}, {kGvisor, kJail}), BoundaryKind::gvisor);
  EXPECT_EQ(chosen({.wish = BoundaryWish::strongest}, {kJail, kNoGvisor}), BoundaryKind::jail);
}

TEST(Choice, ADemandIsMetOrRefusedWithTheReason) {
  EXPECT_EQ(chosen({.wish = BoundaryWish::gvisor}, {kJail, kGvisor}), BoundaryKind::gvisor);
  auto missing = refused({.wish = BoundaryWish::gvisor}, {kJail, kNoGvisor});
  EXPECT_EQ(missing.code, Code::unsupported);
  EXPECT_NE(missing.message.find("runsc is not installed"), std::string::npos) << missing.message;
  EXPECT_EQ(refused({.wish = BoundaryWish::uml}, {kJail, kGvisor}).code, Code::unsupported);
}

TEST(Choice, NobodyGetsLessThanTheMinimum) {
  EXPECT_EQ(chosen({.at_least = BoundaryKind::gvisor}, {kJail, kGvisor}), BoundaryKind::gvisor);
  EXPECT_EQ(refused({.wish = BoundaryWish::jail, .at_least = BoundaryKind::gvisor}, {kJail, kGvisor}).code,
            Code::denied);
  auto none = refused({.wish = BoundaryWish::strongest, .at_least = BoundaryKind::gvisor}, {kJail, kNoGvisor});
  EXPECT_EQ(none.code, Code::unsupported);
  EXPECT_NE(none.message.find("runsc is not installed"), std::string::npos) << none.message;
}

TEST(Choice, WordsAreKnown) {
  for (const char* word : {"auto", "jail", "gvisor", "uml", "microvm", "strongest"}) {
    auto wish = parse_boundary_wish(word);
    ASSERT_TRUE(wish) << word;
    EXPECT_EQ(to_string(*wish), word);
  }
  EXPECT_FALSE(parse_boundary_wish("automatic"));
  EXPECT_EQ(kind_of(BoundaryWish::gvisor), BoundaryKind::gvisor);
  EXPECT_FALSE(kind_of(BoundaryWish::strongest));
}

}  // namespace
}  // namespace isola::boundary
