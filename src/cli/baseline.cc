#include "cli/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "base/clock.h"
#include "boundary/state.h"
#include "cli/audit.h"
#include "cli/image_files.h"
#include "cli/table.h"
#include "gate/policy.h"
#include "ledger/segments.h"
#include "scan/shapes.h"
#include "store/sqlite.h"

namespace isola::cli {

namespace {

using nlohmann::json;

constexpr int64_t kDay = 24 * 3600 * 1000LL;
// A proof that is older says little of today; a key that nobody used for so long is one too many.
constexpr int64_t kFreshProof = 7 * kDay, kStaleKey = 90 * kDay, kLookBack = 30 * kDay, kIdleTooLong = kDay,
                  kAsleepTooLong = 7 * kDay;

enum class Stand : uint8_t { held, not_held, unknown };

std::string_view word_of(Stand stand) {
  return stand == Stand::held ? "held" : stand == Stand::not_held ? "not held" : "unknown";
}

struct Point {
  std::string name;
  Stand stand = Stand::unknown;
  std::string by;
};

using Row = std::vector<std::string>;

// One go through the points. A question that the files of this version cannot answer makes a point unknown.
class Baseline {
 public:
  Baseline(sqlite::Database store, std::vector<sqlite::Database> ledger, AuditPlace place, ledger::VerifyOptions verify,
           std::string project, ImageFiles files, bool lists_all)
      : store_(std::move(store)),
        ledger_(std::move(ledger)),
        place_(std::move(place)),
        verify_(std::move(verify)),
        project_(std::move(project)),
        files_(std::move(files)),
        lists_all_(lists_all) {}

  Result<std::vector<Point>> run() {
    struct Step {
      const char* name;
      Result<Point> (Baseline::*look)();
    };
    static constexpr Step kSteps[] = {
        {"a fresh or isolated sandbox for each task", &Baseline::fresh},
        {"no secret in a template or image", &Baseline::clean_images},
        {"secrets come from the vault, at use", &Baseline::injected},
        {"each binding is as narrow as can be", &Baseline::narrow},
        {"egress is reviewed: denied unless a rule allows it", &Baseline::egress},
        {"bounded lifetimes and budgets, no idle sandboxes", &Baseline::bounded},
        {"outputs are scanned", &Baseline::scanned},
        {"callers' keys may no more than they need", &Baseline::keys},
        {"the audit chain verifies", &Baseline::chain},
        {"the boundary is named, and at least the project's minimum", &Baseline::boundary},
        {"the last proof run is green", &Baseline::proof},
    };
    std::vector<Point> points;
    for (const auto& step : kSteps) {
      auto point = (this->*step.look)();
      if (!point) point = Point{.by = "cannot be told: " + point.error().message};
      point->name = step.name;
      points.push_back(std::move(*point));
    }
    return points;
  }

 private:
  static Point held(std::string by) { return {.stand = Stand::held, .by = std::move(by)}; }
  static Point broken(std::string by) { return {.stand = Stand::not_held, .by = std::move(by)}; }
  static Point unknown(std::string by) { return {.by = std::move(by)}; }

