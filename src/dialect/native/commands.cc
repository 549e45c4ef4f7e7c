// /v1/sandboxes/{id}/commands, and /v1/run: a command in a sandbox that nobody has to hold.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "dialect/native/api.h"
#include "dialect/native/create_fields.h"
#include "dialect/native/output.h"
#include "dialect/native/query.h"
#include "dialect/native/views.h"
#include "dialect/shared/input.h"
#include "http/error_reply.h"

namespace isola::native {

using namespace boost::asio::experimental::awaitable_operators;
using nlohmann::json;
using sandbox::BoxPtr;
using sandbox::Running;

namespace {

struct Asked {
  sandbox::CommandSpec spec;
  OutputOptions output;
  std::optional<std::string> input;
  bool background = false, stream = false;
};

Asked read_asked(Fields& fields, const char* env, const char* timeout) {
  Asked asked;
  asked.spec = read_command(fields, env, timeout);
  asked.output.clean = fields.flag("clean") ? Clean::yes : Clean::no;
  auto encoding = fields.text("encoding", "text");
  if (encoding == "base64")
    asked.output.encoding = Encoding::base64;
  else if (encoding != "text")
    fields.wrong("encoding", "must be text or base64");
  if (auto most = fields.size("max_output")) asked.output.most = std::min<uint64_t>(*most, kMostCollected);
  asked.input = fields.maybe_text("stdin");
  asked.background = fields.flag("background");
  asked.stream = fields.flag("stream");
  if (asked.background && asked.stream) fields.wrong("stream", "a background command has nobody to stream to");
  asked.output.held = asked.spec.held = fields.flag("wait_for_reader");
  if (asked.spec.held && asked.background) fields.wrong("wait_for_reader", "a background command has no reader");
  // The guest has no request with both.
  if (asked.spec.held && !asked.spec.secret_files.empty())
    fields.wrong("wait_for_reader", "not together with secret_files");
  bool open = fields.flag("open_stdin");  // for later writes to …/stdin
  if (asked.input || open) asked.spec.stdin_mode = guest::Stdin::pipe;
  if (open && asked.input) fields.wrong("open_stdin", "stdin is given already");
  return asked;
}

// Before anything is started: what there is no room for is refused.
Result<Shares::Share> room_for(const std::string& project, const Asked& asked) {
  return dialect::room_for_input(project, asked.input ? asked.input->size() : 0);
}

// Feeds standard input while the output is being read by somebody else.
void feed(Running& running, std::string input, Shares::Share share) {
  boost::asio::co_spawn(
      running.box->home(),
      [channel = running.channel, input = std::move(input), share = std::move(share)]() -> ::isola::Task<void> {
        (void)co_await dialect::feed(channel, input);
        channel->close_write();
      },
      boost::asio::detached);
}

// The body and what was read of it go when this returns: a command may run for days.
Task<Result<Asked>> read_run(http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await ex.read_all(16 << 20));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  Asked asked = read_asked(fields, "env", "timeout");
  asked.spec.task = fields.text("task");
  asked.spec.actor = fields.text("actor");
  asked.spec.by = std::string(ex.noted("key"));
  ISOLA_CO_CHECK(fields.done());
  co_return asked;
}

Task<Result<void>> run(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(Asked asked, co_await read_run(ex));
  ISOLA_CO_TRY(Shares::Share share, room_for(box->project(), asked));
  auto started = co_await service.run(box, std::move(asked.spec));
  if (!started) {
    explain_start(ex, started.error());
    co_return std::unexpected(std::move(started).error());
  }
  Running running = std::move(*started);
  if (asked.input) {
    feed(running, std::move(*asked.input), std::move(share));
    box->input_closed(running.info.id);
  }
  if (asked.background) {
    ex.reply(202, dump(view(running.info)));
    service.detach(std::move(running));
    co_return Result<void>();
  }
  if (asked.stream) co_return co_await stream(service, ex, std::move(running), asked.output);
  Shares::Share room = room_for_answer(box->project());
  auto first = co_await (collect(service, running, asked.output, room) || ex.left());
  if (first.index() == 1) {
    service.detach(std::move(running));  // nobody waits for the answer; the command goes on
    ex.abort();
    co_return Result<void>();
  }
  auto& result = std::get<0>(first);
  if (!result) co_return std::unexpected(std::move(result).error());
  ex.reply(200, dump(*result));
  co_return Result<void>();
}

struct AskedOnce {
  Asked asked;
  sandbox::CreateRequest request;
  store::Labels files;
};

// As read_run: nothing of the body stays.
Task<Result<AskedOnce>> read_run_once(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await ex.read_all(16 << 20));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  Asked asked = read_asked(fields, "command_env", "command_timeout");
  auto settings = service.settings();
  if (auto snapshot = service.find_snapshot(project_of(ex), fields.text("snapshot")))
    settings.default_limits = snapshot->limits;
  ISOLA_CO_TRY(auto request, read_create(fields, settings));
  auto files = fields.contents("files");
  if (asked.background) fields.wrong("background", "a one-shot run ends with its command");
  if (request.budget.at_limit != store::AtLimit::end)
    fields.wrong("budget.at_limit", "a one-shot run is thrown away, and cannot go on later");
  if (request.at_end != store::AtEnd::kill)
    fields.wrong("at_end", "a one-shot run is thrown away: there is nothing to come back to");
  if (!request.key.empty()) fields.wrong("key", "a one-shot run is thrown away; create a sandbox by key instead");
  ISOLA_CO_CHECK(fields.done());
  request.project = project_of(ex);
  request.by = std::string(ex.noted("key"));
  if (request.actor.empty()) request.actor = request.by;
  asked.spec.by = request.by;
  asked.spec.actor = request.actor;
  request.one_shot = true;
  AskedOnce once{std::move(asked), std::move(request), std::move(files)};
  co_return once;
}

