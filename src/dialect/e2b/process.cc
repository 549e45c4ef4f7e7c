// process.Process: starting, following, feeding and ending commands.
#include <fmt/format.h>

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <csignal>

#include "dialect/e2b/envd.h"
#include "dialect/e2b/launches.h"
#include "dialect/e2b/names.h"
#include "dialect/shared/base64.h"
#include "dialect/shared/input.h"
#include "dialect/shared/text.h"
#include "dialect/shared/unread.h"

namespace isola::e2b {

using nlohmann::json;
using sandbox::BoxPtr;
using sandbox::Running;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

// What the kernel's numbers are called where clients compare texts.
std::string signal_words(int number) {
  struct Word {
    int number;
    const char* words;
  };
  static constexpr Word kWords[] = {{SIGHUP, "hangup"},
                                    {SIGINT, "interrupt"},
                                    {SIGQUIT, "quit"},
                                    {SIGILL, "illegal instruction"},
                                    {SIGTRAP, "trace/breakpoint trap"},
                                    {SIGABRT, "aborted"},
                                    {SIGBUS, "bus error"},
                                    {SIGFPE, "floating point exception"},
                                    {SIGKILL, "killed"},
                                    {SIGUSR1, "user defined signal 1"},
                                    {SIGSEGV, "segmentation fault"},
                                    {SIGUSR2, "user defined signal 2"},
                                    {SIGPIPE, "broken pipe"},
                                    {SIGALRM, "alarm clock"},
                                    {SIGTERM, "terminated"}};
  for (const auto& word : kWords)
    if (word.number == number) return word.words;
  return "signal " + std::to_string(number);
}

std::string end_event(const guest::Exit& exit) {
  json end = json::object();
  if (exit.signal) {
    std::string words = "signal: " + signal_words(exit.signal);
    if (exit.core) words += " (core dumped)";
    end = {{"exitCode", -1}, {"status", words}, {"error", words}};
  } else {
    std::string words = "exit status " + std::to_string(exit.code);
    end = {{"exited", true}, {"status", words}};
    if (exit.code != 0) end["exitCode"] = exit.code, end["error"] = words;
  }
  return dialect::dump({{"event", {{"end", end}}}});
}

std::string data_event(guest::Stream stream, std::string_view bytes) {
  const char* name = stream == guest::Stream::pty ? "pty" : stream == guest::Stream::err ? "stderr" : "stdout";
  std::string out = R"({"event":{"data":{")";
  out += name;
  out += "\":\"";
  out += dialect::base64(bytes);
  return out + "\"}}}";
}

// A short command says all that it has to say at once: its start, its output and its end go out together. Of one that
// is silent for so long the start is told by itself.
constexpr auto kTogether = milliseconds(3);
constexpr size_t kMostTogether = 32 << 10;

struct Following {
  std::optional<Clock::time_point> deadline;
  bool kill_at_deadline = false;
};

Task<void> kill_all_of(sandbox::Service& service, BoxPtr box, uint32_t pid) {
  auto link = co_await service.link(box);
  if (!link) co_return;
  guest::Signal args{pid, SIGKILL, guest::Target::session};
  std::string bytes = guest::encode(args);
  (void)co_await (*link)->call(guest::Op::signal, bytes);
}