  // Rows as texts. Every `?` is the project, or % for all.
  Result<std::vector<Row>> rows(sqlite::Database& db, const std::string& sql, int columns) {
    ISOLA_TRY(auto query, db.prepare(sql));
    for (auto marks = std::count(sql.begin(), sql.end(), '?'); marks > 0; --marks)
      query.bind(project_.empty() ? std::string("%") : project_);
    std::vector<Row> all;
    for (;;) {
      ISOLA_TRY(bool more, query.step());
      if (!more) return all;
      Row row;
      for (int i = 0; i < columns; ++i) row.push_back(query.text(i));
      all.push_back(std::move(row));
    }
  }
  // Of all files of the ledger, the newest first.
  Result<std::vector<Row>> ledger_rows(const std::string& sql, int columns) {
    std::vector<Row> all;
    for (auto& file : ledger_) {
      ISOLA_TRY(auto some, rows(file, sql, columns));
      std::move(some.begin(), some.end(), std::back_inserter(all));
    }
    return all;
  }
  Result<bool> has(sqlite::Database& db, const std::string& table, const std::string& column = {}) {
    ISOLA_TRY(auto query, db.prepare("SELECT count(*) FROM pragma_table_info(?) WHERE ? = '' OR name = ?"));
    ISOLA_TRY(bool row, query.bind(table, column, column).step());
    return row && query.integer(0) > 0;
  }
  // For people the first few, and how many more.
  std::string some(const std::vector<std::string>& all) const {
    const size_t most = lists_all_ ? all.size() : 3;
    std::string out;
    for (size_t i = 0; i < std::min(all.size(), most); ++i) out += (i ? ", " : "") + all[i];
    return all.size() > most ? fmt::format("{} and {} more", out, all.size() - most) : out;
  }
  static std::string count(size_t n, std::string_view what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : what.ends_with('x') ? "es" : "s");
  }

  Result<Point> fresh() {
    ISOLA_TRY(auto worked, ledger_rows(fmt::format("SELECT DISTINCT sandbox, task FROM events WHERE project LIKE ? AND "
                                                   "kind = 'command.started' AND time > {}",
                                                   milliseconds_now() - kLookBack),
                                       2));
    std::map<std::string, std::set<std::string>> shared;  // work without a task is some task's that nobody named
    for (auto& row : worked) shared[row[0]].insert(row[1]);
    if (shared.empty()) return unknown("no command ran in the last 30 days");
    std::vector<std::string> several, nameless;
    for (const auto& [sandbox, tasks] : shared) {
      if (tasks.size() > 1)
        several.push_back(fmt::format("{} ({} tasks{})", sandbox, tasks.size() - tasks.contains(""),
                                      tasks.contains("") ? ", and work without one" : ""));
      if (tasks.size() == 1 && tasks.contains("")) nameless.push_back(sandbox);
    }
    if (!several.empty()) return broken("work of several tasks ran in " + some(several));
    if (!nameless.empty())
      return unknown("commands of the last 30 days that named no task (`task` in the API, --task) ran in " +
                     some(nameless));
    return held(fmt::format("{} of the last 30 days with commands, each of one task", count(shared.size(), "sandbox")));
  }

  // Tokens by their looks, in what the store keeps of templates, builds, images and sandboxes.
  Result<std::vector<std::string>> tokens_in(const std::string& sql, size_t& looked_at) {
    ISOLA_TRY(auto all, rows(store_, sql, 2));
    std::vector<std::string> found;
    for (const auto& row : all) {
      ++looked_at;
      auto hits = scan::find_shapes(row[1]);
      if (!hits.empty()) found.push_back(fmt::format("{} ({})", row[0], scan::shapes()[hits[0].shape].what));
    }
    return found;
  }

  Result<Point> clean_images() {
    size_t looked_at = 0;
    std::vector<std::string> found;
    for (const char* sql : {"SELECT 'image ' || id, env || ' ' || metadata FROM images WHERE project LIKE ?",
                            "SELECT 'build ' || id, spec || ' ' || env FROM builds WHERE project LIKE ?"}) {
      ISOLA_TRY(auto some, tokens_in(sql, looked_at));
      found.insert(found.end(), some.begin(), some.end());
    }
    if (!found.empty()) return broken("what looks like a token is in " + some(found));
    ISOLA_TRY(bool marked, has(store_, "images", "exposed"));
    if (marked) {
      ISOLA_TRY(auto images,
                rows(store_, "SELECT id FROM images WHERE project LIKE ? AND kind <> 'spent' AND exposed", 1));
      std::vector<std::string> exposed;
      for (const auto& row : images) exposed.push_back(row[0]);
      if (!exposed.empty())
        return broken("images with the memory of sandboxes that were given a value: " + some(exposed));
    }
    if (!files_.found.empty()) return broken("what looks like a token is in files of " + some(files_.found));
    if (!files_.missed.empty())
      return unknown("the files of these could not be looked at: " + some(files_.missed) +
                     " (as root, while the launcher runs, and not of what is archived)");
    return held(
        fmt::format("nothing that has the looks of a token in environment, labels and build steps of {}, nor in the {} "
                    "of their layers and of this machine's templates (but for what packages have in /usr); secrets "
                    "that have no looks of their own, such as passwords, are not looked for",
                    count(looked_at, "image") + " and builds", count(files_.texts, "file")));
  }

