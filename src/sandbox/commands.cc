// Commands: starting, following, finding them again, and writing down how they ended.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "sandbox/command_tag.h"
#include "sandbox/json_text.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

namespace {

// What we did not start, or cannot know that we did. Shorter than any id of ours.
std::string stranger_id(uint32_t pid) { return "c" + std::to_string(pid); }
bool is_stranger(const std::string& id) { return id.size() <= 11; }

constexpr size_t kCommandShown = 2000;  // of a command line, in lists and in the ledger

std::string shown(const CommandSpec& spec) {
  std::string text = spec.shell;
  for (const auto& word : spec.argv) text += (text.empty() ? "" : " ") + word;
  if (text.size() > kCommandShown) text.resize(kCommandShown);
  return text;
}

constexpr const char* kShell = "/bin/bash";
constexpr const char* kSmallShell = "/bin/sh";  // of images that have no other

guest::Start start_of(const CommandSpec& spec, const std::string& tag, const char* shell) {
  guest::Start start;
  start.argv = spec.argv;
  if (!spec.shell.empty()) start.argv = {shell, "-c", spec.shell};
  for (const auto& [key, value] : spec.env) start.env.push_back(key + "=" + value);
  start.cwd = spec.cwd;
  start.user = spec.user;
  start.tag = tag;
  start.stdin_mode = spec.stdin_mode;
  start.pty = spec.pty;
  start.rows = spec.rows;
  start.cols = spec.cols;
  start.timeout_ms = static_cast<uint64_t>(spec.timeout.count());
  return start;
}

std::string encoded_start(const CommandSpec& spec, const std::string& tag, const char* shell) {
  if (spec.files.empty()) return guest::encode(start_of(spec, tag, shell));
  guest::StartWithFiles with{start_of(spec, tag, shell), spec.files};
  std::string bytes = guest::encode(with);
  for (auto& file : with.files) vault::wipe(file);
  return bytes;
}

bool is_missing(const Error& error, std::string_view program) {
  return error.code == Code::not_found && error.sys_errno == ENOENT && error.message.ends_with(program);
}

json end_of(const guest::Exit& exit) {
  json data = {{"exit_code", exit.code}};
  if (exit.signal) data["signal"] = exit.signal;
  if (exit.timed_out) data["reason"] = "deadline";
  if (exit.oom_hint) data["reason"] = "oom";
  return data;
}

}  // namespace

Result<void> Service::may_run(const BoxPtr& box, const std::string& task) {
  auto taken = accounts_.take_command(*box, task);
  if (taken) return {};
  // Whoever asks for more than there is has reached the end. A task that only visits this sandbox does not end it.
  bool own = taken.error().scope != Scope::task || task == box->record().task;
  if (own) budget_is_spent(box, taken.error());
  return fail(Code::exhausted, taken.error().text());
}

// A task of a command that is not the sandbox's own: what was used until now is not its doing.
Task<void> Service::forget_task_of(BoxPtr box, std::string task) {
  auto self = shared_from_this();
  co_await take_stock(box);
  accounts_.command_ends(*box, task);
}

