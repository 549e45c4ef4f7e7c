#include "image/recipes.h"

#include <algorithm>

namespace isola::image {

namespace {

// Raise when the finishing steps (rootfs.cc) change what a template contains.
constexpr int kFinishVersion = 3;

}  // namespace

// clang-format off
const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> kRecipes = {
      {.name = "base",
       .summary = "Python, Node, git and a build toolchain: what agents expect",
       .packages = {"bash", "bash-completion", "build-essential", "bzip2", "ca-certificates", "curl", "diffutils",
                    "file", "findutils", "git", "gnupg", "grep", "iproute2", "jq", "less", "lsof", "nano",
                    "netbase", "openssh-client", "patch", "pkg-config", "procps", "psmisc", "python3",
                    "python3-dev", "python3-pip", "python3-venv", "python-is-python3", "ripgrep", "rsync",
                    "sqlite3", "sudo", "tree", "tzdata", "unzip", "vim-tiny", "wget", "xz-utils", "zip", "zstd"},
       .node = true},
      {.name = "minimal",
       .summary = "the smallest one with Python and sudo, for tests",
       .packages = {"bash", "coreutils", "procps", "python3-minimal", "sudo"}},
  };
  return kRecipes;
}
// clang-format on

Result<Recipe> find_recipe(const std::string& name) {
  std::string known;
  for (const auto& recipe : recipes()) {
    if (recipe.name == name) return recipe;
    known += (known.empty() ? "" : ", ") + recipe.name;
  }
  return fail(Code::not_found, "there is no template '" + name + "' (known: " + known + ")");
}

std::string to_text(const Recipe& recipe) {
  std::string text = "finish " + std::to_string(kFinishVersion) + "\nname " + recipe.name + "\n";
  auto packages = recipe.packages;
  std::sort(packages.begin(), packages.end());
  for (const auto& package : packages) text += "package " + package + "\n";
  text += std::string("node ") + (recipe.node ? "yes" : "no") + "\nmanuals " + (recipe.manuals ? "yes" : "no") + "\n";
  return text;
}

}  // namespace isola::image
