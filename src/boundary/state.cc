#include "boundary/state.h"

#include <array>
#include <cstddef>

namespace isola {

namespace {

constexpr std::array<std::string_view, 8> kStates = {"creating", "running",  "frozen", "paused",
                                                     "stopped",  "archived", "ending", "ended"};
constexpr std::array<std::string_view, 8> kReasons = {"exited", "killed",           "oom",         "deadline", "idle",
                                                      "limit",  "boundary-failure", "host-restart"};
constexpr std::array<std::string_view, 4> kBirths = {"cold", "pooled", "resumed", "forked"};
constexpr std::array<std::string_view, 4> kBoundaries = {"jail", "gvisor", "uml", "microvm"};

template <typename E, size_t N>
std::optional<E> find(const std::array<std::string_view, N>& words, std::string_view word) {
  for (size_t i = 0; i < N; ++i)
    if (words[i] == word) return static_cast<E>(i);
  return std::nullopt;
}

}  // namespace

std::string_view to_string(State state) { return kStates.at(static_cast<size_t>(state)); }
std::string_view to_string(EndReason reason) { return kReasons.at(static_cast<size_t>(reason)); }
std::string_view to_string(Birth birth) { return kBirths.at(static_cast<size_t>(birth)); }
std::string_view to_string(BoundaryKind kind) { return kBoundaries.at(static_cast<size_t>(kind)); }
std::optional<State> parse_state(std::string_view word) { return find<State>(kStates, word); }
std::optional<EndReason> parse_end_reason(std::string_view word) { return find<EndReason>(kReasons, word); }
std::optional<BoundaryKind> parse_boundary(std::string_view word) { return find<BoundaryKind>(kBoundaries, word); }

}  // namespace isola
