// Secrets and bindings in the store: names, versions, who goes with whom.
#include "store/test_store.h"

namespace isola::store {
namespace {

class StoredSecrets : public StoreTest {
 protected:
  SecretRecord secret(const std::string& name, const std::string& sealed = std::string("\0\xff sealed", 9)) {
    return {.project = "default",
            .name = name,
            .sealed = sealed,
            .source = R"({"type":"env"})",
            .created = 50,
            .changed = 60,
            .actor = "anna",
            .made_by = "k1"};
  }
  BindingRecord binding(const std::string& secret, BindingScope scope = BindingScope::project,
                        const std::string& subject = "", Millis expires = 0) {
    return {.id = new_binding_id(),
            .project = "default",
            .scope = scope,
            .subject = subject,
            .secret = secret,
            .body = R"({"names":["a.example"]})",
            .expires = expires,
            .created = 70,
            .actor = "bob",
            .made_by = "k2"};
  }
};

TEST_F(StoredSecrets, OneComesBackAsItWas) {
  ASSERT_TRUE(store_->insert_secret(secret("github")));
  EXPECT_EQ(store_->insert_secret(secret("github")).error().code, Code::exists);
  auto elsewhere = secret("github");
  elsewhere.project = "nobody";
  EXPECT_EQ(store_->insert_secret(elsewhere).error().code, Code::not_found);
  reopen();
  auto read = store_->find_secret("default", "github");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->sealed, std::string("\0\xff sealed", 9));
  EXPECT_EQ(read->version, 1u);
  EXPECT_EQ(read->source, R"({"type":"env"})");
  EXPECT_EQ(read->created, 50);
  EXPECT_EQ(read->actor, "anna");
  EXPECT_EQ(read->made_by, "k1");
  EXPECT_EQ(store_->find_secret("other", "github").error().code, Code::not_found);
  EXPECT_EQ(store_->find_secret("default", "gitlab").error().code, Code::not_found);
}

TEST_F(StoredSecrets, AnotherValueIsAnotherVersionAndTheOldOneIsGone) {
  ASSERT_TRUE(store_->insert_secret(secret("github", "first-cipher")));
  auto next = secret("github", "second-cipher");
  next.changed = 99;
  next.actor = "carol";
  EXPECT_EQ(store_->change_secret(next).value(), 2u);
  EXPECT_EQ(store_->change_secret(secret("gitlab")).error().code, Code::not_found);
  auto read = store_->find_secret("default", "github").value();
  EXPECT_EQ(read.sealed, "second-cipher");
  EXPECT_EQ(read.version, 2u);
  EXPECT_EQ(read.created, 50);
  EXPECT_EQ(read.changed, 99);
  EXPECT_EQ(read.actor, "carol");
}

TEST_F(StoredSecrets, ResealingMeetsOnlyWhatItRead) {
  ASSERT_TRUE(store_->insert_secret(secret("github", "old")));
  EXPECT_EQ(store_->reseal_secret("default", "github", "older", "new").error().code, Code::not_found);
  ASSERT_TRUE(store_->reseal_secret("default", "github", "old", "new"));
  auto read = store_->find_secret("default", "github").value();
  EXPECT_EQ(read.sealed, "new");
  EXPECT_EQ(read.version, 1u) << "the same value";
}

TEST_F(StoredSecrets, BindingsGoWithTheirSecret) {
  ASSERT_TRUE(store_->insert_secret(secret("github")));
  ASSERT_TRUE(store_->insert_secret(secret("gitlab")));
  EXPECT_EQ(store_->insert_binding(binding("nothing")).error().code, Code::not_found);
  auto one = binding("github"), two = binding("github", BindingScope::of_template, "base"), other = binding("gitlab");
  for (const auto& b : {one, two, other}) ASSERT_TRUE(store_->insert_binding(b));
  auto read = store_->find_binding("default", two.id).value();
  EXPECT_EQ(read.scope, BindingScope::of_template);
  EXPECT_EQ(read.subject, "base");
  EXPECT_EQ(read.body, two.body);
  EXPECT_EQ(read.actor, "bob");
  EXPECT_EQ(store_->find_binding("other", two.id).error().code, Code::not_found);
  EXPECT_EQ(store_->list_bindings("default").value().size(), 3u);
  EXPECT_EQ(store_->list_bindings("default", BindingScope::of_template, "base").value().size(), 1u);
  EXPECT_EQ(store_->list_bindings("default", BindingScope::of_template, "minimal").value().size(), 0u);
  EXPECT_EQ(store_->remove_secret("default", "github").value().size(), 2u);
  EXPECT_EQ(store_->list_bindings("default").value().size(), 1u);
  EXPECT_EQ(store_->remove_secret("default", "github").error().code, Code::not_found);
  ASSERT_TRUE(store_->remove_binding("default", other.id));
  EXPECT_EQ(store_->remove_binding("default", other.id).error().code, Code::not_found);
}

TEST_F(StoredSecrets, BindingsAreFoundAgainByTheNextServer) {
  EXPECT_TRUE(store_->list_bindings("default").value().empty());
  ASSERT_TRUE(store_->insert_secret(secret("github")));
  ASSERT_TRUE(store_->insert_binding(binding("github")));
  EXPECT_EQ(store_->list_bindings("default").value().size(), 1u);
  reopen();
  EXPECT_EQ(store_->list_bindings("default").value().size(), 1u);
  EXPECT_TRUE(store_->list_bindings("other").value().empty());
}

TEST_F(StoredSecrets, BindingsOfASandboxGoWithIt) {
  ASSERT_TRUE(store_->insert_secret(secret("github")));
  auto box = example(), other = example();
  box.state = other.state = State::running;
  box.granted = box.keep_grants = box.exposed = true;
  ASSERT_TRUE(store_->insert_sandbox(box));
  ASSERT_TRUE(store_->insert_sandbox(other));
  auto read = store_->find_sandbox(box.id).value();
  EXPECT_TRUE(read.granted && read.keep_grants && read.exposed);
  ASSERT_TRUE(store_->change_sandbox(box.id, {.granted = false, .exposed = false}));
  read = store_->find_sandbox(box.id).value();
  EXPECT_FALSE(read.granted || read.exposed);
  EXPECT_TRUE(read.keep_grants);
  for (const auto& id : {box.id, other.id})
    ASSERT_TRUE(store_->insert_binding(binding("github", BindingScope::sandbox, id)));
  ASSERT_TRUE(store_->set_end(box.id, EndReason::killed, "", 99));
  EXPECT_TRUE(store_->list_bindings("default", BindingScope::sandbox, box.id).value().empty());
  for (const auto& id : {box.id, std::string("i-unknown")})
    EXPECT_EQ(store_->insert_binding(binding("github", BindingScope::sandbox, id)).error().code, Code::not_found);
  EXPECT_EQ(store_->list_bindings("default", BindingScope::sandbox, other.id).value().size(), 1u);
  EXPECT_EQ(store_->remove_bindings_of_sandbox(other.id).value().size(), 1u);
  EXPECT_TRUE(store_->list_bindings("default").value().empty());
}

TEST_F(StoredSecrets, TheFirstToExpireComesFirst) {
  ASSERT_TRUE(store_->insert_secret(secret("github")));
  auto late = binding("github", BindingScope::project, "", 300),
       soon = binding("github", BindingScope::project, "", 200);
  for (const auto& b : {late, soon, binding("github")}) ASSERT_TRUE(store_->insert_binding(b));
  auto some = store_->expiring_bindings(250).value();
  ASSERT_EQ(some.size(), 1u);
  EXPECT_EQ(some[0].id, soon.id);
  auto all = store_->expiring_bindings(INT64_MAX).value();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, soon.id);
}

