// What a new automaton makes of an answer that has begun.
#include "gate/screen.h"

#include <gtest/gtest.h>

namespace isola::gate {
namespace {

constexpr std::string_view kFirst = "correct-horse-battery", kSecond = "another-value-altogether";

std::shared_ptr<const scan::Automaton> automaton_of(std::initializer_list<std::string_view> values) {
  std::vector<scan::Value> all;
  for (auto value : values) all.push_back({"b" + std::to_string(all.size()), value});
  return scan::Automaton::make(all).value();
}

class ScreenTest : public ::testing::Test {
 protected:
  std::string feed(std::string_view piece) {
    std::string out;
    screen.feed(piece, out);
    return out;
  }
  // … and nothing comes for a moment.
  std::string feed_and_wait(std::string_view piece) {
    std::string out = feed(piece);
    screen.idle(out);
    return out;
  }
  std::string feed_to_the_end(std::string_view piece) {
    std::string out = feed(piece);
    screen.end(out);
    return out;
  }

  std::shared_ptr<const scan::Automaton> now = automaton_of({kFirst});
  std::vector<std::string> found;
  Screen screen{[this] { return now; }, [this](const std::string& id) { return found.push_back(id), false; }};
};

// The first letters went out when the server paused, and then another value was bound.
TEST_F(ScreenTest, AValueThatHadBegunIsFoundByTheNextAutomaton) {
  EXPECT_EQ(feed_and_wait("say: correct-h"), "say: cor");
  now = automaton_of({kFirst, kSecond});
  EXPECT_EQ(feed_to_the_end("orse-battery!"), std::string(kFirst.size() - 3, '*') + "!");
  EXPECT_EQ(found, std::vector<std::string>{"b0"});
}

TEST_F(ScreenTest, NothingGoesOutTwiceOrGetsLost) {
  EXPECT_EQ(feed_and_wait("say: correct-h"), "say: cor");
  now = automaton_of({kSecond});
  EXPECT_EQ(feed_and_wait("another-"), "rect-hano") << "the first is no beginning any more";
  now = automaton_of({kFirst, kSecond});
  EXPECT_EQ(feed_and_wait(""), "") << "the same beginning as before";
  now = nullptr;
  EXPECT_EQ(feed("thing"), "ther-thing");
  now = automaton_of({kFirst});
  EXPECT_EQ(feed_to_the_end("correct-horse-battery"), std::string(kFirst.size(), '*'));
}

TEST_F(ScreenTest, AValueThatIsBoundWhenItHasBegunIsFound) {
  EXPECT_EQ(feed("say: correct-h"), "say: ");
  now = automaton_of({"correct-hat"});
  EXPECT_EQ(feed_to_the_end("at"), std::string(11, '*'));
}

}  // namespace
}  // namespace isola::gate
