#include "base/ids.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>

namespace isola {

namespace {
constexpr size_t kLength = 20;
constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789";

std::string random_name(char first, size_t length) {
  std::string id(1, first);
  unsigned char pool[64];
  while (id.size() < 1 + length) {
    if (::getrandom(pool, sizeof pool, 0) != static_cast<ssize_t>(sizeof pool)) std::abort();  // no entropy, no names
    for (unsigned char c : pool) {
      // 252 = 7 × 36: what lies above would favour some letters.
      if (c < 252 && id.size() < 1 + length) id.push_back(kAlphabet[c % 36]);
    }
  }
  return id;
}

bool is_name(std::string_view id, char first) {
  return id.size() == 1 + kLength && id[0] == first &&
         std::all_of(id.begin() + 1, id.end(), [](char c) { return kAlphabet.find(c) != std::string_view::npos; });
}

}  // namespace

std::string new_sandbox_id() { return random_name('i', kLength); }
std::string new_project_id() { return random_name('p', kLength); }
std::string new_key_id() { return random_name('k', 12); }
std::string new_command_id() { return random_name('c', 12); }
std::string new_image_id() { return random_name('m', kLength); }
std::string new_volume_id() { return random_name('v', kLength); }
std::string new_template_id() { return random_name('t', kLength); }
std::string new_build_id() { return random_name('b', kLength); }
std::string new_binding_id() { return random_name('g', kLength); }
std::string new_webhook_id() { return random_name('w', kLength); }

std::string new_token() {
  unsigned char bytes[20];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) std::abort();
  std::string token;
  for (unsigned char byte : bytes) {
    token.push_back("0123456789abcdef"[byte >> 4]);
    token.push_back("0123456789abcdef"[byte & 15]);
  }
  return token;
}

bool is_sandbox_id(std::string_view id) { return is_name(id, 'i'); }
bool is_image_id(std::string_view id) { return is_name(id, 'm'); }
bool is_volume_id(std::string_view id) { return is_name(id, 'v'); }

bool is_digest(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace isola
