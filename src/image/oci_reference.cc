#include "image/oci_reference.h"

#include <algorithm>

#include "base/ids.h"
#include "base/log.h"

namespace isola::image {

namespace {

bool is_small(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool is_letter_or_digit(char c) { return is_small(c) || (c >= 'A' && c <= 'Z'); }

// Small letters and digits, parted by '.', '_' and '-'.
bool is_path_part(std::string_view part) {
  return !part.empty() && is_small(part.front()) && is_small(part.back()) &&
         std::ranges::all_of(part, [](char c) { return is_small(c) || c == '.' || c == '_' || c == '-'; });
}

bool is_registry(std::string_view text) {
  size_t colon = text.find(':');
  std::string_view host = text.substr(0, colon), port = colon == text.npos ? "1" : text.substr(colon + 1);
  return !host.empty() && host.size() <= 253 && is_letter_or_digit(host.front()) && is_letter_or_digit(host.back()) &&
         std::ranges::all_of(host, [](char c) { return is_letter_or_digit(c) || c == '.' || c == '-'; }) &&
         !port.empty() && port.size() <= 5 && std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
}

bool is_tag(std::string_view tag) {
  return !tag.empty() && tag.size() <= 128 && (is_letter_or_digit(tag.front()) || tag.front() == '_') &&
         std::ranges::all_of(tag, [](char c) { return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-'; });
}

}  // namespace

Result<ImageReference> parse_reference(std::string_view text) {
  auto wrong = [&] {
    return fail(Code::invalid, log::quoted(std::string(text.substr(0, 200))) +
                                   " is not the name of an image: write [REGISTRY/]NAME[:TAG] or NAME@sha256:DIGEST");
  };
  if (text.size() > 500) return wrong();
  ImageReference image;
  std::string_view rest = text;
  if (size_t at = rest.find('@'); at != rest.npos) {
    std::string_view digest = rest.substr(at + 1);
    if (!digest.starts_with("sha256:") || !is_digest(std::string(digest.substr(7)))) return wrong();
    image.digest = digest.substr(7);
    rest = rest.substr(0, at);
  }
  // The first part is a registry if it looks like a host: a name of an image has no capital, dot or port there.
  size_t slash = rest.find('/');
  std::string_view first = rest.substr(0, slash);
  if (slash != rest.npos && (first == "localhost" || first.find_first_of(".:") != first.npos)) {
    if (!is_registry(first)) return wrong();
    image.registry = first;
    rest.remove_prefix(slash + 1);
  } else {
    image.registry = "docker.io";
  }
  if (image.registry == "index.docker.io") image.registry = "docker.io";
  if (size_t colon = rest.rfind(':'); colon != rest.npos) {
    if (!is_tag(rest.substr(colon + 1))) return wrong();
    image.tag = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  if (!image.digest.empty()) image.tag.clear();
  if (image.digest.empty() && image.tag.empty()) image.tag = "latest";
  for (std::string_view left = rest;;) {
    auto part = left.substr(0, left.find('/'));
    if (!is_path_part(part)) return wrong();
    if (part.size() == left.size()) break;
    left.remove_prefix(part.size() + 1);
  }
  image.repository = rest;
  if (image.registry == "docker.io" && rest.find('/') == rest.npos) image.repository.insert(0, "library/");
  return image;
}

std::string to_text(const ImageReference& image) {
  return image.registry + "/" + image.repository + (image.digest.empty() ? ":" + image.tag : "@sha256:" + image.digest);
}

}  // namespace isola::image
