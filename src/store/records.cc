#include "store/records.h"

#include <array>

namespace isola::store {

namespace {

constexpr std::array<std::string_view, 3> kActions = {"kill", "pause", "stop"};
constexpr std::array<std::string_view, 3> kAtLimit = {"end", "freeze", "pause"};
constexpr std::array<std::string_view, 3> kScopes = {"read", "use", "admin"};
constexpr std::array<std::string_view, 6> kImageKinds = {"pause", "snapshot", "spent", "warm", "step", "built"};
constexpr std::array<std::string_view, 3> kVolumeStates = {"making", "there", "gone"};
constexpr std::array<std::string_view, 4> kBuildStates = {"waiting", "building", "ready", "failed"};
constexpr std::array<std::string_view, 3> kBindingScopes = {"project", "template", "sandbox"};

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

bool is_asleep(State state) { return state == State::paused || state == State::stopped || state == State::archived; }

std::string_view to_string(AtEnd action) { return kActions.at(static_cast<size_t>(action)); }
std::string_view to_string(AtLimit action) { return kAtLimit.at(static_cast<size_t>(action)); }
std::string_view to_string(Scope scope) { return kScopes.at(static_cast<size_t>(scope)); }
std::string_view to_string(ImageKind kind) { return kImageKinds.at(static_cast<size_t>(kind)); }
std::string_view to_string(VolumeState state) { return kVolumeStates.at(static_cast<size_t>(state)); }
std::string_view to_string(BuildState state) { return kBuildStates.at(static_cast<size_t>(state)); }
std::string_view to_string(BindingScope scope) { return kBindingScopes.at(static_cast<size_t>(scope)); }
std::optional<AtEnd> parse_at_end(std::string_view word) { return find<AtEnd>(kActions, word); }
std::optional<AtLimit> parse_at_limit(std::string_view word) { return find<AtLimit>(kAtLimit, word); }
std::optional<Scope> parse_scope(std::string_view word) { return find<Scope>(kScopes, word); }
std::optional<ImageKind> parse_image_kind(std::string_view word) { return find<ImageKind>(kImageKinds, word); }
std::optional<VolumeState> parse_volume_state(std::string_view word) { return find<VolumeState>(kVolumeStates, word); }
std::optional<BuildState> parse_build_state(std::string_view word) { return find<BuildState>(kBuildStates, word); }
std::optional<BindingScope> parse_binding_scope(std::string_view word) {
  return find<BindingScope>(kBindingScopes, word);
}

}  // namespace isola::store
