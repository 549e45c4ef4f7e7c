// What a restore has to know of, or change in, the files of a checkpoint before criu reads them.
//
// All ids in them are those of inside, but for one file, userns-<n>.img, which holds the map of the user namespace; and
// the sandbox's name is in utsns-<n>.img. So a restore as another sandbox, with another range of ids, is: a folder of
// hard links to the checkpoint, with those two files written anew. Nothing large is copied.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace isola::criu {

struct NewIdentity {
  std::string id;    // of the sandbox: its NIS domain name, where the guest looks (jail/identity.h)
  uint32_t id_base;  // host id of its root
  uint32_t id_count;
};

// Makes the folder `to`, on the same filesystem.
Result<void> link_image(const std::string& from, const std::string& to, const NewIdentity& identity);

// Whether there are TCP connections in it.
Result<bool> has_connections(const std::string& folder);

// The hash of the one system-call filter that every process of the checkpoint has; Code::corrupt when one has another,
// none, or more than one.
Result<std::string> filter_hash(const std::string& folder);

}  // namespace isola::criu
