// Buckets of sandboxes: found, checked, and told to the launcher with the cipher text of their secrets. Values are
// never here.
#include <nlohmann/json.hpp>

#include "launcher/bucket.h"
#include "sandbox/service.h"

namespace isola::sandbox {

using nlohmann::json;

Result<std::vector<launcher::BucketMount>> Service::buckets_of(const std::string& project,
                                                               const std::vector<store::VolumeUse>& volumes) {
  std::vector<launcher::BucketMount> mounts;
  for (const auto& use : volumes) {
    if (!use.bucket) continue;
    auto secret = parts_.store.find_secret(project, use.bucket->secret);
    if (!secret && secret.error().code == Code::not_found)
      return fail(Code::invalid, "buckets: there is no secret '" + use.bucket->secret + "'");
    if (!secret) return std::unexpected(secret.error());
    // What is inside is the operator's, as with the sources of secrets; and so is what goes out in the clear.
    const bool inside = project == "default";
    launcher::BucketMount mount{.endpoint = use.bucket->endpoint,
                                .bucket = use.bucket->bucket,
                                .prefix = use.bucket->prefix,
                                .region = use.bucket->region,
                                .target = use.path,
                                .read_only = use.read_only,
                                .sealed = secret->sealed,
                                .inside = inside};
    auto good = launcher::check_bucket(mount);
    if (!good) return std::unexpected(good.error().in("buckets"));
    ISOLA_TRY(auto endpoint, launcher::parse_endpoint(mount.endpoint));
    if (!endpoint.tls && !inside)
      return fail(Code::denied, "buckets: the endpoint must be https, but for the project \"default\"");
    // What its sandboxes may not reach, nobody reaches for them.
    auto reached = may_reach(project, endpoint.host, endpoint.port);
    if (!reached) return std::unexpected(reached.error().in("buckets"));
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

void Service::note_buckets(const BoxPtr& box, const Caller& by) {
  for (const auto& use : box->record().volumes) {
    if (!use.bucket) continue;
    json data = {{"endpoint", use.bucket->endpoint},
                 {"bucket", use.bucket->bucket},
                 {"prefix", use.bucket->prefix},
                 {"secret", use.bucket->secret},
                 {"path", use.path},
                 {"read_only", use.read_only}};
    record(ledger::Kind::bucket_mounted, box, data.dump(-1, ' ', false, json::error_handler_t::replace), by);
  }
}

}  // namespace isola::sandbox