// Everything that a command says from here on, and how it ended. A caller that leaves detaches, no more.
Task<Result<void>> follow(Call& call, RpcStream& out, Running running, Launches& launches, Following how) {
  const auto every = milliseconds(keepalive_of(call.ex));
  const uint32_t pid = running.info.pid;
  std::string event = fmt::format(R"({{"event":{{"start":{{"pid":{}}}}}}})", pid);
  const auto executor = co_await boost::asio::this_coro::executor;
  dialect::Unread unread(executor, call.service, running);
  out.hold(event);
  bool here = true;
  auto spoken = Clock::now();
  std::optional<Clock::time_point> held = spoken + kTogether;
  while (here) {
    auto now = Clock::now();
    if (how.deadline && now >= *how.deadline) {
      // The word about the deadline must be there before the end that it causes.
      RpcError late{"deadline_exceeded", "context deadline exceeded"};
      co_await out.end(late);
      if (how.kill_at_deadline) co_await kill_all_of(call.service, running.box, pid);
      call.service.detach(std::move(running));
      co_return Result<void>();
    }
    auto wait = std::max(milliseconds(1), std::chrono::ceil<milliseconds>(spoken + every - now));
    if (how.deadline)
      wait = std::min(wait, std::max(milliseconds(1), std::chrono::ceil<milliseconds>(*how.deadline - now)));
    if (held) wait = std::min(wait, std::max(milliseconds(1), std::chrono::ceil<milliseconds>(*held - now)));
    auto frame = co_await running.channel->read_frame_for(wait);
    if (!frame) break;
    if (frame->empty()) {
      if (!held && Clock::now() - spoken < every) continue;
      if (!held) out.hold(R"({"event":{"keepalive":{}}})");
    } else {
      Reader in(*frame);
      auto stream = static_cast<guest::Stream>(in.u8());
      in.u64();
      auto bytes = in.rest();
      if (!in.ok()) co_return fail(Code::internal, "the sandbox sent malformed output");
      if (stream == guest::Stream::gap) {
        call.service.detach(std::move(running));
        RpcError lost{"data_loss", "output was lost: it came faster than it was read"};
        co_await out.end(lost);
        co_return Result<void>();
      }
      out.hold(data_event(stream, bytes));
      if (held && Clock::now() < *held && out.held() < kMostTogether) continue;
    }
    held.reset();
    unread.begins();
    here = (co_await out.flush()).has_value();
    unread.ends();
    spoken = Clock::now();
  }
  if (!here) {
    call.service.detach(std::move(running));
    co_return Result<void>();
  }
  ISOLA_CO_TRY(std::string end, co_await running.channel->end());
  ISOLA_CO_TRY(guest::Exit exit, guest::decode<guest::Exit>(end));
  exit = co_await call.service.judged(running.box, running.info.id, exit);
  call.service.command_ended(running.box, running.info.id, exit);
  launches.drop(running.box, pid);
  if (exit.timed_out) {
    RpcError late{"deadline_exceeded", "context deadline exceeded"};
    co_await out.end(late);
    co_return Result<void>();
  }
  out.hold(end_event(exit));
  co_await out.end();
  co_return Result<void>();
}

uint16_t dimension(const json& size, const char* name, uint16_t otherwise) {
  auto at = size.find(name);
  if (at == size.end() || !at->is_number_unsigned()) return otherwise;
  auto value = at->get<uint64_t>();
  return value > 0 && value < 65536 ? static_cast<uint16_t>(value) : otherwise;
}

Task<Result<sandbox::CommandSpec>> read_spec(Call& call) {
  const json process = call.body.value("process", json::object());
  if (!process.is_object()) co_return fail(Code::invalid, "process: must be an object");
  sandbox::CommandSpec spec;
  spec.argv.push_back(text_of(process, "cmd"));
  if (spec.argv[0].empty()) co_return fail(Code::invalid, "process.cmd: is missing");
  const json args = process.value("args", json::array());
  for (const auto& arg : args) {
    if (!arg.is_string()) co_return fail(Code::invalid, "process.args: must be a list of strings");
    spec.argv.push_back(arg.get<std::string>());
  }
  const json envs = process.value("envs", json::object());
  for (const auto& [key, value] : envs.items()) {
    if (!value.is_string() || key.empty() || key.find('=') != std::string::npos)
      co_return fail(Code::invalid, "process.envs: must be an object of strings");
    spec.env[key] = value.get<std::string>();
  }
  auto record = call.box->record();
  spec.env["E2B_SANDBOX"] = "true";
  spec.env["E2B_SANDBOX_ID"] = record.id;
  // Its create has said it to everything inside; whoever made it another way did not. Said here again, since a command
  // that brings one of its own must not be believed.
  auto made_as = record.env.find("E2B_TEMPLATE_ID");
  spec.env["E2B_TEMPLATE_ID"] =
      made_as != record.env.end() ? made_as->second : template_id(call.service, record.project, record.template_name);
  if (std::string cwd = text_of(process, "cwd"); !cwd.empty()) {
    ISOLA_CO_TRY(spec.cwd, co_await call.absolute(cwd));
  }
  spec.held = true;  // as E2B's daemon does it: what a client has not read yet keeps the process waiting
  spec.whole = true;
  spec.user = call.user;
  spec.by = sandbox::kOwnToken;
  spec.actor = record.actor;
  auto input = call.body.find("stdin");
  bool none = input != call.body.end() && input->is_boolean() && !input->get<bool>();
  spec.stdin_mode = none ? guest::Stdin::null : guest::Stdin::pipe;
  if (auto pty = call.body.find("pty"); pty != call.body.end() && pty->is_object()) {
    spec.pty = true;
    spec.stdin_mode = guest::Stdin::pipe;
    const json size = pty->value("size", json::object());
    spec.cols = dimension(size, "cols", 80);
    spec.rows = dimension(size, "rows", 24);
  }
  co_return spec;
}

