// What a sandbox trusts: where its gate looks into connections, the certificate of that is placed where its programs
// look for authorities. What fails here costs it those connections and nothing else.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/log.h"
#include "gate/authority.h"
#include "gate/policy.h"
#include "sandbox/java_trust.h"
#include "sandbox/quiet_run.h"
#include "sandbox/service.h"

namespace isola::sandbox {

using nlohmann::json;

namespace {

constexpr const char* kCertificate = "/usr/local/share/ca-certificates/isola.crt";
constexpr const char* kBundle = "/etc/ssl/certs/ca-certificates.crt";
constexpr const char* kHashed = "/etc/ssl/certs/";
constexpr const char* kJavaStore = "/usr/local/share/ca-certificates/isola.jks";
// Of every JVM, wherever it comes from and whenever it is installed: none of them looks at anything of the above.
constexpr const char* kJavaOptions =
    "-Djavax.net.ssl.trustStore=/usr/local/share/ca-certificates/isola.jks -Djavax.net.ssl.trustStoreType=jks";

constexpr std::string_view kBegin = "# isola: begin\n", kEnd = "# isola: end\n";
constexpr size_t kMostBundle = 8 << 20;
// A pause, or another who places it at the same time, finds the old file or the new one, and never a part.
constexpr auto kWhole = guest::WriteMode::replace;

// What the bundle is with this certificate instead of the one that was put there before.
std::string with_certificate(std::string bundle, const std::string& pem) {
  auto begin = bundle.find(kBegin);
  auto end = begin == std::string::npos ? begin : bundle.find(kEnd, begin);
  if (end != std::string::npos) bundle.erase(begin, end + kEnd.size() - begin);
  if (!bundle.empty() && bundle.back() != '\n') bundle += '\n';
  return bundle.append(kBegin).append(pem).append(pem.ends_with('\n') ? "" : "\n").append(kEnd);
}

// Where distributions have theirs. The first is where ours goes.
constexpr const char* kBundles[] = {kBundle, "/etc/pki/tls/certs/ca-bundle.crt",
                                    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/ca-bundle.pem",
                                    "/etc/ssl/cert.pem"};

// Empty: there is none.
Task<Result<std::string>> read_bundle_at(GuestLink& link, std::string path) {
  guest::Read args{.path = std::move(path), .user = "root"};
  std::string asked = guest::encode(args);
  auto channel = link.open(guest::Op::read, asked, 1 << 20);
  auto there = co_await channel->reply();
  if (!there && there.error().code == Code::not_found) co_return std::string();
  if (!there) co_return std::unexpected(there.error());
  std::string all;
  for (;;) {
    auto piece = co_await channel->read();
    if (!piece) break;
    all += *piece;
    if (all.size() > kMostBundle) co_return fail(Code::exhausted, "the bundle of certificates is too large");
  }
  ISOLA_CO_TRY(std::string done, co_await channel->end());
  co_return all;
}

// What the image trusts; where it has nothing, what this machine does. The bundle takes the place of what programs
// bring along themselves, so one that had our certificate alone in it would take all other trust away.
Task<Result<std::string>> read_bundle(GuestLink& link) {
  for (const char* path : kBundles) {
    std::string at = path;
    auto bundle = co_await read_bundle_at(link, std::move(at));
    if (!bundle && path == kBundles[0]) co_return std::unexpected(bundle.error());  // where ours has to go
    if (bundle && bundle->find("-----BEGIN CERTIFICATE-----") != std::string::npos) co_return std::move(*bundle);
  }
  for (const char* path : kBundles)
    if (auto bundle = read_file(path, kMostBundle); bundle && !bundle->empty()) co_return std::move(*bundle);
  co_return fail(Code::not_found, "neither the image nor this machine has a bundle of certificates");
}

const store::Labels& certificate_variables() {
  static const store::Labels all = {{"SSL_CERT_FILE", kBundle},         {"REQUESTS_CA_BUNDLE", kBundle},
                                    {"CURL_CA_BUNDLE", kBundle},        {"NODE_EXTRA_CA_CERTS", kCertificate},
                                    {"GIT_SSL_CAINFO", kBundle},        {"PIP_CERT", kBundle},
                                    {"CARGO_HTTP_CAINFO", kBundle},     {"AWS_CA_BUNDLE", kBundle},
                                    {"DENO_CERT", kCertificate},        {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", kBundle},
                                    {"JAVA_TOOL_OPTIONS", kJavaOptions}};
  return all;
}

}  // namespace

// Where its gate looks into connections, or will because of a binding.
bool Service::needs_certificate(const store::SandboxRecord& record) {
  if (record.network.empty()) return false;
  auto about_requests = [](const std::string& text) {
    auto policy = gate::parse_policy(text);
    return policy && std::ranges::any_of(policy->rules, &gate::Rule::is_about_requests);
  };
  auto project = parts_.store.find_project(record.project);
  if (about_requests(record.network) || (project && about_requests(ceiling_of(*project)))) return true;
  auto grants = grants_of(record);
  return grants && !grants->empty();
}

// For programs that look neither at the variables nor there: where other distributions have their bundles, as far as
// this image has them, and in the folder that OpenSSL looks into by name. That fails where the image is odd.
Task<void> Service::place_elsewhere(BoxPtr box, std::shared_ptr<GuestLink> link, std::string pem) {
  std::map<std::string, std::string> files;
  if (auto name = gate::hashed_name(pem)) files[kHashed + *name] = pem;
  for (const char* path : kBundles) {
    if (path == kBundles[0]) continue;
    std::string at = path;
    auto there = co_await read_bundle_at(*link, at);
    if (!there || there->find("-----BEGIN CERTIFICATE-----") == std::string::npos) continue;
    std::string with = with_certificate(*there, pem);
    if (with != *there) files[at] = std::move(with);  // else it is a link to one that has it
  }
  for (const auto& [path, content] : files) {
    std::string at = path, text = content, root = "root";
    auto written = co_await write_over(link, std::move(at), std::move(text), std::move(root), kWhole);
    if (!written) log::warn("sandbox", "{}: {} is not written: {}", box->id(), path, written.error().message);
  }
}

// Never by a link that would thaw it.
Task<Result<void>> Service::put_certificate(BoxPtr box, bool missing) {
  ISOLA_CO_TRY(std::string pem, co_await parts_.launcher->certificate(box->id()));
  ISOLA_CO_TRY(auto link, co_await link_if_awake(box));
  auto variables = box->record().env;
  variables.insert(certificate_variables().begin(), certificate_variables().end());
  std::string own = kCertificate, shared = kBundle, root = "root";
  if (missing && variables == box->record().env) {
    auto there = co_await read_bundle_at(*link, own);
    if (there && *there == pem) co_return Result<void>();
  }
  ISOLA_CO_TRY(std::string bundle, co_await read_bundle(*link));
  bundle = with_certificate(std::move(bundle), pem);
  ISOLA_CO_CHECK(co_await write_over(link, shared, bundle, root, kWhole));
  ISOLA_CO_TRY(std::string store, java_trust_store(bundle));
  std::string java = kJavaStore;
  ISOLA_CO_CHECK(co_await write_over(link, java, store, root, kWhole));
  co_await place_elsewhere(box, link, pem);
  // Behind the others: where this one is, they are.
  ISOLA_CO_CHECK(co_await write_over(link, own, pem, root, kWhole));
  // In nobody's turn, since some have theirs already: what another call set while the guest was asked is kept.
  for (;;) {
    const auto before = box->record().env;
    store::SandboxChange change;
    change.env = before;
    change.env->insert(certificate_variables().begin(), certificate_variables().end());
    if (*change.env == before) co_return Result<void>();
    ISOLA_CO_CHECK(co_await configure(box, *change.env, false));
    if (box->record().env != before) continue;
    ISOLA_CO_CHECK(parts_.store.change_sandbox(box->id(), change));
    box->change([&](auto& r) { r.env.insert(certificate_variables().begin(), certificate_variables().end()); });
    co_return Result<void>();
  }
}

Task<void> Service::place_certificate(BoxPtr box, bool missing) {
  auto self = shared_from_this();
  if (box->state() == State::ended || store::is_asleep(box->state())) co_return;
  if (!needs_certificate(box->record())) co_return;
  // Said before it is looked: whoever thaws it just now sees one or the other.
  box->lacks_certificate = true;
  if (box->state() == State::frozen) co_return;
  box->lacks_certificate = false;
  auto placed = co_await put_certificate(box, missing);
  if (placed) co_return;
  // Frozen in the middle of it.
  if (box->state() == State::frozen) {
    box->lacks_certificate = true;
    co_return;
  }
  // It fell asleep, ended, or lost its link meanwhile: the next link sees to it.
  const auto code = placed.error().code;
  if (store::is_asleep(box->state()) || code == Code::not_found) co_return;
  log::warn("sandbox", "{} has no certificate of its gate: {}", box->id(), placed.error().message);
  // Whoever wonders why its programs trust nobody finds it where everything about it stands.
  json data = {{"changed", {"certificate"}}, {"failed", own_words(placed.error().message)}};
  this->record(ledger::Kind::sandbox_updated, box, data.dump(-1, ' ', false, json::error_handler_t::replace), Caller());
}

}  // namespace isola::sandbox
