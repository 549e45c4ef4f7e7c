// isola sandbox port: what listens in a sandbox, and the way to it.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/api.h"
#include "cli/port_forward.h"
#include "cli/register.h"
#include "cli/table.h"

namespace isola::cli {

using nlohmann::json;

namespace {

struct PortOptions {
  std::string sandbox, sign;
  uint16_t port = 0, local = 0;
};

Result<void> ports(const Common& common, const PortOptions& options) {
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(std::string id, api.sandbox_id(options.sandbox));
  std::string base = "/v1/sandboxes/" + id;
  if (options.port == 0) {
    ISOLA_TRY(json all, api.get(base + "/ports"));
    if (common.json) {
      print_json(all);
      return {};
    }
    Table table({"PORT", "LISTENS ON", "UID"});
    for (const auto& one : all.value("ports", json::array()))
      table.add(
          {text_of(one, "port"),
           std::string(one.value("loopback", false) ? "loopback" : "all") + (one.value("ipv6", false) ? " (IPv6)" : ""),
           text_of(one, "uid")});
    print(table.text());
    return {};
  }
  if (!options.sign.empty()) {
    ISOLA_TRY(json link, api.send("POST", base + "/ports/" + std::to_string(options.port) + "/sign",
                                  {{"expires_in", options.sign}}));
    if (common.json)
      print_json(link);
    else
      print(text_of(link, "url", api.server().url + text_of(link, "path") + "?" + text_of(link, "query")) + "\n");
    if (text_of(link, "url", "").empty())
      std::fprintf(stderr,
                   "isola: this server has no domain and is not on loopback alone, so a link by itself leads to no "
                   "sandbox: ask %s for it with the "
                   "headers X-Isola-Sandbox: %s and X-Isola-Port: %u\n",
                   api.server().url.c_str(), id.c_str(), static_cast<unsigned>(options.port));
    return {};
  }
  ISOLA_TRY(json sandbox, api.get(base));
  Forward forward{
      .sandbox = id, .token = text_of(sandbox, "port_token", ""), .port = options.port, .json = common.json};
  ISOLA_TRY(forward.server, http::parse_url(api.server().url));
  return forward_port(forward, options.local);
}

}  // namespace

void add_port(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<PortOptions>();
  auto* command = app.add_subcommand("port",
                                     "What listens in a sandbox; with a PORT, forward a port of this machine to it "
                                     "(HTTP and WebSockets; raw TCP not yet)");
  command->add_option("id", options->sandbox, "The sandbox")->required();
  command->add_option("port", options->port, "The port inside")->check(CLI::Range(1, 65535));
  command->add_option("--local", options->local, "The port on 127.0.0.1 (default: any that is free)");
  command->add_option("--sign", options->sign, "Print a URL instead that works for this time, as 1h");
  add_server_options(*command, common);
  command->callback([=, &common, &code] {
    auto done = ports(common, *options);
    code = done ? 0 : complain(done.error().message);
  });
}

}  // namespace isola::cli
