// Bindings on their way to the gate: opened, made anew when they do not last, sealed anew when the vault's key changes.
#include <algorithm>
#include <memory>

#include "base/log.h"
#include "launcher/gate_keeper.h"
#include "vault/binding_wire.h"

namespace isola::launcher {

namespace {

constexpr auto kOpenAgain = std::chrono::seconds(30);  // after bindings that could not be opened
constexpr auto kWantPause = std::chrono::seconds(1);   // between two questions for values that do not last
constexpr auto kLookAgain = std::chrono::milliseconds(50);
constexpr int kMostPasses = 200;  // over all bindings, until none is sealed to an old key

}  // namespace

// The entry is busy meanwhile. Where there is nothing to open it is done at once.
void GateKeeper::open(const std::string& id, const Terms& terms, bool only_due,
                      std::function<void(Result<Terms>)> done) {
  auto& entry = entries_.at(id);
  entry.busy = true;
  if (terms.bindings.empty() || terms.is_open || !options_.open) return done(terms);
  OpenRequest request{.sandbox = id,
                      .bindings = terms.bindings,
                      .before = entry.kept ? entry.kept->opened : std::string(),
                      .only_due = only_due};
  options_.open(request, [this, id, before = request.before, fresh = Terms(terms),
                          done = std::move(done)](const Result<std::string>& result) mutable {
    if (!result) return done(std::unexpected(result.error()));
    Reader in(*result);
    fresh.opened = in.str();
    auto trouble = vault::decode_reasons(in.view()), unsent = vault::decode_reasons(in.view());
    if (!in.done() || !trouble || !unsent) return done(fail(Code::corrupt, "unreadable bindings"));
    fresh.trouble = std::move(*trouble);
    fresh.unsent = std::move(*unsent);
    fresh.is_open = true;
    tell_made(id, before, fresh.opened);
    done(fresh);
  });
}

// What was made for it, by name: for the records.
void GateKeeper::tell_made(const std::string& id, const std::string& before, const std::string& now) {
  auto list = vault::decode_bindings(now), known = vault::decode_bindings(before);
  if (!list) return;
  using namespace std::chrono;
  const int64_t when = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
  for (const auto& one : *list) {
    const bool old = known && std::any_of(known->begin(), known->end(), [&](const auto& other) {
                       return other.id == one.id && other.sealed == one.sealed;
                     });
    if (one.until == 0 || old) continue;
    hear({.sandbox = id,
          .kind = gate::Event::Kind::minted,
          .name = one.names.front(),
          .rule = one.serial,
          .when = when,
          .binding = one.id,
          .secret = one.secret});
  }
}

// The gate needs a value that does not last, or will soon. Whatever else it has stays: nothing else is asked for.
void GateKeeper::wanted(const std::string& id) {
  auto it = entries_.find(id);
  if (it == entries_.end() || !it->second.kept || it->second.kept->bindings.empty()) return;
  auto& entry = it->second;
  const auto now = std::chrono::steady_clock::now();
  if (now < entry.not_before ||
      std::any_of(entry.jobs.begin(), entry.jobs.end(), [](const Job& one) { return one.only_due; }))
    return;
  entry.not_before = now + kWantPause;
  auto done = [id](const Result<std::string>& result) {
    if (!result) log::warn("launcher", "no new value for {}: {}", id, result.error().message);
  };
  enqueue(id, {.reopens = true, .only_due = true, .done = done});
}

// As a change that changes nothing, so that it comes in its turn. What is in force is read then: a binding that was
// revoked meanwhile stays so.
void GateKeeper::open_again(const std::string& id) {
  auto it = entries_.find(id);
  if (it == entries_.end() || !it->second.kept || it->second.kept->bindings.empty()) return;
  auto done = [this, id](const Result<std::string>& result) {
    if (result) return;
    log::warn("launcher", "the bindings of {} could not be opened: {}", id, result.error().message);
    open_again_later(id);
  };
  enqueue(id, {.reopens = true, .done = done});
}

void GateKeeper::open_again_later(const std::string& id) {
  auto it = entries_.find(id);
  if (it == entries_.end() || std::exchange(it->second.opens_again, true)) return;
  loop_.after(kOpenAgain, [this, id, born = it->second.born] {
    auto still = entries_.find(id);
    if (still == entries_.end() || still->second.born != born) return;
    still->second.opens_again = false;
    if (still->second.kept && (!still->second.kept->is_open || !still->second.kept->trouble.empty())) open_again(id);
  });
}

// One after the other: each is a process of its own. What was asked for before the key changed may still be on its way,
// and would be kept as it came: so it is looked at again until everything is sealed to the new one.
void GateKeeper::reseal(const vault::PublicKey& key, Reseal reseal, Done done) {
  reseal_after("", std::make_shared<Resealing>(Resealing{key, std::move(reseal), std::move(done)}));
}

void GateKeeper::reseal_after(const std::string& last, const std::shared_ptr<Resealing>& work) {
  auto is_old = [&](const std::string& bindings) {
    auto all = vault::decode_bindings(bindings);
    return all && std::any_of(all->begin(), all->end(), [&](const auto& one) {
             return !one.sealed.empty() && !vault::is_sealed_to(work->key, one.sealed);
           });
  };
  auto it = entries_.upper_bound(last);
  while (it != entries_.end() && !(it->second.kept && is_old(it->second.kept->bindings))) ++it;
  if (it == entries_.end()) {
    const bool left = std::any_of(entries_.begin(), entries_.end(), [&](const auto& one) {
      const auto& entry = one.second;
      return (entry.kept && is_old(entry.kept->bindings)) ||
             std::any_of(entry.jobs.begin(), entry.jobs.end(),
                         [&](const Job& job) { return job.change && is_old(job.change->bindings); });
    });
    if (!left) return work->done(std::string());
    if (++work->passes == kMostPasses)
      return work->done(fail(Code::unavailable,
                             "bindings that are sealed to the old key are still on their way to the "
                             "gate; `isola vault rotate` goes on where it was"));
    loop_.after(kLookAgain, [this, work] { reseal_after("", work); });
    return;
  }
  std::string id = it->first, before = it->second.kept->bindings;
  work->reseal(before, [this, id, last, before, work](const Result<std::string>& fresh) {
    if (!fresh) return work->done(std::unexpected(fresh.error().in("the bindings of " + id)));
    auto now = entries_.find(id);
    if (now == entries_.end() || !now->second.kept) return reseal_after(id, work);
    if (now->second.kept->bindings != before) return reseal_after(last, work);  // changed meanwhile: again
    Terms terms = *now->second.kept;
    terms.bindings = *fresh;
    if (auto kept = keep(id, terms); !kept) return work->done(std::unexpected(kept.error()));
    now->second.kept = std::move(terms);
    reseal_after(id, work);
  });
}

}  // namespace isola::launcher
