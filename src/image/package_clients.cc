#include "image/package_clients.h"

#include <unistd.h>

#include <string_view>

namespace isola::image {

std::vector<std::string> client_settings() {
  std::vector<std::string> env;
  for (char** e = environ; *e; ++e) {
    std::string_view entry = *e;
    for (std::string_view prefix :
         {"PIP_", "REQUESTS_CA_BUNDLE=", "NPM_CONFIG_", "npm_config_", "NODE_EXTRA_CA_CERTS="})
      if (entry.starts_with(prefix)) env.emplace_back(entry);
  }
  return env;
}

Result<Command> pip_client(const BuildPlace& place, const std::string& what) {
  Command pip{.argv = {"python3", "-m", "pip"}, .env = client_settings(), .what = what, .log = place.log()};
  pip.env.push_back("PIP_DISABLE_PIP_VERSION_CHECK=1");
  pip.env.push_back("PIP_NO_CACHE_DIR=1");
  Command probe = pip;
  probe.argv.push_back("--version");
  if (run(probe)) return pip;
  pip.env.push_back("PYTHONPATH=" + place.root() + "/usr/lib/python3/dist-packages");
  probe.env = pip.env;
  ISOLA_CHECK(run(probe));
  return pip;
}

}  // namespace isola::image
