// What goes into the templates that Isola builds by itself. A recipe is data: changing a line changes the template's
// key, and the next build makes it anew.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::image {

struct Recipe {
  std::string name;
  std::string summary;                // one line for `isola template ls`
  std::vector<std::string> packages;  // besides the distribution's essential ones and apt
  bool node = false;                  // a current Node LTS with npm under /usr/local
  bool manuals = false;               // keep man pages and documentation
  // From the machine's Python package index, as wheels for the template's own Python.
  std::vector<std::string> python_packages = {};
  bool interpreter = false;  // isola-kernels, its kernels and the Python hooks (docs/interpreter.md)
  std::vector<std::string> aliases = {};
  bool containers = false;  // an engine for containers inside, set up for a sandbox (rootfs.cc)
};

// Facts about the inside that every template and the boundary agree on.
inline constexpr std::string_view kGuestUser = "user";
inline constexpr unsigned kGuestUid = 1000;
inline constexpr std::string_view kGuestHostname = "isola";  // /etc/hosts knows it, so that sudo finds it
// The sandbox's own address (boundary/network.h): questions to it are redirected, those to 127.0.0.0/8 are not.
inline constexpr std::string_view kGuestResolver = "10.255.255.254";

const std::vector<Recipe>& recipes();
Result<Recipe> find_recipe(const std::string& name);
// The recipe's own name for an alias; any other name stays as it is.
std::string canonical_template(const std::string& name);
// Everything that decides the contents, as text (for the key).
std::string to_text(const Recipe& recipe);

}  // namespace isola::image
