// Who the server is: its user, its folders, its first key. All of it happens as root, before the first request.
//
//   DIR           0711 root    others may pass through, to reach launcher.sock if that lets them in
//   DIR/key       0600 root    the first API key, for the CLI
//   DIR/ledger.key 0600 root   the first key of the ledger, for those who verify it
//   DIR/server    0700 isola   store.db, ledger.db and its key of the moment, url-secret
#pragma once

#include <string>

#include "base/error.h"
#include "server/config.h"
#include "store/store.h"

namespace isola::server {

struct Identity {
  unsigned uid = 0, gid = 0;
  std::string folder;     // DIR/server
  std::string first_key;  // of DIR/key; empty where an operator removed it
};

// Makes the user and the folders where they are missing, and the key on the first start.
Result<Identity> prepare_identity(const Config& config);
// From here on without privileges, for good. Verified.
Result<void> drop_privileges(const Identity& identity);

// The operator's variables for secrets (`ISOLA_SECRET_…`) are the launcher's, which has them by now: nothing of them
// stays in this process, its memory or /proc/PID/environ.
void forget_operators_secrets();

// The default project, and the first key if no key is there yet. Returns whether it was put in now.
Result<bool> provide_first_key(store::Store& store, const std::string& secret);
// Signs URLs of ports; made on the first start.
Result<std::string> url_secret(const Identity& identity);

}  // namespace isola::server