Task<Result<Running>> Service::run(BoxPtr box, CommandSpec spec) {
  if (spec.argv.empty() && spec.shell.empty()) co_return fail(Code::invalid, "a command is missing");
  if (spec.task.size() > kMaxWord || spec.actor.size() > kMaxWord || spec.user.size() > kMaxWord ||
      spec.cwd.size() > 4096)
    co_return fail(Code::invalid, "task, actor, user or cwd: too long");
  Box::Use use = box->use();
  ISOLA_CO_TRY(auto link, co_await this->link(box));
  CommandInfo info;
  info.id = new_command_id();
  info.command = shown(spec);
  struct Usual {
    std::string task, actor, user, cwd;
  };
  const auto usual = box->of_record([](const auto& r) { return Usual{r.task, r.actor, r.user, r.cwd}; });
  info.task = spec.task.empty() ? usual.task : spec.task;
  if (spec.user.empty()) spec.user = usual.user;
  if (spec.cwd.empty()) spec.cwd = usual.cwd;
  if (spec.counted) ISOLA_CO_CHECK(may_run(box, info.task));
  bool visits = info.task != usual.task;
  if (visits) co_await take_stock(box);
  info.key = spec.by;
  info.actor = !spec.actor.empty() ? spec.actor : !spec.by.empty() ? spec.by : usual.actor;
  info.user = spec.user;
  info.cwd = spec.cwd;
  info.pty = spec.pty;
  info.counted = spec.counted;
  info.takes_input = spec.pty || spec.stdin_mode == guest::Stdin::pipe;
  info.started = now_millis();
  info.oom_kills = accounts_.oom_kills(*box);
  if (spec.has_secrets()) {
    auto exposed = co_await expose(box, spec);
    if (!exposed) {
      if (spec.counted) accounts_.give_back_command(*box, info.task);
      co_return std::unexpected(exposed.error());
    }
  }
  const std::string tag = make_tag(parts_.secret, box->id(), info);
  auto op = spec.files.empty() ? guest::Op::run : guest::Op::run_with_files;
  if (spec.held && spec.files.empty()) op = spec.whole ? guest::Op::run_whole : guest::Op::run_held;
  std::string start = encoded_start(spec, tag, kShell);
  auto channel = link->open(op, start);
  ledger::Event begun = start_event(box, info, false);  // while the guest is at it
  auto bytes = co_await channel->reply();
  // A guest of an earlier version.
  while (!bytes && (op == guest::Op::run_whole || op == guest::Op::run_held) &&
         bytes.error().code == Code::unsupported) {
    op = op == guest::Op::run_whole ? guest::Op::run_held : guest::Op::run;
    channel = link->open(op, start);
    bytes = co_await channel->reply();
  }
  if (!bytes && !spec.shell.empty() && is_missing(bytes.error(), kShell)) {
    vault::wipe(start);
    start = encoded_start(spec, tag, kSmallShell);
    channel = link->open(op, start);
    bytes = co_await channel->reply();
  }
  if (spec.has_secrets()) {
    vault::wipe(start);
    for (auto& [name, value] : spec.env) vault::wipe(value);
    for (auto& file : spec.files) vault::wipe(file);
  }
  auto started = bytes ? guest::decode<guest::Started>(*bytes) : Result<guest::Started>(std::unexpected(bytes.error()));
  if (!started) {
    if (spec.counted) accounts_.give_back_command(*box, info.task);
    co_return std::unexpected(std::move(started).error());
  }
  info.pid = started->pid;
  whose(box, info, *channel);
  ++counters.commands;
  // Unless somebody who looked at what runs there was faster, and has written it down.
  if (box->remember(info)) {
    accounts_.command_begins(*box, info.task);
    auto tell = [&] { record(std::move(begun)); };
    if (info.counted)
      accounts_.tell_start(*box, info.task, tell);
    else
      tell();
  } else if (info.counted) {
    accounts_.give_back_command(*box, info.task);  // it was counted there
  }
  if (visits) arm(box);  // its budget may want more looks
  co_return Running{box, std::move(info), std::move(channel), std::move(use)};
}

Task<Result<Running>> Service::attach(BoxPtr box, std::string command, uint64_t from, bool held) {
  Box::Use use = box->use();
  ISOLA_CO_TRY(CommandInfo info, co_await find_command(box, std::move(command)));
  ISOLA_CO_TRY(auto link, co_await this->link(box));
  guest::Attach args{info.pid, from};
  std::string asked = guest::encode(args);
  auto channel = link->open(held ? guest::Op::attach_held : guest::Op::attach, asked);
  whose(box, info, *channel);
  auto bytes = co_await channel->reply();
  if (!bytes && held && bytes.error().code == Code::unsupported) {  // a guest of an earlier version
    channel = link->open(guest::Op::attach, asked);
    whose(box, info, *channel);
    bytes = co_await channel->reply();
  }
  if (!bytes) co_return std::unexpected(std::move(bytes).error());
  co_return Running{box, std::move(info), std::move(channel), std::move(use)};
}

// Of one that nobody knows every kill counts: an earlier server may have started it.
bool Service::was_limit(const BoxPtr& box, const std::string& command, uint64_t oom_kills) {
  auto known = box->find_command(command);
  accounts_.set_oom_kills(*box, oom_kills);
  return oom_kills > (known ? known->oom_kills : 0);
}

