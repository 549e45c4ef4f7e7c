#include "external_mounts.h"

#include <fcntl.h>

#include <set>

#include "kernel/mount.h"

namespace isola::criu {

using boundary::jail::MountRule;

std::vector<std::string> external_for_dump(const std::vector<MountRule>& rules) {
  std::vector<std::string> external;
  for (const auto& rule : rules)
    if (rule.from == MountRule::From::stage) external.push_back("mnt[/" + rule.target + "]:" + rule.target);
  return external;
}

Result<void> prepare_sources(const std::vector<MountRule>& rules) {
  std::set<std::string> done;
  for (const auto& rule : rules) {
    if (rule.from != MountRule::From::stage || !done.insert(rule.source).second) continue;
    ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, rule.source));
    ISOLA_CHECK(kernel::set_attributes(tree.get(), rule.attributes));
    ISOLA_CHECK(kernel::attach(tree.get(), AT_FDCWD, rule.source));
  }
  return {};
}

std::vector<std::string> external_for_restore(const std::vector<MountRule>& rules, const std::string& stage) {
  std::vector<std::string> external;
  for (const auto& rule : rules)
    if (rule.from == MountRule::From::stage)
      external.push_back("mnt[" + rule.target + "]:" + stage + "/" + rule.source);
  return external;
}

}  // namespace isola::criu
