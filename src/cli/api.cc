#include "cli/api.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/ids.h"
#include "cli/server_url.h"
#include "cli/table.h"

namespace isola::cli {

using nlohmann::json;

namespace {

constexpr char kDefaultUrl[] = "http://127.0.0.1:8080";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool on_this_machine(const std::string& url) {
  auto parsed = http::parse_url(url);
  if (!parsed) return false;
  const auto& host = parsed->host;
  return host == "localhost" || host == "::1" || host == "0.0.0.0" || host == "::" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

Result<std::string> read_key(const std::string& path) {
  ISOLA_TRY(std::string key, read_file(path, 4096));
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r' || key.back() == ' ')) key.pop_back();
  return key;
}

Code code_of_status(int status) {
  switch (status) {
    case 400:
    case 413:
    case 422: return Code::invalid;
    case 401:
    case 403: return Code::denied;
    case 404:
    case 410: return Code::not_found;
    case 409: return Code::exists;
    case 429:
    case 507: return Code::exhausted;
    case 501: return Code::unsupported;
    case 502:
    case 503: return Code::unavailable;
    case 408:
    case 504: return Code::timeout;
    default: return Code::internal;
  }
}

}  // namespace

std::string nobody_answers(const Server& server) {
  std::string where = server.idle_data.empty() ? "no server answers at " + server.url
                                               : "no server runs on " + server.idle_data + ", nor at " + server.url;
  return where + ": `isola up` starts one";
}

bool names_server(const Common& common) {
  return !common.url.empty() || (!common.data_given && !variable("ISOLA_URL").empty());
}

Result<Server> find_server(const Common& common) {
  Server server;
  // It is the one that runs on --data, or the user says where it is. A guess is not told the key that opens everything:
  // whoever is on this machine can listen there.
  bool own = false, meant = true;
  if (!common.url.empty()) {
    server.url = common.url;
  } else if (names_server(common)) {
    server.url = variable("ISOLA_URL");
  } else if (auto running = find_server_url(common.data_dir)) {
    server.url = *running;
    own = true;
  } else if (common.data_given) {
    // Whoever names a folder means no other server.
    return fail(Code::unavailable,
                "no server runs on " + common.data_dir + ": `isola up --data " + common.data_dir + "` starts one");
  } else {
    server.url = kDefaultUrl;
    server.idle_data = common.data_dir;
    meant = false;
  }
  if (auto parsed = http::parse_url(server.url); !parsed) return std::unexpected(parsed.error().in(server.url));
  if (!common.key_file.empty()) {
    ISOLA_TRY(server.key, read_key(common.key_file));
    server.key_from = common.key_file;
    return server;
  }
  // The folder's key for the folder's server: the variables may be for another.
  const bool by_folder = own && common.data_given;
  if (auto key = by_folder ? read_key(common.data_dir + "/key") : Result<std::string>(""); key && !key->empty()) {
    server.key = *key;
    server.key_from = common.data_dir + "/key";
    return server;
  }
  for (const char* name : {"ISOLA_API_KEY", "E2B_API_KEY"}) {
    server.key = variable(name);
    if (server.key.empty()) continue;
    server.key_from = name;
    return server;
  }
  if (own || (meant && on_this_machine(server.url))) {
    std::string path = common.data_dir + "/key";
    if (auto key = read_key(path)) {
      server.key = *key;
      server.key_from = path;
    }
  }
  return server;
}

Error api_error(int status, std::string_view body, const Server& server) {
  json parsed = json::parse(body, nullptr, false);
  std::string message, request;
  if (parsed.is_object() && parsed.contains("error") && parsed["error"].is_object()) {
    message = shown(text_of(parsed["error"], "message", ""));
    request = shown(text_of(parsed["error"], "request_id", ""));
  }
  if (message.empty()) message = fmt::format("the server answered {} {}", status, shown(body.substr(0, 200)));
  if (status == 401) {
    message = server.key_from.empty()
                  ? fmt::format(
                        "{} wants an API key: set ISOLA_API_KEY, or give the server's folder with --data (as "
                        "root; a key lies in it)",
                        server.url)
                  : fmt::format("{} does not accept the API key of {}", server.url, server.key_from);
  }
  if (!request.empty()) message += " (request " + request + ")";
  return Error{code_of_status(status), message};
}

std::string api_code(std::string_view body) {
  json parsed = json::parse(body, nullptr, false);
  return parsed.is_object() && parsed.contains("error") ? text_of(parsed["error"], "code", "") : "";
}

Api::Api(Server server, http::Url url)
    : server_(std::move(server)), url_(url), prefix_(url.target.substr(0, url.target.find('?'))), client_(url) {
  while (prefix_.ends_with('/')) prefix_.pop_back();
  if (!server_.key.empty()) client_.header("X-API-Key", server_.key);
  client_.header("User-Agent", "isola/" ISOLA_VERSION);
}

Result<Api> Api::open(const Common& common) {
  ISOLA_TRY(Server server, find_server(common));
  ISOLA_TRY(http::Url url, http::parse_url(server.url));
  return Api(std::move(server), std::move(url));
}

Api Api::another() const { return Api(server_, url_); }

Result<http::ClientReply> Api::request(http::ClientRequest request) {
  request.target = prefix_ + request.target;
  refusal_.clear();
  auto reply = client_.send(request);
  if (!reply && reply.error().sys_errno == ECONNREFUSED) {
    return fail(Code::unavailable, nobody_answers(server_), ECONNREFUSED);
  }
  if (!reply) return std::unexpected(reply.error().in(server_.url));
  if (reply->ok()) return reply;
  refusal_ = api_code(reply->body);
  return std::unexpected(api_error(reply->status, reply->body, server_));
}

Result<json> Api::get(const std::string& target) {
  ISOLA_TRY(auto reply, request({.target = target}));
  json parsed = json::parse(reply.body, nullptr, false);
  if (parsed.is_discarded()) return fail(Code::corrupt, server_.url + " does not speak as an Isola server does");
  return parsed;
}

Result<json> Api::send(const std::string& method, const std::string& target, const json& body) {
  ISOLA_TRY(auto reply, request({.method = method, .target = target, .body = json_text(body)}));
  if (reply.body.empty()) return json();
  json parsed = json::parse(reply.body, nullptr, false);
  if (parsed.is_discarded()) return fail(Code::corrupt, server_.url + " does not speak as an Isola server does");
  return parsed;
}

Result<void> Api::remove(const std::string& target) {
  ISOLA_TRY(auto reply, request({.method = "DELETE", .target = target}));
  return {};
}

Result<std::unique_ptr<http::WebSocketClient>> Api::websocket(const std::string& target) {
  http::Url url = url_;
  url.target = prefix_ + target;
  auto socket = http::WebSocketClient::connect(url, client_.headers(), {"isola.terminal.v1"}, client_.options());
  if (socket) return socket;
  Error error = socket.error();
  // "the server answered 404 Not Found: {…}": the shape inside says it better.
  if (auto brace = error.message.find(": {"); brace != std::string::npos) {
    auto digits = error.message.find_first_of("0123456789");
    int status = digits == std::string::npos ? 500 : std::atoi(error.message.c_str() + digits);
    error = api_error(status, std::string_view(error.message).substr(brace + 2), server_);
  } else if (error.sys_errno == ECONNREFUSED) {
    error.message = nobody_answers(server_);
  }
  return std::unexpected(error);
}

Result<std::string> Api::sandbox_id(const std::string& text) {
  if (text.empty()) return fail(Code::invalid, "which sandbox? Give its id or name");
  if (is_sandbox_id(text)) return text;
  auto found = get("/v1/sandboxes/" + http::percent_encode(text));
  if (found) return text_of(*found, "id", text);
  if (found.error().code != Code::not_found) return std::unexpected(found.error());
  if (text[0] != 'i') return std::unexpected(found.error());
  // Not a name: the beginning of an id, then.
  std::string match, cursor;
  do {
    std::string target = "/v1/sandboxes?limit=1000" + kLivingStates;
    if (!cursor.empty()) target += "&cursor=" + http::percent_encode(cursor);
    ISOLA_TRY(json page, get(target));
    for (const auto& one : page.value("sandboxes", json::array())) {
      std::string id = text_of(one, "id", "");
      if (!id.starts_with(text)) continue;
      if (!match.empty())
        return fail(Code::invalid, text + " is ambiguous: several sandboxes begin with it; write more of the id");
      match = id;
    }
    cursor = text_of(page, "next", "");
  } while (!cursor.empty());
  if (match.empty()) return std::unexpected(found.error());
  return match;
}

Result<std::string> Api::command_id(const std::string& sandbox, const std::string& text) {
  ISOLA_TRY(json all, get("/v1/sandboxes/" + sandbox + "/commands"));
  std::string match;
  for (const auto& one : all.value("commands", json::array())) {
    std::string id = text_of(one, "id", "");
    if (id == text) return id;
    if (!id.starts_with(text)) continue;
    if (!match.empty())
      return fail(Code::invalid, text + " is ambiguous: several commands begin with it; write more of the id");
    match = id;
  }
  if (match.empty()) return fail(Code::not_found, "there is no command " + text + " in sandbox " + sandbox);
  return match;
}

void add_server_options(CLI::App& app, Common& common) {
  app.add_option("--url", common.url, "The server (or ISOLA_URL; default: the one that runs on --data)");
  app.add_option("--key-file", common.key_file, "A file with the API key (or ISOLA_API_KEY; default: DIR/key)");
}

std::string json_text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace isola::cli
