// Input for processes that they have not read yet. It waits here for as long as they take, so each project has room for
// only so much of it, over all its callers.
//
//   ISOLA_CO_TRY(auto share, room_for_input(box->project(), text.size()));  // kept for as long as the text is
//   ISOLA_CO_CHECK(co_await feed(channel, text));
#pragma once

#include <string>
#include <string_view>

#include "base/shares.h"
#include "base/task.h"
#include "sandbox/guest_link.h"

namespace isola::dialect {

Shares& waiting_input();
// Code::exhausted: there is none.
Result<Shares::Share> room_for_input(const std::string& project, size_t bytes);
// In pieces: each is copied on its way, and a process that reads none of it takes one. `text` has to stay.
Task<Result<void>> feed(sandbox::ChannelPtr channel, std::string_view text);

}  // namespace isola::dialect
