// Whether this machine can restore an image.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "image/image.h"

namespace isola::image {

namespace {

std::set<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::set<std::string> words;
  for (std::string word; in >> word;) words.insert(word);
  return words;
}

Result<void> refuse(const Image& image, const std::string& why) {
  return fail(Code::unsupported,
              fmt::format("image {} cannot be restored here: {}; its files alone can be used", image.id, why));
}

}  // namespace

Result<void> check_host(const Image& image, const ImageHost& here, std::string_view boundary) {
  if (image.boundary != boundary)
    return fail(Code::unsupported, fmt::format("image {} was made of a sandbox with the boundary {}, and this is {}",
                                               image.id, image.boundary, boundary));
  if (!image.memory) return {};
  if (image.outrun)
    return fail(Code::unsupported,
                fmt::format("the memory of image {} cannot be used any more: a resume failed when its programs had run "
                            "on already, and its files are newer than it; resume it with files_only",
                            image.id));
  if (image.host.kernel != here.kernel)
    return refuse(image, fmt::format("its memory was saved on Linux {}, and this machine runs {}", image.host.kernel,
                                     here.kernel));
  if (image.host.checkpointer != here.checkpointer)
    return refuse(image, fmt::format("its memory was saved by {}, and this machine has {}", image.host.checkpointer,
                                     here.checkpointer));
  if (image.host.guest != here.guest)
    return refuse(image, fmt::format("its process 1 is another build of Isola's ({}) than this one", image.version));
  auto wanted = words_of(image.host.cpu), have = words_of(here.cpu);
  std::string missing;
  for (const auto& flag : wanted)
    if (!have.contains(flag)) missing += (missing.empty() ? "" : ", ") + flag;
  if (!missing.empty())
    return refuse(image, fmt::format("its programs may use what this machine's processor lacks ({})", missing));
  return {};
}

}  // namespace isola::image
