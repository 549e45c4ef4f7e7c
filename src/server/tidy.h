// What nobody waits for: records that are old enough to be forgotten.
#pragma once

#include <chrono>

#include "store/store.h"

namespace isola::server {

// Forgets ended sandboxes of more than `days` ago: a thousand in a transaction, so that nobody waits long for the
// store, and one transaction after the other, so that a busy server forgets faster than it makes them. What is left
// after `most` of them is the next call's.
Result<size_t> forget_ended(store::Store& store, uint64_t days, store::Millis now, size_t most = 100);

}  // namespace isola::server
