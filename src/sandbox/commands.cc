// Commands: starting, following, finding them again, and writing down how they ended.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "sandbox/command_tag.h"
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

guest::Start start_of(const CommandSpec& spec, const std::string& tag) {
  guest::Start start;
  start.argv = spec.argv;
  if (!spec.shell.empty()) start.argv = {"/bin/bash", "-c", spec.shell};
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

// Ledger text is JSON: what a caller or a guest chose is made valid first.
std::string dumped(const json& data) { return data.dump(-1, ' ', false, json::error_handler_t::replace); }

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
  auto record = box->record();
  info.task = spec.task.empty() ? record.task : spec.task;
  ISOLA_CO_CHECK(may_run(box, info.task));
  bool visits = info.task != record.task;
  if (visits) co_await take_stock(box);
  info.key = spec.by;
  info.actor = !spec.actor.empty() ? spec.actor : !spec.by.empty() ? spec.by : record.actor;
  info.user = spec.user;
  info.cwd = spec.cwd;
  info.pty = spec.pty;
  info.takes_input = spec.pty || spec.stdin_mode == guest::Stdin::pipe;
  info.started = now_millis();
  auto channel = link->open(guest::Op::run, guest::encode(start_of(spec, make_tag(parts_.secret, box->id(), info))));
  auto bytes = co_await channel->reply();
  auto started = bytes ? guest::decode<guest::Started>(*bytes) : Result<guest::Started>(std::unexpected(bytes.error()));
  if (!started) {
    accounts_.give_back_command(*box, info.task);
    co_return std::unexpected(std::move(started).error());
  }
  info.pid = started->pid;
  if (box->remember(info)) accounts_.command_begins(*box, info.task);
  if (visits) arm(box);  // its budget may want more looks
  ++counters.commands;
  this->record(ledger::Kind::command_started, box,
               dumped({{"command_id", info.id}, {"command", info.command}, {"user", info.user}, {"cwd", info.cwd}}),
               Caller(info.key, info.actor), info.task);
  co_return Running{box, std::move(info), std::move(channel), std::move(use)};
}

Task<Result<Running>> Service::attach(BoxPtr box, std::string command, uint64_t from) {
  Box::Use use = box->use();
  ISOLA_CO_TRY(CommandInfo info, co_await find_command(box, std::move(command)));
  ISOLA_CO_TRY(auto link, co_await this->link(box));
  auto channel = link->open(guest::Op::attach, guest::encode(guest::Attach{info.pid, from}));
  ISOLA_CO_TRY(std::string bytes, co_await channel->reply());
  co_return Running{box, std::move(info), std::move(channel), std::move(use)};
}

void Service::command_ended(const BoxPtr& box, const std::string& command, const guest::Exit& exit) {
  auto info = box->find_command(command);
  if (!info || !box->command_ended(command, exit)) return;
  if (info->task == box->record().task)
    accounts_.command_ends(*box, info->task);
  else
    net::co_spawn(box->home(), forget_task_of(box, info->task), net::detached);
  json data = end_of(exit);
  if (!info->stopped.empty()) data["reason"] = "limit", data["detail"] = info->stopped;
  data["command_id"] = command;
  data["duration_ms"] = now_millis() - info->started;
  record(ledger::Kind::command_ended, box, dumped(data), Caller(info->key, info->actor), info->task);
}

void Service::detach(Running running) { watch(running.box, running.info.id, running.info.pid); }

void Service::watch(const BoxPtr& box, const std::string& command, uint32_t pid) {
  auto known = box->find_command(command);
  if (known && known->ended != 0) return;
  // Each holds a channel until the command's end, and there are only so many.
  if (box->watch(command)) net::co_spawn(box->home(), watch_command(box, command, pid), net::detached);
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
    if (exit) command_ended(box, command, *exit);
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
  (void)co_await link_if_awake(box);
}

// A guest whose list cannot be had says nothing now; the next link asks again.
Task<void> Service::catch_up(BoxPtr box) {
  auto self = shared_from_this();
  (void)co_await look_at_commands(box, false);
  for (const auto& command : box->commands())
    if (command.ended == 0) watch(box, command.id, command.pid);
}

Result<std::set<std::string>> Service::recorded_ends(const BoxPtr& box) {
  ledger::EventFilter filter{.sandbox = box->id(),
                             .kind_prefix = std::string(to_string(ledger::Kind::command_ended)),
                             .limit = 10'000,
                             .newest_first = true};
  ISOLA_TRY(auto events, parts_.ledger.query(filter));
  std::set<std::string> ids;
  for (const auto& event : events) {
    json data = json::parse(event.data, nullptr, false);
    if (data.is_object()) ids.insert(data.value("command_id", std::string()));
  }
  return ids;
}

// One that an earlier server started, or that the guest says it has.
Result<void> Service::adopt_command(const BoxPtr& box, const guest::ProcessInfo& process,
                                    std::optional<std::set<std::string>>& recorded) {
  auto ours = read_tag(parts_.secret, box->id(), process.tag);
  if (ours && box->find_command(ours->id)) ours.reset();  // that one is another process
  CommandInfo info;
  if (ours) info = *ours;
  if (!ours) info.id = stranger_id(process.pid), info.started = now_millis();
  info.pid = process.pid;
  info.command = process.command.substr(0, kCommandShown);
  info.user = process.user.substr(0, kMaxWord);
  info.cwd = process.cwd.substr(0, 4096);
  info.pty = process.pty;
  if (process.running) {
    if (!box->remember(info)) return {};  // whoever started it was just about to say so
    accounts_.command_begins(*box, info.task);
    arm(box);
    watch(box, info.id, info.pid);
    return {};
  }
  if (ours && !recorded) {
    ISOLA_TRY(recorded, recorded_ends(box));
  }
  if (!box->remember(info)) return {};
  if (!ours || recorded->contains(info.id)) {
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
  } else {
    ISOLA_CO_TRY(link, co_await link_if_awake(box));
  }
  ISOLA_CO_TRY(std::string bytes, co_await link->collect(guest::Op::processes, {}, kMostCommands << 13));
  ISOLA_CO_TRY(guest::Processes processes, guest::decode<guest::Processes>(bytes));
  std::optional<std::set<std::string>> recorded;
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
    if (!ours && strangers++ >= most) continue;
    ISOLA_CO_CHECK(adopt_command(box, process, recorded));
  }
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

}  // namespace isola::sandbox
