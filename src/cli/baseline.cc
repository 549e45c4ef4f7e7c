#include "cli/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "cli/audit.h"
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
constexpr int64_t kFreshProof = 7 * kDay, kStaleKey = 90 * kDay, kLookBack = 30 * kDay, kIdleTooLong = kDay;

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
           std::string project)
      : store_(std::move(store)),
        ledger_(std::move(ledger)),
        place_(std::move(place)),
        verify_(std::move(verify)),
        project_(std::move(project)) {}

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
  // The first few, and how many more.
  static std::string some(const std::vector<std::string>& all) {
    std::string out;
    for (size_t i = 0; i < std::min<size_t>(all.size(), 3); ++i) out += (i ? ", " : "") + all[i];
    return all.size() > 3 ? fmt::format("{} and {} more", out, all.size() - 3) : out;
  }
  static std::string count(size_t n, std::string_view what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : what.ends_with('x') ? "es" : "s");
  }

  Result<Point> fresh() {
    ISOLA_TRY(auto worked, ledger_rows(fmt::format("SELECT DISTINCT sandbox, task FROM events WHERE project LIKE ? AND "
                                                   "kind = 'command.started' AND task <> '' AND time > {}",
                                                   now_ms() - kLookBack),
                                       2));
    std::map<std::string, std::set<std::string>> shared;
    for (auto& row : worked) shared[row[0]].insert(row[1]);
    if (shared.empty()) return unknown("no command of the last 30 days named a task (`task` in the API, --task)");
    std::vector<std::string> several;
    for (const auto& [sandbox, tasks] : shared)
      if (tasks.size() > 1) several.push_back(fmt::format("{} ({} tasks)", sandbox, tasks.size()));
    if (!several.empty()) return broken("work of several tasks ran in " + some(several));
    return held(fmt::format("{} of the last 30 days with commands of tasks, none with more than one task",
                            count(shared.size(), "sandbox")));
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
    return held(
        fmt::format("no token in environment, labels and build steps of {} (the files in them were not looked at)",
                    count(looked_at, "image") + " and builds"));
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
    ISOLA_TRY(auto all, rows(store_, "SELECT id, scope, body, expires FROM bindings WHERE project LIKE ?", 4));
    if (all.empty()) return held("there are no bindings");
    std::vector<std::string> wide;
    for (const auto& row : all) {
      json body = json::parse(row[2], nullptr, false);
      std::vector<std::string> why;
      for (const auto& name : body.is_object() ? body.value("names", json::array()) : json::array())
        if (name.is_string() && name.get<std::string>().find('*') != std::string::npos) why.push_back(name);
      if (!body.is_object()) why.emplace_back("unreadable");
      // One that a whole project has, for every method and path and for ever, is none that somebody thought about.
      if (row[1] == "project" && row[3] == "0" && body.value("methods", json::array()).empty() &&
          body.value("path_prefix", "").empty())
        why.emplace_back("the whole project, every method and path, without an end");
      if (!why.empty()) wide.push_back(fmt::format("{} ({})", row[0], fmt::join(why, "; ")));
    }
    if (!wide.empty()) return broken("wider than need be: " + some(wide));
    return held(count(all.size(), "binding") + ", each for exact names");
  }

  Result<Point> egress() {
    ISOLA_TRY(auto boxes,
              rows(store_, "SELECT id, network FROM sandboxes WHERE state <> 'ended' AND project LIKE ?", 2));
    ISOLA_TRY(auto ceilings, rows(store_, "SELECT id, ceiling FROM projects WHERE id LIKE ?", 2));
    std::vector<std::string> open;
    size_t rules = 0, silent = 0;
    auto judge = [&](const std::string& what, const std::string& text) {
      auto policy = gate::parse_policy(text);
      if (!policy) return open.push_back(what + " (cannot be read)");
      bool any = policy->otherwise == gate::Action::allow || policy->learn;
      for (const auto& rule : policy->rules)
        any = any || (rule.action == gate::Action::allow && rule.kind == gate::Rule::Kind::any);
      rules += policy->rules.size();
      if (any) open.push_back(what + (policy->learn ? " (learns)" : " (everything)"));
    };
    for (const auto& row : boxes) {
      if (row[1].empty())
        ++silent;
      else
        judge(row[0], row[1]);
    }
    if (!open.empty()) return broken("allowed without a rule that names it: " + some(open));
    size_t under = 0;
    for (const auto& row : ceilings) under += !row[1].empty();
    return held(fmt::format(
        "the default is deny; {} living, {} of them without any network, {} for the others "
        "(`isola net show ID`); {} of {} have a ceiling",
        count(boxes.size(), "sandbox"), silent, count(rules, "rule"), under, count(ceilings.size(), "project")));
  }

  Result<Point> bounded() {
    ISOLA_TRY(auto boxes,
              rows(store_,
                   "SELECT id, deadline = 0 AND idle_limit = 0, state = 'running', last_active FROM sandboxes "
                   "WHERE state <> 'ended' AND project LIKE ?",
                   4));
    std::vector<std::string> endless, idle, loose;
    for (const auto& row : boxes) {
      if (row[1] == "1") endless.push_back(row[0]);
      if (row[2] == "1" && std::stoll("0" + row[3]) < now_ms() - kIdleTooLong) idle.push_back(row[0]);
    }
    ISOLA_TRY(auto projects,
              rows(store_,
                   "SELECT id, limit_live > 0 OR budget_cpu > 0 OR budget_wall > 0 OR budget_money > 0 OR "
                   "budget_commands > 0 OR budget_bytes > 0 FROM projects WHERE id LIKE ?",
                   2));
    for (const auto& row : projects)
      if (row[1] != "1") loose.push_back(row[0]);
    std::vector<std::string> why;
    if (!endless.empty()) why.push_back("neither deadline nor idle limit: " + some(endless));
    if (!idle.empty()) why.push_back("running, and not used for a day: " + some(idle));
    if (!loose.empty()) why.push_back("no limit of living sandboxes and no budget: project " + some(loose));
    if (!why.empty()) return broken(fmt::format("{}", fmt::join(why, "; ")));
    return held(fmt::format("{} living, each with an end; every project has a limit or a budget",
                            count(boxes.size(), "sandbox")));
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
    if (bound.at(0)[0] == "0") return held("no secret is bound: there is no value to search for");
    // There is no setting that turns it off, and no way around it.
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
                                               now_ms() - kLookBack),
                                   1));
    }
    std::set<std::string> at_work;
    for (const auto& row : users) at_work.insert(row[0]);
    std::vector<std::string> mighty, stale;
    for (const auto& row : all) {
      if (row[1] == "admin" && at_work.contains(row[0])) mighty.push_back(row[0]);
      int64_t last = std::max(std::stoll("0" + row[2]), std::stoll("0" + row[3]));
      if (last < now_ms() - kStaleKey) stale.push_back(row[0]);
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
    ISOLA_TRY(bool minimum, has(store_, "projects", "min_boundary"));
    std::string by;
    for (const auto& row : kinds)
      by += fmt::format("{}{} in {}{}", by.empty() ? "" : ", ", row[1], row[0],
                        row[0] == "jail" ? " (shared kernel)" : "");
    if (by.empty()) by = "no sandbox lives";
    if (!minimum) return held(by + "; projects of this server have no minimum of their own");
    ISOLA_TRY(auto below,
              rows(store_,
                   "SELECT s.id FROM sandboxes s JOIN projects p ON p.id = s.project WHERE s.state <> 'ended' "
                   "AND p.min_boundary NOT IN ('', 'jail', s.boundary) AND s.boundary = 'jail' AND s.project LIKE ?",
                   1));
    std::vector<std::string> ids;
    for (const auto& row : below) ids.push_back(row[0]);
    if (!ids.empty()) return broken("below the project's minimum: " + some(ids));
    return held(by);
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
    if (when < now_ms() - kFreshProof) return broken("the last one is older than a week, " + by);
    return held(by);
  }

  sqlite::Database store_;
  std::vector<sqlite::Database> ledger_;  // the newest first
  AuditPlace place_;
  ledger::VerifyOptions verify_;
  std::string project_;
};

Result<std::string> project_id(sqlite::Database& store, const std::string& text) {
  if (text.empty()) return text;
  ISOLA_TRY(auto query, store.prepare("SELECT id FROM projects WHERE id = ? OR name = ?"));
  ISOLA_TRY(bool row, query.bind(text, text).step());
  if (!row) return fail(Code::not_found, "there is no project '" + text + "'");
  return query.text(0);
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
  ISOLA_TRY(auto points, Baseline(std::move(store), std::move(ledger), place, verify, id).run());
  bool all = std::none_of(points.begin(), points.end(), [](const Point& one) { return one.stand == Stand::not_held; });
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