// Makes a sandbox, runs, throws it away.
Task<Result<void>> run_once(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(AskedOnce once, co_await read_run_once(service, ex));
  auto& [asked, request, files] = once;
  sandbox::Caller by(request.by, request.actor);
  ISOLA_CO_TRY(Shares::Share share, room_for(request.project, asked));
  ISOLA_CO_TRY(sandbox::Created created, co_await create_for(service, ex, std::move(request)));
  BoxPtr box = created.box;
  auto work = [&]() -> ::isola::Task<Result<void>> {
    for (const auto& [path, content] : files)
      ISOLA_CO_CHECK(co_await service.write_file(box, path, content, asked.spec.user));
    files.clear();  // the command may run for long
    auto started = co_await service.run(box, std::move(asked.spec));
    if (!started) {
      explain_start(ex, started.error());
      co_return std::unexpected(std::move(started).error());
    }
    Running running = std::move(*started);
    if (asked.input) feed(running, std::move(*asked.input), std::move(share));
    if (asked.stream) co_return co_await stream(service, ex, std::move(running), asked.output);
    Shares::Share room = room_for_answer(box->project());
    auto first = co_await (collect(service, running, asked.output, room) || ex.left());
    if (first.index() == 1) co_return fail(Code::unavailable, "the caller has left");
    auto& result = std::get<0>(first);
    if (!result) co_return std::unexpected(std::move(result).error());
    (*result)["sandbox"] = box->id();
    ex.reply(200, dump(*result));
    co_return Result<void>();
  };
  auto worked = co_await work();
  auto record = box->record();
  bool over = record.state == State::ended || record.state == State::ending;
  if (!worked && over && !ex.replied() && record.end_reason == EndReason::deadline)
    ex.fail(http::ErrorReply{504, "deadline", "the run took longer than its timeout and was ended", {}});
  else if (!worked && over && !ex.replied() && record.end_reason == EndReason::oom)
    ex.fail(http::ErrorReply{503, "oom", "the sandbox reached its memory limit and was ended", {}});
  else if (!worked && over && !ex.replied() && record.end_reason == EndReason::limit)
    ex.fail(http::ErrorReply{429, "exhausted", record.end_detail, 1});
  // The caller has the answer before the sandbox is gone; a caller that left must not keep it. What it is told of is
  // written down by then: nobody could ask the sandbox later.
  if (worked && ex.replied()) {
    if (auto written = co_await service.flush_ledger(); !written) log::warn("api", "{}", written.error().message);
    (void)co_await ex.send();
  }
  (void)co_await service.kill(box, EndReason::exited, "the run was over", by);
  co_return worked;
}

