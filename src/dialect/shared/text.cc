#include "dialect/shared/text.h"

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

namespace isola::dialect {

std::string dump(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string when(store::Millis time) {
  // Down also before 1970, where guests may say that a file is from.
  const auto whole = std::chrono::floor<std::chrono::seconds>(std::chrono::milliseconds(time));
  const auto seconds = static_cast<std::time_t>(whole.count());
  tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  const auto rest = static_cast<unsigned>((std::chrono::milliseconds(time) - whole).count());
  const char tail[] = {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                       static_cast<char>('0' + rest % 10), 'Z'};
  return std::string(text, size).append(tail, sizeof tail);
}

std::string text_of(const nlohmann::json& object, const char* name, const char* otherwise) {
  if (!object.is_object()) return otherwise;
  auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

int64_t number_of(const nlohmann::json& object, const char* name) {
  if (!object.is_object()) return 0;
  auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

}  // namespace isola::dialect
