// Decisions about requests, and what of them still holds when the credential is set.
#include "gate/inspector.h"

#include <gtest/gtest.h>

#include "gate/control.h"
#include "vault/binding_wire.h"

namespace isola::gate {
namespace {

class Grounds : public Premises {
 public:
  std::shared_ptr<const Egress> egress() const override { return egress_now; }
  std::shared_ptr<const Bindings> bindings() const override { return bindings_now; }
  std::shared_ptr<const Searches> searches() const override {
    auto out = std::make_shared<Searches>();
    if (bindings_now) out->set(*bindings_now);
    return out;
  }
  void record(Event event) override {
    if (auto known = searches()) known->blot(event);  // as a sandbox does
    told.push_back(std::move(event));
  }
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
    return Bindings::make(vault::encode_bindings(all), &key).value();
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

// Telegram's way: the token is a part of the path, here put there by the program itself.
TEST_F(InspectorTest, WhatIsToldOfARequestHasNoValue) {
  grounds.told.clear();
  request.target = std::string(190, '/') + "bothunter2/send";
  request.authority = "hunter2.example";
  EXPECT_EQ(inspector.judge(request).status, 421);
  ASSERT_EQ(grounds.told.size(), 1u);
  EXPECT_EQ(grounds.told[0].path.find("hunt"), std::string::npos) << grounds.told[0].path;
  EXPECT_EQ(grounds.told[0].rule.find("hunter2"), std::string::npos) << grounds.told[0].rule;
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

// A binding for some methods or paths is a rule as well: what only some servers look at must not lead around it.
TEST_F(InspectorTest, OverridesAreRefusedWhereABindingIsNarrow) {
  auto judged = [&](const std::string& field) {
    Request asked{.method = "GET", .target = "/open", .authority = "a.example", .fields = {{field, "DELETE"}}};
    return inspector.judge(asked).status;
  };
  const std::vector<std::string> odd = {"X-HTTP-Method-Override", "x-original-url", "X_Http_Method"};
  for (const auto& field : odd) EXPECT_EQ(judged(field), 0) << field << " where every method and path has it";
  auto narrow = binding("b1", "hunter2");
  narrow.methods = {"GET"};
  grounds.bindings_now = made({narrow});
  for (const auto& field : odd) EXPECT_EQ(judged(field), 403) << field;
  narrow.methods.clear();
  narrow.path_prefix = "/open";
  grounds.bindings_now = made({narrow});
  for (const auto& field : odd) EXPECT_EQ(judged(field), 403) << field;
  narrow.names = {"b.example"};
  grounds.bindings_now = made({narrow});
  for (const auto& field : odd) EXPECT_EQ(judged(field), 0) << field << " at another name";
}

TEST_F(InspectorTest, SoIsAMethodInTheQuery) {
  auto judged = [&](const std::string& target) {
    Request asked{.method = "POST", .target = target, .authority = "a.example", .fields = {}};
    return inspector.judge(asked).status;
  };
  EXPECT_EQ(judged("/x?_method=DELETE"), 0) << "where every method may";
  grounds.egress_now = read_egress("allow a.example methods GET,POST\n", "").value();
  EXPECT_EQ(judged("/x?a=1&_method=DELETE"), 403);
  EXPECT_EQ(judged("/x?%5fmethod=delete"), 403);
  EXPECT_EQ(judged("/x?a_method=DELETE"), 0);
}

// What the server is told is what was compared, not what the program wrote.
TEST_F(InspectorTest, TheHostIsPassedOnInOneSpelling) {
  for (auto [written, passed] : {std::pair("A.Example.", "a.example"), std::pair("a.example:0443", "a.example:443")}) {
    Request asked{.method = "GET", .target = "/", .authority = written, .fields = {}};
    EXPECT_EQ(inspector.judge(asked).status, 0) << written;
    EXPECT_EQ(asked.authority, passed);
  }
}

// Servers that make variables of fields take one for the other.
TEST_F(InspectorTest, TheSandboxsOwnCopyIsTakenAwayInEverySpelling) {
  auto header = binding("b1", "hunter2");
  header.place = vault::Place::header;
  header.field = "X-Api-Key";
  grounds.bindings_now = made({header});
  request.fields = {{"X_Api_Key", "mine"}, {"x-api_key", "mine"}, {"X-Api-Keys", "another"}};
  decision = inspector.judge(request);
  ASSERT_EQ(decision.status, 0) << decision.text;
  ASSERT_EQ(inspector.inject(request, decision, "body").status, 0);
  size_t copies = 0;
  for (const auto& field : request.fields) {
    EXPECT_NE(field.value, "mine") << field.name;
    copies += field.name == "X-Api-Key";
  }
  EXPECT_EQ(copies, 1u);
  EXPECT_TRUE(find_field(request.fields, "X-Api-Keys"));
}

TEST_F(InspectorTest, ASignatureIsNotMadeForAnotherFile) {
  auto aws = binding("b1", "AKIAEXAMPLE:wJalrXUtnFEMI-example-key");
  aws.place = vault::Place::sigv4;
  aws.field = "eu-central-1/s3";
  auto judged = [&](const std::string& field) {
    grounds.bindings_now = made({aws});
    Request asked{.method = "PUT", .target = "/mine/copy", .authority = "a.example", .fields = {{field, "/theirs/x"}}};
    return inspector.judge(asked).status;
  };
  EXPECT_EQ(judged("x-amz-copy-source"), 0) << "where every path has it";
  aws.path_prefix = "/mine";
  EXPECT_EQ(judged("X-Amz-Copy-Source"), 403);
  EXPECT_EQ(judged("x-amz-copy-source-range"), 403);
  EXPECT_EQ(judged("x-amz-rename-source"), 403);
  EXPECT_EQ(judged("x-amz-meta-source"), 0);
}

// A value that is made anew for each hour of a long connection is one binding all the same.
TEST_F(InspectorTest, WhatWasUsedDoesNotGrow) {
  for (int i = 0; i < 5; ++i) {
    grounds.bindings_now = made({binding("b1", "hunter2-" + std::to_string(i))});
    decision = inspector.judge(request);
    ASSERT_EQ(decision.status, 0) << decision.text;
    ASSERT_EQ(inspector.inject(request, decision, "body").status, 0);
  }
  EXPECT_EQ(inspector.used().size(), 1u);
  EXPECT_FALSE(inspector.is_revoked());
  grounds.bindings_now = nullptr;
  EXPECT_TRUE(inspector.is_revoked());
}

// Also the answer to a request that had no credential must be readable.
TEST_F(InspectorTest, AnswersAreAskedForAsTheyAre) {
  Request other{.method = "GET", .target = "/", .authority = "a.example", .fields = {{"Accept-Encoding", "gzip"}}};
  auto narrow = binding("b1", "hunter2");
  narrow.methods = {"PUT"};
  grounds.bindings_now = made({narrow});
  auto without = inspector.judge(other);
  EXPECT_TRUE(without.bound.empty());
  EXPECT_TRUE(without.searched);
  ASSERT_TRUE(find_field(other.fields, "Accept-Encoding"));
  EXPECT_EQ(*find_field(other.fields, "Accept-Encoding"), "identity");
  grounds.bindings_now = nullptr;
  Request free{.method = "GET", .target = "/", .authority = "a.example", .fields = {{"Accept-Encoding", "gzip"}}};
  EXPECT_FALSE(inspector.judge(free).searched);
  EXPECT_EQ(*find_field(free.fields, "Accept-Encoding"), "gzip");
}

TEST_F(InspectorTest, MessagesAreAskedForAsTheyAre) {
  auto asked = [&](const std::string& type, Fields fields) {
    fields.push_back({"Content-Type", type});
    Request out{.method = "POST", .target = "/", .authority = "a.example", .fields = fields};
    EXPECT_TRUE(inspector.judge(out).searched);
    std::string said;
    for (const char* name : {"grpc-accept-encoding", "connect-accept-encoding"}) {
      const auto* value = find_field(out.fields, name);
      said += (said.empty() ? "" : " ") + (value ? *value : "nothing");
    }
    return said;
  };
  EXPECT_EQ(asked("application/grpc+proto", {{"grpc-accept-encoding", "gzip"}}), "identity nothing");
  EXPECT_EQ(asked("application/grpc", {}), "identity nothing") << "or it packs as its client does";
  EXPECT_EQ(asked("application/connect+json", {{"Connect-Accept-Encoding", "gzip"}}), "nothing identity");
  EXPECT_EQ(asked("text/plain", {{"grpc-accept-encoding", "gzip"}}), "nothing nothing");
}

TEST(Encoding, IsSaidByAnyOfTheFields) {
  EXPECT_EQ(encoding_of({{"Content-Type", "gzip"}}), nullptr);
  EXPECT_EQ(encoding_of({{"content-encoding", "Identity"}}), nullptr);
  auto* second = encoding_of({{"Content-Encoding", "identity"}, {"Content-Encoding", "gzip"}});
  EXPECT_NE(second, nullptr);
}

TEST(Encoding, IsSaidOfMessagesToo) {
  for (const char* name : {"grpc-encoding", "Connect-Content-Encoding"}) {
    EXPECT_EQ(encoding_of({{name, "identity"}}), nullptr) << name;
    EXPECT_NE(encoding_of({{name, "gzip"}}), nullptr) << name;
  }
}

}  // namespace
}  // namespace isola::gate
