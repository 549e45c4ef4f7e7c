#include "cli/template_build.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "base/hash/sha256.h"
#include "base/units.h"
#include "builder/devcontainer.h"
#include "cli/api.h"
#include "cli/table.h"
#include "image/oci_import.h"

extern char** environ;

namespace isola::cli {

using nlohmann::json;

namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(200);

// A file that goes with whoever made it.
struct TempFile {
  std::string path;
  TempFile() {
    char name[] = "/var/tmp/isola-context-XXXXXX";
    int fd = ::mkstemp(name);
    if (fd >= 0) ::close(fd), path = name;
  }
  ~TempFile() {
    if (!path.empty()) ::unlink(path.c_str());
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
};

// The same bytes for the same files: the order, the owners and the times say nothing.
Result<void> pack(const std::string& folder, const std::vector<std::string>& left_out, const std::string& into) {
  std::vector<std::string> words = {"tar",
                                    "-C",
                                    folder,
                                    "--sort=name",
                                    "--mtime=@0",
                                    "--owner=0",
                                    "--group=0",
                                    "--numeric-owner",
                                    "--anchored",
                                    "--format=gnu",
                                    "--use-compress-program=gzip -n"};
  for (const auto& pattern : left_out) words.push_back("--exclude=./" + pattern);
  for (const char* word : {"-cf", into.c_str(), "."}) words.emplace_back(word);
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (int error = ::posix_spawnp(&pid, "tar", nullptr, nullptr, argv.data(), environ))
    return sys_error("cannot run tar", error);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return fail(Code::invalid, "tar could not pack " + folder);
  return {};
}

Result<std::string> upload(Api& api, const std::string& path) {
  ISOLA_TRY(std::string hash, sha256_file(path));
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return sys_error("cannot read " + path);
  std::error_code failed;
  http::ClientRequest request{.method = "PUT", .target = "/v1/build-files/" + hash, .type = "application/octet-stream"};
  request.length = std::filesystem::file_size(path, failed);
  request.source = [&](std::span<char> into) -> Result<size_t> {
    ssize_t n = ::read(file.get(), into.data(), into.size());
    if (n < 0) return sys_error("cannot read " + path);
    return static_cast<size_t>(n);
  };
  ISOLA_TRY(auto reply, api.request(std::move(request)));
  return hash;
}

Result<std::string> upload_context(Api& api, const std::string& folder) {
  TempFile packed;
  if (packed.path.empty()) return sys_error("cannot make a file in /var/tmp");
  std::vector<std::string> left_out;
  if (auto ignore = read_file(folder + "/.dockerignore")) {
    ISOLA_TRY(left_out, exclusions(*ignore));
  }
  std::fprintf(stderr, "packing %s\n", folder.c_str());
  ISOLA_CHECK(pack(folder, left_out, packed.path));
  std::error_code failed;
  std::fprintf(stderr, "uploading %s\n", format_size(std::filesystem::file_size(packed.path, failed)).c_str());
  return upload(api, packed.path);
}

Result<json> ask(const BuildOptions& options, const std::string& text) {
  json body = {{"name", options.name}, {"dockerfile", text}};
  auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) body[name] = value;
  };
  add("target", options.target);
  add("start", options.start);
  add("ready", options.ready);
  add("network", options.network);
  add("memory", options.memory);
  if (options.cpus) body["cpus"] = *options.cpus;
  if (!options.tags.empty()) body["tags"] = options.tags;
  if (options.force) body["force"] = true;
  for (const auto& argument : options.arguments) {
    auto equals = argument.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(Code::invalid, "--build-arg: must be NAME=value, not '" + argument + "'");
    body["arguments"][argument.substr(0, equals)] = argument.substr(equals + 1);
  }
  return body;
}

// Until it is over, with its log as it comes.
Result<json> follow(Api& api, const json& begun) {
  std::string at = "/v1/templates/" + begun.at("template_id").get<std::string>() + "/builds/" +
                   begun.at("build").get<std::string>() + "?from=";
  for (uint64_t next = 0;;) {
    ISOLA_TRY(json build, api.get(at + std::to_string(next)));
    for (const auto& line : build["log"]) {
      next = line.at("number").get<uint64_t>() + 1;
      std::fprintf(stderr, "%s\n", shown(text_of(line, "text", "")).c_str());
    }
    bool over = build["state"] == "ready" || build["state"] == "failed";
    if (over && build["log"].empty()) return build;
    if (build["log"].empty()) std::this_thread::sleep_for(kLookAgain);
  }
}

