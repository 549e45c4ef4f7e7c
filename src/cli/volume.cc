// isola volume: files that outlive every sandbox.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/copy.h"
#include "cli/register.h"
#include "cli/table.h"

namespace isola::cli {

using nlohmann::json;

namespace {

struct Options {
  std::string name, size;
  std::vector<std::string> names, labels;
  std::string sandbox, volume, path;  // of a folder that is kept
  bool or_get = false, quiet = false;
};

std::string bytes_of(const json& object, const char* name) {
  auto at = object.find(name);
  return at != object.end() && at->is_number_unsigned() ? format_size(at->get<uint64_t>()) : "-";
}

std::string path_of(const std::string& name) { return "/v1/volumes/" + http::percent_encode(name); }

Result<void> create(const Common& common, const Options& options) {
  json body = {{"name", options.name}};
  if (!options.size.empty()) body["size"] = options.size;
  ISOLA_TRY(json labels, parse_labels(options.labels, "--label"));
  if (!labels.empty()) body["labels"] = labels;
  if (options.or_get) body["get_or_create"] = true;
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(json made, api.send("POST", "/v1/volumes", body));
  if (common.json)
    print_json(made);
  else
    print(text_of(made, "id") + "\n");
  return {};
}

Result<void> keep(const Common& common, const Options& options) {
  if (options.sandbox.empty() == options.volume.empty())
    return fail(Code::invalid, "name the sandbox (--sandbox) or the volume (--volume) that has the folder");
  json body = {{"name", options.name}};
  if (!options.path.empty()) body["path"] = options.path;
  ISOLA_TRY(Api api, Api::open(common));
  std::string target = path_of(options.volume) + "/snapshot";
  if (!options.sandbox.empty()) {
    ISOLA_TRY(std::string id, api.sandbox_id(options.sandbox));
    target = "/v1/sandboxes/" + id + "/folders";
  }
  ISOLA_TRY(json made, api.send("POST", target, body));
  if (common.json)
    print_json(made);
  else
    print(text_of(made, "id") + "\n");
  return {};
}

Result<void> list(const Common& common, const Options& options) {
  ISOLA_TRY(Api api, Api::open(common));
  json all = json::array();
  std::string cursor;
  do {
    std::string target = "/v1/volumes?limit=1000";
    if (!cursor.empty()) target += "&cursor=" + http::percent_encode(cursor);
    ISOLA_TRY(json page, api.get(target));
    for (auto& one : page["volumes"]) all.push_back(std::move(one));
    cursor = text_of(page, "next", "");
  } while (!cursor.empty());
  if (common.json) {
    print_json({{"volumes", all}});
    return {};
  }
  if (options.quiet) {
    for (const auto& one : all) print(text_of(one, "name") + "\n");
    return {};
  }
  Table table({"ID", "NAME", "USED", "SIZE", "SANDBOXES", "CREATED"});
  for (const auto& one : all)
    table.add({text_of(one, "id"), text_of(one, "name"), bytes_of(one, "used"), bytes_of(one, "size"),
               std::to_string(one.value("sandboxes", json::array()).size()), when_of(one, "created")});
  print(table.text());
  return {};
}

void describe(const json& volume) {
  Table table({"ID", text_of(volume, "id")});
  table.add({"NAME", text_of(volume, "name")});
  table.add({"USED", bytes_of(volume, "used") + " of " + bytes_of(volume, "size")});
  table.add({"CREATED", when_of(volume, "created")});
  if (auto labels = join_labels(volume.value("labels", json::object())); !labels.empty()) table.add({"LABELS", labels});
  for (const auto& id : volume.value("sandboxes", json::array()))
    table.add({"SANDBOX", id.is_string() ? id.get<std::string>() : "-"});
  print(table.text());
}

void show(const Common& common, const json& volume) {
  if (common.json)
    print_json(volume);
  else
    describe(volume);
}

Result<void> copy(const Common& common, const CopyOptions& options) {
  ISOLA_TRY(Place from, parse_place(options.from));
  ISOLA_TRY(Place to, parse_place(options.to));
  if (from.here() == to.here()) return fail(Code::invalid, "one side must be in a volume: write it as NAME:/PATH");
  ISOLA_TRY(Api api, Api::open(common));
  Copy copy(std::move(api), path_of(from.here() ? to.sandbox : from.sandbox), false, options);
  ISOLA_CHECK(from.here() ? copy.in(from, to) : copy.out(from, to));
  if (common.json && !to.stream()) print_json(copy.done);
  return {};
}

// The same on each; goes on after a failure, and fails at the end.
template <typename Work>
int each(const Common& common, const std::vector<std::string>& names, Work work) {
  auto api = Api::open(common);
  if (!api) return complain(api.error().message);
  int code = 0;
  for (const auto& name : names) {
    Result<void> done = work(*api, name);
    if (!done) code = complain(done.error().message);
  }
  return code;
}

}  // namespace

Result<json> parse_volume(const std::string& text) {
  auto colon = text.find(':');
  std::string name = text.substr(0, colon), path = colon == text.npos ? "" : text.substr(colon + 1);
  json volume = json::object();
  if (path.ends_with(":ro") || path.ends_with(":rw")) {
    if (path.ends_with(":ro")) volume["read_only"] = true;
    path.resize(path.size() - 3);
  }
  if (auto slash = name.find('/'); slash != name.npos) {
    volume["subpath"] = name.substr(slash + 1);
    name.resize(slash);
  }
  if (name.empty() || path.empty() || path[0] != '/')
    return fail(Code::invalid, "--volume: write it as NAME:/path, NAME/FOLDER:/path or NAME:/path:ro");
  volume["name"] = name;
  volume["path"] = path;
  return volume;
}

Result<json> parse_bucket(const std::string& text) {
  json bucket = json::object();
  for (size_t from = 0; from < text.size();) {
    size_t end = std::min(text.find(',', from), text.size());
    const std::string part = text.substr(from, end - from);
    from = end + 1;
    if (part == "ro" || part == "rw") {
      bucket["read_only"] = part == "ro";
      continue;
    }
    const size_t equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals);
    const bool known = name == "path" || name == "endpoint" || name == "bucket" || name == "secret" ||
                       name == "prefix" || name == "region";
    if (!known || equals + 1 >= part.size()) return fail(Code::invalid, "--bucket: '" + part + "' is not understood");
    bucket[name] = part.substr(equals + 1);
  }
  for (const char* needed : {"path", "endpoint", "bucket", "secret"})
    if (!bucket.contains(needed)) return fail(Code::invalid, std::string("--bucket: ") + needed + " is missing");
  return bucket;
}

