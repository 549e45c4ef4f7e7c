#include "ledger/schema.h"

#include <array>

namespace isola::ledger {

namespace {

// `usage` repeats what usage.sample events say, as numbers that can be summed; verify() compares the two. The triggers
// keep our own mistakes out; against somebody who writes into the file there is the chain.
constexpr std::string_view kVersion1 = R"sql(
CREATE TABLE events (
  seq INTEGER NOT NULL PRIMARY KEY,
  time INTEGER NOT NULL,
  project TEXT NOT NULL, sandbox TEXT NOT NULL, task TEXT NOT NULL, actor TEXT NOT NULL,
  kind TEXT NOT NULL,
  data TEXT NOT NULL,
  prev TEXT NOT NULL,
  hash TEXT NOT NULL
);
CREATE INDEX events_of_project ON events(project);
CREATE INDEX events_of_sandbox ON events(sandbox) WHERE sandbox <> '';
CREATE INDEX events_of_task ON events(task) WHERE task <> '';
CREATE INDEX events_by_time ON events(time);

CREATE TABLE usage (
  seq INTEGER NOT NULL PRIMARY KEY REFERENCES events(seq),
  project TEXT NOT NULL, sandbox TEXT NOT NULL, task TEXT NOT NULL,
  from_ms INTEGER NOT NULL, to_ms INTEGER NOT NULL,
  cpu_usec INTEGER NOT NULL, memory_byte_seconds REAL NOT NULL, disk_byte_seconds REAL NOT NULL,
  bytes_out INTEGER NOT NULL, commands INTEGER NOT NULL, wall_ms INTEGER NOT NULL
);
CREATE INDEX usage_of_project ON usage(project, from_ms);
CREATE INDEX usage_of_sandbox ON usage(sandbox, from_ms);
CREATE INDEX usage_of_task ON usage(task, from_ms) WHERE task <> '';

CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER events_remain BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER usage_stays BEFORE UPDATE ON usage BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER usage_remains BEFORE DELETE ON usage BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
)sql";

// `usage_totals` is what `usage_sums` would say, kept up with every sample: whoever asks for all that a project, a task
// or a sandbox used, as a server that starts does, reads one row instead of years. verify() compares the two.
constexpr std::string_view kVersion2 = R"sql(
CREATE TABLE usage_totals (
  kind TEXT NOT NULL, name TEXT NOT NULL, project TEXT NOT NULL,
  from_ms INTEGER NOT NULL, to_ms INTEGER NOT NULL,
  cpu_usec INTEGER NOT NULL, memory_byte_seconds REAL NOT NULL, disk_byte_seconds REAL NOT NULL,
  bytes_out INTEGER NOT NULL, commands INTEGER NOT NULL, wall_ms INTEGER NOT NULL,
  samples INTEGER NOT NULL, idle_ms INTEGER NOT NULL,
  PRIMARY KEY (kind, name, project)
) WITHOUT ROWID;
CREATE INDEX usage_totals_of_project ON usage_totals(project, kind);

CREATE VIEW usage_named AS
  SELECT 'project' AS kind, project AS name, * FROM usage UNION ALL
  SELECT 'task', task, * FROM usage UNION ALL
  SELECT 'sandbox', sandbox, * FROM usage;
CREATE VIEW usage_sums AS
  SELECT kind, name, project, min(from_ms) AS from_ms, max(to_ms) AS to_ms, sum(cpu_usec) AS cpu_usec,
    total(memory_byte_seconds) AS memory_byte_seconds, total(disk_byte_seconds) AS disk_byte_seconds,
    sum(bytes_out) AS bytes_out, sum(commands) AS commands, sum(wall_ms) AS wall_ms, count(*) AS samples,
    sum(CASE WHEN cpu_usec < wall_ms * 10 THEN wall_ms ELSE 0 END) AS idle_ms
  FROM usage_named GROUP BY kind, name, project;
INSERT INTO usage_totals SELECT * FROM usage_sums;

CREATE TRIGGER usage_counts AFTER INSERT ON usage BEGIN
  INSERT INTO usage_totals
  SELECT kind, name, new.project, new.from_ms, new.to_ms, new.cpu_usec, new.memory_byte_seconds,
    new.disk_byte_seconds, new.bytes_out, new.commands, new.wall_ms, 1,
    CASE WHEN new.cpu_usec < new.wall_ms * 10 THEN new.wall_ms ELSE 0 END
  FROM (SELECT 'project' AS kind, new.project AS name UNION ALL SELECT 'task', new.task UNION ALL
        SELECT 'sandbox', new.sandbox) WHERE true
  ON CONFLICT (kind, name, project) DO UPDATE SET
    from_ms = min(from_ms, excluded.from_ms), to_ms = max(to_ms, excluded.to_ms),
    cpu_usec = cpu_usec + excluded.cpu_usec,
    memory_byte_seconds = memory_byte_seconds + excluded.memory_byte_seconds,
    disk_byte_seconds = disk_byte_seconds + excluded.disk_byte_seconds,
    bytes_out = bytes_out + excluded.bytes_out, commands = commands + excluded.commands,
    wall_ms = wall_ms + excluded.wall_ms, samples = samples + 1, idle_ms = idle_ms + excluded.idle_ms;
END;
)sql";

