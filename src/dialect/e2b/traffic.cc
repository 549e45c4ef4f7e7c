// Which requests are for a sandbox, and what becomes of them: port 49983 is envd and answered here, every other port is
// the sandbox's own.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/hash/sha256.h"
#include "base/ids.h"
#include "dialect/e2b/api.h"
#include "dialect/e2b/interpreter.h"
#include "dialect/e2b/tokens.h"
#include "dialect/shared/cookies.h"
#include "dialect/shared/port_proxy.h"
#include "dialect/shared/target.h"
#include "dialect/shared/text.h"
#include "interpreter/warm.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

constexpr uint16_t kEnvdPort = 49983;

struct Target : dialect::Target {
  bool named = false;  // by its host name
};

std::optional<Target> by_name(std::string_view host, const std::string& domain) {
  auto target = dialect::by_name(host, domain, plain_id);
  if (!target) return std::nullopt;
  return Target{std::move(*target), true};
}

// Old Python clients send a sandbox's headers with calls of the control plane, too.
bool of_control_plane(std::string_view path) {
  for (std::string_view prefix : {"/sandboxes", "/v2/sandboxes", "/templates", "/v2/templates", "/v3/templates",
                                  "/snapshots", "/volumes", "/volumecontent", "/secrets", "/events", "/teams"})
    if (path == prefix || (path.starts_with(prefix) && path[prefix.size()] == '/')) return true;
  return false;
}

std::optional<Target> by_headers(const http::Exchange& ex) {
  std::string id = plain_id(ex.header("e2b-sandbox-id"));
  if (is_sandbox_id(id)) return Target{{id, dialect::port_number(ex.header("e2b-sandbox-port")).value_or(kEnvdPort)}};
  // Clients that do not say it have at least the token, and that has a name in it.
  id = token_names(ex.header("x-access-token"));
  if (!id.empty()) return Target{{id, kEnvdPort}};
  return std::nullopt;
}

// Whether it was made through this dialect: then its ports behave as E2B's do. An ended one is remembered, too.
std::optional<Notes> notes_of(sandbox::Service& service, const std::string& id) {
  if (auto box = service.find_any(id)) return Notes::of((*box)->record().metadata);
  auto record = service.store().find_sandbox(id);
  return record ? Notes::of(record->metadata) : std::nullopt;
}

// It comes with a right that the native API gave: a signed URL, or the port token as that dialect writes it, or what
// such an address left with the browser.
bool for_others(const http::Exchange& ex) {
  if (ex.query("isola_signature") || ex.query("isola_token") || !ex.header("x-isola-token").empty()) return true;
  auto cookies = ex.header("cookie");
  return ex.header("e2b-traffic-access-token").empty() &&
         !(dialect::cookies_of(cookies, dialect::kTokenCookie).empty() &&
           dialect::cookies_of(cookies, dialect::kGrantCookie).empty());
}

// Whether what it was made of brings one along: else the port is like all others. Of what is not known any more it is
// taken to.
bool has_interpreter(sandbox::Service& service, const store::SandboxRecord& record) {
  auto source = service.source_of(record.project, record.template_name);
  return !source || interpreter::has_interpreter(source->base);
}

