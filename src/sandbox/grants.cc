// Bindings: which secret goes where for whom, from the store to the gate, and their end.
//
// The store decides, the gate obeys: a grant is written down and then told; where it cannot be told it is taken back. A
// revocation is written down and then told, and told again until the gate has it, whatever happens meanwhile.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/ids.h"
#include "base/log.h"
#include "gate/name.h"
#include "gate/policy.h"
#include "sandbox/bell.h"
#include "sandbox/quiet_run.h"
#include "sandbox/service.h"
#include "vault/binding_wire.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

namespace {

constexpr size_t kMostTold = 96 << 10;  // bytes of all of a sandbox's bindings, as a message to the launcher
constexpr Millis kTellAgain = 1000;
constexpr size_t kToldAtOnce = 8;      // each is a process that opens values
constexpr size_t kRevokedAtOnce = 64;  // which opens nothing
constexpr Millis kCutOff = 60'000;     // before a server's last entry: revocations that were not carried out
constexpr auto kLongestWait = std::chrono::hours(1);

// As a shell and a file's name may have it.
bool is_variable(std::string_view name) {
  return !name.empty() && name.size() <= 128 && !(name[0] >= '0' && name[0] <= '9') &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

Result<vault::Binding> binding_of(const store::BindingRecord& record) {
  ISOLA_TRY(auto binding, vault::parse_binding(record.body));
  binding.id = record.id;
  binding.secret = record.secret;
  binding.expires = record.expires;
  binding.actor = record.actor;
  return binding;
}

// What a sleeper was granted is taken away when it is resumed: whoever grants it more would be told that it has it.
Result<void> keeps_grants(const store::SandboxRecord& record) {
  if (!store::is_asleep(record.state) || record.keep_grants) return {};
  return conflict("sandbox " + record.id + " is " + std::string(to_string(record.state)) +
                  " and keeps no grants when it is resumed; resume it first");
}

}  // namespace

Result<std::vector<store::BindingRecord>> Service::grants_of(const store::SandboxRecord& sandbox) {
  using store::BindingScope;
  ISOLA_TRY(auto all, parts_.store.list_bindings(sandbox.project, BindingScope::sandbox, sandbox.id));
  if (sandbox.granted) {
    ISOLA_TRY(auto by_template,
              parts_.store.list_bindings(sandbox.project, BindingScope::of_template, sandbox.template_name));
    all.insert(all.end(), by_template.begin(), by_template.end());
    ISOLA_TRY(auto by_project, parts_.store.list_bindings(sandbox.project, BindingScope::project, ""));
    all.insert(all.end(), by_project.begin(), by_project.end());
  }
  const Millis now = now_millis();
  std::erase_if(all, [&](const auto& one) { return one.expires != 0 && one.expires <= now; });
  return all;
}

Result<std::string> Service::sealed_grants(const store::SandboxRecord& sandbox, Millis& refresh) {
  ISOLA_TRY(auto grants, grants_of(sandbox));
  if (grants.size() > vault::kMaxBindings) return fail(Code::exhausted, "a sandbox has at most 256 bindings");
  std::vector<vault::Binding> all;
  const Millis now = now_millis();
  for (const auto& grant : grants) {
    ISOLA_TRY(auto binding, binding_of(grant));
    auto secret = parts_.store.find_secret(grant.project, grant.secret);
    if (!secret && secret.error().code == Code::not_found) continue;  // just deleted
    if (!secret) return std::unexpected(secret.error());
    binding.sealed = secret->sealed;
    auto source = json::parse(secret->source, nullptr, false);
    const std::string type = source.is_object() ? source.value("type", "") : "";
    // The launcher adds what it knows itself: which sandbox it is.
    if (type == "jwt")
      binding.identity = json{{"iss", settings().issuer},
                              {"project", sandbox.project},
                              {"task", sandbox.task},
                              {"actor", sandbox.actor},
                              {"template", sandbox.template_name}}
                             .dump(-1, ' ', false, json::error_handler_t::replace);
    // What is made when it is needed is nothing to be asked for again.
    if (!secret->source.empty() && type != "jwt" && type != "github-app") {
      Millis due = now + 1000 * (source.is_object() ? source.value("ttl", int64_t{300}) : 300);
      refresh = refresh == 0 ? due : std::min(refresh, due);
    }
    all.push_back(std::move(binding));
  }
  std::string text = vault::encode_bindings(all);
  if (text.size() > kMostTold) return fail(Code::exhausted, "the bindings of one sandbox are too large together");
  return text;
}

ledger::Event Service::grant_event(ledger::Kind kind, const store::BindingRecord& binding, const std::string& why,
                                   const Caller& by) {
  json body = json::parse(binding.body, nullptr, false);
  json data = {{"binding", binding.id}, {"secret", binding.secret}, {"scope", to_string(binding.scope)}};
  if (!binding.subject.empty()) data["subject"] = binding.subject;
  if (body.is_object())
    for (const char* part : {"names", "ports", "methods", "path_prefix", "place", "audience", "unsearched"})
      if (body.contains(part)) data[part] = body[part];
  if (binding.expires) data["expires"] = binding.expires;
  if (!why.empty()) data["reason"] = why;
  ledger::Event event;
  event.time = now_millis();
  event.project = binding.project;
  if (binding.scope == store::BindingScope::sandbox) {
    event.sandbox = binding.subject;
    if (auto box = find_any(binding.subject)) {
      (*box)->tell_birth();
      event.task = (*box)->task();
    }
  }
  event.key = by.key;
  event.actor = by.actor.empty() ? by.key : by.actor;
  event.kind = kind;
  event.data = data.dump(-1, ' ', false, json::error_handler_t::replace);
  return event;
}

void Service::record_grant(ledger::Kind kind, const store::BindingRecord& binding, const std::string& why,
                           const Caller& by) {
  ledger::Event event = grant_event(kind, binding, why, by);
  events_.publish(event);
  (void)append(event);
}

// The last one takes the others along to the file.
Task<Result<void>> Service::record_durably(std::vector<ledger::Event> events) {
  if (events.empty()) co_return Result<void>();
  ledger::Event last = std::move(events.back());
  events.pop_back();
  for (const auto& event : events) {
    ISOLA_CO_CHECK(append(event));
    events_.publish(event);
  }
  co_return co_await record_durably(std::move(last));
}

std::vector<BoxPtr> Service::concerned(const store::BindingRecord& binding) {
  std::vector<BoxPtr> boxes;
  if (binding.scope == store::BindingScope::sandbox) {
    if (auto box = find_any(binding.subject)) boxes.push_back(*box);
    return boxes;
  }
  for (const auto& box : boxes_of(binding.project)) {
    auto record = box->record();
    const bool meant = binding.scope == store::BindingScope::project || record.template_name == binding.subject;
    if (record.granted && meant) boxes.push_back(box);
  }
  return boxes;
}

namespace {

// Several at a time: one that is slow holds up nobody else. Done when all are; the first error, if there was one.
class SideBySide : public std::enable_shared_from_this<SideBySide> {
 public:
  using Work = std::function<Task<Result<void>>(BoxPtr)>;
  SideBySide(std::vector<BoxPtr> boxes, Work work) : boxes_(std::move(boxes)), work_(std::move(work)) {}

