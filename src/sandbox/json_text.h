// JSON for records: what a caller or a guest chose may be no UTF-8, and is made valid.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace isola::sandbox {

inline std::string dumped(const nlohmann::json& data) {
  return data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace isola::sandbox
