#include <algorithm>
#include <charconv>

#include "gate/address.h"
#include "launcher/bucket.h"

namespace isola::launcher {

namespace {

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

bool all_of(const std::string& text, std::string_view more) {
  return std::ranges::all_of(text, [&](char c) { return is_letter_or_digit(c) || more.find(c) != more.npos; });
}

bool is_host(const std::string& host) {
  if (host.empty() || host.size() > 253 || !all_of(host, ".-") || host.front() == '-' || host.front() == '.')
    return false;
  // Numbers that are no address in the plain notation could be one to somebody else.
  const bool number = host.find_first_not_of("0123456789.") == std::string::npos;
  return !number || gate::Address::parse(host).has_value();
}

}  // namespace

Result<Endpoint> parse_endpoint(const std::string& url) {
  Endpoint endpoint;
  std::string rest;
  if (url.starts_with("https://")) {
    rest = url.substr(8);
  } else if (url.starts_with("http://")) {
    rest = url.substr(7);
    endpoint.tls = false;
    endpoint.port = 80;
  }
  if (rest.ends_with('/')) rest.pop_back();
  size_t colon = rest.find(':');
  endpoint.host = rest.substr(0, colon);
  if (colon != std::string::npos) {
    const std::string port = rest.substr(colon + 1);
    auto [end, bad] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
    if (port.empty() || bad != std::errc() || end != port.data() + port.size() || endpoint.port == 0)
      endpoint.host = "";
  }
  if (!is_host(endpoint.host))
    return fail(Code::invalid,
                "endpoint: should be like https://s3.example or http://10.0.0.5:9000, not '" + url + "'");
  return endpoint;
}

Result<void> check_bucket(const BucketMount& bucket) {
  ISOLA_CHECK(parse_endpoint(bucket.endpoint));
  if (bucket.bucket.size() < 3 || bucket.bucket.size() > 63 || !all_of(bucket.bucket, ".-_") ||
      !is_letter_or_digit(bucket.bucket[0]))
    return fail(Code::invalid, "bucket: a name of 3 to 63 letters, digits and . - _, not '" + bucket.bucket + "'");
  if (bucket.region.size() > 64 || !all_of(bucket.region, "-_"))
    return fail(Code::invalid, "region: of letters, digits, - and _, not '" + bucket.region + "'");
  if (bucket.prefix.size() > 512 || !all_of(bucket.prefix, "._-+@=/"))
    return fail(Code::invalid, "prefix: at most 512 letters, digits and . _ - + @ = /, not '" + bucket.prefix + "'");
  for (size_t from = 0; from < bucket.prefix.size();) {
    size_t slash = std::min(bucket.prefix.find('/', from), bucket.prefix.size());
    const std::string part = bucket.prefix.substr(from, slash - from);
    if (part.empty() || part == "." || part == "..")
      return fail(Code::invalid, "prefix: a plain path like team/data, not '" + bucket.prefix + "'");
    from = slash + 1;
  }
  if (bucket.prefix.ends_with('/')) return fail(Code::invalid, "prefix: a plain path, without a / at its end");
  if (bucket.sealed.empty() || bucket.sealed.size() > (20u << 10))
    return fail(Code::invalid, "a bucket needs the credentials of its store");
  return {};
}

}  // namespace isola::launcher
