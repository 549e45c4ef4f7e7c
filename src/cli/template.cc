// isola template: what sandboxes start from.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/units.h"
#include "cli/api.h"
#include "cli/commands.h"
#include "cli/register.h"
#include "cli/table.h"
#include "cli/template_build.h"
#include "http/url.h"
#include "image/oci_import.h"
#include "image/template_cache.h"

namespace isola::cli {

namespace {

std::string date(int64_t seconds) {
  char text[32];
  time_t when = seconds;
  tm utc{};
  ::gmtime_r(&when, &utc);
  ::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &utc);
  return text;
}

constexpr size_t kMostCredentials = 64 << 10;

// All of it; nothing where that is more.
std::string said_on_stdin(size_t most) {
  std::string text;
  char piece[4096];
  for (ssize_t n; (n = ::read(STDIN_FILENO, piece, sizeof piece)) > 0;) {
    text.append(piece, static_cast<size_t>(n));
    if (text.size() > most) return {};
  }
  return text;
}

// One line that is written over on a terminal, one line per change elsewhere.
class ProgressLine {
 public:
  void show(const std::string& name, const image::ProgressStep& step) {
    bool terminal = ::isatty(STDERR_FILENO) != 0;
    auto now = std::chrono::duration_cast<std::chrono::seconds>(step.elapsed).count();
    if (!terminal && step.phase == phase_ && now - last_ < 10) return;
    phase_ = step.phase;
    last_ = now;
    std::string percent = step.percent >= 0 ? fmt::format(" {}%", step.percent) : "";
    std::string text = fmt::format("{}: {}{} {} ({} s)", name, step.phase, percent, step.detail.substr(0, 60), now);
    std::fprintf(stderr, terminal ? "\r\033[K%s" : "%s\n", text.c_str());
    shown_ = terminal;
  }
  ~ProgressLine() {
    if (shown_) std::fputc('\n', stderr);
  }

 private:
  std::string phase_;
  int64_t last_ = 0;
  bool shown_ = false;
};

nlohmann::json to_json(const image::Template& t) {
  return {{"name", t.name},
          {"digest", t.digest},
          {"size", t.size},
          {"created", t.created},
          {"distribution", t.distribution},
          {"origin", t.origin},
          {"packages", t.packages.size()}};
}

}  // namespace

namespace {

// What the project built, where there is a server to ask. Without one, or a key for it, the machine's own are all.
nlohmann::json built_by_project(const Common& common) {
  auto api = Api::open(common);
  auto reply = api ? api->get("/v1/templates") : Result<nlohmann::json>(std::unexpected(api.error()));
  nlohmann::json built = nlohmann::json::array();
  if (!reply) return built;
  for (auto& one : (*reply)["templates"])
    if (one.contains("id")) built.push_back(std::move(one));
  return built;
}

}  // namespace

int template_list(const Common& common) {
  auto all = image::TemplateCache(common.cache_dir).list();
  if (!all) return complain(all.error().message);
  auto built = built_by_project(common);
  if (common.json) {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& t : *all) out.push_back(to_json(t));
    for (const auto& one : built) out.push_back(one);
    std::puts(out.dump(2).c_str());
    return 0;
  }
  if (all->empty() && built.empty()) {
    std::puts("No templates yet: `isola template build base` makes the default one.");
    return 0;
  }
  Table table({"NAME", "DIGEST", "SIZE", "MADE (UTC)", "FROM"});
  for (const auto& t : *all)
    table.add({t.name, t.digest.substr(0, 12), format_size(t.size), date(t.created),
               t.origin.empty() ? t.distribution : t.origin});
  for (const auto& one : built) {
    std::string tags;
    for (const auto& [tag, build] : one["tags"].items()) tags += (tags.empty() ? "" : ", ") + tag;
    table.add({text_of(one, "name"), "-", "-", "-", tags.empty() ? "built here: not ready" : "built here: " + tags});
  }
  print(table.text());
  return 0;
}

// `options`: of one in a registry; none: on disk.
int template_import(const Common& common, const std::string& source, const std::string& name,
                    std::optional<image::PullOptions> options) {
  image::TemplateCache cache(common.cache_dir);
  Result<image::Template> made;
  {
    ProgressLine line;
    auto show = [&](const image::ProgressStep& step) { line.show(name.empty() ? source : name, step); };
    if (options) options->name = name;
    made = options ? image::pull_image(cache, source, *options, show) : image::import_image(cache, source, name, show);
  }
  if (!made && common.json)  // whoever asked for JSON reads that alone
    print_json({{"error", {{"code", to_string(made.error().code)}, {"message", made.error().message}}}});
  if (!made) return complain(made.error().message);
  if (common.json)
    std::puts(to_json(*made).dump().c_str());
  else
    std::printf("%s: ready (%s, %s)\n", made->name.c_str(), made->digest.substr(0, 12).c_str(),
                format_size(made->size).c_str());
  return 0;
}

int template_build(const Common& common, const std::vector<std::string>& names, bool again) {
  image::TemplateCache cache(common.cache_dir);
  for (const auto& name : names) {
    Result<image::Template> built;
    {
      ProgressLine line;
      built = cache.build(name, [&](const image::ProgressStep& step) { line.show(name, step); }, again);
    }
    if (!built) return complain(built.error().message);
    if (common.json)
      std::puts(to_json(*built).dump().c_str());
    else
      std::printf("%s: ready (%s, %s)\n", name.c_str(), built->digest.substr(0, 12).c_str(),
                  format_size(built->size).c_str());
  }
  return 0;
}

