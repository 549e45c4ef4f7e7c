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

constexpr std::string_view kVersion2 = R"sql(
ALTER TABLE events ADD COLUMN key TEXT NOT NULL DEFAULT '';
)sql";

constexpr std::array kSteps = {kVersion1, kVersion2};

}  // namespace

const sqlite::Schema kLedgerSchema = {.application_id = 0x49534f32, .what = "ledger", .steps = kSteps};

}  // namespace isola::ledger
