// A Dockerfile as stages of steps: what it says, read without running any of it or asking for any image.
//
//   ISOLA_TRY(Dockerfile file, parse_dockerfile("FROM debian\nARG V=1\nRUN echo $V", {{"V", "2"}}));
//   file.stages.back().steps[0].command;   // "export V='2'; echo $V"
//   for (const auto& note : file.ignored) say(note);
//
// The variables that a base brings along are those that `variables` knows of it; of one that it does not know yet,
// something stands for each, so that what is wrong otherwise is found. Without it they are filled in as empty, but for
// PATH, which is then Docker's usual one, and said in `ignored`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "builder/spec.h"

namespace isola::builder {

inline constexpr size_t kMaxDockerfile = 1 << 20;
inline constexpr size_t kMaxDockerfileLines = 10'000;

struct Stage {
  std::string name = {};  // in small letters, as Docker has it; empty: none
  // With the ARGs filled in: an image, a template, or the name (as above) or number of an earlier stage. The same holds
  // for Step::stage.
  std::string from = {};
  std::vector<Step> steps = {};
  std::string start = {};            // from ENTRYPOINT and CMD: one line for bash; empty: none
  std::vector<uint16_t> ports = {};  // EXPOSE: TCP, each once
};

struct Dockerfile {
  std::vector<Stage> stages = {};         // the last one is the result
  std::vector<std::string> ignored = {};  // "line 7: HEALTHCHECK has no meaning here": understood and left out
};

// Of an image or a template, by the name after FROM; nullopt: not known (yet).
using BaseVariables = std::function<std::optional<std::map<std::string, std::string>>(const std::string& from)>;

// `arguments`: by name, as --build-arg gives them; each must be declared by an ARG. `target`: the name or number of the
// stage that is wanted (the ones after it are left out); empty: the last. Errors say where: "Dockerfile line 3: …".
Result<Dockerfile> parse_dockerfile(std::string_view text, const std::map<std::string, std::string>& arguments,
                                    const std::string& target = {}, const BaseVariables& variables = {});

}  // namespace isola::builder
