// SHA-256, for naming filters.
//
// Our own sixty lines rather than OpenSSL: the launcher is the privileged process and stays small (libcrypto would
// more than double its pages and start-up relocations), the input is a few hundred bytes that we made ourselves, and
// nothing secret passes through, so neither speed nor side channels count. Checked against the standard's examples.
#pragma once

#include <string>
#include <string_view>

namespace isola::kernel {

std::string sha256_hex(std::string_view bytes);  // 64 lower-case hex digits
// The same, for what is seen again and again (each sandbox has the same filter and rules): compared byte by byte with
// what was hashed before.
std::string remembered_sha256_hex(std::string_view bytes);

}  // namespace isola::kernel
