#include "cli/collected_output.h"

#include <nlohmann/json.hpp>

namespace isola::cli {

void CollectedOutput::add(Stream stream, std::string_view bytes) {
  Kept& kept = kept_[stream];
  const auto fits = bytes.substr(0, kMost - kept.text.size());
  kept.text += fits;
  kept.dropped += bytes.size() - fits.size();
}

nlohmann::json CollectedOutput::result() const {
  nlohmann::json result = {
      {"stdout", kept_[out].text}, {"stderr", kept_[err].text}, {"untrusted", {"stdout", "stderr"}}};
  if (kept_[out].dropped) result["stdout_dropped_bytes"] = kept_[out].dropped;
  if (kept_[err].dropped) result["stderr_dropped_bytes"] = kept_[err].dropped;
  if (lost_) result["lost_bytes"] = lost_;
  return result;
}

}  // namespace isola::cli