  Result<Point> injected() {
    size_t looked_at = 0;
    ISOLA_TRY(auto found,
              tokens_in("SELECT 'sandbox ' || id, env || ' ' || metadata || ' ' || on_create || ' ' || on_resume "
                        "FROM sandboxes WHERE state <> 'ended' AND project LIKE ?",
                        looked_at));
    if (!found.empty()) return broken("what looks like a token is in the environment of " + some(found));
    ISOLA_TRY(bool vault, has(store_, "secrets"));
    if (!vault) return unknown("this server has no vault");
    ISOLA_TRY(auto secrets, rows(store_, "SELECT name FROM secrets WHERE project LIKE ?", 1));
    if (secrets.empty()) return held("there are no secrets, and no token in the environment of a living sandbox");
    ISOLA_TRY(bool marked, has(store_, "sandboxes", "exposed"));
    if (marked) {
      ISOLA_TRY(auto exposed,
                rows(store_, "SELECT id FROM sandboxes WHERE state <> 'ended' AND exposed AND project LIKE ?", 1));
      std::vector<std::string> ids;
      for (const auto& row : exposed) ids.push_back(row[0]);
      if (!ids.empty()) return broken("values were given to commands inside " + some(ids));
    }
    return held(fmt::format("{} in the vault; no token in the environment of {}", count(secrets.size(), "secret"),
                            count(looked_at, "living sandbox")));
  }

  Result<Point> narrow() {
    ISOLA_TRY(bool there, has(store_, "bindings", "body"));
    if (!there) return unknown("this server has no bindings");
    // One of a sandbox ends with it, if that has an end.
    ISOLA_TRY(auto all, rows(store_,
                             "SELECT b.id, b.body, b.expires <> 0 OR (b.scope = 'sandbox' AND EXISTS (SELECT 1 FROM "
                             "sandboxes s WHERE s.id = b.subject AND (s.deadline <> 0 OR s.idle_limit <> 0))) "
                             "FROM bindings b WHERE b.project LIKE ?",
                             3));
    if (all.empty()) return held("there are no bindings");
    std::vector<std::string> wide;
    for (const auto& row : all) {
      json body = json::parse(row[1], nullptr, false);
      if (!body.is_object()) body = json::object({{"names", {"unreadable*"}}});
      std::vector<std::string> why;
      for (const auto& name : body.value("names", json::array()))
        if (name.is_string() && name.get<std::string>().find('*') != std::string::npos) why.push_back(name);
      if (body.value("methods", json::array()).empty() && body.value("path_prefix", "").empty())
        why.emplace_back("every method and path");
      if (row[2] != "1") why.emplace_back("without an end");
      if (!why.empty()) wide.push_back(fmt::format("{} ({})", row[0], fmt::join(why, "; ")));
    }
    if (!wide.empty()) return broken("wider than need be: " + some(wide));
    return held(count(all.size(), "binding") + ", each for exact names, some methods or a path, and with an end");
  }