TEST_F(StoredSecrets, AProjectSaysWhetherValuesMayGoIn) {
  EXPECT_FALSE(store_->find_project("default").value().allow_exposed);
  ASSERT_TRUE(store_->change_project("default", {.allow_exposed = true}));
  EXPECT_TRUE(store_->find_project("default").value().allow_exposed);
  EXPECT_EQ(store_->change_project("nobody", {.allow_exposed = true}).error().code, Code::not_found);
}

TEST_F(StoredSecrets, ASubjectHasItsLimit) {
  ASSERT_TRUE(store_->insert_secret(secret("github")));
  for (int i = 0; i < 256; ++i) ASSERT_TRUE(store_->insert_binding(binding("github")));
  EXPECT_EQ(store_->insert_binding(binding("github")).error().code, Code::exhausted);
  EXPECT_TRUE(store_->insert_binding(binding("github", BindingScope::of_template, "base")));
}

TEST_F(StoredSecrets, MetadataIsKept) {
  auto one = secret("github");
  one.metadata = {{"team", "a"}, {"\"odd\"", "ü"}};
  ASSERT_TRUE(store_->insert_secret(one));
  reopen();
  EXPECT_EQ(store_->find_secret("default", "github")->metadata, one.metadata);
  one.metadata = {{"team", "b"}};
  ASSERT_TRUE(store_->change_secret(one));
  EXPECT_EQ(store_->find_secret("default", "github")->metadata, one.metadata);
}