  Task<Result<void>> run(size_t at_once) {
    auto self = shared_from_this();
    const size_t runners = std::min(at_once, boxes_.size());
    left_ = runners;
    for (size_t i = 0; i < runners; ++i) net::co_spawn(boxes_[i]->home(), go(self), net::detached);
    for (;;) {
      uint64_t ticket = bell_.ticket();
      {
        std::lock_guard lock(mutex_);
        if (left_ == 0) co_return result_;
      }
      co_await bell_.wait(ticket);
    }
  }

 private:
  static Task<void> go(std::shared_ptr<SideBySide> self) {
    for (;;) {
      BoxPtr box;
      {
        std::lock_guard lock(self->mutex_);
        if (self->next_ == self->boxes_.size()) break;
        box = self->boxes_[self->next_++];
      }
      auto done = co_await self->work_(box);
      std::lock_guard lock(self->mutex_);
      if (!done && self->result_) self->result_ = done;
    }
    {
      std::lock_guard lock(self->mutex_);
      --self->left_;
    }
    self->bell_.ring();
  }

  std::vector<BoxPtr> boxes_;
  Work work_;
  std::mutex mutex_;
  size_t next_ = 0, left_ = 0;
  Result<void> result_;
  Bell bell_;
};

}  // namespace

// All of them, whatever happens with one.
Task<Result<void>> Service::tell_grants(std::vector<BoxPtr> boxes) {
  auto work = [self = shared_from_this()](BoxPtr box) { return self->tell_grants_of(std::move(box)); };
  auto all = std::make_shared<SideBySide>(std::move(boxes), work);
  co_return co_await all->run(kToldAtOnce);
}

Task<Result<void>> Service::tell_grants_of(BoxPtr box) {
  Box::Turn turn = co_await box->turn();
  if (store::is_asleep(box->state()) || box->state() == State::ended) co_return Result<void>();
  auto record = box->record();
  if (record.network.empty()) co_return Result<void>();
  auto told = co_await apply_network(box, record.network, true);
  if (told || told.error().code == Code::not_found) co_return Result<void>();
  log::warn("sandbox", "the bindings of {} are told again soon: {}", box->id(), told.error().message);
  {
    std::lock_guard lock(grants_mutex_);
    grants_due_[box->id()] = now_millis() + kTellAgain;
  }
  grants_bell_.ring();
  co_return std::unexpected(told.error().in("it is written down, and in force when the gate answers"));
}

// First of all the gate lets go of them, whatever else is being done with the sandbox; then, in its turn, it is told
// what there is now.
Task<Result<void>> Service::tell_revoked(std::vector<store::BindingRecord> gone) {
  std::map<BoxPtr, std::vector<std::string>> ids;
  for (const auto& binding : gone)
    for (const auto& box : concerned(binding)) ids[box].push_back(binding.id);
  std::vector<BoxPtr> boxes;
  for (const auto& [box, bindings] : ids) boxes.push_back(box);
  auto work = [self = shared_from_this(), ids = std::move(ids)](BoxPtr box) -> Task<Result<void>> {
    launcher::RevokeRequest request{.id = box->id(), .bindings = ids.at(box)};
    auto told = co_await self->parts_.launcher->revoke(std::move(request));
    if (!told && told.error().code != Code::not_found)
      log::warn("sandbox", "{}: a revocation goes the longer way: {}", box->id(), told.error().message);
    co_return Result<void>();
  };
  auto first = std::make_shared<SideBySide>(boxes, std::move(work));
  (void)co_await first->run(kRevokedAtOnce);
  co_return co_await tell_grants(std::move(boxes));
}

Task<Result<store::BindingRecord>> Service::bind(BindRequest request) {
  auto self = shared_from_this();
  auto& binding = request.binding;
  binding.id = new_binding_id();
  binding.actor = request.by.actor.empty() ? request.by.key : request.by.actor;
  binding.sealed.clear();
  binding.unsearched = false;
  ISOLA_CO_CHECK(vault::check_binding(binding));
  // The gate compares names in one spelling, and ports by its own reading of them.
  for (const auto& name : binding.names) ISOLA_CO_CHECK(gate::make_rule("allow", name, binding.ports, false));
  if (binding.expires != 0 && binding.expires <= now_millis())
    co_return fail(Code::invalid, "expires: that moment has passed");
  store::BindingRecord record{.id = binding.id,
                              .project = request.project,
                              .scope = request.scope,
                              .subject = request.subject,
                              .secret = binding.secret,
                              .expires = binding.expires,
                              .created = now_millis(),
                              .actor = binding.actor,
                              .made_by = request.by.key};
  json body = json::parse(vault::to_json(binding));
  for (const char* own : {"id", "actor", "expires"}) body.erase(own);
  record.body = body.dump();
  ISOLA_CO_CHECK(find_secret(request.project, binding.secret));
  if (request.scope == store::BindingScope::sandbox)
    if (auto box = find_any(request.subject)) ISOLA_CO_CHECK(keeps_grants((*box)->record()));
  ISOLA_CO_TRY(auto state, co_await parts_.launcher->vault_state());
  if (!state.trouble.empty()) co_return fail(Code::unavailable, "there is no vault: " + state.trouble);
  if (state.locked) co_return fail(Code::unavailable, "the vault is locked: `isola vault unlock` opens it");
  // In the ledger before it is in the store, where whoever tells a gate of something else finds it, and the next
  // server: a credential that went out is never unknown to have been granted.
  ledger::Event created = grant_event(ledger::Kind::grant_created, record, "", request.by);
  ISOLA_CO_CHECK(co_await record_durably(std::move(created)));
  if (auto kept = parts_.store.insert_binding(record); !kept) {
    record_grant(ledger::Kind::grant_revoked, record, kNotGranted, request.by);
    co_return std::unexpected(kept.error());
  }
  grants_bell_.ring();  // it may be the next to expire
  // One that cannot be opened, or that the gate does not take, is nobody's.
  auto boxes = concerned(record);
  auto tell = [self, record](BoxPtr box) { return self->grant_to(std::move(box), record); };
  auto all = std::make_shared<SideBySide>(boxes, tell);
  auto granted = co_await all->run(kToldAtOnce);
  if (!granted) {
    // First from the store, where it would go in force later: whoever is killed now leaves one that is said to be
    // there and is not, which lets nothing out unseen.
    auto removed = parts_.store.remove_binding(record.project, record.id);
    if (!removed && removed.error().code != Code::not_found) {
      record_grant(ledger::Kind::grant_created, record, kStays, request.by);
      Error why = granted.error();
      why.message += "; and " + record.id + " stays, and goes in force when it can: " + removed.error().message;
      co_return std::unexpected(std::move(why));
    }
    record_grant(ledger::Kind::grant_revoked, record, kNotGranted, request.by);
    std::vector<store::BindingRecord> gone(1, record);
    (void)co_await tell_revoked(std::move(gone));
    co_return std::unexpected(granted.error());
  }
  auto place = [self](BoxPtr box) -> Task<Result<void>> {
    co_await self->place_certificate(std::move(box));
    co_return Result<void>();
  };
  auto placing = std::make_shared<SideBySide>(std::move(boxes), place);
  (void)co_await placing->run(kToldAtOnce);
  co_return record;
}

// What the gate has then is in force there.
Task<Result<void>> Service::grant_to(BoxPtr box, store::BindingRecord record) {
  Box::Turn turn = co_await box->turn();
  auto now = box->record();
  if (record.scope == store::BindingScope::sandbox) ISOLA_CO_CHECK(keeps_grants(now));
  if (store::is_asleep(now.state) || now.state == State::ended || now.network.empty()) co_return Result<void>();
  auto told = co_await apply_terms(box, now.network, false);
  if (!told && told.error().code == Code::not_found) co_return Result<void>();
  if (!told) co_return std::unexpected(told.error());
  if (told->ungathered) co_return std::unexpected(*told->ungathered);
  if (auto found = told->missing.find(record.id); found != told->missing.end())
    co_return fail(vault::is_refused_for_good(found->second) ? Code::invalid : Code::unavailable,
                   "secret " + record.secret + ": " + found->second);
  co_return Result<void>();
}

Task<Result<void>> Service::unbind(std::string project, std::string id, Caller by) {
  auto self = shared_from_this();
  ISOLA_CO_TRY(auto binding, parts_.store.find_binding(project, id));
  ISOLA_CO_CHECK(parts_.store.remove_binding(project, id));
  record_grant(ledger::Kind::grant_revoked, binding, "", by);
  std::vector<store::BindingRecord> gone(1, binding);
  auto told = co_await tell_revoked(std::move(gone));
  ISOLA_CO_CHECK(co_await flush_ledger());  // behind it: no disk keeps a credential alive
  co_return told;
}

// In its turn, before its network is renewed.
Task<Result<void>> Service::drop_grants(BoxPtr box) {
  auto record = box->record();
  ISOLA_CO_TRY(auto own, parts_.store.list_bindings(record.project, store::BindingScope::sandbox, box->id()));
  constexpr char kResumed[] = "the sandbox was resumed";
  std::vector<ledger::Event> events;
  for (const auto& binding : own)
    events.push_back(grant_event(ledger::Kind::grant_revoked, binding, kResumed, Caller()));
  Result<void> dropped = co_await record_durably(std::move(events));
  Result<std::vector<store::BindingRecord>> gone;
  if (dropped) gone = parts_.store.remove_bindings_of_sandbox(box->id());
  if (!gone) dropped = std::unexpected(gone.error());
  if (!dropped) {
    for (const auto& binding : own) record_grant(ledger::Kind::grant_created, binding, kStays, Caller());
    co_return dropped;
  }
  for (const auto& binding : *gone)  // that came meanwhile
    if (std::ranges::find(own, binding.id, &store::BindingRecord::id) == own.end())
      record_grant(ledger::Kind::grant_revoked, binding, kResumed, Caller());
  if (!record.granted) co_return Result<void>();
  store::SandboxChange change;
  change.granted = false;
  ISOLA_CO_CHECK(parts_.store.change_sandbox(box->id(), change));
  box->change([](auto& r) { r.granted = false; });
  co_return Result<void>();
}

// ---- values for a command ---------------------------------------------------------------------------------------

// Written down before it happens: a value that is inside is never unknown to be.
Task<Result<void>> Service::expose(BoxPtr box, CommandSpec& spec) {
  ISOLA_CO_TRY(auto project, parts_.store.find_project(box->project()));
  if (!project.allow_exposed)
    co_return fail(Code::denied,
                   "secrets: this project does not allow values of secrets inside sandboxes (allow_exposed); bind them "
                   "to the names that they are for instead");
  struct Given {
    std::string variable, secret, sealed;
    bool file = false;
  };
  std::vector<Given> all;
  for (const auto& [variable, name] : spec.secrets) {
    if (variable.empty() || variable.find('=') != std::string::npos || variable.find('\0') != std::string::npos)
      co_return fail(Code::invalid, "secrets: a variable's name is odd");
    ISOLA_CO_TRY(auto secret, find_secret(box->project(), name));
    Given given{variable, name, secret.sealed, false};
    all.push_back(std::move(given));
  }
  for (const auto& [variable, name] : spec.secret_files) {
    if (!is_variable(variable) || spec.secrets.contains(variable))
      co_return fail(Code::invalid, "secret_files: a variable has letters, digits and '_', and is none of secrets");
    ISOLA_CO_TRY(auto secret, find_secret(box->project(), name));
    Given given{variable, name, secret.sealed, true};
    all.push_back(std::move(given));
  }
  if (!box->record().exposed) {
    // In its turn: an image that is being made of its memory is one from before, or is marked.
    Box::Turn turn = co_await box->turn();
    store::SandboxChange change;
    change.exposed = true;
    ISOLA_CO_CHECK(parts_.store.change_sandbox(box->id(), change));
    box->change([](auto& r) { r.exposed = true; });
  }
  Caller by(spec.by, spec.actor);
  for (const auto& given : all) {
    json data = {{"secret", given.secret},
                 {"variable", given.variable},
                 {"as", given.file ? "file" : "environment"},
                 {"exposed", true}};
    ledger::Event event = event_of(ledger::Kind::secret_exposed, box,
                                   data.dump(-1, ' ', false, json::error_handler_t::replace), by, spec.task);
    ISOLA_CO_CHECK(co_await record_durably(event));
  }
  for (const auto& given : all) {
    auto value = co_await parts_.launcher->open_value(given.sealed);
    if (!value) {
      for (auto& file : spec.files) vault::wipe(file);
      for (const auto& opened : all)
        if (auto it = spec.env.find(opened.variable); !opened.file && it != spec.env.end()) vault::wipe(it->second);
      co_return std::unexpected(value.error());
    }
    if (given.file)
      spec.files.push_back(given.variable + "=" + std::string(value->view()));
    else
      spec.env[given.variable] = std::string(value->view());
  }
  co_return Result<void>();
}

// When an earlier server last wrote something; 0: never. Of a start that failed that is not more than its begin.
Result<Millis> Service::last_sign() {
  ledger::EventFilter filter{.limit = 10, .newest_first = true};
  if (parts_.ledger_before) filter.before = *parts_.ledger_before + 1;
  for (;;) {
    ISOLA_TRY(auto entries, parts_.ledger.query(filter));
    for (const auto& entry : entries)
      if (entry.kind != ledger::Kind::server_started) return entry.time;
    if (!ledger::goes_on(entries, filter)) return 0;
    filter.before = entries.back().seq;
  }
}

// A server that was killed between the ledger and the store said of some that they are over, and they are not: so near
// the end of the ledger as it died. What this start has written since may be from long after that.
Result<void> Service::recall_grants() {
  ISOLA_TRY(const Millis last, last_sign());
  if (last == 0) return {};
  ledger::EventFilter filter{.kind_prefix = "grant.", .limit = 1000, .newest_first = true};
  filter.from = std::max<Millis>(last - kCutOff, 1);
  std::set<std::string> seen;
  for (;;) {
    ISOLA_TRY(auto entries, parts_.ledger.query(filter));
    for (const auto& entry : entries) {
      auto data = json::parse(entry.data, nullptr, false);
      if (!data.is_object()) continue;
      const std::string id = data.value("binding", "");
      if (!seen.insert(id).second || entry.kind != ledger::Kind::grant_revoked) continue;
      auto binding = parts_.store.find_binding(entry.project, id);
      if (!binding && binding.error().code != Code::not_found) return std::unexpected(binding.error());
      if (!binding || (binding->expires != 0 && binding->expires <= now_millis())) continue;
      record_grant(ledger::Kind::grant_created, *binding, "what was to take it away was cut off", Caller());
    }
    if (!ledger::goes_on(entries, filter)) return {};
    filter.before = entries.back().seq;
  }
}

// ---- time -----------------------------------------------------------------------------------------------------------

// The ledger has it before the store forgets it. Nobody waits for that: the gate knows ends by itself, and whoever is
// told of grants meanwhile is not told of these. false: not all of it could be written, and it is tried again.
Task<bool> Service::end_expired() {
  auto over = parts_.store.expiring_bindings(now_millis() + 1);
  if (!over) co_return false;
  if (over->empty()) co_return true;
  for (const auto& binding : *over) {
    if (expired_.contains(binding.id)) continue;
    ledger::Event event = grant_event(ledger::Kind::grant_revoked, binding, "it has expired", Caller());
    // Not counted among what is lost: it is said again.
    if (auto taken = parts_.ledger.append(event); !taken) {
      log::warn("sandbox", "what has expired stays in the store: {}", taken.error().message);
      co_return false;
    }
    events_.publish(event);
    expired_.insert(binding.id);
  }
  auto written = co_await flush_ledger();
  if (!written) {
    log::warn("sandbox", "what has expired stays in the store: {}", written.error().message);
    co_return false;
  }
  bool all = true;
  std::vector<store::BindingRecord> gone;
  for (const auto& binding : *over) {
    auto removed = parts_.store.remove_binding(binding.project, binding.id);
    if (removed) gone.push_back(binding);
    if (!removed && removed.error().code != Code::not_found)
      all = false;
    else
      expired_.erase(binding.id);
  }
  if (!gone.empty()) (void)co_await tell_revoked(std::move(gone));
  co_return all;
}

// Ends what has expired, fetches anew what sources have, and tells again what could not be told.
Task<void> Service::watch_grants() {
  auto self = shared_from_this();
  while (ready_) {
    uint64_t ticket = grants_bell_.ticket();
    const bool ended = co_await end_expired();
    std::vector<std::string> due;
    const Millis now = now_millis();
    Millis next = now + std::chrono::duration_cast<std::chrono::milliseconds>(kLongestWait).count();
    {
      std::lock_guard lock(grants_mutex_);
      std::erase_if(grants_due_, [&](const auto& one) {
        if (one.second <= now) due.push_back(one.first);
        return one.second <= now;
      });
    }
    std::vector<BoxPtr> boxes;
    for (const auto& id : due)
      if (auto box = find_any(id)) boxes.push_back(*box);
    if (!boxes.empty()) (void)co_await tell_grants(std::move(boxes));
    if (auto expiring = parts_.store.expiring_bindings(next); expiring && !expiring->empty())
      next = expiring->front().expires;
    {
      std::lock_guard lock(grants_mutex_);
      for (const auto& [id, when] : grants_due_) next = std::min(next, when);
    }
    // At least a moment: a store or a ledger that cannot write must not make this spin.
    auto wait = std::chrono::milliseconds(std::max<Millis>(next - now_millis(), ended ? 50 : kTellAgain));
    (void)co_await grants_bell_.wait_for(ticket, wait);
  }
}

}  // namespace isola::sandbox
