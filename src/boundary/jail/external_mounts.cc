#include "boundary/jail/external_mounts.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <set>

#include "boundary/jail/root.h"
#include "boundary/jail/stage.h"
#include "kernel/mount.h"

namespace isola::criu {

using boundary::jail::MountRule;

namespace {
std::string source_for_restore(const MountRule& rule) {
  return rule.source == "dev" ? boundary::jail::kRestoredDev : rule.source;
}
std::string shown_point(size_t number) { return fmt::format("{}/{}", boundary::jail::kShown, number); }
}  // namespace

std::vector<std::string> external_for_dump(const std::vector<MountRule>& rules) {
  std::vector<std::string> external;
  for (const auto& rule : rules)
    if (rule.from == MountRule::From::stage || rule.from == MountRule::From::shown)
      external.push_back("mnt[/" + rule.target + "]:" + rule.target);
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

Result<void> prepare_shown(const std::vector<boundary::ShownFolder>& shown, int userns) {
  for (size_t i = 0; i < shown.size(); ++i) {
    ISOLA_TRY(Fd mount, boundary::jail::prepare_shown(shown[i], userns));
    ISOLA_CHECK(kernel::attach(mount.get(), AT_FDCWD, shown_point(i)));
  }
  return {};
}

std::vector<std::string> external_for_restore(const std::vector<MountRule>& rules, const std::string& stage) {
  std::vector<std::string> external;
  size_t shown = 0;
  for (const auto& rule : rules) {
    std::string source;
    if (rule.from == MountRule::From::stage) source = source_for_restore(rule);
    if (rule.from == MountRule::From::shown) source = shown_point(shown++);
    if (!source.empty()) external.push_back("mnt[" + rule.target + "]:" + stage + "/" + source);
  }
  return external;
}

}  // namespace isola::criu
