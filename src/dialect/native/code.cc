#include "dialect/native/code.h"

#include <nlohmann/json.hpp>

#include "base/text_feed.h"
#include "dialect/native/api.h"
#include "dialect/native/fields.h"
#include "dialect/native/output.h"
#include "dialect/shared/cell.h"
#include "dialect/shared/text.h"
#include "http/error_reply.h"
#include "interpreter/events.h"

namespace isola::native {

using dialect::CellCall;
using dialect::CellEnd;
using dialect::dump;
using dialect::number_of;
using dialect::text_of;
using dialect::UseEvent;
using nlohmann::json;
using sandbox::BoxPtr;

namespace {

constexpr size_t kMaxCode = 64 << 20;
constexpr size_t kShown = 2000;  // of a cell, in the ledger

std::string cleaned(const std::string& text) {
  TextFeed feed(Clean::yes);
  return feed.feed(text) + feed.finish();
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

struct AskedCell {
  json request = {{"op", "execute"}};
  bool clean = false, stream = false;
  sandbox::CodeRun::Spec run;
  std::string language, context;  // as the interpreter will understand it
  size_t max_output = interpreter::kUsualOutput;
};

Result<AskedCell> read_cell(http::Exchange& ex, const sandbox::Box& box, const std::string& body) {
  ISOLA_TRY(Fields fields, Fields::parse(body));
  AskedCell asked;
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
  if (auto most = fields.size("max_output")) asked.request["max_output"] = asked.max_output = *most;
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

Task<Result<void>> stream(http::Exchange& ex, bool cleans, CellCall call) {
  bool begun = false;
  UseEvent use = [&](json& event) -> Task<bool> {
    if (!begun) ex.begin(200, "application/x-ndjson");
    begun = true;
    if (cleans) clean(event);
    std::string line = dump(event) + "\n";
    auto sent = co_await ex.write(line);
    co_return sent.has_value();
  };
  CellEnd end = co_await follow(std::move(call), use);
  if (end.failure && !begun) co_return std::unexpected(std::move(*end.failure));
  if (end.failure) {
    json error = {{"type", "failure"}, {"code", to_string(end.failure->code)}, {"message", end.failure->message}};
    std::string line = dump(error) + "\n";
    (void)co_await ex.write(line);
  }
  if (!end.left) (void)co_await ex.finish();
  co_return Result<void>();
}

// The whole of a cell, for who waits.
class Whole {
 public:
  void take(json& event, bool cleans) {
    std::string type = text_of(event, "type");
    if (cleans) clean(event);
    if (type == "stdout" || type == "stderr") {
      (type == "stdout" ? stdout_ : stderr_) += text_of(event, "text");
    } else if (type == "result" || type == "display_update") {
      // As text: a value takes many times the room.
      results_ += (results_.empty() ? "" : ",") + dump(event);
    } else if (type == "error") {
      event.erase("type");
      rest_["error"] = event;
    } else if (type == "truncated") {
      rest_["truncated"] = true;
    } else if (type == "lost") {
      ++lost_;
    } else if (type == "start" || type == "end") {
      event.erase("type");
      rest_.update(event);  // nothing but what such an event can have
    }
  }

  std::string text() {
    rest_["stdout"] = std::move(stdout_);
    rest_["stderr"] = std::move(stderr_);
    if (lost_ > 0) rest_["lost"] = lost_;
    rest_["untrusted"] = {"stdout", "stderr", "results", "error", "message", "context", "language"};
    std::string out = dump(rest_);
    out.pop_back();
    return out + ",\"results\":[" + results_ + "]}";
  }

 private:
  std::string stdout_, stderr_, results_;
  uint64_t lost_ = 0;
  json rest_ = json::object();
};

Task<Result<void>> execute(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(std::string body, co_await ex.read_all(kMaxCode));
  ISOLA_CO_TRY(AskedCell asked, read_cell(ex, *box, body));
  body.clear();
  ISOLA_CO_TRY(auto run, co_await service.begin_code(box, std::move(asked.run)));
  mark_untrusted(ex);  // from here on also failures are what somebody inside says
  CellCall call{.service = service,
                .ex = ex,
                .box = box,
                .run = *run,
                .request = dump(asked.request),
                .language = asked.language,
                .context = asked.context,
                .max_output = asked.max_output};
  asked.request.clear();
  if (asked.stream) co_return co_await stream(ex, asked.clean, std::move(call));
  Whole whole;
  UseEvent use = [&](json& event) -> Task<bool> {
    whole.take(event, asked.clean);
    co_return true;
  };
  CellEnd end = co_await follow(std::move(call), use);
  if (end.failure) co_return std::unexpected(std::move(*end.failure));
  if (end.left)
    ex.abort();  // nobody waits for it
  else
    ex.reply(200, whole.text());
  co_return Result<void>();
}

// A request that is answered by one line, whose `name` is the reply; nothing: nobody waits for it any more.
Task<Result<std::optional<json>>> one(sandbox::Service& service, http::Exchange& ex, BoxPtr box, json request,
                                      const char* name) {
  mark_untrusted(ex);
  ISOLA_CO_TRY(auto answer, co_await dialect::ask_inside(service, ex, box, request));
  std::optional<json> out;
  if (!answer) {
    ex.abort();
    co_return out;
  }
  if (text_of(*answer, "type") == "failure") co_return std::unexpected(interpreter::failure_of(*answer));
  out = answer->contains(name) ? std::move((*answer)[name]) : json();
  co_return out;
}

// What a context and a language can have: whatever else somebody inside says of them stays there.
json context_view(const json& context) {
  json out = json::object();
  for (const char* name : {"id", "language", "kernel", "cwd", "state"}) out[name] = text_of(context, name);
  for (const char* name : {"waiting", "restarts"}) out[name] = number_of(context, name);
  return out;
}

json language_view(const json& language) {
  json out = json::object();
  for (const char* name : {"language", "kernel", "display_name", "broken"})
    if (auto text = text_of(language, name); !text.empty()) out[name] = std::move(text);
  return out;
}

Task<Result<void>> create_context(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  json request = {{"op", "create"}, {"language", fields.text("language", "python")}, {"cwd", fields.text("cwd")}};
  ISOLA_CO_CHECK(fields.done());
  auto record = box->record();
  if (!record.env.empty()) request["sandbox_env"] = record.env;
  ISOLA_CO_TRY(auto context, co_await one(service, ex, box, std::move(request), "context"));
  if (context) ex.reply(201, dump(context_view(*context)));
  co_return Result<void>();
}

Task<Result<void>> list_contexts(sandbox::Service& service, http::Exchange& ex, std::string op) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  std::string name = op == "list" ? "contexts" : "languages";
  json request = {{"op", op}};
  ISOLA_CO_TRY(auto all, co_await one(service, ex, box, std::move(request), name.c_str()));
  if (!all) co_return Result<void>();
  json reply = json::object();
  reply[name] = json::array();
  if (all->is_array())
    for (const auto& entry : *all) reply[name].push_back(op == "list" ? context_view(entry) : language_view(entry));
  ex.reply(200, dump(reply));
  co_return Result<void>();
}

Task<Result<void>> change_context(sandbox::Service& service, http::Exchange& ex, std::string op) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  json request = {{"op", op}, {"context", ex.param("context")}};
  ISOLA_CO_TRY(auto context, co_await one(service, ex, box, std::move(request), "context"));
  if (context && op == "delete")
    ex.reply(204);
  else if (context)
    ex.reply(200, dump(context_view(*context)));
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
            handled(Scope::use, [service](http::Exchange& ex) { return create_context(*service, ex); }));
  // Listing starts the program inside where it is not there yet.
  group.add("GET", base + "/contexts",
            handled(Scope::use, [service](http::Exchange& ex) { return list_contexts(*service, ex, "list"); }));
  group.add("GET", base + "/languages",
            handled(Scope::use, [service](http::Exchange& ex) { return list_contexts(*service, ex, "languages"); }));
  for (const char* op : {"restart", "interrupt"})
    group.add("POST", base + "/contexts/{context}/" + op,
              handled(Scope::use, [service, op](http::Exchange& ex) { return change_context(*service, ex, op); }));
  group.add("DELETE", base + "/contexts/{context}",
            handled(Scope::use, [service](http::Exchange& ex) { return change_context(*service, ex, "delete"); }));
}

}  // namespace isola::native
