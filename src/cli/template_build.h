// isola template build NAME --file Dockerfile | --devcontainer FOLDER: built by the server, out of a folder of this
// machine. Bases on disk (FROM oci:PATH) are imported first, by whoever is root on the server's machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"

namespace isola::cli {

struct BuildOptions {
  std::string name, file, devcontainer, context, target, start, ready, network, memory;
  std::vector<std::string> tags, arguments;
  std::optional<double> cpus;
  bool force = false;
};

int template_build_file(const Common& common, const BuildOptions& options);

// What tar is told to leave out, from a .dockerignore. unsupported: an exception ("!…"), which tar does not know.
Result<std::vector<std::string>> exclusions(const std::string& dockerignore);

// Words of a Dockerfile that name an image on disk: "oci:PATH", each once.
std::vector<std::string> images_on_disk(const std::string& dockerfile);

}  // namespace isola::cli