void add_volume(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<Options>();
  auto* group = app.add_subcommand("volume", "Files that outlive every sandbox")->require_subcommand(1);
  auto done = [&code](const Result<void>& result) { code = result ? 0 : complain(result.error().message); };

  auto* creating = group->add_subcommand("create", "Make a volume and print its id");
  creating->add_option("name", options->name, "Its name")->required();
  creating->add_option("--size", options->size, "What it may hold, as 10G (default 1G)");
  creating->add_option("--label,-l", options->labels, "NAME=value; can be repeated")->allow_extra_args(false);
  creating->add_flag("--get-or-create", options->or_get, "One of that name is as good");
  creating->callback([=, &common] { done(create(common, *options)); });

  auto* listing = group->add_subcommand("ls", "List volumes");
  listing->add_flag("-q,--quiet", options->quiet, "Names only");
  listing->callback([=, &common] { done(list(common, *options)); });

  auto* keeping = group->add_subcommand("keep", "Keep a folder as it is, as a volume that is only read; prints its id");
  keeping->add_option("name", options->name, "Of the volume that it becomes")->required();
  auto* of_box = keeping->add_option("--sandbox", options->sandbox, "A folder of this sandbox");
  keeping->add_option("--volume", options->volume, "A folder of this volume")->excludes(of_box);
  keeping->add_option("--path", options->path, "The folder, absolute; of a volume: all of it where none is given");
  keeping->callback([=, &common] { done(keep(common, *options)); });

  auto* looking = group->add_subcommand("info", "Everything about a volume");
  looking->add_option("volume", options->names, "Names or ids")->required();
  looking->callback([=, &common, &code] {
    code = each(common, options->names, [&](Api& api, const std::string& name) -> Result<void> {
      ISOLA_TRY(json volume, api.get(path_of(name)));
      show(common, volume);
      return {};
    });
  });

  auto* resizing = group->add_subcommand("resize", "Change what a volume may hold");
  resizing->add_option("volume", options->name, "Its name or id")->required();
  resizing->add_option("size", options->size, "As 10G")->required();
  resizing->callback([=, &common, &code] {
    code = each(common, {options->name}, [&](Api& api, const std::string& name) -> Result<void> {
      json body = {{"size", options->size}};
      ISOLA_TRY(json volume, api.send("PATCH", path_of(name), body));
      show(common, volume);
      return {};
    });
  });

  auto* removing = group->add_subcommand("rm", "Remove volumes with all that is in them");
  removing->add_option("volume", options->names, "Names or ids")->required();
  removing->callback([=, &common, &code] {
    code = each(common, options->names, [&](Api& api, const std::string& name) -> Result<void> {
      ISOLA_CHECK(api.remove(path_of(name)));
      if (common.json)
        print_json({{"name", name}, {"removed", true}});
      else
        print(name + ": removed\n");
      return {};
    });
  });

  auto copies = std::make_shared<CopyOptions>();
  auto* copying =
      group->add_subcommand("cp", "Copy files and folders: isola volume cp LOCAL NAME:/PATH, or the other way");
  copying->add_option("from", copies->from, "A path here, NAME:/PATH, or - for standard input")->required();
  copying->add_option("to", copies->to, "A path here, NAME:/PATH, or - for standard output")->required();
  copying->add_option("--user,-u", copies->user, "Whose rights count, as uid[:gid]");
  copying->add_flag("-r,--recursive", copies->recursive, "Folders are copied whole in any case");
  copying->callback([=, &common] { done(copy(common, *copies)); });

  for (auto* command : group->get_subcommands({})) add_server_options(*command, common);
}

}  // namespace isola::cli