// What lists show of it, for as long as it runs: of one with very long arguments only what it is.
json config_of(const Call& call, const sandbox::CommandSpec& spec) {
  constexpr size_t kMost = 16 << 10;
  const json& process = call.body["process"];
  json config = {{"cmd", spec.argv[0].substr(0, kMost)}};
  size_t size = 0;
  for (const auto& word : spec.argv) size += word.size() + 32;
  for (const auto& [name, value] : spec.env) size += name.size() + value.size() + 64;
  size += spec.cwd.size();
  if (size > kMost) return config;
  for (const char* name : {"args", "envs"})  // read_spec has looked at them
    if (auto at = process.find(name); at != process.end()) config[name] = *at;
  if (std::string cwd = text_of(process, "cwd"); !cwd.empty()) config["cwd"] = cwd;
  return config;
}

Task<Result<void>> start(Call& call, RpcStream& out, Launches& launches) {
  ISOLA_CO_TRY(sandbox::CommandSpec spec, co_await read_spec(call));
  ISOLA_CO_TRY(auto timeout, timeout_of(call.ex));
  Following how;
  if (timeout) {
    how.deadline = Clock::now() + milliseconds(*timeout);
    how.kill_at_deadline = true;
    // The guest sees to it where the caller has hung up by then.
    spec.timeout = milliseconds(*timeout + 1000);
  }
  Launch launch;
  launch.config = config_of(call, spec);
  if (auto tag = call.body.find("tag"); tag != call.body.end() && tag->is_string())
    launch.tag = tag->get<std::string>();
  if (launch.tag && launch.tag->size() > 1024) co_return fail(Code::invalid, "tag: is too long");
  call.body = json::object();  // the command may run for days
  launch.pty = spec.pty;
  launch.input = spec.stdin_mode == guest::Stdin::pipe;
  std::string cwd = spec.cwd, command = spec.argv[0];
  auto running = co_await call.service.run(call.box, std::move(spec));
  if (!running) {
    const Error& error = running.error();
    if (error.code == Code::invalid && error.sys_errno == ENOENT && !cwd.empty())
      co_return fail(Code::invalid, "cwd '" + cwd + "' does not exist");
    if (error.code == Code::not_found || error.code == Code::denied)
      co_return fail(Code::invalid, "error starting process '" + command + "': " + error.message);
    co_return std::unexpected(error);
  }
  launch.command = running->info.id;
  launches.put(call.box, running->info.pid, std::move(launch));
  Running started = std::move(*running);
  co_return co_await follow(call, out, std::move(started), launches, how);
}

// The command that a selector means, while it runs.
Task<Result<sandbox::CommandInfo>> selected(Call& call, Launches& launches, const json& body) {
  const json selector = body.value("process", json::object());
  std::optional<uint32_t> pid;
  std::string name = "no process";
  if (selector.is_object()) {
    if (auto tag = text_of(selector, "tag"); !tag.empty()) {
      pid = launches.tagged(call.box, tag);
      name = "process with tag '" + tag + "'";
    } else if (auto at = selector.find("pid"); at != selector.end() && at->is_number_unsigned()) {
      const auto number = at->get<uint64_t>();
      if (number > UINT32_MAX) co_return fail(Code::invalid, "process.pid: is out of range");
      pid = static_cast<uint32_t>(number);
      name = fmt::format("process with pid {}", *pid);
    }
  }
  if (!pid) co_return fail(Code::not_found, name + " not found");
  auto info = co_await call.service.find_command(call.box, std::to_string(*pid));
  if (!info && info.error().code == Code::not_found) co_return fail(Code::not_found, name + " not found");
  co_return info;
}

