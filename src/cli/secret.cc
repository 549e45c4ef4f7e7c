// isola secret, isola bind, isola grants: what sandboxes use without having it. Values come from a file or the standard
// input, never from the command line, which everybody on the machine can read.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/api.h"
#include "cli/register.h"
#include "cli/table.h"
#include "http/url.h"
#include "vault/seal.h"
#include "vault/source.h"

namespace isola::cli {

using nlohmann::json;

namespace {

struct SecretOptions {
  std::string name, file, source;
  bool standard_input = false, keep_newline = false, quiet = false;
  std::vector<std::string> names;
};

struct BindOptions {
  std::vector<std::string> words;  // [SANDBOX] SECRET HOST…
  bool project = false, placeholder = false, unguarded = false, blocks = false;
  std::string template_name, as = "bearer", path, ports, expires, format, audience;
  std::vector<std::string> methods;
};

std::string secret_path(const std::string& name) { return "/v1/secrets/" + http::percent_encode(name); }

Result<std::string> read_standard_input() {
  std::string text;
  char buffer[4096];
  for (;;) {
    ssize_t n = ::read(0, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot read the standard input");
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > vault::kMaxValue + 2) return fail(Code::invalid, "a secret's value has at most 16 KiB");
  }
}

// A source is JSON, from a file or the standard input as well: it may hold credentials.
Result<json> read_source(const SecretOptions& options) {
  ISOLA_TRY(std::string text, options.source == "-" ? read_standard_input() : read_file(options.source, 64 << 10));
  ISOLA_CHECK(vault::parse_source(text));
  json source = json::parse(text, nullptr, false);
  vault::wipe(text);
  return source;
}

Result<void> set_secret(const Common& common, const SecretOptions& options) {
  const int ways = !options.file.empty() + options.standard_input + !options.source.empty();
  if (ways > 1) return fail(Code::invalid, "--from-file, --from-stdin and --source: one of them");
  if (ways == 0 && ::isatty(0))
    return fail(Code::invalid, "where is the value? --from-file FILE, --from-stdin, or --source FILE");
  json body = json::object();
  if (!options.source.empty()) {
    ISOLA_TRY(body["source"], read_source(options));
  } else {
    ISOLA_TRY(std::string value,
              options.file.empty() ? read_standard_input() : read_file(options.file, vault::kMaxValue + 2));
    // The newline that editors and `echo` leave is nobody's wish.
    if (!options.keep_newline && value.ends_with('\n')) value.pop_back();
    body["value_base64"] = vault::to_base64(value);
    vault::wipe(value);
  }
  ISOLA_TRY(Api api, Api::open(common));
  // New, or another version of it.
  auto known = api.get(secret_path(options.name));
  if (!known && known.error().code != Code::not_found) return std::unexpected(known.error());
  if (!known) body["name"] = options.name;
  ISOLA_TRY(json made,
            known ? api.send("PUT", secret_path(options.name), body) : api.send("POST", "/v1/secrets", body));
  if (common.json)
    print_json(made);
  else
    print(text_of(made, "name") + " version " + std::to_string(made.value("version", 1)) + "\n");
  return {};
}

Result<void> list_secrets(const Common& common, const SecretOptions& options) {
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(json all, api.get("/v1/secrets"));
  if (common.json) {
    print_json(all);
    return {};
  }
  Table table({"NAME", "VERSION", "SOURCE", "CHANGED", "ACTOR"});
  for (const auto& one : all["secrets"]) {
    if (options.quiet) {
      print(text_of(one, "name") + "\n");
      continue;
    }
    table.add({text_of(one, "name"), std::to_string(one.value("version", 1)),
               one.contains("source") ? text_of(one["source"], "type") : "store", when_of(one, "changed"),
               text_of(one, "actor")});
  }
  if (!options.quiet) print(table.text());
  return {};
}

// bearer, basic:USER, header:NAME, query:NAME, sigv4:REGION/SERVICE
Result<void> read_place(const std::string& as, json& body) {
  auto colon = as.find(':');
  std::string place = as.substr(0, colon);
  if (place != "bearer" && place != "basic" && place != "header" && place != "query" && place != "sigv4")
    return fail(Code::invalid, "--as: bearer, basic:USER, header:NAME, query:NAME or sigv4:REGION/SERVICE");
  body["place"] = place;
  if (colon != std::string::npos) body["field"] = as.substr(colon + 1);
  return {};
}

Result<void> bind_secret(const Common& common, const BindOptions& options) {
  const bool shared = options.project || !options.template_name.empty();
  if (options.project && !options.template_name.empty())
    return fail(Code::invalid, "--project and --template: one of them");
  const size_t first = shared ? 0 : 1;
  if (options.words.size() < first + 2)
    return fail(Code::invalid, shared ? "say SECRET HOST…" : "say SANDBOX SECRET HOST… (or --project, --template)");
  json body = {{"secret", options.words[first]}};
  body["names"] =
      std::vector<std::string>(options.words.begin() + static_cast<ptrdiff_t>(first) + 1, options.words.end());
  ISOLA_CHECK(read_place(options.as, body));
  if (!options.methods.empty()) body["methods"] = options.methods;
  if (!options.path.empty()) body["path_prefix"] = options.path;
  if (!options.ports.empty()) body["ports"] = options.ports;
  if (!options.format.empty()) body["format"] = options.format;
  if (!options.expires.empty()) body["expires_in"] = options.expires;
  if (!options.audience.empty()) body["audience"] = options.audience;
  if (options.unguarded && !options.placeholder) return fail(Code::invalid, "--no-guard is about a --placeholder");
  if (options.placeholder) body["make_placeholder"] = true;
  if (options.unguarded) body["placeholder_everywhere"] = false;
  if (options.blocks) body["scan"] = "block";
  if (!options.template_name.empty()) body["template"] = options.template_name;
  ISOLA_TRY(Api api, Api::open(common));
  std::string target = "/v1/bindings";
  if (!shared) {
    ISOLA_TRY(std::string id, api.sandbox_id(options.words[0]));
    target = "/v1/sandboxes/" + id + "/bindings";
  }
  ISOLA_TRY(json made, api.send("POST", target, body));
  if (common.json) {
    print_json(made);
    return {};
  }
  print(text_of(made, "id") + "\n");
  if (made.contains("placeholder")) print("placeholder " + text_of(made, "placeholder") + "\n");
  return {};
}

std::string words_of(const json& list) {
  std::string text;
  for (const auto& word : list) text += (text.empty() ? "" : " ") + (word.is_string() ? word.get<std::string>() : "");
  return text;
}

Result<void> list_grants(const Common& common, const std::string& sandbox) {
  ISOLA_TRY(Api api, Api::open(common));
  std::string target = "/v1/bindings";
  if (!sandbox.empty()) {
    ISOLA_TRY(std::string id, api.sandbox_id(sandbox));
    target = "/v1/sandboxes/" + id + "/bindings";
  }
  ISOLA_TRY(json all, api.get(target));
  if (common.json) {
    print_json(all);
    return {};
  }
  Table table({"ID", "SECRET", "FOR", "NAMES", "AS", "LIMITED TO", "EXPIRES", "ACTOR"});
  for (const auto& one : all["bindings"]) {
    std::string subject = text_of(one, "sandbox", text_of(one, "template", ""));
    std::string limits = words_of(one.value("methods", json::array()));
    if (one.contains("path_prefix")) limits += (limits.empty() ? "" : " ") + text_of(one, "path_prefix");
    std::string place = text_of(one, "place");
    if (one.contains("field")) place += ":" + text_of(one, "field");
    table.add({text_of(one, "id"), text_of(one, "secret"),
               text_of(one, "scope") + (subject.empty() ? "" : " " + subject),
               words_of(one.value("names", json::array())), place, limits.empty() ? "-" : limits,
               when_of(one, "expires"), text_of(one, "actor")});
  }
  print(table.text());
  return {};
}

Result<void> remove_secrets(const Common& common, const std::vector<std::string>& names, bool bindings) {
  ISOLA_TRY(Api api, Api::open(common));
  for (const auto& name : names)
    ISOLA_CHECK(api.remove(bindings ? "/v1/bindings/" + http::percent_encode(name) : secret_path(name)));
  return {};
}

}  // namespace

void add_secret(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<SecretOptions>();
  auto done = [&code](const Result<void>& result) { code = result ? 0 : complain(result.error().message); };
  auto* group = app.add_subcommand("secret", "What sandboxes use without having it")->require_subcommand(1);

  auto* setting = group->add_subcommand("set", "Bring a secret in, or give it another value");
  add_server_options(*setting, common);
  setting->add_option("NAME", options->name)->required();
  setting->add_option("--from-file", options->file, "The value is in this file");
  setting->add_flag("--from-stdin", options->standard_input, "The value is on the standard input");
  setting->add_option("--source", options->source,
                      "The value is elsewhere: a file (or - for the standard input) with JSON that says where "
                      "(docs/vault.md)");
  setting->add_flag("--keep-newline", options->keep_newline, "A newline at its end belongs to the value");
  setting->callback([&common, options, done] { done(set_secret(common, *options)); });

  auto* listing = group->add_subcommand("ls", "List secrets, never their values");
  add_server_options(*listing, common);
  listing->add_flag("-q,--quiet", options->quiet, "Names only");
  listing->callback([&common, options, done] { done(list_secrets(common, *options)); });

  auto* removing = group->add_subcommand("rm", "Remove secrets, and revoke every binding of them");
  add_server_options(*removing, common);
  removing->add_option("NAME", options->names)->required();
  removing->callback([&common, options, done] { done(remove_secrets(common, options->names, false)); });
}

void add_bind(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<BindOptions>();
  auto done = [&code](const Result<void>& result) { code = result ? 0 : complain(result.error().message); };
  auto* binding =
      app.add_subcommand("bind", "Grant a secret: it goes out with requests to these hosts, and nowhere else");
  add_server_options(*binding, common);
  binding->add_option("WORDS", options->words, "SANDBOX SECRET HOST… (without SANDBOX for --project and --template)")
      ->required();
  binding->add_flag("--project", options->project, "For every sandbox of the project");
  binding->add_option("--template", options->template_name, "For every sandbox of this template");
  binding
      ->add_option("--as", options->as,
                   "Where it goes: bearer, basic:USER, header:NAME, query:NAME, sigv4:REGION/SERVICE")
      ->capture_default_str();
  binding->add_option("--format", options->format, "Of a header, with {} for the value");
  binding->add_option("--method", options->methods, "Only requests with this method; may be repeated");
  binding->add_option("--path", options->path, "Only requests below this path");
  binding->add_option("--port", options->ports, "Like 443,8000-8100; 443 where nothing is said");
  binding->add_option("--expires", options->expires, "Revoke it after so long, as 2h");
  binding->add_option("--audience", options->audience, "Of a token of the sandbox's identity: whom it is for");
  binding->add_flag(
      "--placeholder", options->placeholder,
      "Make a random word that stands for the value inside. It is refused at every other name: all TLS of "
      "the sandbox is looked into");
  binding->add_flag("--no-guard", options->unguarded,
                    "Do not look into TLS to other names for that word, which passes there");
  binding->add_flag("--block", options->blocks,
                    "End a stream of the sandbox that has the value in it; else it is blotted out");
  binding->callback([&common, options, done] { done(bind_secret(common, *options)); });

  auto names = std::make_shared<std::vector<std::string>>();
  auto* unbinding = app.add_subcommand("unbind", "Revoke bindings, also for connections that are open");
  add_server_options(*unbinding, common);
  unbinding->add_option("BINDING", *names)->required();
  unbinding->callback([&common, names, done] { done(remove_secrets(common, *names, true)); });

  auto sandbox = std::make_shared<std::string>();
  auto* granted = app.add_subcommand("grants", "Who may use which secret, where");
  add_server_options(*granted, common);
  granted->add_option("SANDBOX", *sandbox, "What holds for this one; else all of the project's");
  granted->callback([&common, sandbox, done] { done(list_grants(common, *sandbox)); });
}

}  // namespace isola::cli
