#include "store/records.h"

#include <array>

namespace isola::store {

namespace {

constexpr std::array<std::string_view, 3> kActions = {"kill", "pause", "stop"};
constexpr std::array<std::string_view, 3> kScopes = {"read", "use", "admin"};

template <typename E, size_t N>
std::optional<E> find(const std::array<std::string_view, N>& words, std::string_view word) {
  for (size_t i = 0; i < N; ++i)
    if (words[i] == word) return static_cast<E>(i);
  return std::nullopt;
}

}  // namespace

bool is_live(State state) {
  return state == State::creating || state == State::running || state == State::frozen || state == State::ending;
}

std::string_view to_string(AtEnd action) { return kActions.at(static_cast<size_t>(action)); }
std::string_view to_string(Scope scope) { return kScopes.at(static_cast<size_t>(scope)); }
std::optional<AtEnd> parse_at_end(std::string_view word) { return find<AtEnd>(kActions, word); }
std::optional<Scope> parse_scope(std::string_view word) { return find<Scope>(kScopes, word); }

}  // namespace isola::store
