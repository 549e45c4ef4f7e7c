#include "builder/devcontainer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_bound.h"
#include "base/log.h"
#include "builder/dockerfile_words.h"

namespace isola::builder {

namespace {

using nlohmann::json;

constexpr size_t kMaxText = 1 << 20;

// Of the properties that say how an editor or a container engine is to be used.
constexpr const char* kMeaningless[] = {"$schema",
                                        "appPort",
                                        "capAdd",
                                        "customizations",
                                        "extensions",
                                        "forwardPorts",
                                        "hostRequirements",
                                        "init",
                                        "mounts",
                                        "name",
                                        "otherPortsAttributes",
                                        "overrideCommand",
                                        "portsAttributes",
                                        "postAttachCommand",
                                        "postStartCommand",
                                        "privileged",
                                        "runArgs",
                                        "secrets",
                                        "securityOpt",
                                        "settings",
                                        "shutdownAction",
                                        "updateRemoteUserUID",
                                        "userEnvProbe",
                                        "waitFor",
                                        "workspaceMount"};
constexpr const char* kKnown[] = {"image",
                                  "build",
                                  "dockerFile",
                                  "context",
                                  "features",
                                  "containerEnv",
                                  "remoteEnv",
                                  "containerUser",
                                  "remoteUser",
                                  "overrideFeatureInstallOrder",
                                  "onCreateCommand",
                                  "updateContentCommand",
                                  "postCreateCommand",
                                  "workspaceFolder"};

std::unexpected<Error> wrong(const std::string& name, const std::string& why) {
  return fail(Code::invalid, "devcontainer.json: " + name + ": " + why);
}

// Commas before a closing bracket, which the parser does not take; comments it does. Texts stay as they are.
std::string without_last_commas(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      size_t end = i + 1;
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end, text.size() - 1);
      out += text.substr(i, end - i + 1);
      i = end;
      continue;
    }
    if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size()) - 1;
      continue;
    }
    if (text.substr(i, 2) == "/*") {
      size_t end = text.find("*/", i + 2);
      i = (end == text.npos ? text.size() : end + 2) - 1;
      out += ' ';
      continue;
    }
    if (text[i] == ']' || text[i] == '}') {
      size_t last = out.find_last_not_of(" \t\r\n");
      if (last != out.npos && out[last] == ',') out.erase(last, 1);
    }
    out += text[i];
  }
  return out;
}

class Reader {
 public:
  Reader(const json& in, const DevcontainerPlace& place) : in_(in), place_(place) {}

  Result<Devcontainer> read() {
    ISOLA_CHECK(look_at_names());
    ISOLA_TRY(workspace_, text("workspaceFolder"));
    if (workspace_.empty()) workspace_ = "/workspaces/" + place_.workspace;
    ISOLA_TRY(workspace_, filled(workspace_, "workspaceFolder"));
    if (!workspace_.starts_with('/')) return wrong("workspaceFolder", "must be an absolute path");
    ISOLA_CHECK(read_base());
    ISOLA_TRY(std::string user, text("containerUser"));
    ISOLA_TRY(user_, text("remoteUser"));
    if (user_.empty()) user_ = user;
    ISOLA_CHECK(add_variables("containerEnv"));
    ISOLA_CHECK(add_features());
    add_files();
    ISOLA_CHECK(add_variables("remoteEnv"));
    for (const char* name : {"onCreateCommand", "updateContentCommand", "postCreateCommand"})
      ISOLA_CHECK(add_commands(name));
    return std::move(out_);
  }

 private:
  Result<void> look_at_names() {
    for (const auto& [name, value] : in_.items()) {
      if (std::ranges::find(kKnown, name) != std::end(kKnown)) continue;
      if (name == "dockerComposeFile" || name == "service" || name == "runServices")
        return fail(Code::unsupported, "devcontainer.json: " + name + ": several containers are not made here");
      if (name == "initializeCommand")
        return fail(
            Code::unsupported,
            "devcontainer.json: initializeCommand would run on your own machine: run it there first, and remove it");
      if (std::ranges::find(kMeaningless, name) != std::end(kMeaningless))
        out_.ignored.push_back(name + " has no meaning here");
      else
        return wrong(log::quoted(name), "is not a property that is known here");
    }
    return {};
  }

  Result<std::string> text_in(const json& object, const char* name) const {
    auto found = object.find(name);
    if (found == object.end()) return "";
    if (!found->is_string() || found->get<std::string>().find('\0') != std::string::npos)
      return wrong(name, "must be text");
    return found->get<std::string>();
  }
  Result<std::string> text(const char* name) const { return text_in(in_, name); }

