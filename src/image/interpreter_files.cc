#include "image/interpreter_files.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/hash/sha256.h"
#include "image/recipes.h"
#include "image/spawn.h"

namespace isola::image {

namespace fs = std::filesystem;

namespace {

Result<std::string> our_folder() {
  std::error_code error;
  fs::path self = fs::read_symlink("/proc/self/exe", error);
  fs::path folder = self.parent_path() / "isola-interpreter";
  if (error || !fs::exists(folder / "usr/local/lib/isola/isola-kernels", error))
    return fail(Code::not_found, "the folder " + folder.string() + " with isola-kernels is not there");
  return folder.string();
}

// A program of the template, run in it, with a /proc of its own: Java finds its libraries by that.
Result<void> run_inside(const BuildPlace& place, const std::string& what, std::vector<std::string> argv,
                        const std::string& home, const std::string& user = {}) {
  std::vector<std::string> all = {"unshare", "--net",         "--ipc",
                                  "--mount", "--propagation", "private",
                                  "--pid",   "--fork",        "--mount-proc=" + place.root() + "/proc",
                                  "chroot"};
  if (!user.empty()) all.push_back("--userspec=" + user + ":" + user);
  all.push_back(place.root());
  all.insert(all.end(), argv.begin(), argv.end());
  return run({.argv = all, .env = {"HOME=" + home}, .what = what, .log = place.log(), .contained = true});
}

}  // namespace

Result<std::string> interpreter_digest() {
  ISOLA_TRY(std::string folder, our_folder());
  std::vector<std::string> files;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(folder, error); it != fs::recursive_directory_iterator();
       it.increment(error)) {
    if (error) return fail(Code::internal, "cannot read " + folder + ": " + error.message());
    if (it->is_regular_file(error)) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  std::string all;
  for (const auto& file : files) {
    ISOLA_TRY(std::string digest, sha256_file(file));
    all += file.substr(folder.size()) + " " + digest + "\n";
  }
  return sha256(all);
}

Result<void> install_interpreter(const BuildPlace& place, const Reporter& report) {
  report("interpreter");
  ISOLA_TRY(std::string folder, our_folder());
  // The tree is ours and the template's folders of these names are plain ones: nothing leads out of the root.
  ISOLA_CHECK(run({.argv = {"cp", "-R", "--no-target-directory", "--remove-destination", folder, place.root()},
                   .what = "cannot copy the interpreter into the template",
                   .log = place.log()}));
  ISOLA_CHECK(run({.argv = {"chown", "-R", "0:0", place.root() + "/usr/local/lib/isola"},
                   .what = "cannot copy the interpreter into the template",
                   .log = place.log()}));
  auto inside = [&](std::vector<std::string> argv) {
    return run_inside(place, "cannot prepare the interpreter", std::move(argv), "/tmp");
  };
  const std::string ours = "/usr/local/lib/isola";
  ISOLA_CHECK(inside({"javac", "-d", ours + "/java", "-sourcepath", ours + "/java", ours + "/java/Cells.java"}));
  ISOLA_CHECK(inside(
      {"python3", "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", ours + "/python"}));
  // Finds all of its libraries there.
  return inside({ours + "/isola-kernels", "--version"});
}

Result<void> warm_interpreter(const BuildPlace& place, const Reporter& report) {
  report("interpreter", "fonts");
  const std::string home = "/home/" + std::string(kGuestUser), user = std::to_string(kGuestUid);
  ISOLA_CHECK(run_inside(
      place, "the science stack of the template does not run",
      {"/usr/bin/python3", "-c", "import os, site, matplotlib.font_manager\nos.makedirs(site.getusersitepackages())"},
      home, user));
  return run_inside(place, "R of the template does not run",
                    {"/usr/bin/R", "--no-save", "--no-restore", "--slave", "-e",
                     "dir.create(Sys.getenv('R_LIBS_USER'), recursive = TRUE)"},
                    home, user);
}

}  // namespace isola::image
