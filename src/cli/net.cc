// isola net, and the network of isola run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/api.h"
#include "cli/commands.h"
#include "cli/register.h"
#include "cli/server_url.h"
#include "cli/table.h"
#include "gate/registries.h"
#include "launcher/client.h"

namespace isola::cli {

namespace {

using nlohmann::json;

// The network of one sandbox. A server that has the sandbox writes its policy down, knows its project's ceiling and
// records the change, so it is asked; the launcher is for sandboxes that no server has.
class Network {
 public:
  static Result<Network> open(const Common& common, const std::string& id) {
    const bool named = names_server(common);
    if (named || find_server_url(common.data_dir)) {
      ISOLA_TRY(Api api, Api::open(common));
      // Without a key for it the launcher is asked, which lets nobody change what a server keeps.
      if (named || !api.server().key.empty()) {
        auto found = api.sandbox_id(id);
        if (auto there = found ? api.get("/v1/sandboxes/" + *found) : json(); !there)
          found = std::unexpected(there.error());
        if (found) return Network(std::move(api), *found);
        if (named || found.error().code != Code::not_found) return std::unexpected(found.error());
      }
    }
    ISOLA_TRY(auto launcher, launcher::Client::connect(common.data_dir));
    return Network(std::move(launcher), id);
  }

  Result<json> report() {
    if (api_) return api_->get(path());
    ISOLA_TRY(std::string text, launcher_->gate_report(id_));
    json report = json::parse(text, nullptr, false);
    if (!report.is_object()) return fail(Code::corrupt, "unreadable report from the gate");
    return report;
  }
  // Its policy as text; empty: it has none yet.
  Result<std::string> policy() {
    auto now = report();
    if (!now && now.error().code == Code::not_found) return std::string();
    if (!now) return std::unexpected(now.error());
    return now->value("policy", "");
  }
  // `preset`: a server knows better what it means there.
  Result<void> set(const std::string& policy, bool cut, const std::string& preset = "") {
    if (!api_) return launcher_->set_policy({.id = id_, .policy = policy, .cut = cut});
    ISOLA_CHECK(api_->send("PUT", path(), {{"policy", preset.empty() ? policy : preset}, {"cut", cut}}));
    return {};
  }
  // From the one that is there, again if somebody changes it meanwhile.
  Result<void> change(const std::function<std::string(const std::string&)>& make, bool cut) {
    constexpr int kTries = 10;
    for (int attempt = 1;; ++attempt) {
      ISOLA_TRY(std::string before, policy());
      if (!api_) return set(make(before), cut);
      auto sent = api_->send("PUT", path(), {{"policy", make(before)}, {"cut", cut}, {"replaces", before}});
      if (sent) return {};
      if (sent.error().code != Code::exists || attempt == kTries) return std::unexpected(sent.error());
    }
  }

 private:
  Network(Api api, std::string id) : api_(std::move(api)), id_(std::move(id)) {}
  Network(launcher::Client launcher, std::string id) : launcher_(std::move(launcher)), id_(std::move(id)) {}
  std::string path() const { return "/v1/sandboxes/" + id_ + "/network"; }