// Who asked, as authenticated, beside the actor that a caller may claim.
constexpr std::string_view kVersion3 = R"sql(
ALTER TABLE events ADD COLUMN key TEXT NOT NULL DEFAULT '';
)sql";

// Macs; and what a file begins with that goes on where another one ended: its number and hash, and the sums of usage.
// Which sandbox used a secret is asked by few, and must not wait for everybody's entries to be read.
constexpr std::string_view kVersion4 = R"sql(
ALTER TABLE events ADD COLUMN mac TEXT NOT NULL DEFAULT '';
CREATE INDEX events_of_secrets ON events(seq) WHERE kind IN ('secret.created', 'secret.rotated', 'secret.deleted',
  'secret.granted', 'secret.denied', 'secret.exposed', 'secret.used', 'grant.created', 'grant.revoked', 'scan.hit');
CREATE TABLE segment (first INTEGER NOT NULL, prev TEXT NOT NULL);
CREATE TABLE usage_opening (
  kind TEXT NOT NULL, name TEXT NOT NULL, project TEXT NOT NULL,
  from_ms INTEGER NOT NULL, to_ms INTEGER NOT NULL,
  cpu_usec INTEGER NOT NULL, memory_byte_seconds REAL NOT NULL, disk_byte_seconds REAL NOT NULL,
  bytes_out INTEGER NOT NULL, commands INTEGER NOT NULL, wall_ms INTEGER NOT NULL,
  samples INTEGER NOT NULL, idle_ms INTEGER NOT NULL,
  PRIMARY KEY (kind, name, project)
) WITHOUT ROWID;
DROP VIEW usage_sums;
CREATE VIEW usage_sums AS
  SELECT kind, name, project, min(from_ms) AS from_ms, max(to_ms) AS to_ms, sum(cpu_usec) AS cpu_usec,
    total(memory_byte_seconds) AS memory_byte_seconds, total(disk_byte_seconds) AS disk_byte_seconds,
    sum(bytes_out) AS bytes_out, sum(commands) AS commands, sum(wall_ms) AS wall_ms, sum(samples) AS samples,
    sum(idle_ms) AS idle_ms
  FROM (
    SELECT kind, name, project, from_ms, to_ms, cpu_usec, memory_byte_seconds, disk_byte_seconds, bytes_out, commands,
      wall_ms, 1 AS samples, CASE WHEN cpu_usec < wall_ms * 10 THEN wall_ms ELSE 0 END AS idle_ms
    FROM usage_named UNION ALL
    SELECT * FROM usage_opening)
  GROUP BY kind, name, project;
)sql";

// One more kind that is about a secret.
constexpr std::string_view kVersion5 = R"sql(
DROP INDEX events_of_secrets;
CREATE INDEX events_of_secrets ON events(seq) WHERE kind IN ('secret.created', 'secret.rotated', 'secret.deleted',
  'secret.granted', 'secret.denied', 'secret.exposed', 'secret.used', 'secret.minted', 'grant.created',
  'grant.revoked', 'scan.hit');
)sql";

// And another: the keys of a bucket are a secret, too.
constexpr std::string_view kVersion6 = R"sql(
DROP INDEX events_of_secrets;
CREATE INDEX events_of_secrets ON events(seq) WHERE kind IN ('secret.created', 'secret.rotated', 'secret.deleted',
  'secret.granted', 'secret.denied', 'secret.exposed', 'secret.used', 'secret.minted', 'grant.created',
  'grant.revoked', 'scan.hit', 'bucket.mounted');
)sql";

constexpr std::array kSteps = {kVersion1, kVersion2, kVersion3, kVersion4, kVersion5, kVersion6};

}  // namespace

const sqlite::Schema kLedgerSchema = {.application_id = 0x49534f32, .what = "ledger", .steps = kSteps};

}  // namespace isola::ledger