int template_verify(const Common& common, const std::string& name) {
  auto verified = image::TemplateCache(common.cache_dir).verify(name);
  if (!verified) return complain(verified.error().message);
  if (common.json)
    print_json({{"name", name}, {"intact", true}});
  else
    std::printf("%s: intact\n", name.c_str());
  return 0;
}

// One that the project built is the server's, not the machine's.
int remove_from_project(const Common& common, const std::string& name) {
  auto api = Api::open(common);
  auto removed = api ? api->remove("/v1/templates/" + http::percent_encode(name))
                     : Result<void>(fail(Code::not_found, "this machine has no template " + name +
                                                              ", and there is no server to ask for one"));
  if (!removed) return complain(removed.error().message);
  if (common.json)
    print_json({{"name", name}, {"removed", true}});
  else
    std::printf("%s: removed\n", name.c_str());
  return 0;
}

int template_remove(const Common& common, const std::string& name) {
  image::TemplateCache cache(common.cache_dir);
  if (auto found = cache.find(name); !found && found.error().code == Code::not_found)
    return remove_from_project(common, name);
  if (auto removed = cache.remove(name); !removed) return complain(removed.error().message);
  auto freed = cache.collect();
  if (!freed) return complain(freed.error().message);
  if (common.json)
    print_json({{"name", name}, {"removed", true}, {"freed", *freed}});
  else
    std::printf("%s: removed (%s freed)\n", name.c_str(), format_size(*freed).c_str());
  return 0;
}

void add_template(CLI::App& app, Common& common, int& code) {
  auto* group = app.add_subcommand("template", "What sandboxes start from")->require_subcommand(1);
  auto* list = group->add_subcommand("ls", "List the templates of this machine, and those that your project built");
  add_server_options(*list, common);
  list->callback([&] { code = template_list(common); });
  auto names = std::make_shared<std::vector<std::string>>();
  auto again = std::make_shared<bool>(false);
  auto* build = group->add_subcommand("build", "Make a template, if it is not there and current");
  build->add_option("name", *names, "base, minimal or code-interpreter; with --file: any, perhaps with a tag (app:v1)")
      ->required();
  build->add_flag("--again,--no-cache", *again, "Make it anew in any case");
  auto file = std::make_shared<BuildOptions>();
  build->add_option("-f,--file", file->file, "A Dockerfile: the server builds it, in a sandbox");
  build->add_option("--devcontainer", file->devcontainer, "A folder with a devcontainer.json: likewise");
  build->add_option("--context", file->context, "The folder of its files; else the Dockerfile's own");
  build->add_option("--build-arg", file->arguments, "NAME=value for an ARG; repeatable");
  build->add_option("--target", file->target, "A stage; else the last one");
  build->add_option("--tag", file->tags, "A tag for it, beside that of the name; repeatable");
  build->add_option("--start", file->start, "Runs in every sandbox of it, instead of ENTRYPOINT and CMD");
  build->add_option("--ready", file->ready, "Succeeds when what was started is ready");
  build->add_option("--net", file->network, "What the steps may reach; else everything that the project may");
  build->add_option("--cpus", file->cpus, "For the build, and for sandboxes of it");
  build->add_option("--memory", file->memory, "Likewise, as 512M or 2G");
  add_server_options(*build, common);
  build->callback([&, names, again, file] {
    if (!file->file.empty() && !file->devcontainer.empty()) {
      code = complain("--file or --devcontainer: one of them");
    } else if (file->file.empty() && file->devcontainer.empty()) {
      code = template_build(common, *names, *again);
    } else if (names->size() != 1) {
      code = complain("that makes one template: give one name");
    } else {
      file->name = names->front();
      file->force = *again;
      code = template_build_file(common, *file);
    }
  });
  auto name = std::make_shared<std::string>();
  auto source = std::make_shared<std::string>();
  auto* import = group->add_subcommand("import", "Make a template of an image on disk");
  import->add_option("source", *source, "A folder (an OCI layout) or a file (docker save, or a layout as a tar)")
      ->required();
  import->add_option("name", *name, "What to call it")->required();
  import->callback([&, source, name] { code = template_import(common, *source, *name, std::nullopt); });
  auto* pull = group->add_subcommand("pull", "Make a template of an image in a registry");
  pull->add_option("image", *source, "[REGISTRY/]NAME[:TAG]")->required();
  pull->add_option("name", *name, "What to call it; else after its digest");
  auto anonymous = std::make_shared<bool>(false);
  pull->add_flag("--anonymous", *anonymous, "Without the credentials of this machine");
  auto own = std::make_shared<bool>(false);
  pull->add_flag("--credentials-on-stdin", *own,
                 "With the auth.json on standard input, not with those of this machine");
  pull->callback([&, source, name, anonymous, own] {
    image::PullOptions options;
    options.anonymous = *anonymous || *own;
    if (*own) {
      options.credentials = said_on_stdin(kMostCredentials);
      if (options.credentials.empty()) {
        code = complain("there are no credentials on standard input, or more than 64 KiB of them");
        return;
      }
    }
    code = template_import(common, *source, *name, options);
  });
  auto* verify = group->add_subcommand("verify", "Read a template's blob and compare it with its digest");
  verify->add_option("name", *name)->required();
  verify->callback([&, name] { code = template_verify(common, *name); });
  auto* remove = group->add_subcommand("rm", "Remove a template");
  add_server_options(*remove, common);
  remove->add_option("name", *name)->required();
  remove->callback([&, name] { code = template_remove(common, *name); });
}

}  // namespace isola::cli
