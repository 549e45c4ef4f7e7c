// The users and groups of a sandbox, read out of its own /etc/passwd and /etc/group: names beside ids, and homes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/task.h"
#include "sandbox/guest_link.h"

namespace isola::e2b {

inline constexpr std::string_view kDefaultUser = "user";

class Accounts {
 public:
  static Task<Result<Accounts>> read(sandbox::GuestLink& link);
  static Accounts parse(std::string_view passwd, std::string_view group);

  std::optional<std::string> home(const std::string& user) const;  // nothing: there is no such user
  std::string user(uint32_t uid) const;                            // its name, or the number as text
  std::string group(uint32_t gid) const;

 private:
  std::map<std::string, std::string, std::less<>> homes_;
  std::map<uint32_t, std::string> users_, groups_;
};

// A path as a client wrote it, made absolute: ~ and relative ones begin at the home. invalid: ~somebody.
Result<std::string> expand(std::string_view path, std::string_view home);
// "a//b/../c/." → "a/c", as a person reads it: without looking at the disk.
std::string cleaned(std::string_view path);
std::string base_name(std::string_view path);
std::string folder_of(std::string_view path);

}  // namespace isola::e2b
