// A certificate authority of this machine's own, and a wildcard certificate by it: TLS for a domain that nobody else
// vouches for, such as one in /etc/hosts or a test.
//
//   ISOLA_TRY(auto ca, make_authority("isola.test"));
//   ISOLA_TRY(auto leaf, make_wildcard(ca, "isola.test"));      // isola.test, *.isola.test, localhost, 127.0.0.1, ::1
#pragma once

#include <string>

#include "base/error.h"

namespace isola::cli {

struct Certificate {
  std::string certificate, key;  // PEM
};

Result<Certificate> make_authority(const std::string& domain);
Result<Certificate> make_wildcard(const Certificate& authority, const std::string& domain);

}  // namespace isola::cli
