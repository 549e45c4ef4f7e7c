#include "dialect/native/create_fields.h"

namespace isola::native {

store::Budget read_budget(Fields& fields, const char* name) {
  store::Budget budget;
  auto inner = fields.object(name);
  if (!inner) return budget;
  budget.cpu_seconds = inner->number("cpu_seconds").value_or(0);
  budget.wall_seconds = inner->number("wall_seconds").value_or(0);
  budget.commands = inner->count("commands").value_or(0);
  budget.bytes_out = inner->count("bytes_out").value_or(0);
  budget.money = inner->number("money").value_or(0);
  auto then = store::parse_at_limit(inner->text("at_limit", "end"));
  if (!then) inner->wrong("at_limit", "must be end, freeze or pause");
  budget.at_limit = then.value_or(store::AtLimit::end);
  fields.adopt(*inner, name);
  return budget;
}

namespace {

std::vector<store::VolumeUse> read_volumes(Fields& fields) {
  std::vector<store::VolumeUse> volumes;
  for (auto& inner : fields.objects("volumes")) {
    store::VolumeUse use;
    auto id = inner.text("id"), name = inner.text("name");
    if (id.empty() == name.empty()) inner.wrong("name", "give either name or id");
    use.volume = id.empty() ? name : id;
    use.path = inner.text("path");
    if (use.path.empty() || use.path[0] != '/') inner.wrong("path", "must be an absolute path");
    use.read_only = inner.flag("read_only");
    use.subpath = inner.text("subpath");
    fields.adopt(inner, "volumes");
    volumes.push_back(std::move(use));
  }
  return volumes;
}

std::vector<store::VolumeUse> read_buckets(Fields& fields) {
  std::vector<store::VolumeUse> buckets;
  for (auto& inner : fields.objects("buckets")) {
    store::VolumeUse use;
    use.path = inner.text("path");
    if (use.path.empty() || use.path[0] != '/') inner.wrong("path", "must be an absolute path");
    use.read_only = inner.flag("read_only");
    use.bucket = store::BucketUse{.endpoint = inner.text("endpoint"),
                                  .bucket = inner.text("bucket"),
                                  .prefix = inner.text("prefix"),
                                  .region = inner.text("region"),
                                  .secret = inner.text("secret")};
    if (use.bucket->secret.empty()) inner.wrong("secret", "must name a secret of the project");
    fields.adopt(inner, "buckets");
    buckets.push_back(std::move(use));
  }
  return buckets;
}

}  // namespace

Result<sandbox::CreateRequest> read_create(Fields& fields, const sandbox::Settings& settings) {
  sandbox::CreateRequest request;
  request.limits = settings.default_limits;
  request.name = fields.text("name");
  request.key = fields.text("key");
  request.task = fields.text("task");
  request.actor = fields.text("actor");
  request.template_name = fields.text("template");
  if (auto word = fields.maybe_text("boundary")) {
    auto wish = parse_boundary_wish(*word);
    if (!wish) fields.wrong("boundary", "must be auto, jail, gvisor, uml, microvm or strongest");
    request.boundary = wish.value_or(BoundaryWish::automatic);
  }
  auto cpus = fields.number("cpus", 0.01, 1024);
  auto memory = fields.size("memory");
  if (cpus) request.limits.cpus = *cpus;
  if (memory) request.limits.memory = *memory;
  request.usual_limits = !cpus && !memory;
  auto disk = fields.size("disk");
  if (disk) request.limits.disk = *disk;
  request.usual_disk = !disk;
  if (auto pids = fields.count("pids", 1 << 22)) request.limits.pids = static_cast<uint32_t>(*pids);
  if (auto files = fields.count("open_files", 1 << 20)) request.limits.open_files = static_cast<uint32_t>(*files);
  request.timeout = fields.seconds("timeout");
  request.idle_limit = fields.seconds("idle_timeout").value_or(0);
  if (auto word = fields.maybe_text("at_end")) {
    auto action = store::parse_at_end(*word);
    if (action)
      request.at_end = *action;
    else
      fields.wrong("at_end", "must be kill, pause or stop");
  }
  request.auto_resume = fields.flag("auto_resume", true);
  request.freeze_after = fields.seconds("freeze_after").value_or(0);
  request.delete_after = fields.seconds("delete_after").value_or(0);
  request.archive_after = fields.seconds("archive_after").value_or(0);
  if (auto git = fields.object("git")) {
    request.git.url = git->text("url");
    request.git.ref = git->text("ref");
    request.git.path = git->text("path");
    fields.adopt(*git, "git");
  }
  request.snapshot = fields.text("snapshot");
  request.files_only = fields.flag("files_only");
  bool says_volumes = fields.has("volumes");
  auto volumes = read_volumes(fields);
  if (says_volumes) request.volumes = std::move(volumes);
  bool says_buckets = fields.has("buckets");
  auto buckets = read_buckets(fields);
  if (says_buckets) request.buckets = std::move(buckets);
  request.budget = read_budget(fields, "budget");
  request.metadata = fields.labels("metadata");
  request.env = fields.labels("env");
  request.on_create = fields.texts("on_create");
  request.on_resume = fields.texts("on_resume");
  request.probe = fields.text("probe");
  request.network = fields.text("network");
  request.public_ports = fields.flag("public_ports");
  request.cold = fields.flag("cold");
  request.grants = fields.flag("grants", true);
  request.keep_grants = fields.flag("keep_grants");
  return request;
}

sandbox::CommandSpec read_command(Fields& fields, const char* env, const char* timeout) {
  sandbox::CommandSpec spec;
  spec.shell = fields.text("command");
  spec.argv = fields.texts("argv");
  if (spec.shell.empty() == spec.argv.empty())
    fields.wrong("command", "give either command (a line for bash) or argv (a list of words)");
  spec.env = fields.labels(env);
  spec.cwd = fields.text("cwd");
  spec.user = fields.text("user");
  spec.timeout = std::chrono::milliseconds(fields.seconds(timeout).value_or(0));
  spec.secrets = fields.labels("secrets");
  spec.secret_files = fields.labels("secret_files");
  return spec;
}

}  // namespace isola::native
