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
  ASSERT_TRUE(store_->set_project_exposure("default", true));
  EXPECT_TRUE(store_->find_project("default").value().allow_exposed);
  EXPECT_EQ(store_->set_project_exposure("nobody", true).error().code, Code::not_found);
}

TEST_F(StoredSecrets, ASubjectHasItsLimit) {
  ASSERT_TRUE(store_->insert_secret(secret("github")));
  for (int i = 0; i < 256; ++i) ASSERT_TRUE(store_->insert_binding(binding("github")));
  EXPECT_EQ(store_->insert_binding(binding("github")).error().code, Code::exhausted);
  EXPECT_TRUE(store_->insert_binding(binding("github", BindingScope::of_template, "base")));
}

}  // namespace
}  // namespace isola::store
