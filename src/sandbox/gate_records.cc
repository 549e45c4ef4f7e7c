// What the gate tells, on its way to the ledger. The launcher keeps it until the ledger's file has it
// (launcher/event_spool.h), so that neither a kill of this process nor one of the launcher takes a record along. Each
// entry has the number that the launcher gave it: after a kill in between the same one is not written twice.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "sandbox/bell.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

namespace {

constexpr char kNumber[] = "gate_event";
constexpr size_t kLookBack = 2000;  // entries; the launcher has at most 512 with us
// The gate tells of many at once that happened within that time: what it holds back for a second is told at its next
// look, which is once a second.
constexpr Millis kMerged = 2000;
constexpr auto kGather = std::chrono::milliseconds(20);  // one commit for all that come in that time
constexpr auto kTryAgain = std::chrono::seconds(1);

// Which secret went where is a question of its own (`isola audit secret`), and so is one that came back.
ledger::Kind kind_of(const gate::Event& event) {
  switch (event.kind) {
    case gate::Event::Kind::denied:
      return event.secret.empty() ? ledger::Kind::egress_denied : ledger::Kind::secret_denied;
    case gate::Event::Kind::injected: return ledger::Kind::secret_used;
    case gate::Event::Kind::redacted: return ledger::Kind::scan_hit;
    case gate::Event::Kind::minted: return ledger::Kind::secret_minted;
    case gate::Event::Kind::lost: return ledger::Kind::egress_lost;
    case gate::Event::Kind::restarted: return ledger::Kind::gate_restarted;
    default: return ledger::Kind::egress_allowed;
  }
}

json data_of(const gate::Event& event) {
  using Kind = gate::Event::Kind;
  json data = json::object();
  if (event.kind == Kind::closed || event.kind == Kind::moved || event.kind == Kind::lost)
    data["bytes_out"] = event.up, data["bytes_in"] = event.down;
  if (event.kind == Kind::restarted) return data;
  if (event.kind == Kind::lost) {
    data["events"] = event.count;
    return data;
  }
  if (event.kind == Kind::minted) {
    data = {{"secret", event.secret}, {"binding", event.binding}};
    if (!event.rule.empty()) data["token"] = event.rule;
    return data;
  }
  data.update({{"what", gate::to_string(event.kind)},
               {"protocol", event.protocol == gate::Event::Protocol::dns ? "dns" : "tcp"},
               {"port", event.port},
               {"reason", gate::to_string(event.reason)},
               {"host_verified", event.host_verified}});
  if (!event.name.empty()) data["name"] = event.name;
  if (!event.address.empty()) data["address"] = event.address;
  if (!event.rule.empty()) data["rule"] = event.rule;
  if (!event.method.empty()) data["method"] = event.method, data["path"] = event.path;
  if (!event.binding.empty()) data["binding"] = event.binding, data["secret"] = event.secret;
  if (event.count > 1) data["count"] = event.count;
  return data;
}

// How long before its time it may have happened. Bytes are told at the end of what they were moved in, when the command
// that moved them may be over and the next one's run.
Millis before_it(const gate::Event& event) {
  const bool bytes = event.kind == gate::Event::Kind::closed || event.kind == gate::Event::Kind::moved;
  return (event.count > 1 ? kMerged : 0) + (bytes ? TaskSpans::kShortly : 0);
}

// Under which the launcher told of it.
std::optional<uint64_t> number_of(const ledger::Event& entry) {
  if (entry.data.find(kNumber) == std::string::npos) return std::nullopt;
  auto data = json::parse(entry.data, nullptr, false);
  if (!data.is_object() || !data.contains(kNumber) || !data[kNumber].is_number_unsigned()) return std::nullopt;
  return data[kNumber].get<uint64_t>();
}

}  // namespace

