#include "dialect/e2b/views.h"

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "dialect/e2b/tokens.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

constexpr store::Millis kNever = 10LL * 365 * 24 * 3600 * 1000;
constexpr const char* kClient = "isola";  // clients want one; nothing hangs on it

}  // namespace

json domain_of(const Options& options) {
  if (options.domain.empty()) return nullptr;
  uint16_t port = options.port ? options.port->load() : 0;
  // Whoever is asked for by https needs no port where it is https's own.
  return port == 0 || port == 443 ? json(options.domain) : json(options.domain + ":" + std::to_string(port));
}

std::string_view status_of(store::BuildState state) {
  return state == store::BuildState::failed ? "error" : to_string(state);
}

int vcpus_of(const store::SandboxRecord& record) {
  return static_cast<int>(std::max(1.0, std::ceil(record.limits.cpus)));
}

json created_view(const store::SandboxRecord& record, const Options& options) {
  return {{"sandboxID", record.id},
          {"templateID", options.template_id(record.project, record.template_name)},
          {"alias", record.template_name},
          {"clientID", kClient},
          {"envdVersion", kEnvdVersion},
          {"envdAccessToken", options.tokens->of(record)},
          {"trafficAccessToken", record.traffic_token.empty() ? json(nullptr) : json(record.traffic_token)},
          {"domain", domain_of(options)}};
}

json listed_view(const store::SandboxRecord& record, const Options& options) {
  auto end = record.lifetime.deadline ? record.lifetime.deadline : record.created + kNever;
  bool still = record.state == State::frozen || store::is_asleep(record.state);
  json mounts = json::array();
  for (const auto& use : record.volumes)
    if (!use.bucket) mounts.push_back({{"name", use.name}, {"path", use.path}});
  return {{"sandboxID", record.id},
          {"templateID", options.template_id(record.project, record.template_name)},
          {"alias", record.template_name},
          {"clientID", kClient},
          {"startedAt", dialect::when(record.created)},
          {"endAt", dialect::when(end)},
          {"cpuCount", vcpus_of(record)},
          {"memoryMB", record.limits.memory >> 20},
          {"diskSizeMB", record.limits.disk >> 20},
          {"state", still ? "paused" : "running"},
          {"envdVersion", kEnvdVersion},
          {"metadata", without_notes(record.metadata)},
          {"volumeMounts", mounts}};
}

json detail_view(const store::SandboxRecord& record, const Options& options) {
  json out = listed_view(record, options);
  out["envdAccessToken"] = options.tokens->of(record);
  out["domain"] = domain_of(options);
  auto notes = Notes::of(record.metadata).value_or(Notes{});
  out["allowInternetAccess"] = notes.internet ? json(*notes.internet) : json(nullptr);
  json network = json::parse(notes.network.empty() ? "{}" : notes.network, nullptr, false);
  if (network.is_object() && !network.empty()) {
    network.emplace("allowPublicTraffic", record.traffic_token.empty());
    out["network"] = network;
  }
  out["lifecycle"] = {{"onTimeout", record.lifetime.at_end == store::AtEnd::kill ? "kill" : "pause"},
                      {"autoResume", record.lifetime.auto_resume}};
  return out;
}

std::optional<store::Millis> parse_time(std::string_view text) {
  std::string copy(text);
  std::tm parts{};
  const char* rest = ::strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (!rest) return std::nullopt;
  store::Millis millis = static_cast<store::Millis>(::timegm(&parts)) * 1000;
  if (*rest == '.') {
    store::Millis unit = 100;
    for (++rest; *rest >= '0' && *rest <= '9'; ++rest, unit /= 10) millis += (*rest - '0') * unit;
  }
  if (*rest == 'Z' || *rest == 'z') return rest[1] ? std::nullopt : std::optional(millis);
  if (*rest != '+' && *rest != '-' && *rest != ' ') return std::nullopt;
  int hours = 0, minutes = 0, used = 0;
  // A plus that a query turned into a space.
  if (std::sscanf(rest + 1, "%2d:%2d%n", &hours, &minutes, &used) != 2 || rest[1 + used]) return std::nullopt;
  store::Millis offset = (hours * 60 + minutes) * 60'000LL;
  return *rest == '-' ? millis + offset : millis - offset;
}

}  // namespace isola::e2b
