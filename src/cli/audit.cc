// isola audit: whether the ledger is whole, what is in it, and what was kept of it elsewhere.
#include "cli/audit.h"

#include <fmt/format.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file.h"
#include "cli/api.h"
#include "cli/baseline.h"
#include "cli/register.h"
#include "cli/table.h"
#include "ledger/checkpoint.h"
#include "ledger/export.h"
#include "ledger/segments.h"

namespace isola::cli {

using nlohmann::json;

AuditPlace audit_place(const std::string& data_dir) {
  std::string folder = data_dir + "/server";
  return {folder, folder + "/ledger.db", folder + "/store.db", data_dir + "/ledger.key"};
}

Result<std::optional<ledger::VerificationKeys>> audit_keys(const std::string& named, const std::string& usual) {
  auto keys = ledger::VerificationKeys::read(named.empty() ? usual : named);
  if (keys) return std::move(*keys);
  if (named.empty() && keys.error().code == Code::not_found) return std::nullopt;
  return std::unexpected(keys.error());
}

Result<void> step_down(const std::string& folder) {
  struct stat owner{};
  if (::stat(folder.c_str(), &owner) < 0) return sys_error("cannot look at " + folder);
  if (::geteuid() != 0 || owner.st_uid == 0) return {};
  if (::setgroups(0, nullptr) < 0 || ::setegid(owner.st_gid) < 0 || ::seteuid(owner.st_uid) < 0)
    return sys_error("cannot become the owner of " + folder);
  return {};
}

Result<void> step_up() {
  if (::getuid() != 0) return {};
  if (::seteuid(0) < 0 || ::setegid(0) < 0) return sys_error("cannot become root again");
  return {};
}

namespace {

struct AuditOptions {
  std::string key_file, checkpoint, begins_at, kind, project, sandbox, secret;
  uint64_t after = 0;
  bool new_key = false, unkeyed = false;
};

constexpr int kNotWhole = 1, kNotChecked = 2;

Result<std::optional<ledger::Head>> head_in(const std::string& text) {
  if (text.empty()) return std::nullopt;
  ISOLA_TRY(ledger::Head head, ledger::parse_head(text));
  return head;
}

Result<int> audit_verify(const Common& common, const AuditOptions& options) {
  AuditPlace place = audit_place(common.data_dir);
  ISOLA_TRY(auto keys, audit_keys(options.key_file, place.key_file));
  ledger::VerifyOptions how{.keys = keys ? &*keys : nullptr};
  if (!options.checkpoint.empty()) {
    ISOLA_TRY(std::string text, read_file(options.checkpoint == "-" ? "/dev/stdin" : options.checkpoint, 1 << 16));
    ISOLA_TRY(auto checkpoint, ledger::parse_checkpoint(text, how.keys));
    how.expected = checkpoint.head;
  }
  ISOLA_TRY(how.begins, head_in(options.begins_at));
  ISOLA_CHECK(step_down(place.folder));
  ISOLA_TRY(auto files, ledger::segments_of(place.ledger));
  ISOLA_TRY(auto verdict, ledger::verify_living(place.ledger, how));
  if (common.json) {
    // Hashes anybody can make anew: without the key it is not known to be good.
    print_json({{"good", keys || !verdict.good() ? json(verdict.good()) : json(nullptr)},
                {"hashes_fit", verdict.good()},
                {"entries", verdict.entries},
                {"keyed", verdict.keyed},
                {"files", files.size()},
                {"head", to_text(verdict.head)},
                {"broken", verdict.broken ? json(*verdict.broken) : json(nullptr)},
                {"what", verdict.what},
                {"checkpoint", how.expected ? json(to_text(*how.expected)) : json(nullptr)}});
  } else if (verdict.good() && !keys) {
    print(fmt::format("NOT CHECKED WITH THE KEY: the hashes of {} entries in {} file{} fit; head {}\n", verdict.entries,
                      files.size(), files.size() == 1 ? "" : "s", to_text(verdict.head)));
  } else if (verdict.good()) {
    print(fmt::format("whole: {} entries in {} file{}, {} of them checked with the key; head {}\n", verdict.entries,
                      files.size(), files.size() == 1 ? "" : "s", verdict.keyed, to_text(verdict.head)));
  } else {
    print(fmt::format("NOT WHOLE: {}; {} entries before it are as they were written\n", verdict.what, verdict.entries));
  }
  if (!keys)
    std::fprintf(
        stderr,
        "isola: without the ledger's key only the hashes were checked, which whoever changed it can make anew: "
        "--ledger-key FILE%s\n",
        options.unkeyed ? "" : ", or --unkeyed if that is enough");
  if (!how.expected && !common.json)
    std::fprintf(stderr,
                 "isola: an older state of all files, put back together, is told only by a checkpoint that was kept "
                 "elsewhere: --checkpoint FILE\n");
  if (!verdict.good()) return kNotWhole;
  return keys || options.unkeyed ? 0 : kNotChecked;
}

Result<int> audit_checkpoint(const Common& common, const AuditOptions& options) {
  AuditPlace place = audit_place(common.data_dir);
  ISOLA_TRY(auto keys, audit_keys(options.key_file, place.key_file));
  if (!keys) return fail(Code::denied, "a checkpoint is made with the ledger's key: --ledger-key FILE");
  ISOLA_TRY(auto begins, head_in(options.begins_at));
  ISOLA_CHECK(step_down(place.folder));
  ISOLA_TRY(auto verdict, ledger::verify_living(place.ledger, {.keys = &*keys, .begins = begins}));
  if (!verdict.good()) {
    complain("no checkpoint is made of a ledger that is not whole: " + verdict.what);
    return kNotWhole;
  }
  ISOLA_TRY(std::string text, to_text(ledger::Checkpoint{.head = verdict.head, .time = milliseconds_now()}, *keys));
  print(text);
  return 0;
}

// The server that writes it does it itself.
Result<ledger::Rotation> rotate_living(const Common& common) {
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(json said, api.send("POST", "/v1/ledger/rotate", json::object()));
  auto head = ledger::parse_head(said.value("head", ""));
  if (!head) return std::unexpected(head.error());
  return ledger::Rotation{.file = said.value("file", ""), .head = std::move(*head)};
}

Result<int> audit_rotate(const Common& common, const AuditOptions& options) {
  AuditPlace place = audit_place(common.data_dir);
  ISOLA_CHECK(step_down(place.folder));
  const unsigned uid = ::geteuid(), gid = ::getegid();
  std::function<Result<void>(uint64_t)> new_key;
  if (options.new_key)
    new_key = [&](uint64_t next) -> Result<void> {
      ISOLA_CHECK(step_up());
      auto made = ledger::replace_key(place.ledger, place.key_file, next, uid, gid);
      ISOLA_CHECK(step_down(place.folder));
      return made;
    };
  auto done = ledger::rotate(place.ledger, new_key);
  if (!done && done.error().code == Code::unavailable) {
    if (options.new_key) return std::unexpected(done.error().in("stop the server first"));
    ISOLA_CHECK(step_up());  // for the server's key
    done = rotate_living(common);
  }
  if (!done) return std::unexpected(done.error());
  if (common.json)
    print_json({{"file", done->file}, {"head", to_text(done->head)}});
  else
    print(fmt::format("{} ended at {}; the ledger goes on in {}\n", done->file, to_text(done->head), place.ledger));
  return 0;
}

// Each entry that the filter lets through, of all files.
Result<void> each_entry(const AuditPlace& place, ledger::EventFilter filter,
                        const std::function<void(const ledger::Event&)>& use) {
  ISOLA_TRY(auto files, ledger::segments_of(place.ledger));
  filter.limit = 10'000;
  for (const auto& file : files) {
    ISOLA_TRY(auto db, sqlite::Database::open_reader(file));
    for (;;) {
      ISOLA_TRY(auto events, ledger::query_events(db, filter));
      for (const auto& event : events) use(event);
      if (!events.empty()) filter.after = events.back().seq;
      if (!ledger::goes_on(events, filter)) break;
    }
  }
  return {};
}

Result<int> audit_export(const Common& common, const AuditOptions& options) {
  AuditPlace place = audit_place(common.data_dir);
  ISOLA_CHECK(step_down(place.folder));
  ledger::EventFilter filter{.project = options.project, .sandbox = options.sandbox, .kind_prefix = options.kind};
  filter.after = options.after;
  ISOLA_CHECK(each_entry(place, filter, [](const ledger::Event& event) { print(to_json_line(event) + "\n"); }));
  return 0;
}

// Where several ran at that moment: all of them.
std::string task_of(const ledger::Event& event, const json& data) {
  if (!data.is_object() || !data.contains("tasks") || !data["tasks"].is_array()) return event.task;
  std::string all;
  for (const auto& task : data["tasks"])
    if (task.is_string())  // an empty one: a command without a task
      all += (all.empty() ? "" : ",") + (task.get<std::string>().empty() ? "-" : task.get<std::string>());
  return all;
}

Result<int> audit_secret(const Common& common, const AuditOptions& options) {
  AuditPlace place = audit_place(common.data_dir);
  ISOLA_CHECK(step_down(place.folder));
  json all = json::array();
  Table table({"TIME (UTC)", "WHAT", "PROJECT", "SANDBOX", "TASK", "ACTOR", "AT", "HOW"});
  ledger::EventFilter filter{.project = options.project, .sandbox = options.sandbox, .secret = options.secret};
  ISOLA_CHECK(each_entry(place, filter, [&](const ledger::Event& event) {
    json data = json::parse(event.data, nullptr, false);
    if (common.json) {
      all.push_back(json::parse(to_json_line(event), nullptr, false));
      return;
    }
    std::string how;
    for (const char* name :
         {"method", "bucket", "path", "place", "form", "where", "exposed", "variable", "as", "token"})
      if (std::string word = text_of(data, name, ""); !word.empty()) how += (how.empty() ? "" : " ") + word;
    // "allowed" goes without saying.
    if (std::string why = text_of(data, "reason", ""); !why.empty() && why != "allowed")
      how += (how.empty() ? "" : " ") + ("(" + why + ")");
    // Beyond a rate uses of one place are one entry.
    if (data.is_object() && data.contains("count") && data["count"].is_number())
      how += fmt::format("{}{} times", how.empty() ? "" : " ", data["count"].get<int64_t>());
    table.add({format_moment(event.time), std::string(to_string(event.kind)), event.project, event.sandbox,
               task_of(event, data), event.actor,
               text_of(data, "name", text_of(data, "host", text_of(data, "endpoint", ""))), how});
  }));
  if (common.json)
    print_json(all);
  else if (table.empty())
    print("the ledger knows nothing of a secret '" + shown(options.secret) + "'\n");
  else
    print(table.text());
  return 0;
}

}  // namespace

void add_audit(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<AuditOptions>();
  auto* group = app.add_subcommand("audit", "The ledger's files: whether they are whole, and what they say")
                    ->require_subcommand(1);
  auto act = [&common, &code, options](Result<int> (*work)(const Common&, const AuditOptions&)) {
    return [&common, &code, options, work] {
      auto done = work(common, *options);
      code = done ? *done : complain(done.error().message);
    };
  };
  auto* verify = group->add_subcommand("verify", "Find the first entry that was changed, removed or moved");
  verify->add_option("--checkpoint", options->checkpoint, "What `audit checkpoint` printed once, kept elsewhere");
  verify->add_flag("--unkeyed", options->unkeyed, "Hashes that fit are enough where the ledger's key is not here");
  auto* checkpoint = group->add_subcommand("checkpoint", "Print where the ledger stands, to be kept elsewhere");
  for (auto* one : {verify, checkpoint})
    one->add_option("--ledger-key", options->key_file, "The ledger's first key (default: DATA/ledger.key)");
  constexpr const char* kBeginsAt =
      "Where the files that were moved away ended, SEQ:HASH as `audit rotate` printed it; without it the first entry "
      "has to be here";
  for (auto* one : {verify, checkpoint}) one->add_option("--begins-at", options->begins_at, kBeginsAt);
  verify->callback(act(audit_verify));
  checkpoint->callback(act(audit_checkpoint));
  auto* rotate = group->add_subcommand("rotate", "End the file of the ledger and begin a new one that follows it");
  rotate->add_flag("--new-key", options->new_key, "With a new key, where the old one is lost");
  rotate->callback(act(audit_rotate));
  auto* exported = group->add_subcommand("export", "Print every entry as a line of JSON");
  exported->add_option("--after", options->after, "Only after this sequence number");
  exported->add_option("--kind", options->kind, "Only kinds that begin so");
  auto* secret = group->add_subcommand("secret", "Which sandbox used a secret, for which task, at what name, when");
  secret->add_option("name", options->secret, "The secret's name")->required();
  for (auto* one : {exported, secret}) {
    one->add_option("--project", options->project, "Only this project");
    one->add_option("--sandbox", options->sandbox, "Only this sandbox, by its id");
  }
  exported->callback(act(audit_export));
  secret->callback(act(audit_secret));
  auto* baseline = group->add_subcommand("baseline", "Go through the security checklist: held or not, and by what");
  baseline->add_option("project", options->project, "Only this project, by its id or name");
  baseline->add_option("--ledger-key", options->key_file, "The ledger's first key (default: DATA/ledger.key)");
  baseline->add_option("--begins-at", options->begins_at, kBeginsAt);
  baseline->callback([&common, &code, options] {
    auto begins = head_in(options->begins_at);
    auto done = begins ? audit_baseline(common, options->project, options->key_file, *begins)
                       : Result<int>(std::unexpected(begins.error()));
    code = done ? *done : complain(done.error().message);
  });
}

}  // namespace isola::cli
