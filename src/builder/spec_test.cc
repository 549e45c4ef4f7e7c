#include "builder/spec.h"

#include <gtest/gtest.h>

namespace isola::builder {
namespace {

Spec example() {
  Spec spec{.from = "base", .user = "root", .start = "serve", .ready = "test", .network = "none", .tags = {"v1"}};
  spec.steps.push_back({.kind = Step::Kind::copy, .line = "COPY a b", .sources = {"a"}, .target = "b", .context = "c"});
  spec.steps.push_back({.kind = Step::Kind::env, .line = "ENV A b", .env = {{"A", "b"}}, .force = true});
  return spec;
}

TEST(Spec, ThereAndBack) {
  auto back = spec_of(to_json(example()));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(to_json(*back), to_json(example()));
  EXPECT_EQ(back->steps[0].kind, Step::Kind::copy);
  EXPECT_EQ(back->steps[1].env[0].second, "b");
  EXPECT_EQ(spec_of("nonsense").error().code, Code::corrupt);
  EXPECT_EQ(spec_of(R"({"steps": [{"kind": 5}]})").error().code, Code::corrupt);
}

// Whatever can make the files different makes the key different, and nothing else does.
TEST(StepKey, SaysWhatTheFilesDependOn) {
  Step run{.kind = Step::Kind::run, .line = "RUN a", .command = "a"};
  auto key = [&](const Step& step) { return key_after("base", step, "user", "/", {{"A", "1"}}); };
  const std::string first = key(run);
  EXPECT_EQ(first.size(), 64u);
  Step same = run, other = run, copy = run;
  same.line = "run  a", same.force = true;
  other.command = "b";
  copy.kind = Step::Kind::copy, copy.context = "x";
  EXPECT_EQ(key(same), first);
  EXPECT_NE(key(other), first);
  EXPECT_NE(key(copy), first);
  EXPECT_NE(key_after("other", run, "user", "/", {{"A", "1"}}), first);
  EXPECT_NE(key_after("base", run, "root", "/", {{"A", "1"}}), first);
  EXPECT_NE(key_after("base", run, "user", "/x", {{"A", "1"}}), first);
  EXPECT_NE(key_after("base", run, "user", "/", {{"A", "2"}}), first);
}

}  // namespace
}  // namespace isola::builder
