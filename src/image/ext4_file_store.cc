#include "image/provider.h"
namespace isola::image {
Result<std::unique_ptr<LayerStore>> open_ext4_file_store(const std::string&, const StoreOptions&) {
  return fail(Code::unsupported, "not yet");
}
}  // namespace isola::image
