#include "sandbox/java_trust.h"

#include <openssl/evp.h>

#include <cstdint>
#include <vector>

#include "vault/seal.h"

namespace isola::sandbox {

namespace {

constexpr std::string_view kCertificateBegins = "-----BEGIN CERTIFICATE-----",
                           kCertificateEnds = "-----END CERTIFICATE-----";
constexpr std::string_view kForm = "X.509";
// What the sum at the end of such a file begins with, behind the password.
constexpr std::string_view kSalt = "Mighty Aphrodite";

void put(std::string& out, uint64_t number, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
}

void put_text(std::string& out, std::string_view text) {
  put(out, text.size(), 2);
  out += text;
}

}  // namespace

Result<std::string> java_trust_store(std::string_view bundle) {
  std::vector<std::string> all;
  for (size_t at = 0; (at = bundle.find(kCertificateBegins, at)) != bundle.npos;) {
    at += kCertificateBegins.size();
    const size_t end = bundle.find(kCertificateEnds, at);
    if (end == bundle.npos) break;
    std::string text;
    for (char c : bundle.substr(at, end - at))
      if (c != '\n' && c != '\r' && c != ' ' && c != '\t') text += c;
    if (auto der = vault::from_base64(text); der && !der->empty()) all.push_back(std::move(*der));
  }
  std::string out;
  put(out, 0xfeedfeed, 4);
  put(out, 2, 4);
  put(out, all.size(), 4);
  for (size_t i = 0; i < all.size(); ++i) {
    put(out, 2, 4);  // a certificate that is trusted
    put_text(out, "ca" + std::to_string(i));
    put(out, 0, 8);  // since when
    put_text(out, kForm);
    put(out, all[i].size(), 4);
    out += all[i];
  }
  std::string summed;
  for (char c : kJavaPassword) put(summed, static_cast<unsigned char>(c), 2);
  summed.append(kSalt).append(out);
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (EVP_Digest(summed.data(), summed.size(), sum, &size, EVP_sha1(), nullptr) != 1)
    return fail(Code::internal, "SHA-1 cannot be computed here");
  return out.append(reinterpret_cast<const char*>(sum), size);
}

}  // namespace isola::sandbox