  // A path of the json's folder, as one of the uploaded files.
  Result<std::string> path(const std::string& name, const char* property) const {
    auto clean = clean_path((place_.folder == "." ? "" : place_.folder + "/") + name, Leaving::refused);
    if (!clean || name.starts_with('/')) return wrong(property, log::quoted(name) + " leads out of the folder");
    return *clean;
  }

  Result<void> read_base() {
    ISOLA_TRY(out_.image, text("image"));
    ISOLA_TRY(std::string file, text("dockerFile"));
    ISOLA_TRY(std::string context, text("context"));
    if (auto build = in_.find("build"); build != in_.end()) {
      if (!build->is_object()) return wrong("build", "must be an object");
      ISOLA_TRY(file, text_in(*build, "dockerfile"));
      ISOLA_TRY(context, text_in(*build, "context"));
      ISOLA_TRY(out_.target, text_in(*build, "target"));
      if (auto args = build->find("args"); args != build->end()) {
        if (!args->is_object()) return wrong("build.args", "must be an object of strings");
        for (const auto& [name, value] : args->items()) {
          if (!value.is_string()) return wrong("build.args", "must be an object of strings");
          ISOLA_TRY(out_.arguments[name], filled(value.get<std::string>(), "build.args"));
        }
      }
    }
    if (out_.image.empty() == file.empty()) return wrong("image", "either that or build.dockerfile is wanted");
    if (out_.image.find_first_of(" \t\r\n") != out_.image.npos) return wrong("image", "is no name of an image");
    if (file.empty()) return {};
    ISOLA_TRY(out_.dockerfile, path(file, "build.dockerfile"));
    ISOLA_TRY(out_.build_folder, path(context.empty() ? "." : context, "build.context"));
    return {};
  }

  // ${…} as the format has them. What is only known on somebody's own machine is refused.
  Result<std::string> filled(std::string_view raw, const char* property) const {
    std::string out;
    for (;;) {
      size_t begin = raw.find("${");
      out += raw.substr(0, begin);
      if (begin == raw.npos) return out;
      size_t end = raw.find('}', begin);
      if (end == raw.npos) return wrong(property, "a '}' is missing");
      std::string_view name = raw.substr(begin + 2, end - begin - 2);
      raw.remove_prefix(end + 1);
      if (name == "containerWorkspaceFolder") {
        out += workspace_;
      } else if (name == "localWorkspaceFolderBasename" || name == "containerWorkspaceFolderBasename") {
        out += place_.workspace;
      } else if (name == "devcontainerId") {
        out += "isola";
      } else if (name.starts_with("containerEnv:")) {
        auto known = env_.find(std::string(name.substr(13, name.find(':', 13) - 13)));
        if (known == env_.end())
          return fail(Code::unsupported, "devcontainer.json: " + std::string(property) + ": ${" + std::string(name) +
                                             "} is known here only if containerEnv sets it");
        out += known->second;
      } else {
        return fail(Code::unsupported, "devcontainer.json: " + std::string(property) + ": ${" + std::string(name) +
                                           "} is not known on the server");
      }
    }
  }

  Step& add(Step::Kind kind, std::string line) {
    if (line.size() > kMaxShown) line.resize(kMaxShown);
    return out_.after.emplace_back(Step{.kind = kind, .line = std::move(line)});
  }

