#include "image/recipes.h"

#include <algorithm>

namespace isola::image {

namespace {

// Raise when the finishing steps (rootfs.cc) change what a template contains.
constexpr int kFinishVersion = 5;

std::vector<std::string> with(std::vector<std::string> packages, const std::vector<std::string>& more) {
  packages.insert(packages.end(), more.begin(), more.end());
  return packages;
}

}  // namespace

// clang-format off
const std::vector<Recipe>& recipes() {
  static const std::vector<std::string> kBase = {
      "bash", "bash-completion", "build-essential", "bzip2", "ca-certificates", "curl", "diffutils",
      "file", "findutils", "git", "gnupg", "grep", "iproute2", "jq", "less", "lsof", "nano",
      "netbase", "openssh-client", "patch", "pkg-config", "procps", "psmisc", "python3",
      "python3-dev", "python3-pip", "python3-venv", "python-is-python3", "ripgrep", "rsync",
      "sqlite3", "sudo", "tree", "tzdata", "unzip", "vim-tiny", "wget", "xz-utils", "zip", "zstd"};
  static const std::vector<Recipe> kRecipes = {
      {.name = "base",
       .summary = "Python, Node, git and a build toolchain: what agents expect",
       .packages = kBase,
       .node = true},
      {.name = "minimal",
       .summary = "the smallest one with Python and sudo, for tests",
       .packages = {"bash", "coreutils", "procps", "python3-minimal", "sudo"}},
      {.name = "code-interpreter",
       .summary = "base with stateful kernels: Python and its science stack, JavaScript, TypeScript, Bash, R, Java",
       .packages = with(kBase, {"default-jdk-headless", "fonts-dejavu-core", "libssl3", "libzmq5", "r-base-core",
                                "r-cran-irkernel"}),
       .node = true,
       .python_packages = {"ipykernel", "numpy", "pandas", "matplotlib", "scipy", "scikit-learn", "pillow", "sympy",
                           "openpyxl"},
       .interpreter = true,
       .aliases = {"code-interpreter-v1"}},
      {.name = "containers",
       .summary = "podman, for containers inside a sandbox: with the boundary uml",
       .packages = {"bash", "busybox-static", "ca-certificates", "coreutils", "crun", "fuse-overlayfs", "iptables", "netavark",
                    "podman", "procps", "python3-minimal", "sudo"},
       .containers = true},
  };
  return kRecipes;
}
// clang-format on

Result<Recipe> find_recipe(const std::string& name) {
  std::string known;
  for (const auto& recipe : recipes()) {
    if (recipe.name == canonical_template(name)) return recipe;
    known += (known.empty() ? "" : ", ") + recipe.name;
  }
  return fail(Code::not_found, "there is no template '" + name + "' (known: " + known + ")");
}

std::string canonical_template(const std::string& name) {
  for (const auto& recipe : recipes())
    if (std::find(recipe.aliases.begin(), recipe.aliases.end(), name) != recipe.aliases.end()) return recipe.name;
  return name;
}

std::string to_text(const Recipe& recipe) {
  std::string text = "finish " + std::to_string(kFinishVersion) + "\nname " + recipe.name + "\n";
  auto packages = recipe.packages;
  std::sort(packages.begin(), packages.end());
  for (const auto& package : packages) text += "package " + package + "\n";
  text += std::string("node ") + (recipe.node ? "yes" : "no") + "\nmanuals " + (recipe.manuals ? "yes" : "no") + "\n";
  // Only where there is something to say: the keys of the other templates stay what they were.
  for (const auto& package : recipe.python_packages) text += "python " + package + "\n";
  if (recipe.interpreter) text += "interpreter\n";
  if (recipe.containers) text += "containers 1\n";
  return text;
}

}  // namespace isola::image
