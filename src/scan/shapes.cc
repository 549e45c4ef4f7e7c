#include "scan/shapes.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace isola::scan {

namespace {

using enum Alphabet;

// `word` has - and _ beside letters and digits, `dotted` also the dot.
constexpr Shape kShapes[] = {
    {"AWS access key id", "AKIA", upper, 16, 16, 2.5f},
    {"AWS temporary access key id", "ASIA", upper, 16, 16, 2.5f},
    {"Anthropic API key", "sk-ant-", word, 40, 200, 3.0f},
    {"OpenAI project key", "sk-proj-", word, 40, 220, 3.0f},
    {"OpenAI service account key", "sk-svcacct-", word, 40, 220, 3.0f},
    {"OpenAI API key", "sk-", alnum, 48, 48, 3.0f},
    {"GitHub personal access token", "ghp_", alnum, 36, 36, 3.0f},
    {"GitHub OAuth token", "gho_", alnum, 36, 36, 3.0f},
    {"GitHub user-to-server token", "ghu_", alnum, 36, 36, 3.0f},
    {"GitHub server-to-server token", "ghs_", alnum, 36, 36, 3.0f},
    {"GitHub refresh token", "ghr_", alnum, 36, 76, 3.0f},
    {"GitHub fine-grained token", "github_pat_", word, 82, 82, 3.0f},
    {"GitLab personal access token", "glpat-", word, 20, 64, 2.5f},
    {"GitLab deploy token", "gldt-", word, 20, 64, 2.5f},
    {"GitLab runner token", "glrt-", word, 20, 64, 2.5f},
    {"Slack bot token", "xoxb-", word, 40, 80, 2.5f},
    {"Slack user token", "xoxp-", word, 40, 100, 2.5f},
    {"Slack app token", "xapp-", word, 40, 140, 2.5f},
    {"Stripe secret key", "sk_live_", alnum, 24, 110, 3.0f},
    {"Stripe restricted key", "rk_live_", alnum, 24, 110, 3.0f},
    {"Stripe webhook secret", "whsec_", base64, 32, 64, 3.0f},
    {"Google API key", "AIza", word, 35, 35, 3.0f},
    {"Google OAuth client secret", "GOCSPX-", word, 28, 28, 3.0f},
    {"npm token", "npm_", alnum, 36, 36, 3.0f},
    {"PyPI token", "pypi-AgE", word, 60, 250, 3.0f},
    {"RubyGems key", "rubygems_", hex, 48, 48, 2.5f},
    {"Docker access token", "dckr_pat_", word, 27, 27, 3.0f},
    {"Hugging Face token", "hf_", alnum, 34, 34, 3.0f},
    {"DigitalOcean token", "dop_v1_", hex, 64, 64, 2.5f},
    {"SendGrid key", "SG.", dotted, 66, 66, 3.0f},
    {"Shopify access token", "shpat_", hex, 32, 32, 2.5f},
    {"Databricks token", "dapi", hex, 32, 34, 2.5f},
    {"HashiCorp Vault token", "hvs.", word, 24, 200, 3.0f},
    {"Atlassian API token", "ATATT3", word, 150, 250, 3.0f},
    {"Linear API key", "lin_api_", alnum, 40, 40, 3.0f},
    {"Grafana service account token", "glsa_", word, 41, 41, 2.5f},
    {"Sentry token", "sntrys_", base64, 80, 300, 3.0f},
    {"Postman key", "PMAK-", word, 59, 59, 2.5f},
    {"New Relic key", "NRAK-", upper, 27, 27, 2.5f},
    {"Supabase token", "sbp_", hex, 40, 40, 2.5f},
    {"age secret key", "AGE-SECRET-KEY-1", upper, 58, 58, 3.0f},
    {"Isola or E2B API key", "e2b_", hex, 40, 40, 2.5f},
    {"JSON Web Token", "eyJ", dotted, 60, 4000, 3.5f},
    {"private key", "-----BEGIN PRIVATE KEY-----", digits, 0, 0, 0},
    {"private key", "-----BEGIN RSA PRIVATE KEY-----", digits, 0, 0, 0},
    {"private key", "-----BEGIN EC PRIVATE KEY-----", digits, 0, 0, 0},
    {"private key", "-----BEGIN ENCRYPTED PRIVATE KEY-----", digits, 0, 0, 0},
    {"private key", "-----BEGIN OPENSSH PRIVATE KEY-----", digits, 0, 0, 0},
    {"private key", "-----BEGIN PGP PRIVATE KEY BLOCK-----", digits, 0, 0, 0},
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_alnum(char c) { return is_digit(c) || is_upper(c) || is_lower(c); }
bool is_word_of_shape(char c) { return is_alnum(c) || c == '_' || c == '-'; }

bool belongs(Alphabet alphabet, char c) {
  switch (alphabet) {
    case digits: return is_digit(c);
    case hex: return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    case upper: return is_upper(c) || is_digit(c);
    case alnum: return is_alnum(c);
    case word: return is_word_of_shape(c);
    case base64: return is_alnum(c) || c == '+' || c == '/' || c == '=' || c == '_' || c == '-';
    case dotted: return is_word_of_shape(c) || c == '.';
  }
  return false;
}

float bits_of(std::string_view text) {
  std::array<int, 256> counts{};
  for (char c : text) ++counts[static_cast<uint8_t>(c)];
  float sum = 0;
  for (int count : counts)
    if (count) {
      float share = static_cast<float>(count) / static_cast<float>(text.size());
      sum -= share * std::log2(share);
    }
  return sum;
}

bool allowed(std::string_view text, size_t at) {
  size_t begin = text.rfind('\n', at), end = text.find('\n', at);
  begin = begin == std::string_view::npos ? 0 : begin;
  return text.substr(begin, end - begin).find("isola-scan: allow") != std::string_view::npos;
}

// Three parts, of which the first two are JSON in base64: both begin with {".
bool is_web_token(std::string_view token) {
  size_t dot = token.find('.');
  if (dot == std::string_view::npos || token.substr(dot + 1, 3) != "eyJ") return false;
  size_t second = token.find('.', dot + 1);
  return second != std::string_view::npos && token.size() - second > 20;
}

}  // namespace

std::span<const Shape> shapes() { return kShapes; }

std::vector<ShapeHit> find_shapes(std::string_view text) {
  std::vector<ShapeHit> hits;
  for (size_t index = 0; index < std::size(kShapes); ++index) {
    const Shape& shape = kShapes[index];
    for (size_t at = 0; (at = text.find(shape.prefix, at)) != std::string_view::npos; at += shape.prefix.size()) {
      // In the middle of a longer word it is something else.
      if (at > 0 && is_word_of_shape(text[at - 1]) && is_word_of_shape(shape.prefix[0])) continue;
      size_t from = at + shape.prefix.size(), end = from;
      while (end < text.size() && end - from <= shape.most && belongs(shape.alphabet, text[end])) ++end;
      size_t length = end - from;
      if (length < shape.least || length > shape.most) continue;
      std::string_view token = text.substr(at, end - at);
      if (shape.bits > 0 && bits_of(text.substr(from, length)) < shape.bits) continue;
      if (shape.alphabet == dotted && shape.prefix == "eyJ" && !is_web_token(token)) continue;
      if (shape.prefix == "SG." && (token.size() < 26 || token[25] != '.')) continue;
      if (!allowed(text, at)) hits.push_back({index, at, end - at});
    }
  }
  std::sort(hits.begin(), hits.end(), [](const ShapeHit& a, const ShapeHit& b) { return a.offset < b.offset; });
  return hits;
}

}  // namespace isola::scan
