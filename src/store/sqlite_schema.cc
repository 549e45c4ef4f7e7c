#include "store/sqlite_schema.h"

#include <array>

namespace isola::store {

namespace {

// Enumerations are kept as their words: readable with any SQLite tool, and safe from a reordered enum.
//
// What a project holds of its limits stands in its own row, kept right by triggers, so that a create costs the same
// with one living sandbox and with ten thousand. CPUs are summed as whole thousandths: sums of fractions would drift.
constexpr std::string_view kVersion1 = R"sql(
CREATE TABLE projects (
  id TEXT NOT NULL PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  created INTEGER NOT NULL,
  limit_live INTEGER NOT NULL, limit_cpus REAL NOT NULL, limit_memory INTEGER NOT NULL, limit_disk INTEGER NOT NULL,
  limit_creates REAL NOT NULL,
  budget_cpu REAL NOT NULL, budget_wall REAL NOT NULL, budget_commands INTEGER NOT NULL, budget_bytes INTEGER NOT NULL,
  budget_money REAL NOT NULL,
  used_live INTEGER NOT NULL DEFAULT 0 CHECK (used_live >= 0),
  used_millicpus INTEGER NOT NULL DEFAULT 0 CHECK (used_millicpus >= 0),
  used_memory INTEGER NOT NULL DEFAULT 0 CHECK (used_memory >= 0),
  used_disk INTEGER NOT NULL DEFAULT 0 CHECK (used_disk >= 0)
) WITHOUT ROWID;

CREATE TABLE keys (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL REFERENCES projects(id),
  name TEXT NOT NULL,
  hash TEXT NOT NULL UNIQUE,
  prefix TEXT NOT NULL,
  scope TEXT NOT NULL,
  created INTEGER NOT NULL, revoked INTEGER NOT NULL, last_used INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX keys_of_project ON keys(project, created, id);

CREATE TABLE sandboxes (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL REFERENCES projects(id),
  name TEXT NOT NULL, key TEXT NOT NULL, task TEXT NOT NULL, actor TEXT NOT NULL,
  template TEXT NOT NULL, digest TEXT NOT NULL,
  boundary TEXT NOT NULL, birth TEXT NOT NULL,
  state TEXT NOT NULL,
  end_reason TEXT NOT NULL, end_detail TEXT NOT NULL,
  created INTEGER NOT NULL, ended INTEGER NOT NULL, last_active INTEGER NOT NULL,
  cpus REAL NOT NULL, memory INTEGER NOT NULL, pids INTEGER NOT NULL, disk INTEGER NOT NULL,
  open_files INTEGER NOT NULL, io_rate INTEGER NOT NULL, wall_time INTEGER NOT NULL,
  deadline INTEGER NOT NULL, idle_limit INTEGER NOT NULL, at_end TEXT NOT NULL, auto_resume INTEGER NOT NULL,
  budget_cpu REAL NOT NULL, budget_wall REAL NOT NULL, budget_commands INTEGER NOT NULL, budget_bytes INTEGER NOT NULL,
  budget_money REAL NOT NULL,
  metadata TEXT NOT NULL, env TEXT NOT NULL, on_create TEXT NOT NULL, on_resume TEXT NOT NULL,  -- JSON
  probe TEXT NOT NULL, traffic_token TEXT NOT NULL, secure INTEGER NOT NULL,
  holds_live INTEGER NOT NULL GENERATED ALWAYS AS (state IN ('creating', 'running', 'frozen', 'ending')) VIRTUAL,
  holds_disk INTEGER NOT NULL GENERATED ALWAYS AS (state <> 'ended') VIRTUAL
);
CREATE UNIQUE INDEX sandboxes_by_name ON sandboxes(project, name) WHERE name <> '' AND state <> 'ended';
CREATE UNIQUE INDEX sandboxes_by_key ON sandboxes(project, key) WHERE key <> '' AND state <> 'ended';
CREATE INDEX sandboxes_all ON sandboxes(project, created, id);
CREATE INDEX sandboxes_living ON sandboxes(project, created, id) WHERE state <> 'ended';
CREATE INDEX sandboxes_ended ON sandboxes(ended) WHERE state = 'ended';

CREATE TRIGGER use_begins AFTER INSERT ON sandboxes BEGIN
  UPDATE projects SET
    used_live = used_live + new.holds_live,
    used_millicpus = used_millicpus + new.holds_live * CAST(round(new.cpus * 1000) AS INTEGER),
    used_memory = used_memory + new.holds_live * new.memory,
    used_disk = used_disk + new.holds_disk * new.disk
  WHERE id = new.project;
END;
CREATE TRIGGER use_changes AFTER UPDATE OF state, cpus, memory, disk ON sandboxes BEGIN
  UPDATE projects SET
    used_live = used_live + new.holds_live - old.holds_live,
    used_millicpus = used_millicpus + new.holds_live * CAST(round(new.cpus * 1000) AS INTEGER)
                                    - old.holds_live * CAST(round(old.cpus * 1000) AS INTEGER),
    used_memory = used_memory + new.holds_live * new.memory - old.holds_live * old.memory,
    used_disk = used_disk + new.holds_disk * new.disk - old.holds_disk * old.disk
  WHERE id = new.project;
END;
CREATE TRIGGER use_ends AFTER DELETE ON sandboxes WHEN old.state <> 'ended' BEGIN
  UPDATE projects SET
    used_live = used_live - old.holds_live,
    used_millicpus = used_millicpus - old.holds_live * CAST(round(old.cpus * 1000) AS INTEGER),
    used_memory = used_memory - old.holds_live * old.memory,
    used_disk = used_disk - old.holds_disk * old.disk
  WHERE id = old.project;
END;
)sql";

constexpr std::string_view kVersion2 = R"sql(
ALTER TABLE sandboxes ADD COLUMN network TEXT NOT NULL DEFAULT '';
ALTER TABLE projects ADD COLUMN ceiling TEXT NOT NULL DEFAULT '';
)sql";

constexpr std::string_view kVersion3 = R"sql(
ALTER TABLE sandboxes ADD COLUMN budget_freeze INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN one_shot INTEGER NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN budget_freeze INTEGER NOT NULL DEFAULT 0;
CREATE TABLE tasks (
  project TEXT NOT NULL REFERENCES projects(id),
  task TEXT NOT NULL,
  budget_cpu REAL NOT NULL, budget_wall REAL NOT NULL, budget_commands INTEGER NOT NULL, budget_bytes INTEGER NOT NULL,
  budget_money REAL NOT NULL, budget_freeze INTEGER NOT NULL,
  PRIMARY KEY (project, task)
) WITHOUT ROWID;
)sql";

