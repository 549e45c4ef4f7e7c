// /v1/secrets and bindings: what sandboxes may use without having it (docs/vault.md). Values come in and never out.
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "dialect/native/api.h"
#include "dialect/native/fields.h"
#include "dialect/native/query.h"
#include "dialect/native/views.h"

namespace isola::native {

using nlohmann::json;
using store::BindingScope;
using store::Scope;

namespace {

// Where it is fetched, and by what command, is its administrators' business: others see of what type its source is.
json view_of_secret(const store::SecretRecord& secret, const http::Exchange& ex) {
  json out = {{"name", secret.name},
              {"version", secret.version},
              {"created", when(secret.created)},
              {"changed", when(secret.changed)},
              {"actor", secret.actor}};
  if (secret.source.empty()) return out;
  json source = json::parse(secret.source, nullptr, false);
  if (!store::allows(scope_of(ex), Scope::admin))
    source = {{"type", source.is_object() ? source.value("type", "") : ""}};
  out["source"] = std::move(source);
  return out;
}

json view_of_binding(const store::BindingRecord& binding) {
  json out = json::parse(binding.body, nullptr, false);
  if (!out.is_object()) out = json::object();
  out["id"] = binding.id;
  out["scope"] = to_string(binding.scope);
  if (binding.scope == BindingScope::of_template) out["template"] = binding.subject;
  if (binding.scope == BindingScope::sandbox) out["sandbox"] = binding.subject;
  out["secret"] = binding.secret;
  out["created"] = when(binding.created);
  out["expires"] = binding.expires == 0 ? json(nullptr) : json(when(binding.expires));
  out["actor"] = binding.actor;
  return out;
}

// A body with a value in it, which is not left behind in memory.
struct ValueBody {
  std::string text;
  ~ValueBody() { vault::wipe(text); }
};

Task<Result<void>> put_secret(sandbox::Service& service, http::Exchange& ex, bool replace) {
  ValueBody body;
  ISOLA_CO_TRY(body.text, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body.text));
  vault::wipe(body.text);
  sandbox::SecretRequest request;
  request.project = project_of(ex);
  request.name = replace ? std::string(ex.param("secret")) : fields.text("name");
  request.value = fields.secret("value", "value_base64");
  request.source = fields.json_text("source");
  request.operators = is_operator(ex);
  request.by = caller_of(ex);
  fields.wipe();
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(auto secret, co_await service.put_secret(std::move(request), replace));
  if (!replace) ex.set_header("Location", "/v1/secrets/" + secret.name);
  ex.reply(replace ? 200 : 201, dump(view_of_secret(secret, ex)));
  co_return Result<void>();
}

Result<void> list_secrets(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CHECK(only_queries(ex, {}));
  ISOLA_TRY(auto secrets, service.store().list_secrets(project_of(ex)));
  json all = json::array();
  for (const auto& secret : secrets) all.push_back(view_of_secret(secret, ex));
  ex.reply(200, dump({{"secrets", all}}));
  return {};
}

Result<void> show_secret(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_TRY(auto secret, service.find_secret(project_of(ex), std::string(ex.param("secret"))));
  ex.reply(200, dump(view_of_secret(secret, ex)));
  return {};
}

Task<Result<void>> remove_secret(sandbox::Service& service, http::Exchange& ex) {
  std::string project = project_of(ex), name(ex.param("secret"));
  sandbox::Caller by = caller_of(ex);
  ISOLA_CO_CHECK(co_await service.remove_secret(std::move(project), std::move(name), std::move(by)));
  ex.reply(204);
  co_return Result<void>();
}

// ---- bindings -------------------------------------------------------------------------------------------------------

vault::Binding read_binding(Fields& fields) {
  vault::Binding binding;
  binding.secret = fields.text("secret");
  binding.names = fields.texts("names");
  binding.ports = fields.text("ports");
  binding.methods = fields.texts("methods");
  binding.path_prefix = fields.text("path_prefix");
  if (auto word = fields.maybe_text("place")) {
    auto place = vault::parse_place(*word);
    if (place)
      binding.place = *place;
    else
      fields.wrong("place", "must be bearer, basic, header, query or sigv4");
  }
  binding.field = fields.text("field");
  binding.audience = fields.text("audience");
  binding.format = fields.text("format");
  if (auto word = fields.maybe_text("scan")) {
    if (*word != "redact" && *word != "block") fields.wrong("scan", "must be redact or block");
    binding.blocks = *word == "block";
  }
  binding.placeholder = fields.text("placeholder");
  // A random one, for tools that do nothing without something that looks like a token.
  if (fields.flag("make_placeholder")) {
    if (!binding.placeholder.empty()) fields.wrong("make_placeholder", "there is a placeholder already");
    binding.placeholder = "isola-placeholder-" + new_token();
  }
  if (binding.placeholder.empty() && fields.flag("placeholder_everywhere"))
    fields.wrong("placeholder_everywhere", "needs a placeholder");
  binding.unguarded = !binding.placeholder.empty() && !fields.flag("placeholder_everywhere", true);
  if (auto time = fields.seconds("expires_in")) binding.expires = sandbox::now_millis() + *time;
  return binding;
}

Task<Result<void>> bind(sandbox::Service& service, http::Exchange& ex, bool to_sandbox) {
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  sandbox::BindRequest request;
  request.project = project_of(ex);
  request.binding = read_binding(fields);
  request.by = caller_of(ex);
  if (to_sandbox) {
    ISOLA_CO_TRY(auto box, box_of(service, ex));
    request.subject = box->id();
  } else {
    request.subject = fields.text("template");
    request.scope = request.subject.empty() ? BindingScope::project : BindingScope::of_template;
  }
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(auto made, co_await service.bind(std::move(request)));
  ex.reply(201, dump(view_of_binding(made)));
  co_return Result<void>();
}

// All of the project's, or those that hold for one sandbox.
Result<void> list_bindings(sandbox::Service& service, http::Exchange& ex, bool of_sandbox) {
  std::vector<store::BindingRecord> found;
  if (of_sandbox) {
    ISOLA_CHECK(only_queries(ex, {}));
    ISOLA_TRY(auto sandbox, service.look(project_of(ex), std::string(ex.param("id"))));
    ISOLA_TRY(found, service.grants_of(sandbox));
  } else {
    ISOLA_CHECK(only_queries(ex, {"secret"}));
    ISOLA_TRY(found, service.store().list_bindings(project_of(ex)));
    if (auto secret = ex.query("secret")) std::erase_if(found, [&](const auto& one) { return one.secret != *secret; });
  }
  json all = json::array();
  for (const auto& binding : found) all.push_back(view_of_binding(binding));
  ex.reply(200, dump({{"bindings", all}}));
  return {};
}

Task<Result<void>> unbind(sandbox::Service& service, http::Exchange& ex, bool of_sandbox) {
  std::string project = project_of(ex), id(ex.param("binding"));
  ISOLA_CO_TRY(auto binding, service.store().find_binding(project, id));
  if (of_sandbox) {
    ISOLA_CO_TRY(auto sandbox, service.look(project, std::string(ex.param("id"))));
    if (binding.scope != BindingScope::sandbox || binding.subject != sandbox.id)
      co_return fail(Code::not_found, "sandbox " + sandbox.id + " has no binding " + id + " of its own");
  }
  sandbox::Caller by = caller_of(ex);
  ISOLA_CO_CHECK(co_await service.unbind(std::move(project), std::move(id), std::move(by)));
  ex.reply(204);
  co_return Result<void>();
}

}  // namespace