  Result<Point> egress() {
    ISOLA_TRY(auto boxes,
              rows(store_, "SELECT id, network FROM sandboxes WHERE state <> 'ended' AND project LIKE ?", 2));
    ISOLA_TRY(auto ceilings, rows(store_, "SELECT id, ceiling FROM projects WHERE id LIKE ?", 2));
    std::vector<std::string> open;
    std::set<std::string> rules;
    size_t silent = 0;
    // Nobody reviewed what a rule lets through that names half of the world.
    auto is_wide = [](const gate::Rule& rule) {
      using Kind = gate::Rule::Kind;
      if (rule.action != gate::Action::allow) return false;
      if (rule.kind == Kind::below) return rule.name.find('.') == std::string::npos;
      if (rule.kind == Kind::network) {
        const std::string text = rule.network->text();
        size_t slash = text.find('/');
        return slash != text.npos && std::stoi(text.substr(slash + 1)) < (text.find(':') == text.npos ? 16 : 32);
      }
      return rule.kind == Kind::any;
    };
    auto judge = [&](const std::string& what, const std::string& text) {
      auto policy = gate::parse_policy(text);
      if (!policy) return open.push_back(what + " (cannot be read)");
      if (policy->learn) return open.push_back(what + " (learns)");
      if (policy->otherwise == gate::Action::allow) return open.push_back(what + " (everything)");
      for (const auto& rule : policy->rules) {
        if (is_wide(rule)) open.push_back(fmt::format("{} ({})", what, gate::to_text(rule)));
        if (rule.action == gate::Action::allow) rules.insert(gate::to_text(rule));
      }
    };
    for (const auto& row : boxes) {
      if (row[1].empty())
        ++silent;
      else
        judge(row[0], row[1]);
    }
    size_t under = 0;
    for (const auto& row : ceilings)
      if (!row[1].empty()) ++under, judge("the ceiling of " + row[0], row[1]);
    if (!open.empty()) return broken("allowed without a rule that names it: " + some(open));
    std::vector<std::string> listed(rules.begin(), rules.end());
    return held(
        fmt::format("the default is deny; {} living, {} of them without any network, the others with: {} "
                    "(`isola net show ID`); {} of {} have a ceiling",
                    count(boxes.size(), "sandbox"), silent, listed.empty() ? "no rule" : some(listed), under,
                    count(ceilings.size(), "project")));
  }

  Result<Point> bounded() {
    ISOLA_TRY(auto boxes, rows(store_,
                               "SELECT id, deadline = 0 AND idle_limit = 0, state = 'running', last_active, "
                               "state IN ('paused', 'stopped', 'archived') AND delete_after = 0, asleep FROM sandboxes "
                               "WHERE state <> 'ended' AND project LIKE ?",
                               6));
    std::vector<std::string> endless, idle, loose, asleep;
    for (const auto& row : boxes) {
      if (row[1] == "1") endless.push_back(row[0]);
      if (row[2] == "1" && std::stoll("0" + row[3]) < milliseconds_now() - kIdleTooLong) idle.push_back(row[0]);
      const int64_t since = std::max(std::stoll("0" + row[3]), std::stoll("0" + row[5]));
      if (row[4] == "1" && since < milliseconds_now() - kAsleepTooLong) asleep.push_back(row[0]);
    }
    ISOLA_TRY(auto projects, rows(store_,
                                  "SELECT id, budget_cpu > 0 OR budget_wall > 0 OR budget_money > 0 OR "
                                  "budget_commands > 0 OR budget_bytes > 0 FROM projects WHERE id LIKE ?",
                                  2));
    for (const auto& row : projects)
      if (row[1] != "1") loose.push_back(row[0]);
    std::vector<std::string> why;
    if (!endless.empty()) why.push_back("neither deadline nor idle limit: " + some(endless));
    if (!idle.empty()) why.push_back("running, and not used for a day: " + some(idle));
    if (!asleep.empty()) why.push_back("asleep for more than a week, and nothing deletes them: " + some(asleep));
    if (!loose.empty()) why.push_back("no budget: project " + some(loose));
    if (!why.empty()) return broken(fmt::format("{}", fmt::join(why, "; ")));
    return held(fmt::format("{} living, each with an end; every project has a budget", count(boxes.size(), "sandbox")));
  }