  Result<void> add_variables(const char* property) {
    auto found = in_.find(property);
    if (found == in_.end()) return {};
    if (!found->is_object()) return wrong(property, "must be an object of strings");
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const auto& [name, value] : found->items()) {
      if (value.is_null()) continue;
      if (!value.is_string() || name.empty() || name.find_first_of(std::string("=\0", 2)) != name.npos)
        return wrong(property, "must be an object of strings");
      ISOLA_TRY(std::string text, filled(value.get<std::string>(), property));
      pairs.emplace_back(name, text);
    }
    for (const auto& [name, value] : pairs) env_[name] = value;
    if (pairs.empty()) return {};
    std::string line = property;
    for (const auto& [name, value] : pairs) line += " " + name + "=" + value;
    add(Step::Kind::env, line).env = std::move(pairs);
    return {};
  }

  // Folders beside the json with an install.sh, in the order of the file, each run as root with its options.
  Result<void> add_features() {
    auto found = in_.find("features");
    if (found == in_.end()) return {};
    if (!found->is_object()) return wrong("features", "must be an object");
    for (const auto& [name, options] : found->items()) {
      if (!name.starts_with("./") && !name.starts_with("../"))
        return fail(Code::unsupported, "devcontainer.json: features: " + log::quoted(name) +
                                           " would come from a registry: only folders beside devcontainer.json "
                                           "(./name) with an install.sh are understood here");
      ISOLA_TRY(std::string folder, path(name, "features"));
      ISOLA_TRY(std::string variables, feature_options(name, options));
      const std::string place = "/tmp/.isola-feature";
      Step& copy = add(Step::Kind::copy, "feature " + name);
      copy.sources = {folder};
      copy.target = place + "/";
      std::string user = user_.empty() ? "root" : user_;
      Step& run = add(Step::Kind::run, "feature " + name + ": install.sh");
      run.run_as = "root";
      run.command = "cd " + place + " && export _REMOTE_USER=" + single_quoted(user) +
                    " _CONTAINER_USER=" + single_quoted(user) + variables +
                    " && if [ -x install.sh ]; then ./install.sh; else sh ./install.sh; fi && rm -rf " + place;
    }
    return {};
  }

  Result<std::string> feature_options(const std::string& name, const json& options) const {
    if (options.is_string()) return " VERSION=" + single_quoted(options.get<std::string>());
    if (options.is_boolean() && options.get<bool>()) return std::string();
    if (!options.is_object()) return wrong("features", log::quoted(name) + " must have an object of options");
    std::string out;
    for (const auto& [option, value] : options.items()) {
      std::string variable;
      for (char c : option) {
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        variable += plain ? c : '_';
      }
      variable = upper(variable);
      if (!is_variable_name(variable) || (!value.is_string() && !value.is_boolean()))
        return wrong("features", log::quoted(name) + " has an option that is neither text nor true or false");
      out += " " + variable + "=" +
             single_quoted(value.is_boolean() ? (value.get<bool>() ? "true" : "false") : value.get<std::string>());
    }
    return out;
  }

  // What would be mounted is copied: the commands expect it there.
  void add_files() {
    Step& copy = add(Step::Kind::copy, "COPY . " + workspace_);
    copy.sources = {"."};
    copy.target = workspace_ + "/";
    copy.owner = user_;
    add(Step::Kind::workdir, "WORKDIR " + workspace_).value = workspace_;
    if (!user_.empty()) add(Step::Kind::user, "USER " + user_).value = user_;
  }

  // A line, a list of words, or several of either by name.
  Result<void> add_commands(const char* property) {
    auto found = in_.find(property);
    if (found == in_.end() || found->is_null()) return {};
    if (found->is_object()) {
      for (const auto& [name, one] : found->items()) ISOLA_CHECK(add_command(property, one));
      return {};
    }
    return add_command(property, *found);
  }

  Result<void> add_command(const char* property, const json& command) {
    std::string line;
    if (command.is_string()) {
      line = command.get<std::string>();
    } else if (command.is_array() && !command.empty()) {
      std::vector<std::string> words;
      for (const auto& word : command) {
        if (!word.is_string()) return wrong(property, "must be a line, a list of words, or an object of them");
        words.push_back(word.get<std::string>());
      }
      line = bash_line(words);
    } else {
      return wrong(property, "must be a line, a list of words, or an object of them");
    }
    if (line.empty()) return {};
    add(Step::Kind::run, std::string(property) + " " + line).command = line;
    return {};
  }

  const json& in_;
  const DevcontainerPlace& place_;
  Devcontainer out_;
  std::string workspace_, user_;
  std::map<std::string, std::string> env_;
};

}  // namespace

Result<Devcontainer> parse_devcontainer(std::string_view text, const DevcontainerPlace& place) {
  if (text.size() > kMaxText) return fail(Code::invalid, "devcontainer.json is larger than 1 MiB");
  std::string plain = without_last_commas(text);
  ISOLA_CHECK(check_json_bound(plain));
  json in = json::parse(plain, nullptr, false);
  if (!in.is_object()) return fail(Code::invalid, "devcontainer.json is not an object in JSON");
  if (!clean_path(place.folder, Leaving::refused))
    return fail(Code::invalid, "the folder of devcontainer.json leads out");
  return Reader(in, place).read();
}

Result<Written> to_written(const Devcontainer& dev, const std::string& dockerfile, const std::string& context) {
  Written written;
  written.text = dev.dockerfile.empty() ? "FROM " + dev.image + "\n" : dockerfile;
  if (written.text.empty())
    return fail(Code::invalid, "devcontainer.json is built with " + log::quoted(dev.dockerfile) +
                                   ": its text is missing (dockerfile)");
  if (context.empty()) return fail(Code::invalid, "no files were uploaded (context)");
  written.arguments = dev.arguments;
  written.target = dev.target;
  written.context = context;
  written.folder = dev.build_folder;
  written.after = dev.after;
  for (auto& step : written.after)
    if (step.kind == Step::Kind::copy) step.context = context;
  return written;
}

}  // namespace isola::builder
