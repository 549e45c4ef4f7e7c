// SHA-256 as 64 hex digits, by libcrypto. A target of its own (isola_hash), because isola_base is linked statically
// into process 1 of every sandbox and must not bring libcrypto along.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

struct evp_md_ctx_st;  // of libcrypto

namespace isola {

Result<std::string> sha256(std::string_view bytes);

// Of what comes piece by piece.
class Sha256 {
 public:
  Sha256();
  void add(std::string_view bytes);
  Result<std::string> hex();  // once, at the end

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
  bool good_ = false;
};
// Of a whole file, read once; `tick` hears how many bytes are done, now and then.
Result<std::string> sha256_file(const std::string& path, const std::function<void(uint64_t)>& tick = {});

// Whether two secrets (or hashes of secrets) are the same, in a time that tells nothing about where they differ. Their
// lengths are no secret.
bool equal_secrets(std::string_view a, std::string_view b);

}  // namespace isola
