#include "ledger/export.h"

#include <nlohmann/json.hpp>

namespace isola::ledger {

std::string to_json_line(const Event& event) {
  using nlohmann::ordered_json;
  // Text of callers may be no UTF-8: it is mended, the hash tells that it was.
  auto text = [](const std::string& value) {
    return ordered_json(value).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  };
  std::string out = "{\"seq\":" + std::to_string(event.seq) + ",\"time\":" + std::to_string(event.time);
  for (const auto& [name, value] : {std::pair<const char*, const std::string*>{"project", &event.project},
                                    {"sandbox", &event.sandbox},
                                    {"task", &event.task},
                                    {"actor", &event.actor},
                                    {"key", &event.key}})
    out += std::string(",\"") + name + "\":" + text(*value);
  out += ",\"kind\":\"" + std::string(to_string(event.kind)) + "\",\"data\":";
  // As it stands, if it fits on the line: read and written again it could look different.
  bool whole = ordered_json::accept(event.data) && event.data.find('\n') == std::string::npos;
  out += whole ? event.data : text(event.data);
  out += ",\"prev\":\"" + event.prev + "\",\"hash\":\"" + event.hash + "\",\"mac\":\"" + event.mac + "\"}";
  return out;
}

}  // namespace isola::ledger
