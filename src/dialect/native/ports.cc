// Ports inward: what listens inside, and the way to it. We parse and authenticate; the guest dials 127.0.0.1:port.
//
//   <port>-<id>.<domain>                                    by host name
//   X-Isola-Sandbox: <id>, X-Isola-Port: <port>             by headers, at the API's own names
//   /v1/sandboxes/{id}/ports/{port}/{path...}               by path, with an API key
//
// By name and by headers, a private sandbox wants its token (X-Isola-Token, ?isola_token=, or a cookie), or a signed
// URL.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "boundary/network.h"
#include "dialect/native/api.h"
#include "dialect/native/fields.h"
#include "dialect/native/port_access.h"
#include "dialect/native/views.h"
#include "dialect/shared/port_proxy.h"
#include "dialect/shared/target.h"

namespace isola::native {

using dialect::by_name;
using dialect::forward;
using dialect::port_number;
using dialect::say_no;
using dialect::Target;
using nlohmann::json;
using sandbox::BoxPtr;

namespace {

constexpr size_t kMaxPorts = 65536;  // that a guest may say it has

std::optional<Target> by_headers(const http::Exchange& ex) {
  auto id = ex.header("x-isola-sandbox");
  auto port = port_number(ex.header("x-isola-port"));
  if (!port || !is_sandbox_id(id)) return std::nullopt;
  return Target{std::string(id), *port};
}

Task<Result<void>> list_ports(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  if (!may_look(ex, *box))
    co_return sandbox::conflict("the sandbox sleeps, and a key that may only read does not wake it");
  auto use = box->use();
  ISOLA_CO_TRY(auto link, co_await service.link(box));
  ISOLA_CO_TRY(std::string bytes, co_await link->collect(guest::Op::ports, {}, kMaxPorts * 16));
  ISOLA_CO_TRY(guest::Ports ports, guest::decode<guest::Ports>(bytes));
  if (ports.list.size() > kMaxPorts) co_return fail(Code::corrupt, "the sandbox sent a malformed list of ports");
  json all = json::array();
  for (const auto& port : ports.list)
    if (port.port != boundary::kGatePort && port.port != boundary::kDnsPort)  // the gate's; nobody inside can have them
      all.push_back({{"port", port.port}, {"ipv6", port.v6}, {"loopback", port.loopback}, {"uid", port.uid}});
  mark_untrusted(ex);
  ex.reply(200, dump({{"ports", all}}));
  co_return Result<void>();
}

void to_plain_address(http::Exchange& ex) {
  std::string target = without_grant(ex.target());
  target.erase(0, std::min(target.find_first_not_of("/\\"), target.size()));  // two would name another host
  ex.set_header("Location", "/" + target);
  ex.set_header("Cache-Control", "no-store");
  ex.set_header("Referrer-Policy", "no-referrer");
  ex.reply(303);
}

}  // namespace

void Api::add_ports(http::Router& router, http::RouteGroup& group) {
  using store::Scope;
  auto service = service_;
  Options options = options_;

  group.add("GET", "/v1/sandboxes/{id}/ports",
            handled([service](http::Exchange& ex) { return list_ports(*service, ex); }));
  group.add("POST", "/v1/sandboxes/{id}/ports/{port}/sign",
            handled(Scope::use, [service, options](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_TRY(BoxPtr box, box_of(*service, ex));
              auto port = port_number(ex.param("port"));
              if (!port) co_return fail(Code::invalid, "port: must be between 1 and 65535");
              ISOLA_CO_TRY(std::string body, co_await small_body(ex));
              ISOLA_CO_TRY(Fields fields, Fields::parse(body));
              auto lifetime = fields.seconds("expires_in").value_or(3600'000);
              auto path = fields.text("path", "/*");
              if (!path.starts_with('/')) fields.wrong("path", "must begin with / (and may end with *)");
              if (lifetime <= 0 || lifetime > 7LL * 24 * 3600 * 1000) fields.wrong("expires_in", "at most seven days");
              ISOLA_CO_CHECK(fields.done());
              Grant grant{box->id(), *port, path, sandbox::now_millis() / 1000 + lifetime / 1000};
              ISOLA_CO_TRY(std::string query, sign(options.url_secret, grant));
              std::string plain = path.ends_with('*') ? path.substr(0, path.size() - 1) : path;
              json out = {{"query", query}, {"path", plain}, {"expires", when(grant.expires * 1000)}};
              if (!options.domain.empty()) {
                int at = options.port ? options.port->load() : 0;
                bool usual = at == 0 || at == (options.scheme == "https" ? 443 : 80);
                out["url"] = fmt::format("{}://{}-{}.{}{}{}?{}", options.scheme, *port, box->id(), options.domain,
                                         usual ? std::string() : fmt::format(":{}", at), plain, query);
              }
              ex.reply(200, dump(out));
              co_return Result<void>();
            }));
  auto by_path = handled(Scope::use, [service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
    ISOLA_CO_TRY(BoxPtr box, box_of(*service, ex));
    auto port = port_number(ex.param("port"));
    if (!port) co_return fail(Code::invalid, "port: must be between 1 and 65535");
    // The rest of the path as it was sent: decoding it would change what the service inside sees.
    std::string_view rest = ex.target();
    for (int slash = 0; slash < 5 && !rest.empty(); ++slash) {
      auto at = rest.find('/', 1);
      rest = at == std::string_view::npos ? std::string_view() : rest.substr(at);
    }
    std::string target = rest.empty() ? "/" : std::string(rest);
    mark_untrusted(ex, "body");
    co_await forward(*service, ex, box, *port, target);
    co_return Result<void>();
  });
  for (const char* method : {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}) {
    group.add(method, "/v1/sandboxes/{id}/ports/{port}/{path...}", by_path).body_limit = http::Exchange::kNoLimit;
  }

  router.by_host([this, service, options](http::Exchange& ex) -> std::optional<http::Handler> {
    auto target = by_name(ex.host(), options.domain);
    const bool named = target.has_value();
    if (!target) target = by_headers(ex);
    if (!target) return std::nullopt;
    return [this, service, options, target, named](http::Exchange& ex) -> ::isola::Task<void> {
      // A name of its own keeps strangers' pages out; headers come to a name that such a page may have made its own.
      if (!named && !door_.welcomes(ex)) co_return;
      if (!service->ready()) {
        ex.set_header("Retry-After", "1");
        say_no(ex, 503, "unavailable", "the server is starting");
        co_return;
      }
      auto box = service->find_any(target->id);
      if (!box) {
        say_no(ex, 404, "not_found", "there is no such sandbox, or it has ended");
        co_return;
      }
      auto allowed = may_enter(ex, **box, target->port, options.url_secret, named);
      if (!allowed) {
        say_no(ex, 403, "denied", allowed.error().message);
        co_return;
      }
      ex.body_limit(http::Exchange::kNoLimit);
      mark_untrusted(ex, "body");
      if (named && !allowed->empty()) {
        ex.set_header("Set-Cookie", *allowed);
        // The page itself shall not have the right in its address, where its scripts and what it links to see it.
        if (ex.method() == "GET" && ex.header("sec-fetch-mode") == "navigate") co_return to_plain_address(ex);
      }
      co_await forward(*service, ex, *box, target->port, without_grant(ex.target()));
    };
  });
}

}  // namespace isola::native
