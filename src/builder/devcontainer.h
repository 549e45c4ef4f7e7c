// devcontainer.json as a build: an image or a Dockerfile, features that are scripts beside it, variables, the user and
// what runs after the container was made.
//
//   ISOLA_TRY(Devcontainer dev, parse_devcontainer(text, {.workspace = "app"}));
//   dev.dockerfile;      // ".devcontainer/Dockerfile": its text is wanted; empty: dev.image serves
//   ISOLA_TRY(Written written, to_written(dev, dockerfile_text, context));
//
// What the format has beyond that is either said in `ignored`, where a sandbox is as good without it, or refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "builder/spec.h"

namespace isola::builder {

struct DevcontainerPlace {
  std::string folder = ".devcontainer";  // of devcontainer.json, in the uploaded files; "." is their root
  std::string workspace = "workspace";   // what the folder of the uploaded files is called
};

struct Devcontainer {
  std::string image = {}, dockerfile = {};  // one of them; the Dockerfile as a path in the uploaded files
  std::string build_folder = {};            // where its sources begin; empty: the root of the uploaded files
  std::string target = {};
  std::map<std::string, std::string> arguments = {};
  std::vector<Step> after = {};           // features, the files, variables, the user, commands
  std::vector<std::string> ignored = {};  // "forwardPorts has no meaning here"
};

// JSON with comments and commas at the end of lists. invalid, unsupported: names the property.
Result<Devcontainer> parse_devcontainer(std::string_view text, const DevcontainerPlace& place);
// `context`: the hash of the uploaded files.
Result<Written> to_written(const Devcontainer& dev, const std::string& dockerfile, const std::string& context);

}  // namespace isola::builder
