#include "image/python_packages.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "image/package_clients.h"
#include "image/root_tree.h"

namespace isola::image {

namespace fs = std::filesystem;

Result<std::string> python_version(const std::string& root) {
  std::error_code error;
  std::string best;
  for (const auto& entry : fs::directory_iterator(root + "/usr/lib", error)) {
    std::string name = entry.path().filename();
    if (name.starts_with("python3.") &&
        std::all_of(name.begin() + 8, name.end(), [](unsigned char c) { return std::isdigit(c) != 0; }) &&
        name.size() > best.size() + 6)
      best = name.substr(6);
  }
  if (best.empty()) return fail(Code::not_found, "the template has no Python");
  return best;
}

Result<std::vector<std::string>> install_python_packages(const BuildPlace& place, const std::vector<std::string>& names,
                                                         const Reporter& report) {
  report("python");
  ISOLA_TRY(std::string version, python_version(place.root()));
  ISOLA_TRY(RootTree root, RootTree::open(place.root()));
  std::string python = "/usr/local/lib/python" + version, folder = python + "/dist-packages";
  for (const std::string& path : {std::string("/usr/local/lib"), python, folder})
    ISOLA_CHECK(root.folder_at(path, 0755));
  ISOLA_TRY(Command pip, pip_client(place, "cannot get the template's Python packages"));
  pip.tick = [&](std::string_view line) { report("python", line); };
  std::string target = place.root() + folder;
  pip.argv.insert(pip.argv.end(), {"install", "--no-compile", "--only-binary=:all:", "--python-version", version,
                                   "--implementation", "cp", "--target", target});
  pip.argv.insert(pip.argv.end(), names.begin(), names.end());
  ISOLA_CHECK(run(pip));
  report("python", "compiling");
  // Nobody here vouches for what was downloaded. Compiling does not run it, if nothing is imported on the way: lines of
  // *.pth files are (-S), and whatever stands where python looks first (-I).
  ISOLA_CHECK(run({.argv = {"chroot", place.root(), "/usr/bin/python3", "-I", "-S", "-m", "compileall", "-q", "-j", "2",
                            "--invalidation-mode", "unchecked-hash", "-x", "/(tests|lib2to3)/", folder},
                   .env = {"HOME=/tmp"},
                   .what = "cannot compile the template's Python packages",
                   .log = place.log(),
                   .contained = true}));
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(target, error)) {
    std::string name = entry.path().filename();
    auto dash = name.find('-');
    if (!name.ends_with(".dist-info") || dash == std::string::npos) continue;
    out.push_back("python:" + name.substr(0, dash) + "=" + name.substr(dash + 1, name.size() - dash - 11));
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace isola::image
