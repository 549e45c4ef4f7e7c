// Webhooks in the store.
#include "store/test_store.h"

namespace isola::store {
namespace {

class StoredWebhooks : public StoreTest {
 protected:
  WebhookRecord webhook(const std::string& name, Millis created = 5) {
    return {.id = new_webhook_id(),
            .project = "default",
            .name = name,
            .url = "https://example.org/ü?x=1",
            .enabled = true,
            .events = {"created", "killed"},
            .secret = "between us",
            .created = created,
            .told = 7};
  }
};

TEST_F(StoredWebhooks, OneComesBackAsItWas) {
  auto wrote = webhook("first");
  ASSERT_TRUE(store_->insert_webhook(wrote));
  reopen();
  auto read = store_->find_webhook("default", wrote.id);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->name, wrote.name);
  EXPECT_EQ(read->url, wrote.url);
  EXPECT_TRUE(read->enabled);
  EXPECT_EQ(read->events, wrote.events);
  EXPECT_EQ(read->secret, wrote.secret);
  EXPECT_EQ(read->created, 5);
  EXPECT_EQ(read->told, 7u);
  EXPECT_EQ(store_->find_webhook("other", wrote.id).error().code, Code::not_found);
}

TEST_F(StoredWebhooks, WhatWasToldIsNeverTakenBack) {
  auto one = webhook("first");
  ASSERT_TRUE(store_->insert_webhook(one));
  ASSERT_TRUE(store_->set_webhook_told(one.id, 20));
  ASSERT_TRUE(store_->set_webhook_told(one.id, 12));
  EXPECT_EQ(store_->find_webhook("default", one.id)->told, 20u);
  one.enabled = false, one.name = "second", one.url = "http://localhost/", one.events = {}, one.secret = "";
  ASSERT_TRUE(store_->change_webhook(one, std::nullopt));
  auto read = store_->find_webhook("default", one.id);
  EXPECT_EQ(read->told, 20u);
  EXPECT_FALSE(read->enabled);
  EXPECT_EQ(read->name, "second");
  EXPECT_EQ(read->url, "http://localhost/");
  EXPECT_TRUE(read->events.empty());
  EXPECT_EQ(read->secret, "");
  ASSERT_TRUE(store_->change_webhook(one, 30));
  EXPECT_EQ(store_->find_webhook("default", one.id)->told, 30u);
}

TEST_F(StoredWebhooks, OneProjectHasItsOwnAndNotTooMany) {
  auto first = webhook("first", 1);
  ASSERT_TRUE(store_->insert_webhook(first));
  for (size_t i = 1; i < kMostWebhooks; ++i) ASSERT_TRUE(store_->insert_webhook(webhook("more", 10)));
  EXPECT_EQ(store_->insert_webhook(webhook("too many")).error().code, Code::exhausted);
  auto all = store_->list_webhooks("default");
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), kMostWebhooks);
  EXPECT_EQ(all->front().id, first.id);
  EXPECT_TRUE(store_->list_webhooks("other")->empty());
  EXPECT_EQ(store_->list_webhooks("")->size(), kMostWebhooks);
  auto others = first;
  others.project = "other";
  EXPECT_EQ(store_->change_webhook(others, std::nullopt).error().code, Code::not_found);
  EXPECT_EQ(store_->remove_webhook("other", first.id).error().code, Code::not_found);
  ASSERT_TRUE(store_->remove_webhook("default", first.id));
  EXPECT_EQ(store_->remove_webhook("default", first.id).error().code, Code::not_found);
}

}  // namespace
}  // namespace isola::store