Task<void> to_port(sandbox::Service& service, http::Exchange& ex, Target target, Notes notes,
                   std::shared_ptr<const Tokens> tokens, bool context_token) {
  auto box = service.find_any(target.id);
  // While the first request brings it back, it is on its way: those that come meanwhile wait for that, too.
  if (!box || (!is_running(*box) && !may_wake(service, *box))) co_return gone(ex, target.id);
  std::string token = (*box)->record().traffic_token;
  if (!token.empty() && !equal_secrets(ex.header("e2b-traffic-access-token"), token)) {
    bool missing = ex.header("e2b-traffic-access-token").empty();
    ex.reply(403,
             dialect::dump({{"sandboxId", target.id},
                            {"message", missing ? "Sandbox is secured with traffic access token. Token header "
                                                  "'e2b-traffic-access-token' is missing"
                                                : "Sandbox is secured with traffic access token. Provided token in "
                                                  "header 'e2b-traffic-access-token' is invalid."},
                            {"code", 403}}));
    co_return;
  }
  if (auto woken = co_await wake(service, *box); !woken) co_return not_woken(service, ex, *box, woken.error());
  if (target.port == kInterpreterPort && has_interpreter(service, (*box)->record())) {
    InterpreterAccess access{.token = tokens->of(target.id, (*box)->made_by()), .of_contexts = context_token};
    co_return co_await serve_interpreter(service, ex, *box, std::move(access));
  }
  ex.body_limit(http::Exchange::kNoLimit);
  dialect::Passage passage;
  passage.host = std::string(ex.host_header());
  if (!notes.mask_host.empty()) {
    passage.host = notes.mask_host;
    if (auto at = passage.host.find("${PORT}"); at != std::string::npos)
      passage.host.replace(at, 7, std::to_string(target.port));
  }
  passage.tls = std::ranges::find(notes.https_ports, target.port) != notes.https_ports.end();
  passage.closed = [id = target.id, port = target.port](http::Exchange& ex) {
    if (ex.header("accept").find("text/html") != std::string_view::npos)
      return dialect::say_no(ex, 502, "bad_gateway", fmt::format("nothing listens on port {} of this sandbox", port));
    ex.reply(502, dialect::dump({{"sandboxId", id},
                                 {"message", "The sandbox is running but port is not open"},
                                 {"port", port},
                                 {"code", 502}}));
  };
  std::string path(ex.target());
  co_await dialect::forward(service, ex, *box, target.port, path, passage);
}

}  // namespace

void Api::add_traffic(http::Router& router) {
  auto service = service_;
  auto envd = envd_;
  auto others = router.host_hook();  // of dialects that were there before
  auto ours = [service, envd, domain = options_.domain, tokens = options_.tokens,
               context_token = options_.context_token](http::Exchange& ex) -> std::optional<http::Handler> {
    auto target = by_name(ex.host(), domain);
    if (!target) target = by_headers(ex);
    if (!target) return std::nullopt;
    if (target->port == kEnvdPort && !target->named && of_control_plane(ex.path())) return std::nullopt;
    if (target->port == kEnvdPort)
      return [envd, id = target->id](http::Exchange& ex) -> Task<void> { co_await envd->serve(ex, id); };
    if (!service->ready())
      return [id = target->id](http::Exchange& ex) -> Task<void> {
        starting(ex, id);
        co_return;
      };
    auto notes = notes_of(*service, target->id);
    if (!notes && target->named) return std::nullopt;  // another dialect's
    if (target->named && for_others(ex)) return std::nullopt;
    Notes known = notes.value_or(Notes{});
    return [service, target = *target, known, tokens, context_token](http::Exchange& ex) -> Task<void> {
      co_await to_port(*service, ex, target, known, tokens, context_token);
    };
  };
  router.by_host([ours, others](http::Exchange& ex) -> std::optional<http::Handler> {
    if (auto handler = ours(ex)) return handler;
    return others ? others(ex) : std::nullopt;
  });
  // A signed URL at an origin that all sandboxes share says nothing of whose it is: only the signature does.
  auto by_signature = [service, envd](http::Exchange& ex) -> Task<void> {
    if (!service->ready()) co_return starting(ex, "");
    auto id = envd->signed_for(ex);
    if (!id && id.error().code == Code::exhausted) co_return ex.fail(id.error(), 1);
    if (!id) {
      ex.reply(401, R"({"code":401,"message":"invalid signature"})");
      co_return;
    }
    co_await envd->serve(ex, *id);
  };
  auto& files = router.group("/files");
  files.dress(dress);
  files.add("GET", "/files", by_signature);
  files.add("POST", "/files", by_signature).body_limit = http::Exchange::kNoLimit;
}

}  // namespace isola::e2b
