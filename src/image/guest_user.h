// The user that programs in a sandbox run as, in a root folder.
#pragma once

#include "base/error.h"
#include "image/root_tree.h"

namespace isola::image {

// With a home and, where there is sudo, the right to use it. A tree that knows the name keeps what it has; one without
// accounts gets root's as well.
Result<void> add_guest_user(const RootTree& root);

}  // namespace isola::image
