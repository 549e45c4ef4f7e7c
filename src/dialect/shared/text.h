// Values as texts, the way that every dialect writes them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "store/records.h"

namespace isola::dialect {

// Bytes of a sandbox may be anything: what is not UTF-8 becomes U+FFFD.
std::string dump(const nlohmann::json& value);
std::string when(store::Millis time);  // 2026-01-31T12:00:00.123Z

// A field of an object that came from inside a sandbox: it can be there or not, and of any type.
std::string text_of(const nlohmann::json& object, const char* name, const char* otherwise = "");
int64_t number_of(const nlohmann::json& object, const char* name);

}  // namespace isola::dialect
