#include "boundary/state.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace isola {
namespace {

// Every value has a word of its own, and the word leads back.
TEST(State, WordsAreOneToOne) {
  std::set<std::string_view> words;
  for (int i = 0; i <= static_cast<int>(State::ended); ++i) {
    auto word = to_string(static_cast<State>(i));
    EXPECT_TRUE(words.insert(word).second) << word;
    EXPECT_EQ(parse_state(word), static_cast<State>(i));
  }
  words.clear();
  for (int i = 0; i <= static_cast<int>(EndReason::host_restart); ++i) {
    auto word = to_string(static_cast<EndReason>(i));
    EXPECT_TRUE(words.insert(word).second) << word;
    EXPECT_EQ(parse_end_reason(word), static_cast<EndReason>(i));
  }
  words.clear();
  for (int i = 0; i <= static_cast<int>(BoundaryKind::microvm); ++i) {
    auto word = to_string(static_cast<BoundaryKind>(i));
    EXPECT_TRUE(words.insert(word).second) << word;
    EXPECT_EQ(parse_boundary(word), static_cast<BoundaryKind>(i));
  }
  words.clear();
  for (int i = 0; i <= static_cast<int>(Birth::forked); ++i)
    EXPECT_TRUE(words.insert(to_string(static_cast<Birth>(i))).second);
}

TEST(State, TheWordsThemselves) {
  EXPECT_EQ(to_string(State::creating), "creating");
  EXPECT_EQ(to_string(State::archived), "archived");
  EXPECT_EQ(to_string(EndReason::boundary_failure), "boundary-failure");
  EXPECT_EQ(to_string(EndReason::host_restart), "host-restart");
  EXPECT_EQ(to_string(EndReason::oom), "oom");
  EXPECT_EQ(to_string(Birth::pooled), "pooled");
}

TEST(State, UnknownWords) {
  for (const char* word : {"", "Running", "running ", "runnin", "boundary_failure", "x"}) {
    EXPECT_FALSE(parse_state(word)) << word;
    EXPECT_FALSE(parse_end_reason(word)) << word;
    EXPECT_FALSE(parse_boundary(word)) << word;
  }
}

}  // namespace
}  // namespace isola
