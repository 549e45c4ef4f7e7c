#include "dialect/e2b/interpreter.h"

#include <nlohmann/json.hpp>

#include "base/hash/sha256.h"
#include "base/json_bound.h"
#include "dialect/e2b/envd.h"
#include "dialect/e2b/results.h"
#include "dialect/shared/cell.h"
#include "dialect/shared/input.h"
#include "dialect/shared/text.h"
#include "interpreter/events.h"

namespace isola::e2b {

using nlohmann::json;
using sandbox::BoxPtr;

namespace {

constexpr size_t kMaxBody = 64 << 20;
constexpr size_t kShown = 2000;  // of a cell, in the ledger
constexpr auto kKeepalive = std::chrono::milliseconds(5000);

void refuse(http::Exchange& ex, int status, const std::string& message) {
  ex.reply(status, message, "text/plain; charset=utf-8");
}

// `named`: the request names a context.
int status_for(const Error& failure, bool named) {
  switch (failure.code) {
    case Code::not_found: return named ? 404 : 400;
    case Code::exhausted: return 429;
    case Code::invalid:
    case Code::unsupported: return 400;
    default: return 500;
  }
}

void refuse(http::Exchange& ex, const BoxPtr& box, const Error& error) {
  if (error.code == Code::unsupported) {
    ex.reply(502, dialect::dump({{"sandboxId", box->id()},
                                 {"message", "The sandbox is running but port is not open"},
                                 {"port", kInterpreterPort},
                                 {"code", 502}}));
    return;
  }
  refuse(ex, 500, error.message);
}

struct AskedCell {
  std::string request;  // as it is sent inside
  std::string shown, context, language;
};

// What every program inside sees, as commands do: nobody's variables say that it is another sandbox.
json env_of(const BoxPtr& box) {
  json env = box->record().env;
  env["E2B_SANDBOX_ID"] = box->id();
  return env;
}

// The body and what was read of it go when this returns: a cell may run for days. Nothing: it was refused.
Task<std::optional<AskedCell>> read_cell(http::Exchange& ex, BoxPtr box) {
  auto text = co_await ex.read_all(kMaxBody);
  if (!text) ex.fail(text.error());
  if (!text) co_return std::nullopt;
  json body = check_json_bound(*text) ? json::parse(*text, nullptr, false) : json();
  if (!body.is_object() || !body["code"].is_string()) {
    refuse(ex, 422, "code: must be a string");
    co_return std::nullopt;
  }
  AskedCell cell;
  cell.context = text_of(body, "context_id"), cell.language = text_of(body, "language");
  if (!cell.context.empty() && !cell.language.empty()) {
    refuse(ex, 400, "Only one of context_id or language can be provided");
    co_return std::nullopt;
  }
  cell.shown = body["code"].get_ref<const std::string&>().substr(0, kShown);
  json request = {{"op", "execute"}, {"code", std::move(body["code"])}};
  if (!cell.context.empty()) request["context"] = cell.context;
  if (!cell.language.empty()) request["language"] = cell.language;
  if (body["env_vars"].is_object()) request["env"] = std::move(body["env_vars"]);
  request["sandbox_env"] = env_of(box);
  cell.request = dialect::dump(request);
  co_return cell;
}

Task<void> execute(sandbox::Service& service, http::Exchange& ex, BoxPtr box) {
  auto cell = co_await read_cell(ex, box);
  if (!cell) co_return;
  // Until it is inside, which may take long, it is held here.
  auto room = dialect::room_for_input(box->project(), cell->request.size());
  if (!room) co_return refuse(ex, 429, room.error().message);
  std::optional<Shares::Share> share(std::move(*room));
  std::string context = std::move(cell->context), language = std::move(cell->language);
  sandbox::CodeRun::Spec spec{.code = std::move(cell->shown), .task = {}, .by = sandbox::Caller(sandbox::kOwnToken)};
  auto run = co_await service.begin_code(box, std::move(spec));
  if (!run && !is_running(box) && !may_wake(service, box)) co_return gone(ex, box->id());
  if (!run) co_return refuse(ex, run.error().code == Code::exhausted ? 429 : 400, run.error().message);
  const bool named = !context.empty();
  if (context.empty() && language.empty()) language = "python";
  dialect::mark_untrusted(ex);  // from here on also failures are what somebody inside says
  dialect::CellCall call{.service = service,
                         .ex = ex,
                         .box = box,
                         .run = **run,
                         .request = std::move(cell->request),
                         .language = language,
                         .context = named ? context : language,
                         .ping = kKeepalive};
  bool begun = false, whole = false;
  auto say = [&](json event) -> Task<bool> {
    share.reset();
    std::string type = text_of(event, "type"), out, tail;
    // While the sandbox is being ended, what runs in it may still say that it was.
    if (type == "end" && !is_running(box)) co_return false;
    if (!begun) ex.begin(200, "application/x-ndjson");
    begun = true;
    whole = type == "end";
    if (type == "failure" || type == "end") {
      if (event.contains("execution_count"))
        tail = dialect::dump({{"type", "number_of_executions"}, {"execution_count", event["execution_count"]}}) + "\n";
      tail += "{\"type\":\"end_of_execution\"}\n";
    }
    if (json one = translated(std::move(event)); !one.is_null()) out = dialect::dump(one) + "\n";
    out += tail;
    auto sent = co_await ex.write(out);
    co_return sent.has_value();
  };
  dialect::UseEvent use = [&say](json& event) -> Task<bool> { return say(std::move(event)); };
  dialect::CellEnd end = co_await dialect::follow(std::move(call), use);
  // A budget that is spent says so, whatever it does to the sandbox.
  const bool spent = end.failure && !end.from_inside && end.failure->code == Code::exhausted;
  if (!whole && !spent) {
    const bool left = co_await left_under(box);
    if (left) co_return cut_off(ex, box);
  }
  if (end.left) co_return;
  if (end.failure && !begun) {
    if (end.from_inside || end.failure->code == Code::exhausted)
      co_return refuse(ex, status_for(*end.failure, named), end.failure->message);
    co_return refuse(ex, box, *end.failure);
  }
  if (end.failure) {
    json event = {{"type", "failure"}, {"message", end.failure->message}};
    (void)co_await say(std::move(event));
  }
  (void)co_await ex.finish();
}

json view(const json& context) {
  return {{"id", text_of(context, "id")}, {"language", text_of(context, "language")}, {"cwd", text_of(context, "cwd")}};
}

Task<void> contexts(sandbox::Service& service, http::Exchange& ex, BoxPtr box, std::string rest) {
  json request;
  if (rest.empty() && ex.method() == "POST") {
    auto text = co_await ex.read_all(1 << 20);
    if (!text) co_return ex.fail(text.error());
    json body = text->empty() ? json::object() : check_json_bound(*text) ? json::parse(*text, nullptr, false) : json();
    if (!body.is_object()) co_return refuse(ex, 422, "the body must be an object");
    std::string language = text_of(body, "language");
    request = {{"op", "create"}, {"language", language.empty() ? "python" : language}, {"cwd", text_of(body, "cwd")}};
    request["sandbox_env"] = env_of(box);
  } else if (rest.empty() && ex.method() == "GET") {
    request = {{"op", "list"}};
  } else if (rest.ends_with("/restart") && ex.method() == "POST") {
    request = {{"op", "restart"}, {"context", rest.substr(1, rest.size() - 9)}};
  } else if (!rest.empty() && ex.method() == "DELETE") {
    request = {{"op", "delete"}, {"context", rest.substr(1)}};
  } else {
    co_return refuse(ex, 405, "Method Not Allowed");
  }
  bool named = request.contains("context");
  dialect::mark_untrusted(ex);
  auto asked = co_await dialect::ask_inside(service, ex, box, request);
  if (!asked) {
    const bool left = co_await left_under(box);
    if (left) co_return gone(ex, box->id());
    co_return refuse(ex, box, asked.error());
  }
  if (!*asked) co_return ex.abort();  // nobody waits for it
  json& answer = **asked;
  if (text_of(answer, "type") == "failure") {
    const bool left = co_await left_under(box);
    if (left) co_return gone(ex, box->id());
    Error failure = interpreter::failure_of(answer);
    co_return refuse(ex, status_for(failure, named), failure.message);
  }
  if (answer.contains("contexts")) {
    json all = json::array();
    // Their server has made two before anybody asks; ours come into being with their first cell.
    for (const char* language : {"python", "javascript"}) {
      bool there = false;
      for (const auto& context : answer["contexts"]) there |= text_of(context, "id") == language;
      if (!there) all.push_back({{"id", language}, {"language", language}, {"cwd", "/home/user"}});
    }
    for (const auto& context : answer["contexts"]) all.push_back(view(context));
    co_return ex.reply(200, dialect::dump(all));
  }
  if (answer.contains("context") && ex.method() == "POST" && rest.empty())
    co_return ex.reply(200, dialect::dump(view(answer["context"])));
  ex.reply(200, "{}");
}

}  // namespace

Task<void> serve_interpreter(sandbox::Service& service, http::Exchange& ex, BoxPtr box, InterpreterAccess access) {
  std::string path(ex.path());
  if (path == "/health") co_return ex.reply(200, "\"OK\"");
  const bool runs = path == "/execute" && ex.method() == "POST";
  const bool of_contexts = path == "/contexts" || path.starts_with("/contexts/");
  if (!runs && !of_contexts) co_return refuse(ex, 404, "Not Found");
  // Whoever knows a sandbox's name may see its ports; running code in it takes its token. One that is sent has to be
  // right, wherever it is sent.
  std::string_view given = ex.header("x-access-token");
  const bool needed = runs || access.of_contexts || !given.empty();
  if (needed && (access.token.empty() || !equal_secrets(given, access.token)))
    co_return refuse(ex, 401, "unauthorized access, please provide a valid access token");
  if (needed) ex.note("project", box->project());  // who pays for the memory that its body takes
  if (runs) {
    ex.body_limit(kMaxBody);
    co_return co_await execute(service, ex, std::move(box));
  }
  co_await contexts(service, ex, std::move(box), path.substr(std::string_view("/contexts").size()));
}

}  // namespace isola::e2b