// What images take is summed like the rest. A spent one is nobody's any more, though its bytes may still be there.
constexpr std::string_view kVersion4 = R"sql(
ALTER TABLE sandboxes ADD COLUMN timeout INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN delete_after INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN freeze_after INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN image TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN asleep INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN cpu_before INTEGER NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN limit_stored INTEGER NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN used_stored INTEGER NOT NULL DEFAULT 0 CHECK (used_stored >= 0);
CREATE TABLE images (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL REFERENCES projects(id),
  kind TEXT NOT NULL,
  name TEXT NOT NULL, sandbox TEXT NOT NULL, parent TEXT NOT NULL, template TEXT NOT NULL, digest TEXT NOT NULL,
  memory INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, layer_bytes INTEGER NOT NULL,
  created INTEGER NOT NULL, last_used INTEGER NOT NULL, expires_after INTEGER NOT NULL,
  cpus REAL NOT NULL, memory_limit INTEGER NOT NULL, pids INTEGER NOT NULL, disk INTEGER NOT NULL,
  open_files INTEGER NOT NULL, io_rate INTEGER NOT NULL,
  env TEXT NOT NULL, metadata TEXT NOT NULL,  -- JSON
  held INTEGER NOT NULL GENERATED ALWAYS AS ((kind <> 'spent') * (memory_bytes + layer_bytes)) VIRTUAL
) WITHOUT ROWID;
CREATE UNIQUE INDEX images_by_name ON images(project, name) WHERE name <> '' AND kind = 'snapshot';
CREATE INDEX images_all ON images(project, kind, created, id);
CREATE INDEX images_expiring ON images(last_used + expires_after) WHERE expires_after > 0 AND kind = 'snapshot';
CREATE INDEX sandboxes_by_image ON sandboxes(image) WHERE image <> '';
CREATE TRIGGER stored_begins AFTER INSERT ON images BEGIN
  UPDATE projects SET used_stored = used_stored + new.held WHERE id = new.project;
END;
CREATE TRIGGER stored_changes AFTER UPDATE OF kind, memory_bytes, layer_bytes ON images BEGIN
  UPDATE projects SET used_stored = used_stored + new.held - old.held WHERE id = new.project;
END;
CREATE TRIGGER stored_ends AFTER DELETE ON images BEGIN
  UPDATE projects SET used_stored = used_stored - old.held WHERE id = old.project;
END;
)sql";

// Until then whoever came with a key and named nobody was written down as the actor.
constexpr std::string_view kVersion5 = R"sql(
ALTER TABLE sandboxes ADD COLUMN made_by TEXT NOT NULL DEFAULT '';
UPDATE sandboxes SET made_by = actor WHERE actor IN (SELECT id FROM keys);
)sql";

