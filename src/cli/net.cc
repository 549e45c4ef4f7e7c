// isola net, and the network of isola run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/register.h"
#include "gate/registries.h"
#include "launcher/client.h"

namespace isola::cli {

namespace {

using nlohmann::json;

Result<json> report_of(launcher::Client& launcher, const std::string& id) {
  ISOLA_TRY(std::string text, launcher.gate_report(id));
  json report = json::parse(text, nullptr, false);
  if (!report.is_object()) return fail(Code::corrupt, "unreadable report from the gate");
  return report;
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

void print(const json& report) {
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

Result<void> change(const Common& common, const std::string& id, const std::string& policy, bool cut) {
  ISOLA_TRY(auto launcher, launcher::Client::connect(common.data_dir));
  return launcher.set_policy({.id = id, .policy = policy, .cut = cut});
}

}  // namespace

Result<NetChoice> net_choice(const std::string& text) {
  NetChoice choice;
  if (text.empty()) return choice;
  if (text == "none" || text == "all" || text == "package-registries") {
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
  if (text[0] == '@') {
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
  auto launcher = launcher::Client::connect(common.data_dir);
  if (!launcher) return complain(launcher.error().message);
  auto report = report_of(*launcher, id);
  if (!report) return complain(report.error().message);
  if (common.json)
    std::puts(report->dump(2).c_str());
  else
    print(*report);
  return 0;
}

int net_set(const Common& common, const std::string& id, const std::string& text, bool cut) {
  auto choice = net_choice(text);
  if (!choice) return complain(choice.error().message);
  auto changed = change(common, id, choice->policy, cut);
  return changed ? 0 : complain(changed.error().message);
}

int net_add(const Common& common, const std::string& id, const std::string& rule, bool cut) {
  auto read = gate::parse_policy(rule);
  if (!read) return complain(read.error().message);
  auto launcher = launcher::Client::connect(common.data_dir);
  if (!launcher) return complain(launcher.error().message);
  auto report = report_of(*launcher, id);
  if (!report && report.error().code != Code::not_found) return complain(report.error().message);
  std::string before = report ? report->value("policy", "") : "";
  auto changed = launcher->set_policy({.id = id, .policy = rule + "\n" + before, .cut = cut});
  return changed ? 0 : complain(changed.error().message);
}

int net_learn(const Common& common, const std::string& id) {
  auto launcher = launcher::Client::connect(common.data_dir);
  if (!launcher) return complain(launcher.error().message);
  auto report = report_of(*launcher, id);
  if (!report && report.error().code != Code::not_found) return complain(report.error().message);
  std::string before = report ? report->value("policy", "") : "";
  auto policy = gate::parse_policy(before);
  if (!policy) return complain(policy.error().message);
  if (policy->learn) {
    std::fputs(report->value("smallest_policy", "").c_str(), stdout);
    return 0;
  }
  auto changed = launcher->set_policy({.id = id, .policy = before + "learn\n"});
  return changed ? 0 : complain(changed.error().message);
}

int net_watch(const Common& common, const std::string& id) {
  auto launcher = launcher::Client::connect(common.data_dir);
  if (!launcher) return complain(launcher.error().message);
  if (auto watching = launcher->watch_gate(); !watching) return complain(watching.error().message);
  for (;;) {
    auto event = launcher->next_gate_event();
    if (!event) return complain(event.error().message);
    if (!id.empty() && event->sandbox != id) continue;
    std::printf("%s %s %s:%u %s%s%s%s\n", event->sandbox.c_str(), std::string(to_string(event->kind)).c_str(),
                event->name.empty() ? event->address.c_str() : event->name.c_str(), event->port,
                std::string(to_string(event->reason)).c_str(), event->rule.empty() ? "" : " (", event->rule.c_str(),
                event->rule.empty() ? "" : ")");
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
    one->add_option("sandbox", *id, "Its id")->required();
    return one;
  };
  auto changing = [&](CLI::App* one, const char* what) {
    one->add_option("what", *text, what)->required();
    one->add_flag("--cut", *cut, "End connections that are not allowed any longer, now");
    return one;
  };
  command("show", "Its policy, what was refused and why, and where it has been")->callback([&, id] {
    code = net_show(common, *id);
  });
  changing(command("set", "Give it another policy"), "none, all, package-registries, @FILE, or rules separated by ';'")
      ->callback([&, id, text, cut] { code = net_set(common, *id, *text, *cut); });
  for (std::string action : {"allow", "deny"})
    changing(command(action.c_str(),
                     action == "allow" ? "Put a rule in front that allows" : "Put a rule in front that denies"),
             "NAME, *.NAME, NETWORK or *, with :PORTS")
        ->callback([&, id, text, cut, action] { code = net_add(common, *id, action + " " + *text, *cut); });
  command("learn", "Let it through and record; a second time: print the smallest policy that would have sufficed")
      ->callback([&, id] { code = net_learn(common, *id); });
  auto* watch = group->add_subcommand("watch", "Decisions as they are made");
  watch->add_option("sandbox", *id, "Only this one");
  watch->callback([&, id] { code = net_watch(common, *id); });
}

}  // namespace isola::cli
