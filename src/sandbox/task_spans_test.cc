#include "sandbox/task_spans.h"

#include <gtest/gtest.h>

namespace isola::sandbox {
namespace {

using Tasks = std::vector<std::string>;

TEST(TaskSpansTest, WhatComesLateIsOfTheOneThatRanThen) {
  TaskSpans spans;
  EXPECT_EQ(spans.during(5, 5), Tasks());
  spans.begin("a", 100);
  spans.begin("a", 120);
  spans.end("a", 150);
  EXPECT_EQ(spans.during(99, 99), Tasks());
  EXPECT_EQ(spans.during(160, 160), Tasks{"a"}) << "one of its commands runs";
  spans.end("a", 200);
  spans.begin("b", 300);
  EXPECT_EQ(spans.during(200, 200), Tasks{"a"});
  EXPECT_EQ(spans.during(250, 250), Tasks{"a"}) << "it has just ended, and nobody else ran";
  EXPECT_EQ(spans.during(300, 300), Tasks{"b"});
  EXPECT_EQ(spans.during(200, 300), (Tasks{"a", "b"}));
  spans.end_all(400);
  EXPECT_EQ(spans.during(450, 450), Tasks{"b"});
  EXPECT_EQ(spans.during(400 + TaskSpans::kShortly + 1, 5000), Tasks());
  spans.end("b", 500);  // of before
  EXPECT_EQ(spans.during(350, 350), Tasks{"b"});
}

TEST(TaskSpansTest, OnlySoManyAreKept) {
  TaskSpans spans;
  for (int i = 0; i < 1000; ++i) {
    const std::string task = std::to_string(i);
    spans.begin(task, i);
    spans.end(task, i);
  }
  EXPECT_EQ(spans.during(0, 1000).size(), TaskSpans::kKept);
}

}  // namespace
}  // namespace isola::sandbox