int signal_number(Fields& fields) {
  if (fields.has("signal")) {
    static constexpr struct {
      const char* name;
      int number;
    } kSignals[] = {{"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT}, {"KILL", SIGKILL}, {"USR1", SIGUSR1},
                    {"USR2", SIGUSR2}, {"TERM", SIGTERM}, {"STOP", SIGSTOP}, {"CONT", SIGCONT}, {"WINCH", SIGWINCH}};
    auto word = fields.maybe_text("signal");
    if (word) {
      std::string_view name = *word;
      if (name.starts_with("SIG")) name.remove_prefix(3);
      for (const auto& signal : kSignals)
        if (name == signal.name) return signal.number;
    }
    fields.wrong("signal", "must be a name such as TERM, INT or KILL");
  }
  return SIGTERM;
}

Task<Result<void>> signal(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  int number = signal_number(fields);
  ISOLA_CO_CHECK(fields.done());
  auto use = box->use();
  ISOLA_CO_TRY(auto info, co_await service.find_command(box, std::string(ex.param("command"))));
  if (info.ended) co_return fail(Code::not_found, "the command has ended");
  ISOLA_CO_TRY(auto link, co_await service.link(box));
  guest::Signal args{info.pid, number, guest::Target::session};
  ISOLA_CO_TRY(std::string done, co_await link->call(guest::Op::signal, guest::encode(args)));
  ex.reply(204);
  co_return Result<void>();
}

Task<Result<void>> resize(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  auto rows = fields.count("rows", 4096), cols = fields.count("cols", 4096);
  if (!rows || !cols) fields.wrong("rows", "give rows and cols");
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(auto info, co_await service.find_command(box, std::string(ex.param("command"))));
  ISOLA_CO_TRY(auto link, co_await service.link(box));
  guest::Resize args{info.pid, static_cast<uint16_t>(*rows), static_cast<uint16_t>(*cols)};
  ISOLA_CO_TRY(std::string done, co_await link->call(guest::Op::resize, guest::encode(args)));
  ex.reply(204);
  co_return Result<void>();
}

Task<Result<void>> write_stdin(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(Running running, co_await service.attach(box, std::string(ex.param("command")), guest::kFromNow));
  if (running.info.ended) co_return sandbox::conflict("the command has ended: it takes no more input");
  if (!running.info.takes_input)
    co_return sandbox::conflict(
        "the command takes no input: it was started without open_stdin, or the end of its input was sent");
  ISOLA_CO_CHECK(only_queries(ex, {"eof"}));
  ISOLA_CO_TRY(bool eof, query_flag(ex, "eof"));
  ex.body_limit(http::Exchange::kNoLimit);
  for (;;) {
    ISOLA_CO_TRY(std::string_view read, co_await ex.read_some());
    if (read.empty()) break;
    // A command may read none of it for as long as it runs. Whoever has hung up does not keep the sandbox in use.
    std::string piece(read);  // left() lets go of it
    auto first = co_await (running.channel->write(piece) || ex.left());
    if (first.index() == 1) co_return fail(Code::unavailable, "the caller has left");
    auto& written = std::get<0>(first);
    if (!written) co_return std::unexpected(std::move(written).error());
  }
  if (eof) {
    running.channel->close_write();
    // A frame behind it in the same channel: when the guest has answered another question, it has seen this one.
    ISOLA_CO_TRY(auto link, co_await service.link(box));
    ISOLA_CO_TRY(std::string pong, co_await link->call(guest::Op::ping, {}));
    box->input_closed(running.info.id);
  }
  ex.reply(204);
  co_return Result<void>();
}

Task<Result<void>> output(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_CHECK(only_queries(ex, {"from", "clean", "encoding", "follow", "wait_for_reader"}));
  ISOLA_CO_TRY(uint64_t from, query_sequence(ex));
  OutputOptions options;
  ISOLA_CO_TRY(bool clean, query_flag(ex, "clean"));
  ISOLA_CO_TRY(options.follow, query_flag(ex, "follow", true));
  if (clean) options.clean = Clean::yes;
  ISOLA_CO_TRY(bool held, query_flag(ex, "wait_for_reader"));
  auto encoding = ex.query("encoding").value_or("text");
  if (encoding != "text" && encoding != "base64") co_return fail(Code::invalid, "encoding: must be text or base64");
  if (encoding == "base64") options.encoding = Encoding::base64;
  options.from = from;
  options.held = held;
  ISOLA_CO_TRY(Running running, co_await service.attach(box, std::string(ex.param("command")), from, held));
  // How much there is now: the line that says "caught up" comes behind it.
  ISOLA_CO_TRY(auto link, co_await service.link(box));
  ISOLA_CO_TRY(std::string bytes, co_await link->collect(guest::Op::processes, {}));
  ISOLA_CO_TRY(guest::Processes processes, guest::decode<guest::Processes>(bytes));
  for (const auto& process : processes.list)
    if (process.pid == running.info.pid) options.there = process.seq;
  co_return co_await stream(service, ex, std::move(running), options);
}

}  // namespace