// A volume counts with what it may hold, from the moment in which it begins to be made.
constexpr std::string_view kVersion6 = R"sql(
ALTER TABLE sandboxes ADD COLUMN volumes TEXT NOT NULL DEFAULT '[]';
ALTER TABLE images ADD COLUMN volumes TEXT NOT NULL DEFAULT '[]';
CREATE INDEX sandboxes_with_volumes ON sandboxes(id) WHERE volumes <> '[]' AND state <> 'ended';
CREATE TABLE volumes (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL REFERENCES projects(id),
  name TEXT NOT NULL,
  size INTEGER NOT NULL,
  created INTEGER NOT NULL,
  labels TEXT NOT NULL,  -- JSON
  state TEXT NOT NULL,
  held INTEGER NOT NULL GENERATED ALWAYS AS ((state <> 'gone') * size) VIRTUAL
) WITHOUT ROWID;
CREATE UNIQUE INDEX volumes_by_name ON volumes(project, name) WHERE state <> 'gone';
CREATE INDEX volumes_all ON volumes(project, created, id);
CREATE TRIGGER volume_begins AFTER INSERT ON volumes BEGIN
  UPDATE projects SET used_stored = used_stored + new.held WHERE id = new.project;
END;
CREATE TRIGGER volume_changes AFTER UPDATE OF state, size ON volumes BEGIN
  UPDATE projects SET used_stored = used_stored + new.held - old.held WHERE id = new.project;
END;
CREATE TRIGGER volume_ends AFTER DELETE ON volumes BEGIN
  UPDATE projects SET used_stored = used_stored - old.held WHERE id = old.project;
END;
)sql";

constexpr std::string_view kVersion7 = R"sql(
ALTER TABLE sandboxes ADD COLUMN user TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN cwd TEXT NOT NULL DEFAULT '';
ALTER TABLE images ADD COLUMN user TEXT NOT NULL DEFAULT '';
ALTER TABLE images ADD COLUMN cwd TEXT NOT NULL DEFAULT '';
CREATE INDEX images_by_step ON images(project, name) WHERE kind = 'step';
CREATE TABLE templates (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL REFERENCES projects(id),
  name TEXT NOT NULL,
  created INTEGER NOT NULL,
  UNIQUE (project, name)
) WITHOUT ROWID;
CREATE TABLE builds (
  id TEXT NOT NULL PRIMARY KEY,
  template TEXT NOT NULL REFERENCES templates(id) ON DELETE CASCADE,
  project TEXT NOT NULL,
  state TEXT NOT NULL,
  why TEXT NOT NULL, step TEXT NOT NULL,
  spec TEXT NOT NULL,  -- JSON
  image TEXT NOT NULL, digest TEXT NOT NULL, base TEXT NOT NULL, memory INTEGER NOT NULL,
  env TEXT NOT NULL,  -- JSON
  user TEXT NOT NULL, cwd TEXT NOT NULL,
  cpus REAL NOT NULL, memory_limit INTEGER NOT NULL,
  created INTEGER NOT NULL, finished INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX builds_of_template ON builds(template, created);
CREATE TABLE template_tags (
  template TEXT NOT NULL REFERENCES templates(id) ON DELETE CASCADE,
  tag TEXT NOT NULL,
  build TEXT NOT NULL REFERENCES builds(id) ON DELETE CASCADE,
  PRIMARY KEY (template, tag)
) WITHOUT ROWID;
CREATE TABLE build_lines (
  build TEXT NOT NULL REFERENCES builds(id) ON DELETE CASCADE,
  number INTEGER NOT NULL,
  at INTEGER NOT NULL, level TEXT NOT NULL, step TEXT NOT NULL, text TEXT NOT NULL,
  PRIMARY KEY (build, number)
) WITHOUT ROWID;
)sql";

// What became of a name's last holder, without a walk over all that ever lived.
constexpr std::string_view kVersion8 = R"sql(
CREATE INDEX sandboxes_ended_by_name ON sandboxes(project, name, ended) WHERE name <> '' AND state = 'ended';
)sql";

