#include "gate/sigv4.h"

#include <algorithm>
#include <map>
#include <vector>

#include "gate/request_path.h"
#include "vault/aws_signature.h"

namespace isola::gate {

namespace {

constexpr char kUnsigned[] = "UNSIGNED-PAYLOAD";
constexpr const char* kHeaders[] = {"Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-S3session-Token"};
constexpr const char* kParameters[] = {"X-Amz-Algorithm", "X-Amz-Credential",    "X-Amz-Date",          "X-Amz-Expires",
                                       "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Security-Token"};

std::string lowered_name(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

// One space for many.
std::string squeezed(std::string_view text) {
  std::string out;
  for (char c : text)
    if (c != ' ' || !out.ends_with(' ')) out += c;
  return out;
}

std::string canonical_query(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> all;
  while (!query.empty()) {
    size_t end = std::min(query.find('&'), query.size());
    auto one = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (one.empty()) continue;
    size_t equals = one.find('=');
    all.emplace_back(percent_encoded(percent_decoded(one.substr(0, equals))),
                     equals == one.npos ? "" : percent_encoded(percent_decoded(one.substr(equals + 1))));
  }
  std::sort(all.begin(), all.end());
  std::string out;
  for (const auto& [name, value] : all) out += (out.empty() ? "" : "&") + name + "=" + value;
  return out;
}

}  // namespace

Result<AwsKey> AwsKey::of(std::string_view value, std::string_view field) {
  size_t slash = field.find('/'), first = value.find(':');
  if (slash == field.npos || first == value.npos)
    return fail(Code::invalid, "a key for AWS is ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]");
  size_t second = value.find(':', first + 1);
  return AwsKey{.region = field.substr(0, slash),
                .service = field.substr(slash + 1),
                .access_key = value.substr(0, first),
                .secret_key = value.substr(first + 1, second == value.npos ? value.npos : second - first - 1),
                .session_token = second == value.npos ? std::string_view() : value.substr(second + 1)};
}

void strip_signature(Request& request) {
  for (const char* name : kHeaders) remove_field(request.fields, name);
  std::string query(request.query());
  bool found = false;
  for (const char* name : kParameters) query = without_parameter(query, name, &found);
  if (found) request.set_query(query);
}

Result<std::optional<std::string>> payload_of(const Request& request, std::string_view service, bool has_body) {
  if (const auto* said = find_field(request.fields, "X-Amz-Content-Sha256")) {
    if (said->starts_with("STREAMING-") && !said->starts_with("STREAMING-UNSIGNED-"))
      return fail(Code::unsupported, "a body that is signed piece by piece cannot be signed anew");
    return *said;
  }
  if (!has_body) return payload_hash("");
  if (service == "s3") return kUnsigned;
  return std::nullopt;
}

std::string payload_hash(std::string_view body) { return vault::aws_hash(body); }

Result<void> sign(Request& request, const AwsKey& key, const std::string& payload, time_t now) {
  tm utc{};
  char stamp[20];
  if (!::gmtime_r(&now, &utc) || !std::strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &utc))
    return fail(Code::internal, "the time cannot be written");
  remove_field(request.fields, "X-Amz-Content-Sha256");
  request.fields.push_back({"x-amz-date", stamp});
  request.fields.push_back({"x-amz-content-sha256", payload});
  if (!key.session_token.empty()) request.fields.push_back({"x-amz-security-token", std::string(key.session_token)});

  std::map<std::string, std::string> headers{{"host", request.authority}};
  for (const auto& field : request.fields) {
    auto name = lowered_name(field.name);
    if (!name.starts_with("x-amz-") && name != "content-type" && name != "content-md5") continue;
    auto& value = headers[name];
    value += (value.empty() ? "" : ",") + squeezed(field.value);
  }
  std::string lines, names;
  for (const auto& [name, value] : headers) {
    lines += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  // S3 takes a path as it is; the others have it escaped once more.
  auto path = key.service == "s3" ? percent_encoded(percent_decoded(request.path()), true)
                                  : percent_encoded(request.path(), true);
  auto canonical = request.method + "\n" + path + "\n" + canonical_query(request.query()) + "\n" + lines + "\n" +
                   names + "\n" + payload;
  const vault::AwsScope scope{.region = key.region, .service = key.service, .time = stamp};
  auto signature = vault::aws_signature(key.secret_key, scope, canonical);
  request.fields.push_back({"Authorization", vault::aws_authorization(key.access_key, scope, names, signature)});
  return {};
}

}  // namespace isola::gate
