// Decisions about requests, and what of them still holds when the credential is set.
#include "gate/inspector.h"

#include <gtest/gtest.h>

#include "gate/control.h"

namespace isola::gate {
namespace {

class Grounds : public Premises {
 public:
  std::shared_ptr<const Egress> egress() const override { return egress_now; }
  std::shared_ptr<const Bindings> bindings() const override { return bindings_now; }
  void record(Event event) override { told.push_back(std::move(event)); }
  void want_values() override { ++wanted; }
  std::shared_ptr<const Egress> egress_now;
  std::shared_ptr<const Bindings> bindings_now;
  std::vector<Event> told;
  int wanted = 0;
};

class InspectorTest : public ::testing::Test {
 protected:
  vault::Binding binding(const std::string& id, const std::string& value) {
    vault::Binding out;
    out.id = id;
    out.secret = "token";
    out.names = {"a.example"};
    out.sealed = vault::seal(key.open_key(), value).value();
    return out;
  }
  std::shared_ptr<const Bindings> made(const std::vector<vault::Binding>& all) {
    return Bindings::make(vault::to_json(all), &key).value();
  }
  void SetUp() override {
    grounds.egress_now = read_egress("allow a.example\n", "").value();
    grounds.bindings_now = made({binding("b1", "hunter2")});
    request = {.method = "PUT", .target = "/x?y", .authority = "a.example", .fields = {}, .has_body = true};
    decision = inspector.judge(request);
    ASSERT_EQ(decision.status, 0) << decision.text;
    ASSERT_EQ(decision.bound.size(), 1u);
  }
  // The body has come.
  int injected() {
    auto odd = inspector.inject(request, decision, "body");
    const bool set = find_field(request.fields, "Authorization");
    EXPECT_EQ(set, odd.status == 0);
    return odd.status;
  }

  vault::KeyPair key = vault::KeyPair::make().value();
  Grounds grounds;
  Inspector inspector{grounds, "a.example", Address::parse("203.0.113.10").value(), 443, false};
  Request request;
  Decision decision;
};

TEST_F(InspectorTest, WhatStillHoldsIsSet) {
  grounds.bindings_now = made({binding("b1", "another value")});
  EXPECT_EQ(injected(), 0);
}

TEST_F(InspectorTest, ACredentialThatWasRevokedMeanwhileIsNotSet) {
  grounds.bindings_now = made({binding("b2", "hunter2")});
  EXPECT_EQ(injected(), 403);
  ASSERT_FALSE(grounds.told.empty());
  EXPECT_EQ(grounds.told.back().binding, "b1");
}

TEST_F(InspectorTest, NorWhereThereAreNoneAnyMore) {
  grounds.bindings_now = nullptr;
  EXPECT_EQ(injected(), 403);
}

TEST_F(InspectorTest, NorWhereThePolicyHasChanged) {
  grounds.egress_now = read_egress("allow a.example methods GET\n", "").value();
  EXPECT_EQ(injected(), 403);
}

TEST_F(InspectorTest, NorWhenItsTimeIsOver) {
  auto over = binding("b1", "hunter2");
  over.expires = 1000;
  grounds.bindings_now = made({over});
  decision.bound = grounds.bindings_now->all();
  EXPECT_EQ(injected(), 403);
  EXPECT_EQ(grounds.told.back().reason, Reason::binding_expired);
}

TEST_F(InspectorTest, ValuesAreBoundedInSum) {
  auto all = made({binding("b1", std::string(9 << 10, 'a')), binding("b2", std::string(9 << 10, 'b')),
                   binding("b3", std::string(9 << 10, 'a')), binding("b4", "small")});
  ASSERT_EQ(all->all().size(), 4u);
  EXPECT_FALSE(all->all()[0]->value.empty());
  EXPECT_TRUE(all->all()[1]->value.empty());
  EXPECT_NE(all->all()[1]->trouble.find("16 KiB"), std::string::npos);
  EXPECT_FALSE(all->all()[2]->value.empty()) << "the same value again takes nothing more";
  EXPECT_FALSE(all->all()[3]->value.empty());
}

TEST(Encoding, IsSaidByAnyOfTheFields) {
  EXPECT_EQ(encoding_of({{"Content-Type", "gzip"}}), nullptr);
  EXPECT_EQ(encoding_of({{"content-encoding", "Identity"}}), nullptr);
  auto* second = encoding_of({{"Content-Encoding", "identity"}, {"Content-Encoding", "gzip"}});
  EXPECT_NE(second, nullptr);
}

}  // namespace
}  // namespace isola::gate
