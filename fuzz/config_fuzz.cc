// The configuration file: whatever stands in it, we say what is wrong or take it.
#include "server/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto given = isola::server::parse_settings({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!given) return 0;
  isola::server::Config config;
  for (const auto& one : *given)
    for (const auto& setting : isola::server::settings())
      if (setting.name == one.name) (void)setting.set(config, one.text);
  (void)isola::server::check(config);
  return 0;
}
