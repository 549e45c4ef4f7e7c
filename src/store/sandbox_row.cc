#include "store/sandbox_row.h"

#include <array>

#include "store/json_columns.h"

namespace isola::store {

const std::string_view kSandboxColumns =
    "id, project, name, key, task, actor, template, digest, boundary, birth, state, end_reason, end_detail, "
    "created, ended, last_active, cpus, memory, pids, disk, open_files, io_rate, wall_time, "
    "deadline, idle_limit, at_end, auto_resume, budget_cpu, budget_wall, budget_commands, budget_bytes, budget_money, "
    "budget_freeze, metadata, env, on_create, on_resume, probe, traffic_token, secure, network, one_shot, timeout, "
    "delete_after, freeze_after, archive_after, image, asleep, cpu_before, made_by, volumes, user, cwd, granted, "
    "keep_grants, "
    "exposed, engine, engine_version, accelerated, screened";
const std::string_view kSandboxMarks =
    "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
    "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
    "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
    "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?";

namespace {

std::optional<Birth> parse_birth(std::string_view word) {
  for (Birth birth : {Birth::cold, Birth::pooled, Birth::resumed, Birth::forked})
    if (to_string(birth) == word) return birth;
  return std::nullopt;
}

// The column is older than the third way.
AtLimit at_limit_of(int number) { return number == 2 ? AtLimit::pause : number == 1 ? AtLimit::freeze : AtLimit::end; }

}  // namespace

void bind_budget(sqlite::Statement& statement, const Budget& budget) {
  statement.bind(budget.cpu_seconds, budget.wall_seconds, budget.commands, budget.bytes_out, budget.money,
                 static_cast<int>(budget.at_limit));
}

Budget read_budget(sqlite::Row& row) {
  return {.cpu_seconds = row.real(),
          .wall_seconds = row.real(),
          .commands = row.integer<uint64_t>(),
          .bytes_out = row.integer<uint64_t>(),
          .money = row.real(),
          .at_limit = at_limit_of(row.integer<int>())};
}

Result<void> bind_sandbox(sqlite::Statement& insert, const SandboxRecord& s) {
  ISOLA_TRY(std::string metadata, to_json(s.metadata, "metadata"));
  ISOLA_TRY(std::string env, to_json(s.env, "environment variables"));
  ISOLA_TRY(std::string on_create, to_json(s.on_create, "commands on create"));
  ISOLA_TRY(std::string on_resume, to_json(s.on_resume, "commands on resume"));
  ISOLA_TRY(std::string volumes, to_json(s.volumes));
  insert.bind(s.id, s.project, s.name, s.key, s.task, s.actor, s.template_name, s.digest, to_string(s.boundary),
              to_string(s.birth), to_string(s.state), to_string(s.end_reason), s.end_detail);
  insert.bind(s.created, s.ended, s.last_active);
  insert.bind(s.limits.cpus, s.limits.memory, s.limits.pids, s.limits.disk, s.limits.open_files,
              s.limits.io_bytes_per_second, s.limits.wall_time.count());
  insert.bind(s.lifetime.deadline, s.lifetime.idle_limit, to_string(s.lifetime.at_end), s.lifetime.auto_resume);
  bind_budget(insert, s.budget);
  insert.bind(metadata, env, on_create, on_resume, s.probe, s.traffic_token, s.secure, s.network, s.one_shot);
  insert.bind(s.lifetime.timeout, s.lifetime.delete_after, s.lifetime.freeze_after, s.lifetime.archive_after, s.image,
              s.asleep, s.cpu_before, s.made_by, volumes, s.user, s.cwd, s.granted, s.keep_grants, s.exposed,
              s.engine.name, s.engine.version, s.engine.accelerated, s.screened);
  return {};
}

Result<SandboxRecord> read_sandbox(const sqlite::Statement& statement) {
  sqlite::Row row(statement);
  SandboxRecord s;
  for (std::string* text : {&s.id, &s.project, &s.name, &s.key, &s.task, &s.actor, &s.template_name, &s.digest})
    *text = row.text();
  auto boundary = parse_boundary(row.text());
  auto birth = parse_birth(row.text());
  auto state = parse_state(row.text());
  auto reason = parse_end_reason(row.text());
  s.end_detail = row.text();
  s.created = row.integer();
  s.ended = row.integer();
  s.last_active = row.integer();
  s.limits.cpus = row.real();
  s.limits.memory = row.integer<uint64_t>();
  s.limits.pids = row.integer<uint32_t>();
  s.limits.disk = row.integer<uint64_t>();
  s.limits.open_files = row.integer<uint32_t>();
  s.limits.io_bytes_per_second = row.integer<uint64_t>();
  s.limits.wall_time = std::chrono::milliseconds(row.integer());
  s.lifetime.deadline = row.integer();
  s.lifetime.idle_limit = row.integer();
  auto at_end = parse_at_end(row.text());
  s.lifetime.auto_resume = row.flag();
  s.budget = read_budget(row);
  ISOLA_TRY(s.metadata, labels_of(row.text()));
  ISOLA_TRY(s.env, labels_of(row.text()));
  ISOLA_TRY(s.on_create, list_of(row.text()));
  ISOLA_TRY(s.on_resume, list_of(row.text()));
  s.probe = row.text();
  s.traffic_token = row.text();
  s.secure = row.flag();
  s.network = row.text();
  s.one_shot = row.flag();
  s.lifetime.timeout = row.integer();
  s.lifetime.delete_after = row.integer();
  s.lifetime.freeze_after = row.integer();
  s.lifetime.archive_after = row.integer();
  s.image = row.text();
  s.asleep = row.integer();
  s.cpu_before = row.integer<uint64_t>();
  s.made_by = row.text();
  ISOLA_TRY(s.volumes, volumes_of(row.text()));
  s.user = row.text();
  s.cwd = row.text();
  s.granted = row.flag();
  s.keep_grants = row.flag();
  s.exposed = row.flag();
  s.engine.name = row.text();
  s.engine.version = row.text();
  s.engine.accelerated = row.flag();
  s.screened = row.flag();
  if (!boundary || !birth || !state || !reason || !at_end)
    return fail(Code::corrupt, "the store holds a word that this version does not know, in sandbox " + s.id);
  s.boundary = *boundary;
  s.birth = *birth;
  s.state = *state;
  s.end_reason = *reason;
  s.lifetime.at_end = *at_end;
  return s;
}

}  // namespace isola::store