Task<guest::Exit> Service::judged(BoxPtr box, std::string command, guest::Exit exit) {
  // A shell says so of what it ran: no end by the limit itself, but one that the next command must not be blamed for.
  constexpr int kKilledBelow = 128 + 9;
  if (!exit.oom_hint && exit.code != kKilledBelow) co_return exit;
  auto stats = co_await parts_.launcher->stats(box->id());
  if (stats && !was_limit(box, command, stats->oom_kills)) exit.oom_hint = false;
  co_return exit;
}

void Service::command_ended(const BoxPtr& box, const std::string& command, const guest::Exit& exit) {
  auto info = box->find_command(command);
  if (!info || !box->command_ended(command, exit)) return;
  if (info->task == box->task())
    accounts_.command_ends(*box, info->task);
  else
    net::co_spawn(box->home(), forget_task_of(box, info->task), net::detached);
  // Whoever waits for the end has it first. A server that is killed before this is told leaves it to the next one, as
  // it does with what the ledger has not written yet.
  box->tell_later([weak = weak_from_this(), box = box.get(), info = *info, exit, now = now_millis()] {
    auto self = weak.lock();
    if (!self) return;
    json data = end_of(exit);
    if (!info.stopped.empty()) data["reason"] = "limit", data["detail"] = info.stopped;
    data["command_id"] = info.id;
    data["duration_ms"] = now - info.started;
    auto event = plain_event(ledger::Kind::command_ended, *box, dumped(data), Caller(info.key, info.actor), info.task);
    event.time = now;
    self->record(std::move(event));
  });
  tell_soon(box);
}

// Where its output is withheld its end is heard of all the same.
void Service::whose(const BoxPtr& box, const CommandInfo& info, Channel& channel) {
  auto watched = [service = weak_from_this(), weak = std::weak_ptr(box), id = info.id, pid = info.pid] {
    auto self = service.lock();
    auto there = weak.lock();
    if (self && there) self->watch(there, id, pid);
  };
  channel.belongs_to(info.id, info.task, std::move(watched));
}

void Service::detach(Running running) { watch(running.box, running.info.id, running.info.pid); }

void Service::watch(const BoxPtr& box, const std::string& command, uint32_t pid) {
  auto known = box->find_command(command);
  if (known && known->ended != 0) return;
  auto watching = box->watch(command);
  if (watching == Box::Watching::yes) net::co_spawn(box->home(), watch_command(box, command, pid), net::detached);
  if (watching == Box::Watching::full && !box->makes_rounds.exchange(true))
    net::co_spawn(box->home(), make_rounds(box), net::detached);
}

// More commands than watchers: how the rest is doing is asked for now and then, for all of them at once.
Task<void> Service::make_rounds(BoxPtr box) {
  auto self = shared_from_this();
  Bell never;
  (void)co_await never.wait_for(never.ticket(), std::chrono::seconds(1));
  auto looked = co_await look_at_commands(box, false);
  box->makes_rounds = false;
  if (!looked || box->state() != State::running) co_return;  // the next link, or a thaw, asks again
  // As long as one finds no watcher, this begins another round.
  for (const auto& command : box->commands())
    if (command.ended == 0) watch(box, command.id, command.pid);
}

Task<void> Service::watch_command(BoxPtr box, std::string command, uint32_t pid) {
  auto self = shared_from_this();
  auto link = co_await link_if_awake(box);
  Result<std::string> bytes = fail(Code::unavailable, "there is no link");
  guest::Pid args{pid};
  std::string asked = guest::encode(args);
  if (link) bytes = co_await (*link)->call(guest::Op::wait, asked);
  box->unwatch(command);
  if (bytes) {
    auto exit = guest::decode<guest::Exit>(*bytes);
    if (!exit) co_return;
    guest::Exit end = co_await judged(box, command, *exit);
    command_ended(box, command, end);
    co_return;
  }
  // The link broke: the next one brings a new watcher.
  if (bytes.error().code != Code::unavailable || box->state() != State::running) co_return;
  Bell never;
  (void)co_await never.wait_for(never.ticket(), std::chrono::seconds(1));
  co_await relink(box);
}

