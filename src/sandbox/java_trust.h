// Certificates as Java's programs read them: a trust store of the form JKS, which every JVM knows, with the password
// that all of these have. Made of a bundle in PEM, since JVMs read no such thing.
//
//   ISOLA_TRY(std::string store, java_trust_store(bundle));   // for -Djavax.net.ssl.trustStore
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::sandbox {

inline constexpr std::string_view kJavaPassword = "changeit";  // protects nothing: what is in there is public

// All certificates of the bundle; what else is in it is left out.
Result<std::string> java_trust_store(std::string_view bundle);

}  // namespace isola::sandbox
