// Events of a cell as E2B's code-interpreter packages read them. What is in an event came from inside a sandbox: its
// translation takes no more time than reading it did.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace isola::e2b {

// `event`: of interpreter::event_of, or one of ours (ping, failure). null: they have no such thing.
nlohmann::json translated(nlohmann::json event);

}  // namespace isola::e2b