  // Of living sandboxes: "i… (the secret's name)".
  Result<std::vector<std::string>> exposed_unbound() {
    ISOLA_TRY(auto exposed,
              rows(store_,
                   "SELECT id, template, project, network <> '' FROM sandboxes WHERE state <> 'ended' AND "
                   "exposed AND project LIKE ?",
                   4));
    std::vector<std::string> out;
    if (exposed.empty()) return out;
    ISOLA_TRY(auto given,
              ledger_rows("SELECT DISTINCT sandbox, json_extract(data, '$.secret') FROM events WHERE kind = "
                          "'secret.exposed' AND project LIKE ?",
                          2));
    ISOLA_TRY(auto bound, rows(store_, "SELECT scope, subject, secret, project FROM bindings WHERE project LIKE ?", 4));
    for (const auto& box : exposed)
      for (const auto& value : given) {
        if (value[0] != box[0]) continue;
        const bool searched =
            box[3] == "1" && std::any_of(bound.begin(), bound.end(), [&](const Row& one) {
              const bool its = one[0] == "project" || (one[0] == "template" && one[1] == box[1]) || one[1] == box[0];
              return its && one[2] == value[1] && one[3] == box[2];
            });
        if (!searched) out.push_back(fmt::format("{} ({})", box[0], value[1]));
      }
    return out;
  }

  Result<Point> scanned() {
    ISOLA_TRY(bool there, has(store_, "bindings"));
    if (!there) return unknown("nothing can be bound on this server, so no value is searched for");
    ISOLA_TRY(auto hits,
              ledger_rows("SELECT count(*), max(time) FROM events WHERE kind = 'scan.hit' AND project LIKE ?", 2));
    int64_t found = 0, last = 0;
    for (const auto& row : hits) {
      found += std::stoll("0" + row[0]);
      last = std::max<int64_t>(last, std::stoll("0" + row[1]));
    }
    ISOLA_TRY(auto bound, rows(store_, "SELECT count(*) FROM bindings WHERE project LIKE ?", 1));
    if (bound.at(0)[0] == "0") {
      ISOLA_TRY(auto given, exposed_unbound());
      if (!given.empty()) return broken("values that commands were given and that are not bound: " + some(given));
      return held("no secret is bound: there is no value to search for");
    }
    // There is no setting that turns it off. What is not searched for: values that cannot be, and those that a command
    // was given and the sandbox has no binding for.
    std::vector<std::string> unsearched;
    ISOLA_TRY(auto bodies, rows(store_, "SELECT id, body FROM bindings WHERE project LIKE ?", 2));
    for (const auto& row : bodies) {
      json body = json::parse(row[1], nullptr, false);
      if (!body.is_object() || body.value("unsearched", false)) unsearched.push_back(row[0]);
    }
    ISOLA_TRY(auto given, exposed_unbound());
    std::vector<std::string> why;
    if (!unsearched.empty())
      why.push_back("bindings whose values may be too short to be searched for: " + some(unsearched));
    if (!given.empty()) why.push_back("values that commands were given and that are not bound: " + some(given));
    if (!why.empty()) return broken(fmt::format("{}", fmt::join(why, "; ")));
    std::string what = "everything that leaves a sandbox with bindings is searched for their values";
    if (found == 0) return held(what + "; nothing was found");
    return held(fmt::format("{}; found {} times, last {}", what, found, format_moment(last)));
  }

