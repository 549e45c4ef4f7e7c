#include "image/skopeo.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/file.h"
#include "image/spawn.h"

namespace isola::image {

namespace {

constexpr unsigned kNobody = 65534;
constexpr const char* kFetchPatience = "1800";  // seconds, for all of an image

Result<void> give(const std::string& path, mode_t mode) {
  if (::chown(path.c_str(), kNobody, kNobody) < 0 || ::chmod(path.c_str(), mode) < 0)
    return sys_error("cannot give " + path + " away");
  return {};
}

// Where the tools that log in put them.
Result<bool> copy_credentials(const std::string& into) {
  std::vector<std::string> places = {"/run/containers/0/auth.json", "/root/.config/containers/auth.json",
                                     "/root/.docker/config.json"};
  if (const char* named = std::getenv("REGISTRY_AUTH_FILE"); named && *named) places = {named};
  for (const auto& place : places) {
    auto text = read_file(place);
    if (!text) continue;
    ISOLA_CHECK(replace_file(into, *text, 0600));
    ISOLA_CHECK(give(into, 0400));
    return true;
  }
  return false;
}

bool says(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (text.find(word) != std::string::npos) return true;
  return false;
}

// In skopeo's words, which differ with the registry.
Error reason(const Error& error, const ImageReference& image) {
  const std::string& text = error.message;
  const std::string what = "the image " + to_text(image);
  std::string last = text.substr(text.rfind("msg=") == std::string::npos ? 0 : text.rfind("msg=") + 4);
  last = last.substr(0, 600);
  if (says(text, {"is not installed"})) return {Code::unsupported, "images cannot be fetched here: " + text};
  if (says(text, {"manifest unknown", "name unknown", "not found", "repository does not exist"}))
    return {Code::not_found, what + " is not in its registry: " + last};
  if (says(text, {"unauthorized", "denied", "authentication required"}))
    return {Code::denied, what + " is not for this machine: " + last};
  if (says(text, {"connection refused", "no such host", "i/o timeout", "no route", "unreachable", "deadline exceeded",
                  "pinging container registry", "exit code 124", "EOF", "connection reset"}))
    return {Code::unavailable, "the registry " + image.registry + " does not answer: " + last};
  return {Code::unavailable, what + " cannot be fetched: " + last};
}

}  // namespace

Result<Skopeo> Skopeo::open(const std::string& folder, const std::string& log, bool anonymous, const std::string& own) {
  ISOLA_CHECK(make_dirs(folder, 0700));
  ISOLA_CHECK(give(folder, 0700));
  bool credentials = !own.empty();
  if (credentials) {
    ISOLA_CHECK(replace_file(folder + "/auth.json", own, 0600));
    ISOLA_CHECK(give(folder + "/auth.json", 0400));
  } else if (!anonymous) {
    ISOLA_TRY(credentials, copy_credentials(folder + "/auth.json"));
  }
  return Skopeo(folder, log, credentials);
}

Result<std::string> Skopeo::run(std::vector<std::string> words, const ImageReference& image, uint64_t largest) const {
  const std::string nobody = std::to_string(kNobody);
  std::vector<std::string> argv = {"prlimit",           "--fsize=" + std::to_string(largest),
                                   "--core=0",          "setpriv",
                                   "--reuid=" + nobody, "--regid=" + nobody,
                                   "--clear-groups",    "--no-new-privs",
                                   "--inh-caps=-all",   "--bounding-set=-all",
                                   "timeout",           "--kill-after=5",
                                   kFetchPatience,      "skopeo"};
  ISOLA_CHECK(find_program("skopeo"));
  if (const char* named = std::getenv("CONTAINERS_REGISTRIES_CONF"); named && *named)
    argv.insert(argv.end(), {"--registries-conf", named});
  argv.insert(argv.end(), words.begin(), words.end());
  auto said = run_output({.argv = argv,
                          .env = {"HOME=" + folder_, "TMPDIR=" + folder_, "XDG_RUNTIME_DIR=" + folder_},
                          .what = "cannot fetch the image",
                          .log = log_,
                          .contained = true});
  if (!said) return std::unexpected(reason(said.error(), image));
  return said;
}

Result<std::string> Skopeo::manifest(const ImageReference& image) const {
  std::vector<std::string> words = {"inspect", "--raw"};
  if (credentials_)
    words.insert(words.end(), {"--authfile", folder_ + "/auth.json"});
  else
    words.push_back("--no-creds");
  words.push_back("docker://" + to_text(image));
  return run(std::move(words), image, 64 << 20);
}

Result<std::string> Skopeo::copy(const ImageReference& image, uint64_t largest) const {
  std::vector<std::string> words = {"copy", "--quiet", "--override-os=linux", "--override-arch=amd64"};
  if (credentials_)
    words.insert(words.end(), {"--src-authfile", folder_ + "/auth.json"});
  else
    words.push_back("--src-no-creds");
  words.push_back("docker://" + to_text(image));
  words.push_back("oci:" + folder_ + "/layout:image");
  ISOLA_CHECK(run(std::move(words), image, largest));
  // Nobody is somebody else, too, on other business: what is read from here on is closed to it.
  if (::chown(folder_.c_str(), 0, 0) < 0 || ::chmod(folder_.c_str(), 0700) < 0)
    return sys_error("cannot take " + folder_ + " back");
  if (credentials_ && ::unlink((folder_ + "/auth.json").c_str()) < 0 && errno != ENOENT)
    return sys_error("cannot remove the credentials of an image");
  return folder_ + "/layout";
}

}  // namespace isola::image
