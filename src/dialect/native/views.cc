#include "dialect/native/views.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace isola::native {

using nlohmann::json;

namespace {
json moment(store::Millis time) { return time ? json(when(time)) : json(nullptr); }
json seconds(store::Millis time) { return time ? json(static_cast<double>(time) / 1000) : json(nullptr); }
}  // namespace

json view(const store::Budget& budget) {
  json out = json::object();
  if (budget.cpu_seconds > 0) out["cpu_seconds"] = budget.cpu_seconds;
  if (budget.wall_seconds > 0) out["wall_seconds"] = budget.wall_seconds;
  if (budget.commands > 0) out["commands"] = budget.commands;
  if (budget.bytes_out > 0) out["bytes_out"] = budget.bytes_out;
  if (budget.money > 0) out["money"] = budget.money;
  if (!out.empty()) out["at_limit"] = to_string(budget.at_limit);
  return out;
}

json view(const std::vector<store::VolumeUse>& volumes) {
  json all = json::array();
  for (const auto& use : volumes) {
    if (use.bucket) continue;
    all.push_back({{"id", use.volume}, {"name", use.name}, {"path", use.path}, {"read_only", use.read_only}});
    if (!use.subpath.empty()) all.back()["subpath"] = use.subpath;
  }
  return all;
}

namespace {

json view_buckets(const std::vector<store::VolumeUse>& volumes) {
  json all = json::array();
  for (const auto& use : volumes) {
    if (!use.bucket) continue;
    all.push_back({{"endpoint", use.bucket->endpoint},
                   {"bucket", use.bucket->bucket},
                   {"secret", use.bucket->secret},
                   {"path", use.path},
                   {"read_only", use.read_only}});
    if (!use.bucket->prefix.empty()) all.back()["prefix"] = use.bucket->prefix;
    if (!use.bucket->region.empty()) all.back()["region"] = use.bucket->region;
  }
  return all;
}

void add_mounts(json& out, const std::vector<store::VolumeUse>& volumes) {
  if (auto all = view(volumes); !all.empty()) out["volumes"] = all;
  if (auto all = view_buckets(volumes); !all.empty()) out["buckets"] = all;
}

}  // namespace

json view(const store::SandboxRecord& sandbox) {
  json out;  // one by one: a list of pairs would be made, and copied, first
  out["id"] = sandbox.id;
  out["state"] = to_string(sandbox.state);
  out["template"] = sandbox.template_name;
  out["boundary"] = to_string(sandbox.boundary);
  out["shared_kernel"] = sandbox.boundary == BoundaryKind::jail;
  out["engine"] = sandbox.engine.name;
  out["engine_version"] = sandbox.engine.version;
  out["accelerated"] = sandbox.engine.accelerated;
  out["birth"] = to_string(sandbox.birth);
  out["created"] = when(sandbox.created);
  out["last_active"] = moment(sandbox.last_active);
  out["deadline"] = moment(sandbox.lifetime.deadline);
  out["idle_timeout"] = seconds(sandbox.lifetime.idle_limit);
  out["at_end"] = to_string(sandbox.lifetime.at_end);
  out["auto_resume"] = sandbox.lifetime.auto_resume;
  out["freeze_after"] = seconds(sandbox.lifetime.freeze_after);
  out["delete_after"] = seconds(sandbox.lifetime.delete_after);
  out["archive_after"] = seconds(sandbox.lifetime.archive_after);
  out["cpus"] = sandbox.limits.cpus;
  out["memory"] = sandbox.limits.memory;
  out["disk"] = sandbox.limits.disk;
  out["pids"] = sandbox.limits.pids;
  out["metadata"] = sandbox.metadata;
  out["public_ports"] = sandbox.traffic_token.empty();
  out["granted"] = sandbox.granted;
  out["keep_grants"] = sandbox.keep_grants;
  out["exposed"] = sandbox.exposed;
  out["network"] = sandbox.network.empty() ? "none" : sandbox.network;
  if (!sandbox.name.empty()) out["name"] = sandbox.name;
  if (!sandbox.key.empty()) out["key"] = sandbox.key;
  if (!sandbox.task.empty()) out["task"] = sandbox.task;
  if (!sandbox.actor.empty()) out["actor"] = sandbox.actor;
  if (auto budget = view(sandbox.budget); !budget.empty()) out["budget"] = budget;
  if (sandbox.state == State::ended) {
    out["ended"] = moment(sandbox.ended);
    out["end_reason"] = to_string(sandbox.end_reason);
    if (!sandbox.end_detail.empty()) out["end_detail"] = sandbox.end_detail;
  } else if (sandbox.state == State::frozen && !sandbox.end_detail.empty()) {
    out["frozen_reason"] = sandbox.end_detail;
  }
  add_mounts(out, sandbox.volumes);
  if (store::is_asleep(sandbox.state)) {
    out["paused"] = moment(sandbox.asleep);
    if (!sandbox.end_detail.empty()) out["paused_reason"] = sandbox.end_detail;
  }
  if (sandbox.state != State::ended && !sandbox.traffic_token.empty()) {
    out["port_token"] = sandbox.traffic_token;
  }
  return out;
}