  Result<Point> keys() {
    ISOLA_TRY(auto all,
              rows(store_, "SELECT id, scope, created, last_used FROM keys WHERE revoked = 0 AND project LIKE ?", 4));
    if (all.empty()) return unknown("there are no keys");
    ISOLA_TRY(bool told, has(ledger_.front(), "events", "key"));
    std::vector<Row> users;
    if (told) {
      ISOLA_TRY(users, ledger_rows(fmt::format("SELECT DISTINCT key FROM events WHERE project LIKE ? AND kind IN "
                                               "('sandbox.created', 'command.started') AND time > {}",
                                               milliseconds_now() - kLookBack),
                                   1));
    }
    std::set<std::string> at_work;
    for (const auto& row : users) at_work.insert(row[0]);
    std::vector<std::string> mighty, stale;
    for (const auto& row : all) {
      if (row[1] == "admin" && at_work.contains(row[0])) mighty.push_back(row[0]);
      int64_t last = std::max(std::stoll("0" + row[2]), std::stoll("0" + row[3]));
      if (last < milliseconds_now() - kStaleKey) stale.push_back(row[0]);
    }
    std::vector<std::string> why;
    if (!mighty.empty())
      why.push_back("keys that may administer make sandboxes and run commands: " + some(mighty) +
                    " (`isola key create --scope use`)");
    if (!stale.empty()) why.push_back("not used for 90 days: " + some(stale));
    if (!why.empty()) return broken(fmt::format("{}", fmt::join(why, "; ")));
    return held(count(all.size(), "key") + "; none that may administer does everyday work, none is forgotten");
  }

  Result<Point> chain() {
    ISOLA_TRY(auto verdict, ledger::verify_living(place_.ledger, verify_));
    if (!verdict.good()) return broken(verdict.what);
    if (!verify_.keys)
      return unknown(fmt::format("the hashes of {} entries fit; without the key that says little", verdict.entries));
    return held(fmt::format("{} entries, {} with a mac that fits, head {}", verdict.entries, verdict.keyed,
                            to_text(verdict.head).substr(0, 24)));
  }

  Result<Point> boundary() {
    ISOLA_TRY(auto kinds,
              rows(store_,
                   "SELECT boundary, count(*) FROM sandboxes WHERE state <> 'ended' AND project LIKE ? GROUP BY "
                   "boundary",
                   2));
    std::string by;
    for (const auto& row : kinds)
      by += fmt::format("{}{} in {}{}", by.empty() ? "" : ", ", row[1], row[0],
                        row[0] == "jail" ? " (shared kernel)" : "");
    if (by.empty()) by = "no sandbox lives";
    ISOLA_TRY(bool minimum, has(store_, "projects", "least_boundary"));
    if (!minimum) return unknown(by + "; projects of this server have no minimum of their own");
    ISOLA_TRY(auto boxes, rows(store_,
                               "SELECT s.id, s.boundary, p.least_boundary FROM sandboxes s JOIN projects p ON p.id = "
                               "s.project WHERE s.state <> 'ended' AND s.project LIKE ?",
                               3));
    std::vector<std::string> below;
    for (const auto& row : boxes) {
      auto has = parse_boundary(row[1]), least = parse_boundary(row[2]);
      if (!has || !least || *has < *least) below.push_back(fmt::format("{} ({}, not {})", row[0], row[1], row[2]));
    }
    if (!below.empty()) return broken("below the project's minimum: " + some(below));
    ISOLA_TRY(auto least, rows(store_, "SELECT id, least_boundary FROM projects WHERE id LIKE ?", 2));
    std::vector<std::string> wanted;
    for (const auto& row : least) wanted.push_back(fmt::format("{} of {}", row[1], row[0]));
    return held(by + "; minimum: " + some(wanted));
  }

  Result<Point> proof() {
    ISOLA_TRY(auto last, ledger_rows("SELECT kind, time, data FROM events WHERE kind IN ('prove.passed', "
                                     "'prove.failed') ORDER BY seq DESC LIMIT 1",
                                     3));
    if (last.empty()) return unknown("no proof ran here (prove.at_start, prove.every, `isola prove`)");
    json data = json::parse(last[0][2], nullptr, false);
    int64_t when = std::stoll("0" + last[0][1]);
    std::string by = fmt::format("{}: {}", format_moment(when), shown(text_of(data, "why", "")));
    if (last[0][0] != "prove.passed") return broken(by);
    if (when < milliseconds_now() - kFreshProof) return broken("the last one is older than a week, " + by);
    return held(by);
  }