void Api::add_commands(http::RouteGroup& group) {
  using store::Scope;
  auto service = service_;
  group.add("POST", "/v1/run", handled(Scope::use, [service](http::Exchange& ex) { return run_once(*service, ex); }))
      .body_limit = 16 << 20;
  group
      .add("POST", "/v1/sandboxes/{id}/commands",
           handled(Scope::use, [service](http::Exchange& ex) { return run(*service, ex); }))
      .body_limit = 16 << 20;
  group.add("GET", "/v1/sandboxes/{id}/commands", handled([service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_TRY(BoxPtr box, box_of(*service, ex));
              std::vector<sandbox::CommandInfo> all = box->commands();
              if (may_look(ex, *box)) {
                ISOLA_CO_TRY(all, co_await service->commands(box));
              }
              json list = json::array();
              for (const auto& command : all) list.push_back(view(command));
              mark_untrusted(ex);
              ex.reply(200, dump({{"commands", list}}));
              co_return Result<void>();
            }));
  group.add("GET", "/v1/sandboxes/{id}/commands/{command}",
            handled([service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_TRY(BoxPtr box, box_of(*service, ex));
              std::string id(ex.param("command"));
              auto info = co_await service->command_now(box, id);
              if (!info && may_look(ex, *box)) {
                ISOLA_CO_TRY(info, co_await service->find_command(box, id));
              }
              if (!info) co_return fail(Code::not_found, "no command " + id + " is known of sandbox " + box->id());
              mark_untrusted(ex);
              ex.reply(200, dump(view(*info)));
              co_return Result<void>();
            }));
  group.add("GET", "/v1/sandboxes/{id}/commands/{command}/output",
            handled(Scope::use, [service](http::Exchange& ex) { return output(*service, ex); }));
  group
      .add("POST", "/v1/sandboxes/{id}/commands/{command}/stdin",
           handled(Scope::use, [service](http::Exchange& ex) { return write_stdin(*service, ex); }))
      .body_limit = http::Exchange::kNoLimit;
  group.add("POST", "/v1/sandboxes/{id}/commands/{command}/signal",
            handled(Scope::use, [service](http::Exchange& ex) { return signal(*service, ex); }));
  group.add("POST", "/v1/sandboxes/{id}/commands/{command}/resize",
            handled(Scope::use, [service](http::Exchange& ex) { return resize(*service, ex); }));
}

}  // namespace isola::native
