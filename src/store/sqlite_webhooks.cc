// Webhooks in the SQLite store.
#include <fmt/format.h>

#include "store/json_columns.h"
#include "store/sqlite_store.h"

namespace isola::store {

namespace {

using sqlite::Database;
using sqlite::Row;

constexpr std::string_view kWebhookColumns = "id, project, name, url, enabled, events, secret, created, told";

std::unexpected<Error> no_webhook(const std::string& id) { return fail(Code::not_found, "there is no webhook " + id); }

Result<WebhookRecord> read_webhook(const sqlite::Statement& statement) {
  Row row(statement);
  WebhookRecord webhook{.id = row.text(), .project = row.text(), .name = row.text(), .url = row.text()};
  webhook.enabled = row.integer() != 0;
  ISOLA_TRY(webhook.events, list_of(row.text()));
  webhook.secret = row.text();
  webhook.created = row.integer();
  webhook.told = row.integer<uint64_t>();
  return webhook;
}

}  // namespace

Result<void> SqliteStore::insert_webhook(const WebhookRecord& webhook) {
  ISOLA_TRY(std::string events, to_json(webhook.events, "events"));
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto count, db.prepare("SELECT count(*) FROM webhooks WHERE project = ?"));
    ISOLA_TRY(bool counted, count.bind(webhook.project).step());
    if (counted && count.integer(0) >= static_cast<int64_t>(kMostWebhooks))
      return fail(Code::exhausted,
                  fmt::format("the project has {} webhooks already, the most there can be", kMostWebhooks));
    count.reset();
    ISOLA_TRY(auto insert,
              db.prepare(fmt::format("INSERT INTO webhooks ({}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", kWebhookColumns)));
    return insert
        .bind(webhook.id, webhook.project, webhook.name, webhook.url, static_cast<int64_t>(webhook.enabled), events,
              webhook.secret, webhook.created, webhook.told)
        .run();
  });
}

Result<void> SqliteStore::change_webhook(const WebhookRecord& webhook, std::optional<uint64_t> from) {
  ISOLA_TRY(std::string events, to_json(webhook.events, "events"));
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update,
              db.prepare("UPDATE webhooks SET name = ?, url = ?, enabled = ?, events = ?, secret = ?, told = "
                         "max(told, ?) WHERE id = ? AND project = ?"));
    ISOLA_CHECK(update
                    .bind(webhook.name, webhook.url, static_cast<int64_t>(webhook.enabled), events, webhook.secret,
                          from.value_or(0), webhook.id, webhook.project)
                    .run());
    if (db.changed() == 0) return no_webhook(webhook.id);
    return {};
  });
}

Result<void> SqliteStore::set_webhook_told(const std::string& id, uint64_t told) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE webhooks SET told = max(told, ?) WHERE id = ?"));
    return update.bind(told, id).run();
  });
}

Result<WebhookRecord> SqliteStore::find_webhook(const std::string& project, const std::string& id) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query,
            reader_.db.prepare(fmt::format("SELECT {} FROM webhooks WHERE project = ? AND id = ?", kWebhookColumns)));
  ISOLA_TRY(bool found, query.bind(project, id).step());
  if (!found) return no_webhook(id);
  return read_webhook(query);
}

Result<std::vector<WebhookRecord>> SqliteStore::list_webhooks(const std::string& project) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query,
            reader_.db.prepare(fmt::format("SELECT {} FROM webhooks WHERE ? = '' OR project = ? ORDER BY created, id",
                                           kWebhookColumns)));
  query.bind(project, project);
  std::vector<WebhookRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    ISOLA_TRY(auto webhook, read_webhook(query));
    all.push_back(std::move(webhook));
  }
}

Result<void> SqliteStore::remove_webhook(const std::string& project, const std::string& id) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto gone, db.prepare("DELETE FROM webhooks WHERE project = ? AND id = ?"));
    ISOLA_CHECK(gone.bind(project, id).run());
    if (db.changed() == 0) return no_webhook(id);
    return {};
  });
}

}  // namespace isola::store
