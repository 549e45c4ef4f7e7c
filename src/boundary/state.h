// The one table of states and end reasons of a sandbox: code, API, logs and docs use these words and no others.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace isola {

enum class State : uint8_t { creating, running, frozen, paused, stopped, archived, ending, ended };
enum class EndReason : uint8_t { exited, killed, oom, deadline, idle, limit, boundary_failure, host_restart };

// How a running sandbox came to be. All births end up equally protected.
enum class Birth : uint8_t { cold, pooled, resumed, forked };
// What stands between guest code and the host; each stops more than the one before.
enum class BoundaryKind : uint8_t { jail, gvisor, uml, microvm };
// What a caller may say about it (boundary/choice.h).
enum class BoundaryWish : uint8_t { automatic, jail, gvisor, uml, microvm, strongest };

std::string_view to_string(State state);
std::string_view to_string(EndReason reason);
std::string_view to_string(Birth birth);
std::string_view to_string(BoundaryKind kind);
std::string_view to_string(BoundaryWish wish);
std::optional<State> parse_state(std::string_view word);
std::optional<EndReason> parse_end_reason(std::string_view word);
std::optional<BoundaryKind> parse_boundary(std::string_view word);
std::optional<BoundaryWish> parse_boundary_wish(std::string_view word);
std::optional<BoundaryKind> kind_of(BoundaryWish wish);  // if it names one
BoundaryWish wish_for(BoundaryKind kind);

}  // namespace isola