  sqlite::Database store_;
  std::vector<sqlite::Database> ledger_;  // the newest first
  AuditPlace place_;
  ledger::VerifyOptions verify_;
  std::string project_;
  ImageFiles files_;
  bool lists_all_;
};

Result<std::string> project_id(sqlite::Database& store, const std::string& text) {
  if (text.empty()) return text;
  ISOLA_TRY(auto query, store.prepare("SELECT id FROM projects WHERE id = ? OR name = ?"));
  ISOLA_TRY(bool row, query.bind(text, text).step());
  if (!row) return fail(Code::not_found, "there is no project '" + text + "'");
  return query.text(0);
}

// Those that sandboxes can be made of. What cannot be read is none, and the point that asks again says why.
ImageNames images_of(sqlite::Database& store, const std::string& project) {
  auto all = [&](const char* sql) {
    std::vector<std::string> out;
    auto query = store.prepare(sql);
    if (!query) return out;
    query->bind(project.empty() ? std::string("%") : project);
    while (query->step().value_or(false)) out.push_back(query->text(0));
    return out;
  };
  return {.ids = all("SELECT id FROM images WHERE kind <> 'spent' AND project LIKE ?1 UNION "
                     "SELECT image FROM builds WHERE project LIKE ?1 AND image <> '' ORDER BY 1"),
          .digests = all("SELECT DISTINCT digest FROM builds WHERE project LIKE ? AND image = '' AND digest <> ''")};
}

// All files, the newest first. Nothing is rotated while the newest is open; before that it can be, so look again.
Result<std::vector<sqlite::Database>> open_ledger(const std::string& path) {
  for (;;) {
    ISOLA_TRY(auto files, ledger::segments_of(path));
    std::vector<sqlite::Database> open;
    for (auto file = files.rbegin(); file != files.rend(); ++file) {
      ISOLA_TRY(auto db, sqlite::Database::open_reader(*file));
      open.push_back(std::move(db));
    }
    ISOLA_TRY(auto now, ledger::segments_of(path));
    if (now == files) return open;
  }
}

}  // namespace

Result<int> audit_baseline(const Common& common, const std::string& project, const std::string& key_file,
                           const std::optional<ledger::Head>& begins) {
  AuditPlace place = audit_place(common.data_dir);
  ISOLA_TRY(auto keys, audit_keys(key_file, place.key_file));
  ISOLA_CHECK(step_down(place.folder));
  ISOLA_TRY(auto store, sqlite::Database::open_reader(place.store));
  ISOLA_TRY(auto ledger, open_ledger(place.ledger));
  const ledger::VerifyOptions verify{.keys = keys ? &*keys : nullptr, .begins = begins};
  ISOLA_TRY(std::string id, project_id(store, project));
  // Layers are root's.
  ISOLA_CHECK(step_up());
  ImageFiles files = look_into_images(common.data_dir, common.cache_dir, images_of(store, id));
  ISOLA_CHECK(step_down(place.folder));
  ISOLA_TRY(auto points,
            Baseline(std::move(store), std::move(ledger), place, verify, id, std::move(files), common.json).run());
  const bool all = std::all_of(points.begin(), points.end(), [](const Point& one) { return one.stand == Stand::held; });
  if (common.json) {
    json list = json::array();
    for (const auto& one : points) list.push_back({{"point", one.name}, {"stand", word_of(one.stand)}, {"by", one.by}});
    print_json({{"held", all}, {"project", id.empty() ? json(nullptr) : json(id)}, {"points", list}});
  } else {
    for (const auto& one : points)
      print(fmt::format("{:<9} {}\n          {}\n", word_of(one.stand), one.name, shown(one.by)));
  }
  return all ? 0 : 1;
}

}  // namespace isola::cli