// Bindings go with their secret, and with their sandbox.
constexpr std::string_view kVersion9 = R"sql(
ALTER TABLE sandboxes ADD COLUMN granted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN keep_grants INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN exposed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN allow_exposed INTEGER NOT NULL DEFAULT 0;
CREATE TABLE secrets (
  project TEXT NOT NULL REFERENCES projects(id),
  name TEXT NOT NULL,
  version INTEGER NOT NULL,
  sealed BLOB NOT NULL,
  source TEXT NOT NULL,  -- JSON
  created INTEGER NOT NULL, changed INTEGER NOT NULL,
  actor TEXT NOT NULL, made_by TEXT NOT NULL,
  PRIMARY KEY (project, name)
) WITHOUT ROWID;
CREATE TABLE bindings (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL,
  scope TEXT NOT NULL, subject TEXT NOT NULL,
  secret TEXT NOT NULL,
  body TEXT NOT NULL,  -- JSON
  expires INTEGER NOT NULL, created INTEGER NOT NULL,
  actor TEXT NOT NULL, made_by TEXT NOT NULL,
  FOREIGN KEY (project, secret) REFERENCES secrets(project, name) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX bindings_of ON bindings(project, scope, subject);
CREATE INDEX bindings_of_secret ON bindings(project, secret);
CREATE INDEX bindings_of_sandbox ON bindings(subject) WHERE scope = 'sandbox';
CREATE INDEX bindings_expiring ON bindings(expires) WHERE expires > 0;
CREATE TRIGGER grants_end AFTER UPDATE OF state ON sandboxes WHEN new.state = 'ended' BEGIN
  DELETE FROM bindings WHERE scope = 'sandbox' AND subject = new.id;
END;
)sql";

constexpr std::string_view kVersion10 = R"sql(
ALTER TABLE sandboxes ADD COLUMN archive_after INTEGER NOT NULL DEFAULT 0;
)sql";

constexpr std::string_view kVersion11 = R"sql(
ALTER TABLE sandboxes ADD COLUMN engine TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN engine_version TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN accelerated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN least_boundary TEXT NOT NULL DEFAULT 'jail';
)sql";

constexpr std::string_view kVersion12 = R"sql(
CREATE TABLE webhooks (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL REFERENCES projects(id),
  name TEXT NOT NULL,
  url TEXT NOT NULL,
  enabled INTEGER NOT NULL,
  events TEXT NOT NULL,  -- JSON
  secret TEXT NOT NULL,
  created INTEGER NOT NULL,
  told INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX webhooks_of_project ON webhooks(project, created, id);
)sql";

// Of images that are there already, what is known of their sandboxes.
constexpr std::string_view kVersion13 = R"sql(
ALTER TABLE images ADD COLUMN exposed INTEGER NOT NULL DEFAULT 0;
UPDATE images SET exposed = 1 WHERE memory AND sandbox IN (SELECT id FROM sandboxes WHERE exposed);
)sql";

// Values that are one sandbox's alone go with it, as its bindings do.
constexpr std::string_view kVersion14 = R"sql(
ALTER TABLE secrets ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}';  -- JSON
ALTER TABLE secrets ADD COLUMN sandbox TEXT NOT NULL DEFAULT '';
ALTER TABLE bindings ADD COLUMN of_network INTEGER NOT NULL DEFAULT 0;
CREATE INDEX secrets_of_sandbox ON secrets(sandbox) WHERE sandbox <> '';
DROP TRIGGER grants_end;
CREATE TRIGGER grants_end AFTER UPDATE OF state ON sandboxes WHEN new.state = 'ended' BEGIN
  DELETE FROM bindings WHERE scope = 'sandbox' AND subject = new.id;
  DELETE FROM secrets WHERE sandbox <> '' AND sandbox = new.id;
END;
)sql";

// Of sandboxes that are there already, what is bound to them now is known when the server starts.
constexpr std::string_view kVersion15 = R"sql(
ALTER TABLE sandboxes ADD COLUMN screened INTEGER NOT NULL DEFAULT 0;
)sql";

// A sandbox stands in one list, that of the living or that of the past: each more is a page to write with each create.
constexpr std::string_view kVersion16 = R"sql(
DROP INDEX sandboxes_all;
CREATE INDEX sandboxes_past ON sandboxes(project, created, id) WHERE state = 'ended';
)sql";

constexpr std::string_view kVersion17 = R"sql(
ALTER TABLE builds ADD COLUMN disk INTEGER NOT NULL DEFAULT 0;
)sql";

constexpr std::string_view kVersion18 = R"sql(
ALTER TABLE templates ADD COLUMN published INTEGER NOT NULL DEFAULT 0;
)sql";

constexpr std::array kSteps = {kVersion1,  kVersion2,  kVersion3,  kVersion4,  kVersion5,  kVersion6,
                               kVersion7,  kVersion8,  kVersion9,  kVersion10, kVersion11, kVersion12,
                               kVersion13, kVersion14, kVersion15, kVersion16, kVersion17, kVersion18};

}  // namespace

const sqlite::Schema kStoreSchema = {.application_id = 0x49534f31, .what = "store", .steps = kSteps};

}  // namespace isola::store