json view(const store::ImageRecord& snapshot) {
  json out = {{"id", snapshot.id},
              {"sandbox", snapshot.sandbox},
              {"template", snapshot.template_name},
              {"memory", snapshot.memory},
              {"memory_bytes", snapshot.memory_bytes},
              {"layer_bytes", snapshot.layer_bytes},
              {"created", when(snapshot.created)},
              {"last_used", moment(snapshot.last_used)},
              {"expires_after", seconds(snapshot.expires_after)},
              {"cpus", snapshot.limits.cpus},
              {"memory_limit", snapshot.limits.memory},
              {"disk", snapshot.limits.disk}};
  if (!snapshot.name.empty()) out["name"] = snapshot.name;
  if (!snapshot.parent.empty()) out["parent"] = snapshot.parent;
  add_mounts(out, snapshot.volumes);
  return out;
}

json view(const guest::Exit& exit) {
  json out = {{"exit_code", exit.signal ? 128 + exit.signal : exit.code}};
  if (exit.signal) out["signal"] = exit.signal;
  if (exit.timed_out) out["timed_out"] = true;
  if (exit.oom_hint) out["killed_by_memory_limit"] = true;
  return out;
}

json view(const sandbox::CommandInfo& command) {
  json out = {{"id", command.id},
              {"pid", command.pid},
              {"command", command.command},
              {"running", command.ended == 0},
              {"started", when(command.started)},
              {"pty", command.pty}};
  if (!command.user.empty()) out["user"] = command.user;
  if (!command.cwd.empty()) out["cwd"] = command.cwd;
  if (!command.task.empty()) out["task"] = command.task;
  if (!command.actor.empty()) out["actor"] = command.actor;
  if (!command.stopped.empty()) out["end_reason"] = "limit", out["end_detail"] = command.stopped;
  if (command.ended) {
    out["ended"] = when(command.ended);
    out.update(view(command.exit));
  }
  return out;
}

json view(const store::KeyRecord& key) {
  return {{"id", key.id},
          {"project", key.project},
          {"name", key.name},
          {"prefix", key.prefix},
          {"scope", to_string(key.scope)},
          {"created", when(key.created)},
          {"last_used", moment(key.last_used)},
          {"revoked", moment(key.revoked)}};
}

json view(const store::ProjectRecord& project) {
  json limits = json::object();
  if (project.limits.live_sandboxes) limits["live_sandboxes"] = project.limits.live_sandboxes;
  if (project.limits.cpus > 0) limits["cpus"] = project.limits.cpus;
  if (project.limits.memory) limits["memory"] = project.limits.memory;
  if (project.limits.disk) limits["disk"] = project.limits.disk;
  if (project.limits.creates_per_second > 0) limits["creates_per_second"] = project.limits.creates_per_second;
  if (project.limits.stored) limits["stored"] = project.limits.stored;
  if (project.limits.boundary != BoundaryKind::jail) limits["boundary"] = to_string(project.limits.boundary);
  return {{"id", project.id},
          {"name", project.name},
          {"created", when(project.created)},
          {"limits", limits},
          {"budget", view(project.budget)},
          {"ceiling", project.ceiling},
          {"allow_exposed", project.allow_exposed}};
}

json view(const ledger::Usage& used, const ledger::PriceSheet& prices) {
  constexpr double kGibHour = 1024.0 * 1024 * 1024 * 3600;
  json out = {{"cpu_seconds", static_cast<double>(used.cpu_usec) / 1e6},
              {"memory_gib_hours", used.memory_byte_seconds / kGibHour},
              {"disk_gib_hours", used.disk_byte_seconds / kGibHour},
              {"bytes_out", used.bytes_out},
              {"commands", used.commands},
              {"wall_seconds", static_cast<double>(used.wall_ms) / 1000}};
  if (double cost = ledger::price(used, prices).total(); cost > 0)
    out["cost"] = cost, out["currency"] = prices.currency;
  return out;
}

json view(const ledger::Event& event) {
  json data = json::parse(event.data, nullptr, false);
  json out = {{"time", when(event.time)},
              {"kind", to_string(event.kind)},
              {"sandbox", event.sandbox},
              {"data", data.is_discarded() ? json::object() : data}};
  if (event.seq) out["seq"] = event.seq;
  if (!event.task.empty()) out["task"] = event.task;
  if (!event.actor.empty()) out["actor"] = event.actor;
  if (!event.key.empty()) out["key"] = event.key;
  return out;
}

namespace {
std::string_view word(guest::FileType type) {
  constexpr std::string_view words[] = {"unknown", "file", "dir", "link", "fifo", "socket", "chardev", "blockdev"};
  auto at = static_cast<size_t>(type);
  return at < std::size(words) ? words[at] : words[0];
}
}  // namespace

json view(const guest::Stat& stat) {
  json out = {{"type", word(stat.type)}, {"mode", fmt::format("{:04o}", stat.mode & 07777)},
              {"uid", stat.uid},         {"gid", stat.gid},
              {"size", stat.size},       {"modified", when(stat.mtime_ns / 1'000'000)}};
  if (stat.type == guest::FileType::link) out["target"] = stat.target;
  return out;
}

json view(const Latency& latency) {
  json out = json::object();
  for (int i = 0; i < static_cast<int>(Step::count_); ++i) {
    auto step = static_cast<Step>(i);
    if (auto time = latency.of(step); time.count() > 0)
      out[std::string(to_string(step))] = static_cast<double>(time.count()) / 1e6;
  }
  out["total"] = static_cast<double>(latency.total().count()) / 1e6;
  return out;
}

}  // namespace isola::native