Task<void> Service::relink(BoxPtr box) {
  auto self = shared_from_this();
  auto link = co_await link_if_awake(box);
  // Who brings a link is away: there will be another one.
  if (!link && link.error().code == Code::unavailable) co_return;
  // The server before may have died when it was written down and its variables were still on their way (launch).
  {
    Box::Turn turn = co_await box->turn();
    if (box->state() != State::running) co_return;
    const auto env = box->record().env;
    auto told = co_await configure(box, env, false);
    if (!told) log::warn("sandbox", "{} may lack variables of its own: {}", box->id(), told.error().message);
  }
  // Nor whether its programs trust its gate.
  co_await place_certificate(box, true);
}

// A guest whose list cannot be had says nothing now; the next link asks again.
Task<void> Service::catch_up(BoxPtr box) {
  auto self = shared_from_this();
  (void)co_await look_at_commands(box, false);
  for (const auto& command : box->commands())
    if (command.ended == 0) watch(box, command.id, command.pid);
}

// From the newest backwards, until each of them is found or nothing is left: one may have run for long.
Result<Service::Recorded> Service::recorded_commands(const BoxPtr& box, std::set<std::string> wanted) {
  ledger::EventFilter filter{.sandbox = box->id(), .kind_prefix = "command.", .limit = 1000, .newest_first = true};
  Recorded recorded;
  while (!wanted.empty()) {
    ISOLA_TRY(auto events, parts_.ledger.query(filter));
    if (events.empty()) break;
    filter.before = events.back().seq;
    for (const auto& event : events) {
      json data = json::parse(event.data, nullptr, false);
      if (!data.is_object() || !data["command_id"].is_string()) continue;
      auto id = data["command_id"].get<std::string>();
      bool start = event.kind == ledger::Kind::command_started;
      if (start) wanted.erase(id);
      (start ? recorded.started : recorded.ended).insert(std::move(id));
    }
  }
  return recorded;
}

ledger::Event Service::start_event(const BoxPtr& box, const CommandInfo& info, bool late) {
  json data;
  data["command_id"] = info.id;
  data["command"] = info.command;
  data["user"] = info.user;
  data["cwd"] = info.cwd;
  if (late) data["started"] = info.started;  // the entry itself is of now
  if (!info.counted) data["counted"] = false;
  return event_of(ledger::Kind::command_started, box, dumped(data), Caller(info.key, info.actor), info.task);
}

// One that an earlier server started, or that the guest says it has.
Result<void> Service::adopt_command(const BoxPtr& box, const guest::ProcessInfo& process, const Recorded& recorded) {
  auto ours = read_tag(parts_.secret, box->id(), process.tag);
  if (ours && box->find_command(ours->id)) ours.reset();  // that one is another process
  CommandInfo info;
  if (ours) info = *ours;
  if (!ours) info.id = stranger_id(process.pid), info.started = now_millis(), info.task = box->record().task;
  info.pid = process.pid;
  info.command = process.command.substr(0, kCommandShown);
  info.user = process.user.substr(0, kMaxWord);
  info.cwd = process.cwd.substr(0, 4096);
  info.pty = process.pty;
  bool untold = ours && !recorded.started.contains(info.id);
  auto tell_start = [&] {
    auto tell = [&] { record_start(box, info, true); };
    if (info.counted)
      accounts_.tell_late_start(*box, info.task, tell);  // it is in no row: rows come behind what is told
    else
      tell();
  };
  if (process.running) {
    if (!box->remember(info)) return {};  // whoever started it was just about to say so
    if (untold) tell_start();
    accounts_.command_begins(*box, info.task);
    arm(box);
    watch(box, info.id, info.pid);
    return {};
  }
  if (!box->remember(info)) return {};
  if (untold) tell_start();
  if (!ours || recorded.ended.contains(info.id)) {
    box->command_ended(info.id, process.exit);
  } else {
    accounts_.command_begins(*box, info.task);
    command_ended(box, info.id, process.exit);
  }
  return {};
}

