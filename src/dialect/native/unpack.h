// A tree that comes in as tar. The sandbox's own tar unpacks it, beside the place where it belongs; when all of it has
// come, it is moved there. So an upload that breaks off, an archive that is none and a disk that is full leave what was
// there before, and nothing else.
//
// Into a folder that exists its entries are moved one by one: files are replaced, folders are joined and keep their own
// mode and owner, and a link to a folder counts as one. Whether a file and a folder stand in each other's way is looked
// at before the first move.
#pragma once

#include <string>

#include "dialect/native/api.h"

namespace isola::native {

// What tar said, as an error of whoever asked, or of a disk that is full.
Error tar_error(const std::string& complaint);

// Of the body of `ex`, to the folder `path`, with the rights of `user`.
Task<Result<void>> unpack(sandbox::Service& service, http::Exchange& ex, sandbox::BoxPtr box,
                          std::shared_ptr<sandbox::GuestLink> link, std::string path, std::string user);

}  // namespace isola::native
