#include "cli/source_place.h"

namespace isola::cli {

bool may_lead_to(const vault::Source& source, gate::Place place) {
  using enum gate::Place;
  if (place == open) return !source.url.starts_with("http://");
  return source.inside && (place == local || place == loopback || place == link_local);
}

}  // namespace isola::cli