// What the guest says is its own word: so many of them, and only so much of each.
Task<Result<void>> Service::look_at_commands(BoxPtr box, bool wakes) {
  // Not in one expression: g++ 12 destroys what a co_await in a conditional one made, twice.
  std::shared_ptr<GuestLink> link;
  if (wakes) {
    ISOLA_CO_TRY(link, co_await this->link(box));
  } else if (box->state() == State::ending) {
    ISOLA_CO_TRY(link, co_await box->link(*parts_.launcher, Box::Asks::last_word));
  } else {
    ISOLA_CO_TRY(link, co_await link_if_awake(box));
  }
  const auto before = box->commands();
  ISOLA_CO_TRY(std::string bytes, co_await link->collect(guest::Op::processes, {}, kMostCommands << 15));
  ISOLA_CO_TRY(guest::Processes processes, guest::decode<guest::Processes>(bytes));
  std::set<std::string> unknown;
  std::set<uint32_t> there;
  bool suspected = std::ranges::any_of(processes.list, [](const auto& process) { return process.exit.oom_hint; });
  std::optional<uint64_t> oom_kills;
  if (suspected) {
    auto stats = co_await parts_.launcher->stats(box->id());
    if (stats) oom_kills = stats->oom_kills;
  }
  for (auto& process : processes.list) {
    there.insert(process.pid);
    auto ours = read_tag(parts_.secret, box->id(), process.tag);
    const std::string id = ours ? ours->id : stranger_id(process.pid);
    if (process.exit.oom_hint && oom_kills && !was_limit(box, id, *oom_kills)) process.exit.oom_hint = false;
    if (ours && !box->find_command(ours->id)) unknown.insert(ours->id);
  }
  // The guest remembers only so many that have ended: how the others did, nobody knows any more.
  for (const auto& command : before)
    if (command.ended == 0 && !there.contains(command.pid)) command_ended(box, command.id, guest::Exit{});
  // What was told a moment ago of one that is forgotten by now counts as told.
  if (!unknown.empty()) {
    ISOLA_CO_TRY(uint64_t newest, co_await flush_ledger());
    (void)newest;
  }
  ISOLA_CO_TRY(auto recorded, recorded_commands(box, unknown));
  // Those under our own tags are as many as we started. The rest is what the guest makes up.
  size_t strangers = 0;
  for (const auto& command : box->commands()) strangers += is_stranger(command.id) ? 1 : 0;
  size_t most = std::min<size_t>(kMostCommands, box->record().limits.pids ? box->record().limits.pids : kMostCommands);
  for (const auto& process : processes.list) {
    auto ours = read_tag(parts_.secret, box->id(), process.tag);
    std::string id = ours ? ours->id : stranger_id(process.pid);
    if (auto known = box->find_command(id); known && known->pid == process.pid) {
      if (!process.running) command_ended(box, id, process.exit);
      continue;
    }
    // A tag that another process has already is no better than none.
    bool fresh = ours && !box->find_command(ours->id);
    if (fresh && !unknown.contains(id)) continue;  // it was known when we asked, has ended, and is forgotten
    if (!fresh && strangers++ >= most) continue;
    ISOLA_CO_CHECK(adopt_command(box, process, recorded));
  }
  box->unasked = false;
  co_return Result<void>();
}

Task<Result<std::vector<CommandInfo>>> Service::commands(BoxPtr box) {
  ISOLA_CO_CHECK(co_await look_at_commands(box, true));
  co_return box->commands();
}

Task<Result<CommandInfo>> Service::find_command(BoxPtr box, std::string id) {
  if (auto known = box->find_command(id)) co_return *known;
  ISOLA_CO_TRY(auto all, co_await commands(box));
  if (auto known = box->find_command(id)) co_return *known;
  co_return fail(Code::not_found, "there is no command " + id + " in sandbox " + box->id());
}

Task<std::optional<CommandInfo>> Service::command_now(BoxPtr box, std::string id) {
  auto known = box->find_command(id);
  if (!known || known->ended != 0 || box->state() != State::running) co_return known;
  (void)co_await look_at_commands(box, false);  // a guest that does not answer: what was known of it
  auto now = box->find_command(id);
  co_return now ? now : known;
}

}  // namespace isola::sandbox
