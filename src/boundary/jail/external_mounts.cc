#include "boundary/jail/external_mounts.h"

#include <fcntl.h>

#include <set>

#include "boundary/jail/stage.h"
#include "kernel/mount.h"

namespace isola::criu {

using boundary::jail::MountRule;

namespace {
std::string source_for_restore(const MountRule& rule) {
  return rule.source == "dev" ? boundary::jail::kRestoredDev : rule.source;
}
}  // namespace

std::vector<std::string> external_for_dump(const std::vector<MountRule>& rules) {
  std::vector<std::string> external;
  for (const auto& rule : rules)
    if (rule.from == MountRule::From::stage) external.push_back("mnt[/" + rule.target + "]:" + rule.target);
  return external;
}

Result<void> prepare_sources(const std::vector<MountRule>& rules) {
  std::set<std::string> done;
  for (const auto& rule : rules) {
    if (rule.from != MountRule::From::stage || rule.source == "dev" || !done.insert(rule.source).second) continue;
    ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, rule.source));
    ISOLA_CHECK(kernel::set_attributes(tree.get(), rule.attributes));
    ISOLA_CHECK(kernel::attach(tree.get(), AT_FDCWD, rule.source));
  }
  return {};
}

Result<void> prepare_dev(const std::vector<MountRule>& rules, int userns) {
  for (const auto& rule : rules) {
    if (rule.from != MountRule::From::stage || rule.source != "dev") continue;
    auto attributes = rule.attributes;
    attributes.idmap = userns;
    ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, rule.source));
    ISOLA_CHECK(kernel::set_attributes(tree.get(), attributes));
    ISOLA_CHECK(kernel::attach(tree.get(), AT_FDCWD, boundary::jail::kRestoredDev));
  }
  return {};
}

std::vector<std::string> external_for_restore(const std::vector<MountRule>& rules, const std::string& stage) {
  std::vector<std::string> external;
  for (const auto& rule : rules)
    if (rule.from == MountRule::From::stage)
      external.push_back("mnt[" + rule.target + "]:" + stage + "/" + source_for_restore(rule));
  return external;
}

}  // namespace isola::criu