// What others check tokens of sandboxes' identities with (OpenID Connect Discovery): nothing secret, and for everybody.
void Api::add_discovery(http::Router& router) {
  auto service = service_;
  constexpr const char* kKeys = "/.well-known/jwks.json";
  constexpr const char* kFreshness = "public, max-age=300";  // much less than a key is known before it signs
  router.add("GET", "/.well-known/openid-configuration", [service](http::Exchange& ex) -> ::isola::Task<void> {
    const std::string issuer = service->settings().issuer;
    if (issuer.empty()) {
      ex.fail(Error{Code::not_found, "this server signs no tokens: it has no `issuer`"});
      co_return;
    }
    ex.set_header("Cache-Control", kFreshness);
    ex.reply(
        200,
        dump({{"issuer", issuer},
              {"jwks_uri", issuer + kKeys},
              {"response_types_supported", {"id_token"}},
              {"subject_types_supported", {"public"}},
              {"id_token_signing_alg_values_supported", {"RS256"}},
              {"scopes_supported", {"openid"}},
              {"claims_supported",
               {"iss", "sub", "aud", "exp", "nbf", "iat", "jti", "sandbox", "project", "task", "actor", "template"}}}));
  });
  router.add("GET", kKeys, [service](http::Exchange& ex) -> ::isola::Task<void> {
    if (service->settings().issuer.empty()) {
      ex.fail(Error{Code::not_found, "this server signs no tokens: it has no `issuer`"});
      co_return;
    }
    auto keys = co_await service->token_keys();
    if (!keys) {
      ex.fail(Error{Code::unavailable, keys.error().message}, 1);
      co_return;
    }
    ex.set_header("Cache-Control", kFreshness);
    ex.reply(200, *keys);
  });
}

// Whoever may say where a value goes can have it sent to himself: that is for admin keys, like bringing one in.
void Api::add_secrets(http::RouteGroup& group) {
  auto service = service_;
  using Later = ::isola::Task<Result<void>>;
  group.add("POST", "/v1/secrets",
            handled(Scope::admin, [service](http::Exchange& ex) { return put_secret(*service, ex, false); }));
  group.add("GET", "/v1/secrets",
            handled([service](http::Exchange& ex) -> Later { co_return list_secrets(*service, ex); }));
  group.add("GET", "/v1/secrets/{secret}",
            handled([service](http::Exchange& ex) -> Later { co_return show_secret(*service, ex); }));
  group.add("PUT", "/v1/secrets/{secret}",
            handled(Scope::admin, [service](http::Exchange& ex) { return put_secret(*service, ex, true); }));
  group.add("DELETE", "/v1/secrets/{secret}",
            handled(Scope::admin, [service](http::Exchange& ex) { return remove_secret(*service, ex); }));
  for (bool of_sandbox : {false, true}) {
    std::string base = of_sandbox ? "/v1/sandboxes/{id}/bindings" : "/v1/bindings";
    group.add("POST", base, handled(Scope::admin, [service, of_sandbox](http::Exchange& ex) {
                return bind(*service, ex, of_sandbox);
              }));
    group.add("GET", base, handled([service, of_sandbox](http::Exchange& ex) -> Later {
                co_return list_bindings(*service, ex, of_sandbox);
              }));
    group.add("DELETE", base + "/{binding}", handled(Scope::admin, [service, of_sandbox](http::Exchange& ex) {
                return unbind(*service, ex, of_sandbox);
              }));
  }
}

}  // namespace isola::native
