// What an unprivileged server cannot do: start the launcher, attack its sandboxes as root would (`isola prove`), and
// make templates of images from the registries that its configuration names (`isola template pull`). A tiny process
// that stayed root does it when asked, and leaves when the server does.
//
//   ISOLA_TRY(Keeper keeper, Keeper::start(options));     // as root, before threads and before dropping
//   ISOLA_CHECK(keeper.start_launcher());                 // later, from the server: blocks until it answers or says
//   why
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "kernel/process.h"
#include "launcher/client.h"

namespace isola::server {

class Keeper {
 public:
  // `user`: who is to be admitted by the launcher.
  // `registries`: from which it fetches images, whoever asks for others.
  static Result<Keeper> start(const launcher::StartOptions& options, unsigned user,
                              std::vector<std::string> registries = {});
  Result<void> start_launcher();
  // Starts `isola prove --json`; its report comes from there. unavailable: one is still under way.
  Result<Fd> prove();
  // Starts `isola template pull --json`, likewise. `credentials`: an auth.json, which goes through a pipe and stands in
  // no argument, environment or file of ours.
  Result<Fd> pull(const std::string& image, const std::string& credentials = {});

 private:
  explicit Keeper(Fd socket) : socket_(std::move(socket)), one_at_a_time_(std::make_unique<std::mutex>()) {}
  Result<kernel::Message> ask(std::string_view word, std::span<const int> fds = {});
  Fd socket_;
  std::unique_ptr<std::mutex> one_at_a_time_;  // questions come from several threads
};

}  // namespace isola::server
