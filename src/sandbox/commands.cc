// Commands: starting, following, finding them again, and writing down how they ended.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

namespace {

constexpr size_t kCommandShown = 2000;  // of a command line, in lists and in the ledger

std::string shown(const CommandSpec& spec) {
  std::string text = spec.shell;
  for (const auto& word : spec.argv) text += (text.empty() ? "" : " ") + word;
  if (text.size() > kCommandShown) text.resize(kCommandShown);
  return text;
}

guest::Start start_of(const CommandSpec& spec, const std::string& id) {
  guest::Start start;
  start.argv = spec.argv;
  if (!spec.shell.empty()) start.argv = {"/bin/bash", "-c", spec.shell};
  for (const auto& [key, value] : spec.env) start.env.push_back(key + "=" + value);
  start.cwd = spec.cwd;
  start.user = spec.user;
  start.tag = id;
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
  info.actor = spec.actor.empty() ? record.actor : spec.actor;
  info.user = spec.user;
  info.cwd = spec.cwd;
  info.pty = spec.pty;
  info.takes_input = spec.pty || spec.stdin_mode == guest::Stdin::pipe;
  info.started = now_millis();
  auto channel = link->open(guest::Op::run, guest::encode(start_of(spec, info.id)));
  auto bytes = co_await channel->reply();
  auto started = bytes ? guest::decode<guest::Started>(*bytes) : Result<guest::Started>(std::unexpected(bytes.error()));
  if (!started) {
    accounts_.give_back_command(*box, info.task);
    co_return std::unexpected(std::move(started).error());
  }
  info.pid = started->pid;
  accounts_.command_begins(*box, info.task);
  box->remember(info);
  if (visits) arm(box);  // its budget may want more looks
  ++counters.commands;
  this->record(ledger::Kind::command_started, box,
               dumped({{"command_id", info.id}, {"command", info.command}, {"user", info.user}, {"cwd", info.cwd}}),
               info.task, info.actor);
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
  record(ledger::Kind::command_ended, box, dumped(data), info->task, info->actor);
}

void Service::detach(Running running) {
  net::co_spawn(running.box->home(), watch_command(running.box, running.info.id, running.info.pid), net::detached);
}

Task<void> Service::watch_command(BoxPtr box, std::string command, uint32_t pid) {
  auto self = shared_from_this();
  auto link = co_await this->link(box);
  if (!link) co_return;
  auto bytes = co_await (*link)->call(guest::Op::wait, guest::encode(guest::Pid{pid}));
  if (!bytes) co_return;
  auto exit = guest::decode<guest::Exit>(*bytes);
  if (exit) command_ended(box, command, *exit);
}

Task<Result<std::vector<CommandInfo>>> Service::commands(BoxPtr box) {
  ISOLA_CO_TRY(auto link, co_await this->link(box));
  ISOLA_CO_TRY(std::string bytes, co_await link->collect(guest::Op::processes, {}));
  ISOLA_CO_TRY(guest::Processes processes, guest::decode<guest::Processes>(bytes));
  // The guest knows of commands that an earlier server started.
  for (const auto& process : processes.list) {
    std::string id = process.tag.empty() ? "c" + std::to_string(process.pid) : process.tag;
    if (auto known = box->find_command(id); known && known->pid == process.pid) {
      if (!process.running) command_ended(box, id, process.exit);
      continue;
    }
    CommandInfo info{.id = id, .pid = process.pid, .command = process.command};
    info.user = process.user;
    info.cwd = process.cwd;
    info.pty = process.pty;
    info.started = now_millis();
    box->remember(info);
    if (process.running)
      net::co_spawn(box->home(), watch_command(box, id, process.pid), net::detached);
    else
      box->command_ended(id, process.exit);
  }
  co_return box->commands();
}

Task<Result<CommandInfo>> Service::find_command(BoxPtr box, std::string id) {
  if (auto known = box->find_command(id)) co_return *known;
  ISOLA_CO_TRY(auto all, co_await commands(box));
  if (auto known = box->find_command(id)) co_return *known;
  co_return fail(Code::not_found, "there is no command " + id + " in sandbox " + box->id());
}

}  // namespace isola::sandbox
