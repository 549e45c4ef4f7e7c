// Who a process or a file call acts as, looked up in the sandbox's own /etc/passwd and /etc/group. No NSS: the guest is
// static, and a library chosen by the sandbox must never be loaded into its pid 1.
//
//   resolve_user("")          root
//   resolve_user("user")      by name, with the groups that list it
//   resolve_user("1000")      by uid; an id without an entry is fine, its gid is then the same number
//   resolve_user("1000:50")   uid and gid
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::guest {

struct User {
  uint32_t uid = 0, gid = 0;
  std::vector<uint32_t> groups;
  std::string name = "root", home = "/root", shell = {};  // no shell: nobody knows
};

Result<User> resolve_user(std::string_view text);
// The same over given file contents.
Result<User> resolve_user(std::string_view text, std::string_view passwd, std::string_view group);

// For as long as it lives, file calls are judged as `user`: its filesystem ids and groups, and, when it is not root,
// none of root's file capabilities (the kernel takes them away with fsuid ≠ 0 and gives them back with 0).
class ActAs {
 public:
  static Result<ActAs> user(const User& user);
  ActAs(ActAs&& other) noexcept : active_(std::exchange(other.active_, false)) {}
  ActAs(const ActAs&) = delete;
  ActAs& operator=(const ActAs&) = delete;
  ActAs& operator=(ActAs&&) = delete;
  ~ActAs();

 private:
  explicit ActAs(bool active) : active_(active) {}
  bool active_;
};

}  // namespace isola::guest
