#include "interpreter/agent/specs.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/fd.h"
#include "base/file.h"
#include "interpreter/agent/message.h"

namespace isola::interpreter {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostSpecs = 256;  // in one folder

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return text;
}

std::string canonical(const std::string& word) {
  static const std::map<std::string, std::string> kAliases = {
      {"js", "javascript"},  {"node", "javascript"}, {"ts", "typescript"}, {"py", "python"},
      {"python3", "python"}, {"sh", "bash"},         {"shell", "bash"},    {"ir", "r"}};
  std::string name = lower(word);
  auto found = kAliases.find(name);
  return found == kAliases.end() ? name : found->second;
}

// Nobody waits for a pipe in the place of a file.
Result<std::string> read_regular(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat st;
  if (!fd || ::fstat(fd.get(), &st) < 0) return sys_error("cannot read " + path);
  if (!S_ISREG(st.st_mode)) return fail(Code::invalid, path + " is no file");
  return read_file("/proc/self/fd/" + std::to_string(fd.get()), 1 << 20);
}

KernelSpec read_spec(const fs::path& folder) {
  KernelSpec spec;
  spec.name = folder.filename();
  spec.folder = folder;
  spec.language = canonical(spec.name);
  auto text = read_regular(spec.folder + "/kernel.json");
  auto parsed = text ? parse_bounded(*text) : Result<Json>(Json());
  if (!text || !parsed) {
    spec.broken = text ? "its kernel.json is not JSON" : text.error().message;
    return spec;
  }
  Json json = std::move(*parsed);
  spec.display_name = text_of(json, "display_name");
  if (auto language = text_of(json, "language"); !language.empty()) spec.language = canonical(language);
  spec.interrupt_by_message = text_of(json, "interrupt_mode") == "message";
  if (json["argv"].is_array())
    for (const auto& word : json["argv"])
      if (word.is_string()) spec.argv.push_back(word);
  if (spec.argv.empty()) spec.broken = "its kernel.json has no argv";
  if (json["env"].is_object())
    for (const auto& [name, value] : json["env"].items())
      if (value.is_string()) spec.env[name] = value;
  if (json["metadata"].is_object() && json["metadata"]["isola"].is_object()) {
    const Json& ours = json["metadata"]["isola"];
    spec.cell_env = text_of(ours, "cell_env");
    spec.displays_values = text_of(ours, "values") == "displayed";
    spec.words_are_output = text_of(ours, "words") == "output";
    spec.transport = text_of(ours, "transport");
  }
  return spec;
}

}  // namespace

std::vector<std::string> Specs::usual_folders(const std::string& home) {
  std::vector<std::string> out;
  if (const char* path = std::getenv("JUPYTER_PATH")) {
    std::string_view rest = path;
    while (!rest.empty()) {
      auto colon = rest.find(':');
      if (colon != 0) out.push_back(std::string(rest.substr(0, colon)) + "/kernels");
      rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
    }
  }
  out.push_back(home + "/.local/share/jupyter/kernels");
  out.push_back("/usr/local/share/jupyter/kernels");
  out.push_back("/usr/share/jupyter/kernels");
  return out;
}

Specs Specs::read(const std::vector<std::string>& folders) {
  Specs specs;
  for (const auto& folder : folders) {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end && found.size() < kMostSpecs;
         it.increment(error)) {
      std::error_code there;
      if (fs::exists(it->path() / "kernel.json", there)) found.push_back(it->path());
    }
    std::sort(found.begin(), found.end());
    for (const auto& path : found) {
      bool known = std::any_of(specs.all_.begin(), specs.all_.end(),
                               [&](const KernelSpec& one) { return one.name == path.filename(); });
      if (!known) specs.all_.push_back(read_spec(path));
    }
  }
  return specs;
}

Result<const KernelSpec*> Specs::find(const std::string& language) const {
  std::string wanted = canonical(language);
  for (const auto& spec : all_)
    if (spec.name == language) return &spec;
  for (const auto& spec : all_)
    if (spec.language == wanted) return &spec;
  std::string known;
  for (const auto& spec : all_)
    if (known.find(spec.language) == std::string::npos || spec.language == "r")
      known += (known.empty() ? "" : ", ") + spec.language;
  return fail(Code::not_found, "there is no kernel for the language '" + language.substr(0, 64) + "' here (" +
                                   (known.empty() ? "none is installed" : "there is: " + known) + ")");
}

}  // namespace isola::interpreter
