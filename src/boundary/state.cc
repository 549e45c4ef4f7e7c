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
constexpr std::array<std::string_view, 6> kWishes = {"auto", "jail", "gvisor", "uml", "microvm", "strongest"};

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
std::string_view to_string(BoundaryWish wish) { return kWishes.at(static_cast<size_t>(wish)); }
std::optional<State> parse_state(std::string_view word) { return find<State>(kStates, word); }
std::optional<EndReason> parse_end_reason(std::string_view word) { return find<EndReason>(kReasons, word); }
std::optional<BoundaryKind> parse_boundary(std::string_view word) { return find<BoundaryKind>(kBoundaries, word); }
std::optional<BoundaryWish> parse_boundary_wish(std::string_view word) { return find<BoundaryWish>(kWishes, word); }

BoundaryWish wish_for(BoundaryKind kind) { return static_cast<BoundaryWish>(static_cast<int>(kind) + 1); }

std::optional<BoundaryKind> kind_of(BoundaryWish wish) {
  if (wish == BoundaryWish::automatic || wish == BoundaryWish::strongest) return std::nullopt;
  return static_cast<BoundaryKind>(static_cast<int>(wish) - 1);
}

}  // namespace isola