class NetworkGrantsTest : public StoredSecrets {
 protected:
  void SetUp() override {
    StoredSecrets::SetUp();
    ASSERT_TRUE(store_->insert_secret(secret("github")));
    box_ = example();
    box_.state = State::running;
    ASSERT_TRUE(store_->insert_sandbox(box_));
  }
  SecretRecord own(const std::string& name) {
    auto one = secret(name);
    one.sandbox = box_.id;
    return one;
  }
  BindingRecord of_network(const std::string& secret) {
    auto one = binding(secret, BindingScope::sandbox, box_.id);
    one.of_network = true;
    return one;
  }
  size_t bindings() { return store_->list_bindings("default", BindingScope::sandbox, box_.id).value().size(); }
  SandboxRecord box_;
};

TEST_F(NetworkGrantsTest, AreNotForWhatHasEnded) {
  ASSERT_TRUE(store_->set_end(box_.id, EndReason::killed, "", 99));
  EXPECT_EQ(store_->replace_network_grants(box_.id, {.bindings = {of_network("github")}}).error().code,
            Code::not_found);
  EXPECT_TRUE(store_->replace_network_grants(box_.id, {}));
  EXPECT_EQ(bindings(), 0u);
}

TEST_F(NetworkGrantsTest, AreReplacedWholeAndGiveBackWhatWasThere) {
  auto stays = binding("github", BindingScope::sandbox, box_.id);
  ASSERT_TRUE(store_->insert_binding(stays));
  NetworkGrants first{.secrets = {own("a.1")}, .bindings = {of_network("a.1"), of_network("github")}};
  ASSERT_TRUE(store_->replace_network_grants(box_.id, first));
  EXPECT_EQ(bindings(), 3u);
  EXPECT_EQ(store_->list_secrets("default")->size(), 1u) << "one sandbox's own is nobody else's";
  EXPECT_EQ(store_->all_secrets()->size(), 2u);
  NetworkGrants second{.secrets = {own("a.2")}, .bindings = {of_network("a.2")}};
  auto before = store_->replace_network_grants(box_.id, second);
  ASSERT_TRUE(before) << before.error().message;
  ASSERT_EQ(before->secrets.size(), 1u);
  EXPECT_EQ(before->secrets[0].sealed, first.secrets[0].sealed);
  EXPECT_EQ(before->secrets[0].sandbox, box_.id);
  EXPECT_EQ(before->bindings.size(), 2u);
  EXPECT_TRUE(before->bindings[0].of_network);
  EXPECT_EQ(bindings(), 2u);
  EXPECT_EQ(store_->find_secret("default", "a.1").error().code, Code::not_found);
  ASSERT_TRUE(store_->replace_network_grants(box_.id, *before));
  EXPECT_EQ(bindings(), 3u);
  EXPECT_TRUE(store_->find_binding("default", stays.id));
}

TEST_F(NetworkGrantsTest, OneThatCannotBeKeptChangesNothing) {
  NetworkGrants good{.secrets = {own("a.1")}, .bindings = {of_network("a.1")}};
  ASSERT_TRUE(store_->replace_network_grants(box_.id, good));
  NetworkGrants bad{.secrets = {own("a.2")}, .bindings = {of_network("a.2"), of_network("nothing")}};
  EXPECT_EQ(store_->replace_network_grants(box_.id, bad).error().code, Code::not_found);
  EXPECT_TRUE(store_->find_secret("default", "a.1"));
  EXPECT_FALSE(store_->find_secret("default", "a.2"));
  EXPECT_EQ(bindings(), 1u);
}

TEST_F(NetworkGrantsTest, GoWithTheSandbox) {
  NetworkGrants grants{.secrets = {own("a.1")}, .bindings = {of_network("a.1")}};
  ASSERT_TRUE(store_->replace_network_grants(box_.id, grants));
  EXPECT_EQ(store_->remove_bindings_of_sandbox(box_.id)->size(), 1u);
  EXPECT_EQ(store_->all_secrets()->size(), 1u);
  ASSERT_TRUE(store_->replace_network_grants(box_.id, grants));
  ASSERT_TRUE(store_->set_end(box_.id, EndReason::killed, "", 99));
  EXPECT_EQ(store_->all_secrets()->size(), 1u);
  EXPECT_EQ(bindings(), 0u);
}

TEST_F(NetworkGrantsTest, TheSandboxRemembersThatItKeepsThem) {
  EXPECT_FALSE(store_->find_sandbox(box_.id)->keep_grants);
  ASSERT_TRUE(store_->change_sandbox(box_.id, {.keep_grants = true}));
  EXPECT_TRUE(store_->find_sandbox(box_.id)->keep_grants);
}

}  // namespace
}  // namespace isola::store
