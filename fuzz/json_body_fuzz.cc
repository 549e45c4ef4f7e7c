// JSON bodies of the native API.
#include "dialect/native/create_fields.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto fields = isola::native::Fields::parse({reinterpret_cast<const char*>(data), size});
  if (!fields) return 0;
  (void)isola::native::read_command(*fields, "command_env", "command_timeout");
  (void)isola::native::read_create(*fields, {});
  (void)fields->contents("files");
  (void)fields->done();
  return 0;
}