Task<Result<sandbox::CommandInfo>> living(Call& call, Launches& launches, const json& body) {
  ISOLA_CO_TRY(auto info, co_await selected(call, launches, body));
  if (info.ended) co_return fail(Code::not_found, fmt::format("process with pid {} not found", info.pid));
  co_return info;
}

Task<Result<void>> attach(Call& call, RpcStream& out, Launches& launches) {
  ISOLA_CO_TRY(auto info, co_await selected(call, launches, call.body));
  call.body = json::object();
  ISOLA_CO_TRY(auto timeout, timeout_of(call.ex));
  Following how;
  if (timeout) how.deadline = Clock::now() + milliseconds(*timeout);
  ISOLA_CO_TRY(Running running, co_await call.service.attach(call.box, info.id, guest::kFromNow, true));
  co_return co_await follow(call, out, std::move(running), launches, how);
}

// Of a command that an earlier server started there is one text. What clients start has one shape, which can be taken
// apart again.
json config_again(std::string_view command) {
  constexpr std::string_view kClients = "/bin/bash -l -c ";
  if (!command.starts_with(kClients)) return {{"cmd", command}};
  return {{"cmd", "/bin/bash"}, {"args", {"-l", "-c", command.substr(kClients.size())}}};
}

Task<Result<json>> list_processes(Call& call, Launches& launches) {
  ISOLA_CO_TRY(auto all, co_await call.service.commands(call.box));
  json out = json::array();
  for (const auto& command : all) {
    if (command.ended) continue;
    json item = {{"pid", command.pid}};
    if (auto launch = launches.find(call.box, command.pid)) {
      item["config"] = launch->config;
      if (launch->tag) item["tag"] = *launch->tag;
    } else {
      item["config"] = config_again(command.command);
      if (!command.cwd.empty()) item["config"]["cwd"] = command.cwd;
    }
    out.push_back(std::move(item));
  }
  if (out.empty()) co_return json::object();
  co_return json{{"processes", out}};
}

struct Input {
  bool to_pty = false;
  std::string bytes;
};

// Nothing of the message stays: what a process reads slowly is held as it is, once.
Result<Input> read_input(json body) {
  json* input = body.contains("input") ? &body["input"] : nullptr;
  Input out;
  out.to_pty = input && input->is_object() && input->contains("pty");
  if (!out.to_pty && !(input && input->is_object() && input->contains("stdin")))
    return fail(Code::unsupported, "input: must hold stdin or pty");
  const json& text = (*input)[out.to_pty ? "pty" : "stdin"];
  auto bytes = dialect::from_base64(text.is_string() ? text.get_ref<const std::string&>() : std::string());
  if (!bytes) return fail(Code::invalid, "input: is not base64");
  out.bytes = std::move(*bytes);
  return out;
}

Task<Result<void>> feed(Call& call, Launches& launches, const sandbox::CommandInfo& info, json body) {
  using namespace boost::asio::experimental::awaitable_operators;
  ISOLA_CO_TRY(Input input, read_input(std::move(body)));
  const bool to_pty = input.to_pty;
  if (to_pty && !info.pty)
    co_return fail(Code::internal, "error writing to tty: the process has none; write to its stdin");
  if (!to_pty && info.pty)
    co_return fail(Code::internal, "error writing to stdin: the process has a tty; write to that");
  if (auto launch = launches.find(call.box, info.pid); launch && !launch->input)
    co_return fail(Code::internal, "error writing to stdin: stdin not enabled or closed");
  ISOLA_CO_TRY(auto share, dialect::room_for_input(call.box->project(), input.bytes.size()));
  ISOLA_CO_TRY(Running running, co_await call.service.attach(call.box, info.id, guest::kFromNow));
  // A process may take for ever; whoever does not wait for it must not go on holding what it sent.
  auto first = co_await (dialect::feed(running.channel, input.bytes) || call.ex.left());
  if (first.index() == 0) co_return std::get<0>(first);
  call.ex.abort();
  co_return fail(Code::unavailable, "the client has left");
}

Task<Result<json>> send_input(Call& call, Launches& launches) {
  ISOLA_CO_TRY(auto info, co_await living(call, launches, call.body));
  json body = std::exchange(call.body, json::object());
  ISOLA_CO_CHECK(co_await feed(call, launches, info, std::move(body)));
  co_return json::object();
}

