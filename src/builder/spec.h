// What a template is built from: a base, steps one after the other, and what runs in it at the end.
//
// A template that is built is an image like any other: the steps run in a sandbox, under its gate, and what that has at
// the end is kept.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace isola::builder {

struct Step {
  enum class Kind : uint8_t { run, copy, env, workdir, user };
  Kind kind = Kind::run;
  std::string line = {};     // as the log shows it: "RUN pip install x"
  std::string command = {};  // run: for bash
  std::string run_as = {};   // run: this once; empty: as the steps before say
  // copy: paths in the context (relative; `*`, `?` and `[]` are patterns), and where to (relative: to the folder)
  std::vector<std::string> sources = {};
  std::string target = {};
  std::string owner = {}, mode = {};  // copy: "user[:group]", octal; empty: root's, and as it is
  std::string context = {};           // copy: the SHA-256 that names the uploaded tar (gzip or not)
  std::string stage = {};             // copy: from an earlier stage or a template instead of a context
  std::vector<std::pair<std::string, std::string>> env = {};
  std::string value = {};  // workdir, user
  bool force = false;      // run anew even if it was before
};

struct Spec {
  std::string from = {};  // a template
  std::string user = {};  // as whom the steps begin; empty: as the base has it
  std::vector<Step> steps = {};
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
