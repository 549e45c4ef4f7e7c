#include "store/test_store.h"

namespace isola::store {
namespace {

class StoredTemplates : public StoreTest {
 protected:
  TemplateRecord made(const std::string& name) {
    TemplateRecord one{.id = "t" + name, .project = "default", .name = name, .created = 5};
    EXPECT_TRUE(store_->insert_template(one));
    return one;
  }
  BuildRecord build(const TemplateRecord& of, const std::string& id, Millis created = 7) {
    BuildRecord one{.id = id, .template_id = of.id, .project = of.project, .spec = "{}", .created = created};
    EXPECT_TRUE(store_->put_build(one));
    return one;
  }
};

TEST_F(StoredTemplates, NamesAreUniqueInAProject) {
  auto one = made("app");
  EXPECT_EQ(store_->insert_template({.id = "t2", .project = "default", .name = "app"}).error().code, Code::exists);
  EXPECT_EQ(store_->find_template("default", "app").value().id, one.id);
  EXPECT_EQ(store_->find_template("default", one.id).value().name, "app");
  EXPECT_EQ(store_->find_template("other", "app").error().code, Code::not_found);
}

TEST_F(StoredTemplates, ANameMeansATemplateOrASnapshot) {
  auto box = example();
  ASSERT_TRUE(store_->insert_sandbox(box));
  auto snapshot = [&](const std::string& name) {
    return ImageRecord{
        .id = new_image_id(), .project = "default", .kind = ImageKind::snapshot, .name = name, .sandbox = box.id};
  };
  auto plain = snapshot("kept"), tagged = snapshot("tagged:v2");
  ASSERT_TRUE(store_->insert_snapshot(plain));
  ASSERT_TRUE(store_->insert_snapshot(tagged));
  for (const char* name : {"kept", "tagged"})
    EXPECT_EQ(store_->insert_template({.id = "t2", .project = "default", .name = name}).error().code, Code::exists);
  EXPECT_TRUE(store_->insert_template({.id = "t3", .project = "default", .name = "tag"}));
  auto one = made("app");
  for (const char* name : {"app", "app:v2"})
    EXPECT_EQ(store_->insert_snapshot(snapshot(name)).error().code, Code::exists);
  // Free again when the other is gone.
  ASSERT_TRUE(store_->spend_snapshot(plain.id));
  made("kept");
  ASSERT_TRUE(store_->remove_template(one.id));
  EXPECT_TRUE(store_->insert_snapshot(snapshot("app")));
}

TEST_F(StoredTemplates, WhatWasLookedForIsForgottenWhenItChanges) {
  EXPECT_FALSE(store_->find_template("default", "app"));
  EXPECT_FALSE(store_->find_template("default", "tapp"));
  auto one = made("app");
  EXPECT_EQ(store_->find_template("default", "app").value().id, one.id);
  EXPECT_EQ(store_->find_template("default", "tapp").value().id, one.id);
  ASSERT_TRUE(store_->remove_template(one.id));
  EXPECT_EQ(store_->find_template("default", "app").error().code, Code::not_found);
  EXPECT_EQ(store_->find_template("default", "tapp").error().code, Code::not_found);
}

TEST_F(StoredTemplates, WhatIsPublishedIsFoundByOthersAndByItsWholeName) {
  TemplateRecord one{.id = new_template_id(), .project = "default", .name = "app", .created = 5};
  ASSERT_TRUE(store_->insert_template(one));
  made("kept");
  for (const std::string& name : {one.id, std::string("default/app"), std::string("app")})
    EXPECT_EQ(store_->find_published(name).error().code, Code::not_found) << name;
  EXPECT_FALSE(store_->find_template("default", "app")->published);
  ASSERT_TRUE(store_->set_published(one.id, true));
  reopen();
  EXPECT_EQ(store_->find_published(one.id).value().name, "app");
  EXPECT_EQ(store_->find_published("default/app").value().id, one.id);
  EXPECT_TRUE(store_->find_template("default", "app")->published);
  for (const char* name : {"app", "default/kept", "other/app", "/app", "default/", "default/app/"})
    EXPECT_EQ(store_->find_published(name).error().code, Code::not_found) << name;
  ASSERT_TRUE(store_->set_published(one.id, false));
  EXPECT_EQ(store_->find_published(one.id).error().code, Code::not_found);
  EXPECT_EQ(store_->set_published("tnone", true).error().code, Code::not_found);
}

TEST_F(StoredTemplates, ABuildIsReadBackWhole) {
  auto one = made("app");
  auto wrote = build(one, "b1");
  wrote.state = BuildState::ready;
  wrote.image = "m1", wrote.digest = "d", wrote.base = "base", wrote.memory = true;
  wrote.env = {{"A", "b"}};
  wrote.user = "root", wrote.cwd = "/app", wrote.cpus = 1.5, wrote.memory_limit = 7, wrote.disk = 8, wrote.finished = 9;
  ASSERT_TRUE(store_->put_build(wrote));
  auto read = store_->find_build(one.id, "b1").value();
  EXPECT_EQ(read.state, BuildState::ready);
  EXPECT_EQ(read.image + read.digest + read.base + read.user + read.cwd, "m1dbaseroot/app");
  EXPECT_EQ(read.env.at("A"), "b");
  EXPECT_TRUE(read.memory);
  EXPECT_EQ(read.cpus, 1.5);
  EXPECT_EQ(read.memory_limit, 7u);
  EXPECT_EQ(read.disk, 8u);
  EXPECT_EQ(read.finished, 9);
  EXPECT_EQ(store_->find_build("tother", "b1").error().code, Code::not_found);
}

TEST_F(StoredTemplates, TagsMove) {
  auto one = made("app");
  build(one, "b1", 1);
  build(one, "b2", 2);
  ASSERT_TRUE(store_->put_tags(one.id, {"default", "v1"}, "b1"));
  ASSERT_TRUE(store_->put_tags(one.id, {"default"}, "b2"));
  EXPECT_EQ(store_->tagged_build(one.id, "default").value().id, "b2");
  EXPECT_EQ(store_->tagged_build(one.id, "v1").value().id, "b1");
  ASSERT_TRUE(store_->remove_tags(one.id, {"v1"}));
  EXPECT_EQ(store_->remove_tags(one.id, {"v1"}).error().code, Code::not_found);
  EXPECT_EQ(store_->tags_of(one.id).value().size(), 1u);
  EXPECT_EQ(store_->list_builds(one.id).value().front().id, "b2");
}

TEST_F(StoredTemplates, OldOnesThatNoTagMeansAreForgotten) {
  auto one = made("app");
  for (int i = 1; i <= 5; ++i) build(one, "b" + std::to_string(i), i);
  ASSERT_TRUE(store_->put_tags(one.id, {"v1"}, "b1"));
  ASSERT_TRUE(store_->forget_old_builds(one.id, 2));
  std::string left;
  auto builds = store_->list_builds(one.id).value();
  for (const auto& build : builds) left += build.id;
  EXPECT_EQ(left, "b5b4b1");
}

TEST_F(StoredTemplates, LinesAreReadFromANumber) {
  auto one = made("app");
  build(one, "b1");
  ASSERT_TRUE(
      store_->add_build_lines("b1", {{0, 1, "info", "1", "a"}, {1, 2, "info", "1", "b"}, {2, 3, "error", "", "c"}}));
  auto rest = store_->build_lines("b1", 1, 10).value();
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest[0].text + rest[1].text + rest[1].level, "bcerror");
  EXPECT_EQ(store_->build_lines("b1", 0, 1).value().size(), 1u);
}

TEST_F(StoredTemplates, WhatGoesTakesEverythingWithIt) {
  auto one = made("app");
  build(one, "b1");
  ASSERT_TRUE(store_->put_tags(one.id, {"default"}, "b1"));
  ASSERT_TRUE(store_->add_build_lines("b1", {{0, 1, "info", "", "a"}}));
  ASSERT_TRUE(store_->remove_template(one.id));
  EXPECT_EQ(store_->remove_template(one.id).error().code, Code::not_found);
  EXPECT_EQ(store_->find_build(one.id, "b1").error().code, Code::not_found);
  EXPECT_TRUE(store_->build_lines("b1", 0, 10).value().empty());
}

TEST_F(StoredTemplates, ImagesThatNoTagNeedsAreSpent) {
  auto one = made("app");
  auto image = [&](const char* id, ImageKind kind, const char* key) {
    ImageRecord record{
        .id = id, .project = "default", .kind = kind, .name = key, .layer_bytes = 10, .created = 5, .last_used = 5};
    EXPECT_TRUE(store_->insert_build_image(record));
  };
  image("m1", ImageKind::step, "k1");
  image("m2", ImageKind::built, "");
  image("m3", ImageKind::built, "");
  auto wrote = build(one, "b1");
  wrote.image = "m2";
  ASSERT_TRUE(store_->put_build(wrote));
  ASSERT_TRUE(store_->put_tags(one.id, {"default"}, "b1"));
  EXPECT_EQ(store_->find_step("default", "k1").value().id, "m1");
  EXPECT_EQ(store_->find_step("default", "k2").error().code, Code::not_found);
  image("m4", ImageKind::step, "k4");
  ASSERT_TRUE(store_->spend_step("m4"));
  ASSERT_TRUE(store_->spend_step("m2"));  // no step: stays
  EXPECT_EQ(store_->find_step("default", "k4").error().code, Code::not_found);
  EXPECT_EQ(store_->project_use("default").value().stored, 30u);
  EXPECT_TRUE(store_->spend_build_images(5).value().empty());
  EXPECT_EQ(store_->spend_build_images(6).value(), (std::vector<std::string>{"m1", "m3"}));
  EXPECT_EQ(store_->project_use("default").value().stored, 10u);
  EXPECT_EQ(store_->find_step("default", "k1").error().code, Code::not_found);
}

TEST_F(StoredTemplates, NobodyGoesOnWithABuildOfBefore) {
  auto one = made("app");
  auto wrote = build(one, "b1");
  wrote.state = BuildState::building;
  ASSERT_TRUE(store_->put_build(wrote));
  ASSERT_TRUE(store_->fail_unfinished_builds("the server was restarted", 50));
  auto read = store_->find_build(one.id, "b1").value();
  EXPECT_EQ(read.state, BuildState::failed);
  EXPECT_EQ(read.why, "the server was restarted");
}

TEST_F(StoredTemplates, ABuildIsReadyWithItsTagsOrNotAtAll) {
  auto one = made("app");
  auto ready = build(one, "b1");
  std::vector<std::string> many;
  for (int i = 0; i < 100; ++i) many.push_back("t" + std::to_string(i));
  ASSERT_TRUE(store_->put_tags(one.id, many, "b1"));
  ready.state = BuildState::ready;
  EXPECT_EQ(store_->put_build(ready, {"more"}).error().code, Code::exhausted);
  EXPECT_NE(store_->find_build(one.id, "b1").value().state, BuildState::ready);
  ASSERT_TRUE(store_->remove_tags(one.id, {"t0"}));
  ASSERT_TRUE(store_->put_build(ready, {"more"}));
  EXPECT_EQ(store_->tagged_build(one.id, "more").value().state, BuildState::ready);
}

}  // namespace
}  // namespace isola::store