Task<Result<json>> close_input(Call& call, Launches& launches) {
  ISOLA_CO_TRY(auto info, co_await living(call, launches, call.body));
  if (info.pty) co_return fail(Code::internal, "error closing stdin: a terminal has none; send Ctrl+D (0x04) to it");
  launches.close_input(call.box, info.pid);
  ISOLA_CO_TRY(Running running, co_await call.service.attach(call.box, info.id, guest::kFromNow));
  running.channel->close_write();
  // When the guest has answered another question, it has seen this one.
  std::string nothing;
  ISOLA_CO_TRY(std::string pong, co_await call.link->call(guest::Op::ping, nothing));
  co_return json::object();
}

Task<Result<json>> send_signal(Call& call, Launches& launches) {
  ISOLA_CO_TRY(auto info, co_await living(call, launches, call.body));
  auto at = call.body.find("signal");
  int number = 0;
  if (at != call.body.end() && (*at == "SIGNAL_SIGKILL" || *at == SIGKILL)) number = SIGKILL;
  if (at != call.body.end() && (*at == "SIGNAL_SIGTERM" || *at == SIGTERM)) number = SIGTERM;
  if (!number) co_return fail(Code::unsupported, "invalid signal: only SIGKILL and SIGTERM can be sent");
  guest::Signal args{info.pid, number, guest::Target::process};
  std::string bytes = guest::encode(args);
  ISOLA_CO_TRY(std::string done, co_await call.link->call(guest::Op::signal, bytes));
  co_return json::object();
}

Task<Result<json>> update(Call& call, Launches& launches) {
  ISOLA_CO_TRY(auto info, co_await living(call, launches, call.body));
  const json pty = call.body.value("pty", json::object());
  const json size = pty.is_object() ? pty.value("size", json::object()) : json::object();
  if (!info.pty) co_return fail(Code::internal, "error resizing tty: tty not assigned to process");
  guest::Resize args{info.pid, dimension(size, "rows", 24), dimension(size, "cols", 80)};
  std::string bytes = guest::encode(args);
  ISOLA_CO_TRY(std::string done, co_await call.link->call(guest::Op::resize, bytes));
  co_return json::object();
}

// Input as a stream of messages: {"start":{"process":…}}, then {"data":{"input":…}}. What was started stays in the
// call's body for the messages that come later.
Task<Result<void>> stream_input(Call& call, std::vector<json> messages, Launches& launches) {
  std::optional<sandbox::CommandInfo> info;
  for (auto& message : messages) {
    if (auto begin = message.find("start"); begin != message.end()) {
      if (!begin->is_object()) co_return fail(Code::invalid, "start: must be an object");
      call.body = *begin;
      ISOLA_CO_TRY(info, co_await living(call, launches, call.body));
    } else if (auto data = message.find("data"); data != message.end()) {
      if (!data->is_object()) co_return fail(Code::invalid, "data: must be an object");
      if (!info && call.body.empty()) co_return fail(Code::invalid, "data came before start");
      if (!info) {
        ISOLA_CO_TRY(info, co_await living(call, launches, call.body));
      }
      ISOLA_CO_CHECK(co_await feed(call, launches, *info, std::move(*data)));
    } else if (!message.contains("keepalive")) {
      co_return fail(Code::unsupported, "invalid event type");
    }
  }
  co_return Result<void>();
}

}  // namespace

void Envd::add_process() {
  auto launches = launches_;
  stream("/process.Process/Start", [launches](Call& c, RpcStream& out) { return start(c, out, *launches); });
  stream("/process.Process/Connect", [launches](Call& c, RpcStream& out) { return attach(c, out, *launches); });
  call("/process.Process/List", [launches](Call& c) { return list_processes(c, *launches); });
  call("/process.Process/SendInput", [launches](Call& c) { return send_input(c, *launches); }, Size::input);
  call("/process.Process/CloseStdin", [launches](Call& c) { return close_input(c, *launches); });
  call("/process.Process/SendSignal", [launches](Call& c) { return send_signal(c, *launches); });
  call("/process.Process/Update", [launches](Call& c) { return update(c, *launches); });
  client_stream("/process.Process/StreamInput", [launches](Call& c, std::vector<json> messages) {
    return stream_input(c, std::move(messages), *launches);
  });
}

}  // namespace isola::e2b
