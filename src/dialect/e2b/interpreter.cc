#include "dialect/e2b/interpreter.h"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <nlohmann/json.hpp>

#include "base/hash/sha256.h"
#include "dialect/shared/text.h"
#include "interpreter/client.h"

namespace isola::e2b {

using namespace boost::asio::experimental::awaitable_operators;
using dialect::number_of;
using dialect::text_of;
using nlohmann::json;
using sandbox::BoxPtr;

namespace {

constexpr size_t kMaxBody = 64 << 20;
constexpr size_t kShown = 2000;  // of a cell, in the ledger
constexpr auto kKeepalive = std::chrono::milliseconds(5000);

// 'abc' as it is written in Python and JavaScript: clients want the text itself.
std::string unquoted(std::string text) {
  if (text.size() >= 2 && text.front() == text.back() && (text.front() == '\'' || text.front() == '"'))
    return text.substr(1, text.size() - 2);
  return text;
}

// {"a": [1, 2], "b": […]} of our records.
json columns_of(const json& frame) {
  json out = json::object();
  if (!frame.is_object() || !frame.contains("columns") || !frame["columns"].is_array() || !frame.contains("records") ||
      !frame["records"].is_array())
    return out;
  for (const auto& column : frame["columns"]) {
    std::string name = column.is_object() ? text_of(column, "name") : "";
    json values = json::array();
    for (const auto& record : frame["records"])
      values.push_back(record.is_object() && record.contains(name) ? record[name] : json());
    out[name] = std::move(values);
  }
  return out;
}

json result_of(const json& event) {
  static const std::map<std::string, const char*> kNames = {{"text/plain", "text"},
                                                            {"text/html", "html"},
                                                            {"text/markdown", "markdown"},
                                                            {"image/svg+xml", "svg"},
                                                            {"image/png", "png"},
                                                            {"image/jpeg", "jpeg"},
                                                            {"application/pdf", "pdf"},
                                                            {"text/latex", "latex"},
                                                            {"application/json", "json"},
                                                            {"application/javascript", "javascript"},
                                                            {"application/vnd.isola.chart+json", "chart"}};
  json out = {{"type", "result"}, {"is_main_result", (event.contains("main") && event["main"] == json(true))}};
  auto data = event.find("data");
  if (data == event.end() || !data->is_object()) return out;
  for (const auto& [type, value] : data->items()) {
    if (type == "application/vnd.isola.frame+json") {
      out["data"] = columns_of(value);
      continue;
    }
    auto known = kNames.find(type);
    std::string name = known == kNames.end() ? type : known->second;
    if (name == "text" && value.is_string())
      out[name] = unquoted(value);
    else if ((name == "png" || name == "jpeg" || name == "pdf") && value.is_string())
      out[name] = value.get<std::string>().substr(0, value.get_ref<const std::string&>().find_last_not_of('\n') + 1);
    else
      out[name] = value;
  }
  return out;
}

void refuse(http::Exchange& ex, int status, const std::string& message) {
  ex.reply(status, message, "text/plain; charset=utf-8");
}

int status_for(const json& failure, bool named) {
  std::string code = text_of(failure, "code");
  if (code == to_string(Code::not_found)) return named ? 404 : 400;
  if (code == to_string(Code::exhausted)) return 429;
  if (code == to_string(Code::invalid) || code == to_string(Code::unsupported)) return 400;
  return 500;
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

Task<void> execute(sandbox::Service& service, http::Exchange& ex, BoxPtr box) {
  auto text = co_await ex.read_all(kMaxBody);
  if (!text) co_return ex.fail(text.error());
  json body = json::parse(*text, nullptr, false);
  if (!body.is_object() || !body["code"].is_string()) co_return refuse(ex, 422, "code: must be a string");
  std::string context = text_of(body, "context_id"), language = text_of(body, "language");
  if (!context.empty() && !language.empty())
    co_return refuse(ex, 400, "Only one of context_id or language can be provided");
  sandbox::CodeRun::Spec spec{.code = body["code"].get_ref<const std::string&>().substr(0, kShown),
                              .task = {},
                              .by = sandbox::Caller(sandbox::kOwnToken)};
  json request = {{"op", "execute"}, {"code", std::move(body["code"])}};
  if (!context.empty()) request["context"] = context;
  if (!language.empty()) request["language"] = language;
  if (body["env_vars"].is_object()) request["env"] = body["env_vars"];
  if (auto record = box->record(); !record.env.empty()) request["sandbox_env"] = record.env;
  std::string line = dialect::dump(request);
  request.clear();
  auto run = co_await service.begin_code(box, std::move(spec));
  if (!run) co_return refuse(ex, run.error().code == Code::exhausted ? 429 : 400, run.error().message);
  auto talk = co_await interpreter::ask(service, box, std::move(line));
  if (!talk) co_return refuse(ex, box, talk.error());
  if (context.empty() && language.empty()) language = "python";
  (*run)->started(language, context.empty() ? language : context);
  bool begun = false;
  for (;;) {
    auto first = co_await ((*talk)->next(kKeepalive) || ex.gone() || (*run)->stopped());
    if (first.index() != 0) co_await (*talk)->interrupt();
    if (first.index() == 1) co_return;
    json event = {{"type", "ping"}};
    if (first.index() == 2) {
      event = {{"type", "failure"}, {"code", "exhausted"}, {"message", std::get<2>(first)}};
    } else if (auto& next = std::get<0>(first); !next || !*next) {
      event = {{"type", "failure"}, {"code", "internal"}, {"message", "the interpreter ended in the middle of a cell"}};
    } else if (!(*next)->empty()) {
      event = json::parse(**next, nullptr, false);
    }
    if (!event.is_object()) co_return ex.abort();
    std::string type = text_of(event, "type");
    if (type == "failure") (*run)->ended("failure", 0);
    if (type == "end") (*run)->ended(text_of(event, "status"), number_of(event, "duration_ms"));
    if (type == "failure" && !begun)
      co_return refuse(ex, status_for(event, !context.empty()), text_of(event, "message"));
    if (!begun) {
      begun = true;
      ex.begin(200, "application/x-ndjson");
    }
    std::string out;
    if (json one = translated(event); !one.is_null()) out = dialect::dump(one) + "\n";
    if (type == "failure" || type == "end") {
      if (event.contains("execution_count"))
        out += dialect::dump({{"type", "number_of_executions"}, {"execution_count", event["execution_count"]}}) + "\n";
      out += "{\"type\":\"end_of_execution\"}\n";
    }
    auto sent = co_await ex.write(out);
    if (!sent) co_return co_await (*talk)->interrupt();
    if (type == "failure" || type == "end") break;
  }
  (void)co_await ex.finish();
}

json view(const json& context) {
  return {{"id", text_of(context, "id")}, {"language", text_of(context, "language")}, {"cwd", text_of(context, "cwd")}};
}

Task<Result<json>> one(sandbox::Service& service, BoxPtr box, json request) {
  std::string text = dialect::dump(request);
  ISOLA_CO_TRY(std::string line, co_await interpreter::ask_once(service, box, std::move(text)));
  json answer = json::parse(line, nullptr, false);
  if (!answer.is_object()) co_return fail(Code::corrupt, "the interpreter inside sent something malformed");
  co_return answer;
}

Task<void> contexts(sandbox::Service& service, http::Exchange& ex, BoxPtr box, std::string rest) {
  json request;
  if (rest.empty() && ex.method() == "POST") {
    auto text = co_await ex.read_all(1 << 20);
    if (!text) co_return ex.fail(text.error());
    json body = text->empty() ? json::object() : json::parse(*text, nullptr, false);
    if (!body.is_object()) co_return refuse(ex, 422, "the body must be an object");
    std::string language = text_of(body, "language");
    request = {{"op", "create"}, {"language", language.empty() ? "python" : language}, {"cwd", text_of(body, "cwd")}};
    if (auto record = box->record(); !record.env.empty()) request["sandbox_env"] = record.env;
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
  auto answer = co_await one(service, box, std::move(request));
  if (!answer) co_return refuse(ex, box, answer.error());
  if (text_of(*answer, "type") == "failure")
    co_return refuse(ex, status_for(*answer, named), text_of(*answer, "message"));
  if (answer->contains("contexts")) {
    json all = json::array();
    // Their server has made two before anybody asks; ours come into being with their first cell.
    for (const char* language : {"python", "javascript"}) {
      bool there = false;
      for (const auto& context : (*answer)["contexts"]) there |= text_of(context, "id") == language;
      if (!there) all.push_back({{"id", language}, {"language", language}, {"cwd", "/home/user"}});
    }
    for (const auto& context : (*answer)["contexts"]) all.push_back(view(context));
    co_return ex.reply(200, dialect::dump(all));
  }
  if (answer->contains("context") && ex.method() == "POST" && rest.empty())
    co_return ex.reply(200, dialect::dump(view((*answer)["context"])));
  ex.reply(200, "{}");
}

}  // namespace

json translated(const json& event) {
  std::string type = text_of(event, "type");
  if (type == "stdout" || type == "stderr")
    return {{"type", type}, {"text", text_of(event, "text")}, {"timestamp", dialect::when(sandbox::now_millis())}};
  if (type == "result" || type == "display_update") return result_of(event);
  if (type == "ping") return {{"type", "keepalive"}};
  if (type == "truncated")
    return {{"type", "stderr"},
            {"text", "[the output of this cell was cut here: it is over the limit of " +
                         (event.contains("limit_bytes") ? event["limit_bytes"].dump() : "some") + " bytes]\n"},
            {"timestamp", dialect::when(sandbox::now_millis())}};
  if (type == "failure")
    return {{"type", "error"}, {"name", "InterpreterError"}, {"value", text_of(event, "message")}, {"traceback", ""}};
  if (type == "error") {
    std::string lines;
    if (auto found = event.find("traceback"); found != event.end() && found->is_array())
      for (const auto& line : *found)
        if (line.is_string()) lines += (lines.empty() ? "" : "\n") + line.get<std::string>();
    return {
        {"type", "error"}, {"name", text_of(event, "name")}, {"value", text_of(event, "value")}, {"traceback", lines}};
  }
  return nullptr;
}

Task<void> serve_interpreter(sandbox::Service& service, http::Exchange& ex, BoxPtr box, std::string token) {
  std::string path(ex.path());
  if (path == "/health") co_return ex.reply(200, "\"OK\"");
  if (path == "/execute" && ex.method() == "POST") {
    // Whoever knows a sandbox's name may see its ports; running code in it takes its token.
    if (token.empty() || !equal_secrets(ex.header("x-access-token"), token))
      co_return refuse(ex, 401, "unauthorized access, please provide a valid access token");
    ex.body_limit(kMaxBody);
    co_return co_await execute(service, ex, std::move(box));
  }
  if (path == "/contexts" || path.starts_with("/contexts/"))
    co_return co_await contexts(service, ex, std::move(box), path.substr(std::string_view("/contexts").size()));
  refuse(ex, 404, "Not Found");
}

}  // namespace isola::e2b
