#include "dialect/native/code.h"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <nlohmann/json.hpp>

#include "dialect/native/api.h"
#include "dialect/native/fields.h"
#include "dialect/native/output.h"
#include "dialect/shared/text.h"
#include "http/error_reply.h"
#include "interpreter/client.h"

namespace isola::native {

using namespace boost::asio::experimental::awaitable_operators;
using dialect::dump;
using dialect::number_of;
using dialect::text_of;
using interpreter::Conversation;
using nlohmann::json;
using sandbox::BoxPtr;

namespace {

constexpr size_t kMaxCode = 64 << 20;
constexpr size_t kShown = 2000;  // of a cell, in the ledger
constexpr auto kPing = std::chrono::milliseconds(15000);

std::string cleaned(const std::string& text) {
  TextFeed feed(Clean::yes);
  return feed.feed(text) + feed.finish();
}

// What isola-kernels could not do, as an Error.
Error failure_of(const json& line) {
  std::string word = text_of(line, "code", "internal");
  Error error{Code::internal, "the interpreter inside failed"};
  if (auto said = text_of(line, "message"); !said.empty()) error.message = cleaned(said.substr(0, kShown));
  for (Code code : {Code::invalid, Code::not_found, Code::exists, Code::denied, Code::unsupported, Code::exhausted,
                    Code::unavailable, Code::timeout, Code::corrupt})
    if (to_string(code) == word) error.code = code;
  // A kernel that does not start is nothing that waiting would mend.
  if (error.code == Code::unavailable) error.code = Code::internal;
  return error;
}

Result<json> parsed(const std::string& line) {
  json event = json::parse(line, nullptr, false);
  if (!event.is_object()) return fail(Code::corrupt, "the interpreter inside sent something malformed");
  return event;
}

// Without what steers a terminal or misleads a reader, where the caller asked for that.
void clean(json& event) {
  for (const char* name : {"text", "value", "name"})
    if (auto found = event.find(name); found != event.end() && found->is_string())
      *found = cleaned(found->get_ref<const std::string&>());
  if (auto lines = event.find("traceback"); lines != event.end() && lines->is_array())
    for (auto& line : *lines)
      if (line.is_string()) line = cleaned(line.get_ref<const std::string&>());
  if (auto data = event.find("data"); data != event.end() && data->is_object())
    if (auto plain = data->find("text/plain"); plain != data->end() && plain->is_string())
      *plain = cleaned(plain->get_ref<const std::string&>());
}

struct Asked {
  json request = {{"op", "execute"}};
  bool clean = false, stream = false;
  sandbox::CodeRun::Spec run;
  std::string language, context;  // as the interpreter will understand it
};

Result<Asked> read_asked(http::Exchange& ex, const sandbox::Box& box, const std::string& body) {
  ISOLA_TRY(Fields fields, Fields::parse(body));
  Asked asked;
  auto code = fields.maybe_text("code");
  if (!code) fields.wrong("code", "is missing");
  auto language = fields.text("language"), context = fields.text("context");
  if (!language.empty() && !context.empty()) fields.wrong("context", "a context has its language: give one of the two");
  if (!language.empty()) asked.request["language"] = language;
  if (!context.empty()) asked.request["context"] = context;
  if (auto env = fields.labels("env"); !env.empty()) asked.request["env"] = env;
  if (auto record = box.record(); !record.env.empty()) asked.request["sandbox_env"] = record.env;
  if (auto timeout = fields.seconds("timeout"); timeout && *timeout > 0)
    asked.request["timeout_ms"] = uint64_t(*timeout);
  if (auto most = fields.size("max_output")) asked.request["max_output"] = *most;
  asked.clean = fields.flag("clean");
  asked.stream = fields.flag("stream");
  asked.run.task = fields.text("task");
  asked.run.by = sandbox::Caller(std::string(ex.noted("key")), fields.text("actor"));
  ISOLA_CHECK(fields.done());
  asked.run.code = code->substr(0, kShown);
  asked.language = context.empty() && language.empty() ? "python" : language;
  asked.context = context.empty() ? asked.language : context;
  asked.request["code"] = std::move(*code);
  return asked;
}

// All events of a cell, to `use` (false from it: nobody takes them). False: the caller has left, and the cell was
// stopped.
using UseEvent = std::function<Task<bool>(json&)>;
Task<Result<bool>> follow(http::Exchange& ex, sandbox::CodeRun& run, bool cleans, Conversation& talk,
                          const UseEvent& use) {
  for (;;) {
    auto first = co_await (talk.next(kPing) || ex.gone() || run.stopped());
    if (first.index() != 0) co_await talk.interrupt();
    if (first.index() == 1) co_return false;
    if (first.index() == 2) co_return fail(Code::exhausted, std::get<2>(first));
    ISOLA_CO_TRY(auto line, std::move(std::get<0>(first)));
    if (!line) co_return fail(Code::unavailable, "the interpreter inside ended in the middle of a cell");
    json event = {{"type", "ping"}};
    if (!line->empty()) {
      ISOLA_CO_TRY(event, parsed(*line));
    }
    std::string type = text_of(event, "type");
    if (type == "failure") {
      run.ended("failure", 0);
      co_return std::unexpected(failure_of(event));
    }
    if (type == "end") run.ended(text_of(event, "status"), number_of(event, "duration_ms"));
    if (cleans) clean(event);
    bool taken = co_await use(event);
    if (!taken) {
      co_await talk.interrupt();
      co_return false;
    }
    if (type == "end") co_return true;
  }
}

Task<Result<void>> stream(http::Exchange& ex, sandbox::CodeRun& run, bool cleans, Conversation& talk) {
  bool begun = false;
  UseEvent use = [&](json& event) -> Task<bool> {
    if (!begun) {
      begun = true;
      mark_untrusted(ex);
      ex.begin(200, "application/x-ndjson");
    }
    std::string line = dump(event) + "\n";
    auto sent = co_await ex.write(line);
    co_return sent.has_value();
  };
  auto done = co_await follow(ex, run, cleans, talk, use);
  if (!done && !begun) co_return std::unexpected(std::move(done).error());
  if (!done) {
    json error = {{"type", "failure"}, {"code", to_string(done.error().code)}, {"message", done.error().message}};
    std::string line = dump(error) + "\n";
    (void)co_await ex.write(line);
  }
  if (done.value_or(true)) (void)co_await ex.finish();
  co_return Result<void>();
}

// The whole of it, for who waits; nothing: nobody does any more.
Task<Result<std::optional<json>>> collect(http::Exchange& ex, sandbox::CodeRun& run, bool cleans, Conversation& talk) {
  json out = {{"stdout", ""},
              {"stderr", ""},
              {"results", json::array()},
              {"untrusted", {"stdout", "stderr", "results", "error"}}};
  UseEvent use = [&](json& event) -> Task<bool> {
    std::string type = text_of(event, "type");
    if (type == "stdout" || type == "stderr") {
      out[type].get_ref<std::string&>() += text_of(event, "text");
    } else if (type == "result" || type == "display_update") {
      out["results"].push_back(event);
    } else if (type == "error") {
      event.erase("type");
      out["error"] = event;
    } else if (type == "truncated") {
      out["truncated"] = true;
    } else if (type == "start") {
      out["context"] = event["context"];
      out["language"] = event["language"];
    } else if (type == "end") {
      event.erase("type");
      out.update(event);
    }
    co_return true;
  };
  std::optional<json> result;
  ISOLA_CO_TRY(bool there, co_await follow(ex, run, cleans, talk, use));
  if (there) result = std::move(out);
  co_return result;
}

Task<Result<void>> execute(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(std::string body, co_await ex.read_all(kMaxCode));
  ISOLA_CO_TRY(Asked asked, read_asked(ex, *box, body));
  body.clear();
  std::string request = dump(asked.request);
  asked.request.clear();
  ISOLA_CO_TRY(auto run, co_await service.begin_code(box, std::move(asked.run)));
  ISOLA_CO_TRY(auto talk, co_await interpreter::ask(service, box, std::move(request)));
  run->started(asked.language, asked.context);
  if (asked.stream) co_return co_await stream(ex, *run, asked.clean, *talk);
  ISOLA_CO_TRY(auto result, co_await collect(ex, *run, asked.clean, *talk));
  if (!result) {
    ex.abort();  // nobody waits for it
    co_return Result<void>();
  }
  mark_untrusted(ex);
  ex.reply(200, dump(*result));
  co_return Result<void>();
}

// A request that is answered by one line, whose `name` is the reply.
Task<Result<json>> one(sandbox::Service& service, BoxPtr box, json request, const char* name) {
  std::string text = dump(request);
  ISOLA_CO_TRY(std::string line, co_await interpreter::ask_once(service, box, std::move(text)));
  ISOLA_CO_TRY(json answer, parsed(line));
  if (text_of(answer, "type") == "failure") co_return std::unexpected(failure_of(answer));
  co_return answer.contains(name) ? answer[name] : json();
}

Task<Result<void>> create(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  json request = {{"op", "create"}, {"language", fields.text("language", "python")}, {"cwd", fields.text("cwd")}};
  ISOLA_CO_CHECK(fields.done());
  auto record = box->record();
  if (!record.env.empty()) request["sandbox_env"] = record.env;
  ISOLA_CO_TRY(json context, co_await one(service, box, std::move(request), "context"));
  mark_untrusted(ex);
  ex.reply(201, dump(context));
  co_return Result<void>();
}

Task<Result<void>> list(sandbox::Service& service, http::Exchange& ex, std::string op) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  std::string name = op == "list" ? "contexts" : "languages";
  json request = {{"op", op}};
  ISOLA_CO_TRY(json all, co_await one(service, box, std::move(request), name.c_str()));
  json reply = json::object();
  reply[name] = all;
  mark_untrusted(ex);
  ex.reply(200, dump(reply));
  co_return Result<void>();
}

Task<Result<void>> change(sandbox::Service& service, http::Exchange& ex, std::string op) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  json request = {{"op", op}, {"context", ex.param("context")}};
  ISOLA_CO_TRY(json context, co_await one(service, box, std::move(request), "context"));
  if (op == "delete")
    ex.reply(204);
  else
    mark_untrusted(ex), ex.reply(200, dump(context));
  co_return Result<void>();
}

}  // namespace

void add_code(http::RouteGroup& group, std::shared_ptr<sandbox::Service> service) {
  using store::Scope;
  const std::string base = "/v1/sandboxes/{id}";
  auto& run = group.add("POST", base + "/code",
                        handled(Scope::use, [service](http::Exchange& ex) { return execute(*service, ex); }));
  run.body_limit = kMaxCode;
  group.add("POST", base + "/contexts",
            handled(Scope::use, [service](http::Exchange& ex) { return create(*service, ex); }));
  // Listing starts the program inside where it is not there yet.
  group.add("GET", base + "/contexts",
            handled(Scope::use, [service](http::Exchange& ex) { return list(*service, ex, "list"); }));
  group.add("GET", base + "/languages",
            handled(Scope::use, [service](http::Exchange& ex) { return list(*service, ex, "languages"); }));
  for (const char* op : {"restart", "interrupt"})
    group.add("POST", base + "/contexts/{context}/" + op,
              handled(Scope::use, [service, op](http::Exchange& ex) { return change(*service, ex, op); }));
  group.add("DELETE", base + "/contexts/{context}",
            handled(Scope::use, [service](http::Exchange& ex) { return change(*service, ex, "delete"); }));
}

}  // namespace isola::native
