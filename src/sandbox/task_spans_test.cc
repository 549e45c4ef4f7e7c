#include "sandbox/task_spans.h"

#include <gtest/gtest.h>

namespace isola::sandbox {
namespace {

using Tasks = std::vector<std::string>;

TEST(TaskSpansTest, WhatComesLateIsOfTheOneThatRanThen) {
  TaskSpans spans;
  EXPECT_EQ(spans.during(5, 5), Tasks());
  const uint64_t born = spans.begin("a", 100);
  EXPECT_EQ(spans.begin("a", 120), born);
  spans.end("a", 150, born);
  EXPECT_EQ(spans.during(99, 99), Tasks());
  EXPECT_EQ(spans.during(160, 160), Tasks{"a"}) << "one of its commands runs";
  spans.end("a", 200, born);
  spans.begin("b", 300);
  EXPECT_EQ(spans.during(200, 200), Tasks{"a"});
  EXPECT_EQ(spans.during(250, 250), Tasks{"a"}) << "it has just ended, and nobody else ran";
  EXPECT_EQ(spans.during(300, 300), Tasks{"b"});
  EXPECT_EQ(spans.during(200, 300), (Tasks{"a", "b"}));
  spans.end_all(400);
  EXPECT_EQ(spans.during(450, 450), Tasks{"b"});
  EXPECT_EQ(spans.during(400 + TaskSpans::kShortly + 1, 5000), Tasks());
  spans.end("b", 500, born);  // of before
  EXPECT_EQ(spans.during(350, 350), Tasks{"b"});
}

// A sandbox went back, and what ran in it is let go of when somebody else's command runs already.
TEST(TaskSpansTest, WhatBeganBeforeAllWereOverEndsNobodyElse) {
  TaskSpans spans;
  const uint64_t born = spans.begin("a", 100);
  spans.end_all(200);
  const uint64_t again = spans.begin("a", 5000);
  spans.end("a", 5100, born);
  EXPECT_EQ(spans.during(6000, 6000), Tasks{"a"});
  spans.end("a", 6000, again);
  EXPECT_EQ(spans.during(9000, 9000), Tasks());
}

TEST(TaskSpansTest, OnlySoManyAreKept) {
  TaskSpans spans;
  for (int i = 0; i < 1000; ++i) {
    const std::string task = std::to_string(i);
    spans.end(task, i, spans.begin(task, i));
  }
  EXPECT_EQ(spans.during(0, 1000).size(), TaskSpans::kKept);
}

}  // namespace
}  // namespace isola::sandbox
