// Values from sources beside the own store (vault/source.h), fetched by a helper of the launcher: what has to read
// files, start programs or speak to the network does it in a process without privileges, `isola vault-fetch`, which
// gets the source on its input and answers on its output. Nothing of either is on a command line or in an environment.
//
// Files and commands are read as the user whom the server runs as: a server that was taken over can have nothing
// fetched that it could not read itself. What speaks to the network is nobody.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "vault/minting.h"
#include "vault/source.h"

namespace isola::launcher {

extern const uint64_t kFetchCapabilities;  // to become that user

struct FetchAs {
  uid_t user = 0;           // for what this machine has
  std::string authorities;  // a PEM file: certificates to believe beside the machine's; empty: none
};

// In a helper: it may wait until then. What is exchanged for something that lasts a while says for how long.
Result<vault::Made> fetch_value(const vault::Source& source, const FetchAs& as,
                                std::chrono::steady_clock::time_point until);

}  // namespace isola::launcher
