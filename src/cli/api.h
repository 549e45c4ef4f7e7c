// The way to a server: finds it and the key for it, sends requests, and turns its errors into ours.
//
//   ISOLA_TRY(Api api, Api::open(common));
//   ISOLA_TRY(std::string id, api.sandbox_id("i3f"));                  // a name, an id, or the beginning of one
//   ISOLA_TRY(json sandbox, api.get("/v1/sandboxes/" + id));
//   ISOLA_TRY(json made, api.send("POST", "/v1/sandboxes", {{"template", "base"}}));
//
// Which server: --url, ISOLA_URL, the one that runs on --data, http://127.0.0.1:8080. Which key: --key-file,
// ISOLA_API_KEY, E2B_API_KEY, DIR/key (only for a server on this machine: it opens everything here).
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cli/commands.h"
#include "http/client.h"
#include "http/websocket_client.h"

namespace CLI {
class App;
}

namespace isola::cli {

struct Server {
  std::string url, key;
  std::string key_from;        // for people: "ISOLA_API_KEY", "/var/lib/isola/key"; empty: there is no key
  std::string idle_data = {};  // nobody said where the server is, and none runs on this folder: `url` is a guess
};
// Why a connection to it is refused.
std::string nobody_answers(const Server& server);
Result<Server> find_server(const Common& common);
bool names_server(const Common& common);  // by a URL

// What a reply that is not a success says.
Error api_error(int status, std::string_view body, const Server& server);
// Its `code`.
std::string api_code(std::string_view body);

class Api {
 public:
  static Result<Api> open(const Common& common);
  // The same server over a connection of its own, for another thread.
  Api another() const;

  Result<nlohmann::json> get(const std::string& target);
  Result<nlohmann::json> send(const std::string& method, const std::string& target, const nlohmann::json& body);
  Result<void> remove(const std::string& target);
  Result<http::ClientReply> request(http::ClientRequest request);  // a reply that is no success is an Error
  Result<std::unique_ptr<http::WebSocketClient>> websocket(const std::string& target);

  // Ids from what a person typed.
  Result<std::string> sandbox_id(const std::string& text);
  Result<std::string> command_id(const std::string& sandbox, const std::string& text);

  const Server& server() const { return server_; }
  // The `code` of the last reply that was an error, such as command_not_found; empty: there was none.
  const std::string& refusal() const { return refusal_; }

 private:
  Api(Server server, http::Url url);
  Server server_;
  http::Url url_;
  std::string prefix_;  // of every path, where the URL has one
  http::Client client_;
  std::string refusal_;
};

// --url and --key-file.
void add_server_options(CLI::App& app, Common& common);

// The body of a JSON request; text that is not UTF-8 is mended.
std::string json_text(const nlohmann::json& value);

}  // namespace isola::cli
