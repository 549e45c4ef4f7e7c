// The one thing that an unprivileged server cannot do: start the launcher. A tiny process that stayed root does it when
// asked, and leaves when the server does.
//
//   ISOLA_TRY(Keeper keeper, Keeper::start(options));     // as root, before threads and before dropping
//   ISOLA_CHECK(keeper.start_launcher());                 // later, from the server: blocks until it answers or says
//   why
#pragma once

#include <string>

#include "base/error.h"
#include "base/fd.h"
#include "launcher/client.h"

namespace isola::server {

class Keeper {
 public:
  // `user`: who is to be admitted by the launcher.
  static Result<Keeper> start(const launcher::StartOptions& options, unsigned user);
  Result<void> start_launcher();

 private:
  explicit Keeper(Fd socket) : socket_(std::move(socket)) {}
  Fd socket_;
};

}  // namespace isola::server