// Only where something is copied: a folder can be large.
bool copies(const std::string& dockerfile) {
  std::istringstream lines(dockerfile);
  for (std::string line; std::getline(lines, line);) {
    auto first = line.find_first_not_of(" \t");
    std::string word = first == std::string::npos ? "" : line.substr(first, 5);
    for (char& c : word) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (word.starts_with("COPY ") || word.starts_with("ADD ")) return true;
  }
  return false;
}

// Images on disk become templates of this machine, which the server knows by the digest of what they hold.
Result<json> import_bases(const Common& common, const std::string& dockerfile, const std::string& folder) {
  json names = json::object();
  for (const auto& name : images_on_disk(dockerfile)) {
    if (::geteuid() != 0)
      return fail(Code::denied, name + ": an image on disk is imported by root, on the server's own machine");
    std::string path = (std::filesystem::path(folder) / name.substr(4)).lexically_normal().string();
    std::fprintf(stderr, "importing %s\n", path.c_str());
    image::TemplateCache cache(common.cache_dir);
    ISOLA_TRY(auto made, image::import_image(cache, path, "", {}));
    names[name] = made.name;
  }
  return names;
}

// With the text of devcontainer.json in the body, and that of its Dockerfile as the result.
Result<std::string> take_devcontainer(const std::string& folder, json& body) {
  for (const char* place : {".devcontainer", "."}) {
    std::string name = std::string(place) == "." ? "/.devcontainer.json" : "/.devcontainer/devcontainer.json";
    auto text = read_file(folder + name, 2 << 20);
    if (!text) continue;
    auto workspace = std::filesystem::canonical(folder).filename().string();
    for (char& c : workspace)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '-';
    builder::DevcontainerPlace where{.folder = place, .workspace = workspace};
    ISOLA_TRY(auto dev, builder::parse_devcontainer(*text, where));
    body["devcontainer"] = {{"text", *text}, {"folder", place}, {"workspace", workspace}};
    if (dev.dockerfile.empty()) return std::string();
    return read_file(folder + "/" + dev.dockerfile, 2 << 20);
  }
  return fail(Code::not_found, folder + " has no .devcontainer/devcontainer.json and no .devcontainer.json");
}

Result<json> build(const Common& common, const BuildOptions& options) {
  json body;
  std::string text, folder = options.context;
  if (options.devcontainer.empty()) {
    ISOLA_TRY(text, read_file(options.file, 2 << 20));
    ISOLA_TRY(body, ask(options, text));
    if (folder.empty()) folder = std::filesystem::absolute(options.file).parent_path().string();
  } else {
    folder = options.devcontainer;
    json place = json::object();
    ISOLA_TRY(text, take_devcontainer(folder, place));
    ISOLA_TRY(body, ask(options, text));
    body.update(place);
    if (text.empty()) body.erase("dockerfile");
  }
  ISOLA_TRY(json names, import_bases(common, text, folder));
  if (!names.empty()) body["bases"] = names;
  ISOLA_TRY(Api api, Api::open(common));
  if (!options.devcontainer.empty() || copies(text)) {
    ISOLA_TRY(body["context"], upload_context(api, folder));
  }
  ISOLA_TRY(json begun, api.send("POST", "/v1/templates", body));
  for (const auto& note : begun.value("ignored", json::array()))
    std::fprintf(stderr, "note: %s\n", shown(note.get<std::string>()).c_str());
  return follow(api, begun);
}

}  // namespace

Result<std::vector<std::string>> exclusions(const std::string& dockerignore) {
  std::vector<std::string> out;
  std::istringstream lines(dockerignore);
  for (std::string line; std::getline(lines, line);) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '!')
      return fail(Code::unsupported, ".dockerignore: exceptions ('" + line + "') are not understood here");
    while (line.starts_with("./")) line.erase(0, 2);
    while (line.starts_with('/')) line.erase(0, 1);
    while (line.ends_with('/')) line.pop_back();
    if (!line.empty() && line != ".") out.push_back(line);
  }
  return out;
}

std::vector<std::string> images_on_disk(const std::string& dockerfile) {
  std::vector<std::string> found;
  std::istringstream words(dockerfile);
  for (std::string word; words >> word;) {
    if (word.starts_with("--from=")) word.erase(0, 7);
    if (word.starts_with("oci:") && word.size() > 4 && std::ranges::find(found, word) == found.end())
      found.push_back(word);
  }
  return found;
}

int template_build_file(const Common& common, const BuildOptions& options) {
  auto built = build(common, options);
  if (!built) return complain(built.error().message);
  if (common.json) print_json(*built);
  if ((*built)["state"] == "ready") {
    if (!common.json) print(options.name + ": ready\n");
    return 0;
  }
  const json& error = (*built)["error"];
  return complain("the build failed at step " + text_of(error, "step") + ": " + shown(text_of(error, "message")));
}

}  // namespace isola::cli