// They are written in the order of their numbers: the newest one that is there says which.
Result<void> Service::find_gate_records() {
  ledger::EventFilter filter{.limit = kLookBack, .newest_first = true};
  for (;;) {
    ISOLA_TRY(auto entries, parts_.ledger.query(filter));
    for (const auto& entry : entries) {
      auto number = number_of(entry);
      if (!number) continue;
      gate_records_.taken = gate_records_.written = *number;
      return {};
    }
    // A page may be shorter than was asked for, where its entries are heavy.
    if (entries.size() >= filter.limit || !ledger::goes_on(entries, filter)) return {};
    filter.limit -= entries.size();
    filter.before = entries.back().seq;
  }
}

void Service::heard_gate(const gate::Event& event, uint64_t number) {
  auto& records = gate_records_;
  // What comes behind one that was refused waits for it: they are told again, in their order.
  if (number <= records.taken || records.refused) return;
  if (auto taken = record_gate(event, number); !taken) {
    log::error("sandbox", "what the gate told cannot be written down yet: {}", taken.error().message);
    records.refused = true;
    net::co_spawn(parts_.next_worker(), hear_gate_again(), net::detached);
    return;
  }
  records.taken = number;
  if (!records.writing.exchange(true)) net::co_spawn(parts_.next_worker(), acknowledge_gate(), net::detached);
}

Result<void> Service::record_gate(const gate::Event& event, uint64_t number) {
  json data = data_of(event);
  data[kNumber] = number;
  ledger::Event entry;
  auto box = find_any(event.sandbox);
  if (!box) {
    // The word of its end came on another line, and was quicker; or it ended while no server ran.
    auto ended = parts_.store.find_sandbox(event.sandbox);
    if (!ended && ended.error().code != Code::not_found) return std::unexpected(ended.error());
    if (ended) box = std::make_shared<Box>(parts_.next_worker(), *ended);
  }
  // Of whoever ran when it happened, which may be over. Where that were several nobody can tell which of them it was.
  std::vector<std::string> tasks;
  if (box && event.kind != gate::Event::Kind::restarted) {
    const Millis when = event.when > 0 ? event.when : now_millis();
    tasks = (*box)->tasks_during(when - before_it(event), when);
    if (tasks.size() > 1) data["tasks"] = tasks;
  }
  std::string text = data.dump(-1, ' ', false, json::error_handler_t::replace);
  if (box) {
    entry = event_of(kind_of(event), *box, std::move(text), {}, tasks.size() == 1 ? tasks.front() : std::string());
  } else {
    entry.sandbox = event.sandbox;
    entry.kind = kind_of(event);
    entry.data = std::move(text);
  }
  if (event.when > 0) entry.time = event.when;  // which may be long ago
  auto tell = [&] { return parts_.ledger.append(entry); };
  if (box && event.up > 0)
    ISOLA_CHECK(accounts_.add_bytes(**box, event.up, tasks, tell));
  else
    ISOLA_CHECK(tell());
  events_.publish(entry);
  if (!box) return {};
  auto state = (*box)->state();
  if (state == State::ending || state == State::ended) accounts_.write(**box);
  return {};
}

Task<void> Service::acknowledge_gate() {
  auto self = shared_from_this();
  auto& records = gate_records_;
  Bell never;
  std::chrono::milliseconds pause = kGather;
  while (ready_) {
    (void)co_await never.wait_for(never.ticket(), pause);
    const uint64_t number = records.taken;
    auto written = co_await flush_ledger();
    pause = written ? kGather : kTryAgain;
    if (!written) continue;
    records.written = number;
    parts_.launcher->acknowledge(number);
    records.writing = false;
    // One that came in this moment found somebody writing.
    if (records.taken == number || records.writing.exchange(true)) co_return;
  }
}

Task<void> Service::hear_gate_again() {
  auto self = shared_from_this();
  Bell never;
  (void)co_await never.wait_for(never.ticket(), kTryAgain);
  parts_.launcher->keep_records();
}

}  // namespace isola::sandbox
