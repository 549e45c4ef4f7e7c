// What a template is built from: a base, steps one after the other, and what runs in it at the end.
//
// A template that is built is an image like any other: the steps run in a sandbox, under its gate, and what that has at
// the end is kept.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace isola::builder {

struct Step {
  enum class Kind : uint8_t { run, copy, env, workdir, user };
  Kind kind = Kind::run;
  std::string line = {};     // as the log shows it: "RUN pip install x"
  uint32_t number = 0;       // of its line in the Dockerfile; 0: it has none
  std::string command = {};  // run: for bash
  std::string run_as = {};   // run: this once; empty: as the steps before say
  // copy: paths in the context (relative; `*`, `?` and `[]` are patterns), and where to (relative: to the folder)
  std::vector<std::string> sources = {};
  std::string target = {};
  std::string owner = {}, mode = {};  // copy: "user[:group]", octal; empty: root's, and as it is
  std::string context = {};           // copy: the SHA-256 that names the uploaded tar (gzip or not)
  std::string stage = {};             // copy: from another stage instead of a context: the number of a Part
  bool unpack = false;                // copy: archives among the sources are unpacked (ADD)
  std::vector<std::pair<std::string, std::string>> env = {};
  std::string value = {};  // workdir, user
  bool force = false;      // run anew even if it was before
};

// What files are copied from: a stage that is built for that alone, or, without steps, an image as it is.
struct Part {
  std::string from = {};
  std::vector<Step> steps = {};  // as root, to begin with
};

// A Dockerfile as it was sent: where its bases have to be fetched first it is read once more, since what they bring
// along (ENV) stands in it by name.
struct Written {
  std::string text = {};
  std::map<std::string, std::string> arguments = {};
  std::string target = {}, context = {};
  std::string folder = {};  // of the uploaded files: its sources begin there; empty: at their root
  std::map<std::string, std::string> names = {};  // of its bases, and which templates they mean
  std::vector<Step> after = {};                   // what follows, of a devcontainer
  std::string meant(const std::string& from) const {
    auto known = names.find(from);
    return known == names.end() ? from : known->second;
  }
};

struct Spec {
  std::string from = {};  // a template, or an image by reference
  bool fetches = true;    // what is not here by that name may be in a registry
  std::string user = {};  // as whom the steps begin; empty: as the base has it
  // As E2B begins: in the user's home, whatever folder and user an image names; a template that was built goes on as it
  // ended. What is copied belongs to the user of the step.
  bool at_home = false;
  std::vector<Step> steps = {};
  std::vector<Part> parts = {};        // each copies from those before it
  Written written = {};                // empty: the steps are all there is to it
  bool own_start = false;              // `start` goes before what the Dockerfile has
  std::string start = {}, ready = {};  // lines for bash: what runs in every sandbox of it, and says that it does
  std::string network = {};            // a preset or a policy, for the steps
  std::vector<std::string> tags = {};  // that mean this build when it is ready
  bool force = false;
};

std::string to_json(const Spec& spec);
Result<Spec> spec_of(const std::string& json);

// Of everything up to and including a step: the same key, the same files. `before`: the key of what it stands on.
std::string key_after(const std::string& before, const Step& step, const std::string& user, const std::string& folder,
                      const std::vector<std::pair<std::string, std::string>>& env);

}  // namespace isola::builder