  std::optional<Api> api_;
  std::optional<launcher::Client> launcher_;
  std::string id_;
};

bool is_preset(const std::string& text) { return text == "none" || text == "all" || text == "package-registries"; }

json to_json(const gate::Event& event) {
  return {{"sandbox", event.sandbox},
          {"what", gate::to_string(event.kind)},
          {"protocol", event.protocol == gate::Event::Protocol::dns ? "dns" : "tcp"},
          {"name", event.name},
          {"address", event.address},
          {"port", event.port},
          {"reason", gate::to_string(event.reason)},
          {"rule", event.rule},
          {"host_verified", event.host_verified},
          {"method", event.method},
          {"path", event.path},
          {"binding", event.binding},
          {"secret", event.secret},
          {"bytes_out", event.up},
          {"bytes_in", event.down},
          {"count", event.count},
          {"when", event.when}};
}

std::string line_of(const json& denial) {
  std::string where = denial.value("name", "");
  if (where.empty()) where = denial.value("address", "");
  std::string out = denial.value("protocol", "") + " " + where + ":" + std::to_string(denial.value("port", 0)) + "  " +
                    denial.value("reason", "");
  if (auto rule = denial.value("rule", ""); !rule.empty()) out += " (" + rule + ")";
  if (int count = denial.value("count", 1); count > 1) out += "  " + std::to_string(count) + " times";
  return out;
}

void print_report(const json& report) {
  std::printf("policy\n");
  std::string policy = report.value("policy", "");
  for (size_t at = 0; at < policy.size();) {
    size_t end = std::min(policy.find('\n', at), policy.size());
    std::printf("  %s\n", policy.substr(at, end - at).c_str());
    at = end + 1;
  }
  const json denials = report.value("denials", json::array());
  if (!denials.empty()) std::printf("refused, last first\n");
  for (const auto& denial : denials) std::printf("  %s\n", line_of(denial).c_str());
  bool first = true;
  const json destinations = report.value("destinations", json::object());
  for (const auto& [where, counts] : destinations.items()) {
    if (counts.value("connections", 0) == 0) continue;
    if (std::exchange(first, false)) std::printf("been at\n");
    std::printf("  %s  %d connections, %llu bytes out, %llu in\n", where.c_str(), counts.value("connections", 0),
                static_cast<unsigned long long>(counts.value("bytes_up", 0ull)),
                static_cast<unsigned long long>(counts.value("bytes_down", 0ull)));
  }
}

}  // namespace

Result<NetChoice> net_choice(const std::string& text) {
  NetChoice choice;
  if (text.empty()) return choice;
  if (is_preset(text)) {
    gate::Registries registries;
    if (text == "package-registries") registries = gate::read_registries({.environment = gate::own_environment()});
    if (text == "package-registries" && registries.endpoints.empty())
      return fail(Code::not_found, "no package registry is configured on this machine");
    ISOLA_TRY(auto policy, gate::preset_policy(text, registries));
    choice.policy = gate::to_text(policy);
    for (const auto& [name, value] : registries.environment) choice.env.push_back(name + "=" + value);
    choice.files = std::move(registries.files);
    return choice;
  }
  if (text[0] == '{') {
    ISOLA_TRY(auto policy, gate::parse_policy_json(text));
    choice.policy = gate::to_text(policy);
  } else if (text[0] == '@') {
    ISOLA_TRY(choice.policy, read_file(text.substr(1), gate::kMaxPolicyText));
    if (auto json = gate::parse_policy_json(choice.policy)) choice.policy = gate::to_text(*json);
  } else {
    choice.policy = text;
    std::replace(choice.policy.begin(), choice.policy.end(), ';', '\n');
  }
  ISOLA_CHECK(gate::parse_policy(choice.policy));
  return choice;
}

int net_show(const Common& common, const std::string& id) {
  auto network = Network::open(common, id);
  if (!network) return complain(network.error().message);
  auto report = network->report();
  if (!report) return complain(report.error().message);
  if (common.json)
    std::puts(report->dump(2).c_str());
  else
    print_report(*report);
  return 0;
}

int net_set(const Common& common, const std::string& id, const std::string& text, bool cut) {
  auto choice = net_choice(text);
  if (!choice) return complain(choice.error().message);
  auto network = Network::open(common, id);
  if (!network) return complain(network.error().message);
  auto changed = network->set(choice->policy, cut, is_preset(text) ? text : "");
  return changed ? 0 : complain(changed.error().message);
}

int net_add(const Common& common, const std::string& id, const std::string& rule, bool cut) {
  auto read = gate::parse_policy(rule);
  if (!read) return complain(read.error().message);
  if (read->rules.size() != 1) return complain("one rule at a time");
  auto network = Network::open(common, id);
  if (!network) return complain(network.error().message);
  // What was said of the same before has no meaning any more.
  std::string line = gate::to_text(read->rules[0]);
  std::string other = (line.starts_with("allow") ? "deny" : "allow") + line.substr(line.find(' '));
  auto make = [&](const std::string& before) {
    std::string after = line + "\n";
    for (size_t at = 0; at < before.size();) {
      size_t end = std::min(before.find('\n', at), before.size());
      std::string one = before.substr(at, end - at);
      if (one != line && one != other) after += one + "\n";
      at = end + 1;
    }
    return after;
  };
  auto changed = network->change(make, cut);
  return changed ? 0 : complain(changed.error().message);
}

int net_learn(const Common& common, const std::string& id) {
  auto network = Network::open(common, id);
  if (!network) return complain(network.error().message);
  auto before = network->policy();
  if (!before) return complain(before.error().message);
  auto policy = gate::parse_policy(*before);
  if (!policy) return complain(policy.error().message);
  if (policy->learn) {
    auto report = network->report();
    if (!report) return complain(report.error().message);
    if (common.json) {
      std::puts(json{{"smallest_policy", report->value("smallest_policy", "")}, {"since", report->value("since", 0ll)}}
                    .dump(2)
                    .c_str());
      return 0;
    }
    std::printf("# recorded since %s, and further until another policy is set: isola net set %s @FILE\n",
                format_moment(report->value("since", 0ll)).c_str(), id.c_str());
    std::fputs(report->value("smallest_policy", "").c_str(), stdout);
    return 0;
  }
  auto changed = network->change([](const std::string& now) { return now + "learn\n"; }, false);
  if (!changed) return complain(changed.error().message);
  std::fprintf(stderr,
               "isola: what it reaches is allowed and recorded from now on; once more prints the smallest policy that "
               "would have sufficed\n");
  return 0;
}

namespace {

// By id, or by name where a server has it, or by the beginning of an id.
Result<std::string> watched_id(const Common& common, launcher::Client& launcher, const std::string& text) {
  if (find_server_url(common.data_dir)) {
    ISOLA_TRY(Api api, Api::open(common));
    if (!api.server().key.empty())
      if (auto found = api.sandbox_id(text); found && *found != text) return found;
  }
  ISOLA_TRY(auto all, launcher.list());
  std::string match;
  for (const auto& one : all) {
    if (!one.id.starts_with(text)) continue;
    if (!match.empty()) return fail(Code::invalid, "several sandboxes begin with " + text + ": write more of the id");
    match = one.id;
  }
  if (match.empty()) return fail(Code::not_found, "there is no sandbox " + text);
  return match;
}

std::string line_of(const gate::Event& event) {
  std::string out = format_moment(event.when) + " " + event.sandbox + " ";
  if (event.kind == gate::Event::Kind::lost) return out + "lost " + std::to_string(event.count) + " events";
  out += std::string(to_string(event.kind)) + " ";
  out += event.protocol == gate::Event::Protocol::dns ? "dns " : "tcp ";
  out += (event.name.empty() ? event.address : event.name) + ":" + std::to_string(event.port);
  out += " " + std::string(to_string(event.reason));
  if (!event.rule.empty()) out += " (" + event.rule + ")";
  if (!event.method.empty()) out += " " + event.method + " " + event.path;
  if (!event.secret.empty()) out += " secret " + event.secret;
  if (event.up + event.down > 0)
    out += " " + std::to_string(event.up) + " bytes out, " + std::to_string(event.down) + " in";
  if (event.count > 1) out += " " + std::to_string(event.count) + " times";
  return out;
}

}  // namespace

int net_watch(const Common& common, const std::string& id) {
  auto launcher = launcher::Client::connect(common.data_dir);
  if (!launcher) return complain(launcher.error().message);
  std::string only;
  if (!id.empty()) {
    auto found = watched_id(common, *launcher, id);
    if (!found) return complain(found.error().message);
    only = *found;
  }
  if (auto watching = launcher->watch_gate(); !watching) return complain(watching.error().message);
  for (;;) {
    auto event = launcher->next_gate_event();
    if (!event) return complain(event.error().message);
    if (!only.empty() && event->sandbox != only) continue;
    std::string line =
        common.json ? to_json(*event).dump(-1, ' ', false, json::error_handler_t::replace) : line_of(*event);
    std::puts(line.c_str());
    std::fflush(stdout);
  }
}

void add_net(CLI::App& app, Common& common, int& code) {
  auto* group = app.add_subcommand("net", "What a sandbox may reach, and what it tried to")->require_subcommand(1);
  auto id = std::make_shared<std::string>();
  auto text = std::make_shared<std::string>();
  auto cut = std::make_shared<bool>(false);
  auto command = [&](const char* name, const char* what) {
    auto* one = group->add_subcommand(name, what);
    one->add_option("sandbox", *id, "Its id, or its name where a server has it")->required();
    add_server_options(*one, common);
    return one;
  };
  auto changing = [&](CLI::App* one, const char* name, const char* what) {
    one->add_option(name, *text, what)->required();
    one->add_flag("--cut", *cut, "End connections that are not allowed any longer, now");
    return one;
  };
  command("show", "Its policy, what was refused and why, and where it has been")->callback([&, id] {
    code = net_show(common, *id);
  });
  changing(command("set", "Give it another policy"), "policy",
           "none, all, package-registries, @FILE, or rules separated by ';'")
      ->callback([&, id, text, cut] { code = net_set(common, *id, *text, *cut); });
  for (std::string action : {"allow", "deny"})
    changing(command(action.c_str(),
                     action == "allow" ? "Put a rule in front that allows" : "Put a rule in front that denies"),
             "destination", "NAME, *.NAME, NETWORK or *, with :PORTS")
        ->callback([&, id, text, cut, action] { code = net_add(common, *id, action + " " + *text, *cut); });
  command("learn", "Let it through and record; a second time: print the smallest policy that would have sufficed")
      ->callback([&, id] { code = net_learn(common, *id); });
  auto* watch = group->add_subcommand("watch", "Decisions as they are made");
  watch->add_option("sandbox", *id, "Only this one: its id, the beginning of it, or its name where a server has it");
  watch->callback([&, id] { code = net_watch(common, *id); });
}

}  // namespace isola::cli
