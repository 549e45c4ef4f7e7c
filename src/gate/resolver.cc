#include "gate/resolver.h"

#include <algorithm>

#include "gate/name.h"

namespace isola::gate {

namespace {

constexpr uint32_t kTtl = 30;  // of what we say. Names keep their address much longer
constexpr std::chrono::seconds kShortest{5}, kLongest{3600}, kNegative{10}, kFailed{2};
constexpr size_t kMaxParents = 1024, kMaxWaiting = 64, kMaxWaitingInAll = 1024;
constexpr Share::Quota kLookups{.little = 8, .most = 128};

Clock::duration good_for(const Answer& answer) {
  switch (answer.state) {
    case Answer::State::found: return std::clamp(answer.ttl, kShortest, kLongest);
    case Answer::State::failed: return kFailed;
    default: return kNegative;
  }
}

bool is(const DnsQuestion& question, DnsType type) { return question.type == static_cast<uint16_t>(type); }

}  // namespace

Resolver::Resolver(Parts parts)
    : parts_(std::move(parts)),
      names_(parts_.start, parts_.pools->names),
      questions_(parts_.rates.questions, parts_.rates.questions_burst),
      lookups_(parts_.rates.names, parts_.rates.names_burst),
      under_way_(parts_.pools->lookups, kLookups) {}

void Resolver::answer(std::string_view query, std::function<void(std::string)> done) {
  DnsQuestion question;
  switch (parse_query(query, question)) {
    case QueryState::ignore: return done({});
    case QueryState::answer_error: return done(build_reply(question, {.code = question.problem}));
    case QueryState::good: break;
  }
  answer(std::move(question), std::move(done));
}

void Resolver::answer(DnsQuestion question, std::function<void(std::string)> done) {
  auto reply = [&](const DnsReply& content) { done(build_reply(question, content)); };
  auto refuse = [&](DnsCode code, const Verdict& verdict) {
    parts_.denied(question.name, verdict);
    reply({.code = code,
           .why = "isola: " + std::string(to_string(verdict.reason)) +
                  (verdict.rule.empty() ? "" : " (" + verdict.rule + ")")});
  };
  if (!questions_.take(parts_.now())) return refuse(DnsCode::refused, {Reason::dns_rate, "questions"});
  if (!question.is_name) return refuse(DnsCode::no_such_name, {Reason::not_a_name, ""});
  if (is(question, DnsType::ptr)) {
    auto address = address_of_pointer(question.name);
    auto* entry = address ? names_.behind(*address) : nullptr;
    return reply(entry ? DnsReply{.pointer = entry->name, .ttl = kTtl} : DnsReply{.code = DnsCode::no_such_name});
  }
  if (auto verdict = parts_.egress()->may_resolve(question.name); !verdict.allowed())
    return refuse(DnsCode::no_such_name, verdict);
  bool four = is(question, DnsType::a), six = is(question, DnsType::aaaa);
  // Everything else does not exist: no keys that hide names (HTTPS, SVCB), no texts to tunnel through.
  if (!four && !six) return reply({});
  std::string name = question.name;
  if (auto* known = names_.find(name); !known || known->good_until <= parts_.now()) {
    auto wildcard = parts_.egress()->wildcard_of(name);
    if (!known && !wildcard.empty() && !may_ask_below(wildcard, name))
      return refuse(DnsCode::refused, {Reason::dns_rate, "names below *." + wildcard});
    if (!may_look_up(name)) return refuse(DnsCode::refused, {Reason::dns_rate, "names"});
    bool under_way = known && !known->waiting.empty();
    if (!under_way && !under_way_.may_take()) return refuse(DnsCode::refused, {Reason::dns_rate, "look-ups under way"});
  }
  addresses(name, [this, alive = std::weak_ptr(alive_), name, six, question = std::move(question),
                   done = std::move(done)](const Answer& answer) {
    if (alive.expired()) return;
    DnsReply content{.ttl = kTtl};
    switch (answer.state) {
      case Answer::State::found:
        if (auto* entry = names_.find(name); !entry)
          content.code = DnsCode::server_failure;
        else if (!six)
          content.address = Names::four(*entry);
        else if (parts_.ipv6)
          content.address = Names::six(*entry);
        break;
      case Answer::State::no_address: break;
      case Answer::State::no_such_name: content.code = DnsCode::no_such_name; break;
      case Answer::State::failed: content.code = DnsCode::server_failure; break;
    }
    done(build_reply(question, content));
  });
}

bool Resolver::may_look_up(const std::string& name) {
  auto now = parts_.now();
  // Whoever owns example.org sees every question below it: that is the channel to be narrow, whatever the rule.
  std::string parent(tail_of(name, 2));
  if (below_.size() >= kMaxParents && !below_.contains(parent)) {
    // Full again is as good as new.
    for (auto it = below_.begin(); it != below_.end();)
      it = it->second.available(now) >= static_cast<uint64_t>(parts_.rates.below_burst) ? below_.erase(it)
                                                                                        : std::next(it);
    if (below_.size() >= kMaxParents) return false;
  }
  auto& below = below_.try_emplace(std::move(parent), parts_.rates.below, parts_.rates.below_burst).first->second;
  return below.take(now) && lookups_.take(now);
}

bool Resolver::may_ask_below(const std::string& wildcard, const std::string& name) {
  auto now = parts_.now();
  const auto& rates = parts_.rates;
  if (wildcards_.size() >= kMaxParents && !wildcards_.contains(wildcard)) {
    for (auto it = wildcards_.begin(); it != wildcards_.end();)
      it = it->second.is_full(now, rates) ? wildcards_.erase(it) : std::next(it);
    if (wildcards_.size() >= kMaxParents) return false;
  }
  auto& below = wildcards_
                    .try_emplace(wildcard, Wildcard{TokenBucket(rates.labels, rates.labels_burst),
                                                    TokenBucket(rates.letters, rates.letters_burst)})
                    .first->second;
  size_t letters = name.size() - wildcard.size() - 1;
  if (below.letters.available(now) < letters || !below.names.take(now)) return false;
  below.letters.spend(letters);
  return true;
}

void Resolver::addresses(const std::string& name, std::function<void(const Answer&)> done) {
  auto* entry = names_.enter(name);
  if (!entry) return done({});
  if (entry->good_until > parts_.now()) return done(entry->answer);
  if (entry->waiting.size() >= kMaxWaiting || waiting_ >= kMaxWaitingInAll) return done({});
  if (entry->waiting.empty() && !under_way_.take()) return done({});
  entry->waiting.push_back(std::move(done));
  ++waiting_;
  if (entry->waiting.size() > 1) return;
  parts_.upstream.look_up(name, [this, alive = std::weak_ptr(alive_), name](Answer answer) {
    if (alive.expired()) return;
    under_way_.give_back();
    auto* known = names_.find(name);
    if (!known) return;  // cannot be: an entry with somebody waiting stays
    known->answer = std::move(answer);
    known->good_until = parts_.now() + good_for(known->answer);
    auto waiting = std::exchange(known->waiting, {});
    waiting_ -= waiting.size();
    const Answer copy = known->answer;  // whoever is told may make the table forget the name
    for (auto& one : waiting) one(copy);
  });
}

}  // namespace isola::gate
