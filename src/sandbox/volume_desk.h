// The files of volumes for those who have no sandbox: a small jail per volume, in which nothing runs but the guest, and
// the volume is its root. Whatever somebody put into the volume (symlinks, FIFOs, a file that never ends) meets a
// process that can reach nothing else; the server itself opens nothing of it.
//
//   ISOLA_CO_TRY(auto use, co_await desk->open(volume, digest));
//   ISOLA_CO_TRY(auto stat, co_await call_for<guest::Stat>(*use.link(), guest::Op::stat, args));
//
// It stays for a few seconds after its last use, and ends with the server. Every method may be called on any worker.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/task.h"
#include "sandbox/guest_link.h"
#include "sandbox/launcher_link.h"

namespace isola::sandbox {

class VolumeDesk : public std::enable_shared_from_this<VolumeDesk> {
  struct Desk;

 public:
  using Workers = std::function<boost::asio::io_context&()>;
  VolumeDesk(std::shared_ptr<LauncherLink> launcher, Workers next_worker);
  ~VolumeDesk();

  class Use {
   public:
    Use() = default;
    Use(Use&&) = default;
    Use& operator=(Use&&) = default;
    ~Use();
    const std::shared_ptr<GuestLink>& link() const { return link_; }

   private:
    friend class VolumeDesk;
    struct Hold;  // gives it back
    std::shared_ptr<Hold> hold_;
    std::shared_ptr<GuestLink> link_;
  };

  // `digest`: of any template; nothing of it is used. `read_only`: of one that nobody writes to any more. exhausted:
  // too many volumes are being looked at, of all projects or of this one.
  // `screening`: what its files are searched for.
  Task<Result<Use>> open(std::string project, std::string volume, std::string digest, bool read_only = false,
                         std::shared_ptr<const Screening> screening = nullptr);
  // Before the volume goes. Who uses it gets errors.
  Task<void> close(std::string volume);

 private:
  Task<Result<void>> begin(std::string volume, std::string digest, bool read_only,
                           std::shared_ptr<const Screening> screening, std::shared_ptr<Desk> desk);
  Task<void> leave_later(std::string volume, std::shared_ptr<Desk> desk);
  void give_back(const std::string& volume, const std::shared_ptr<Desk>& desk);
  Use hand_out(const std::string& volume, const std::shared_ptr<Desk>& desk);

  std::shared_ptr<LauncherLink> launcher_;
  Workers next_worker_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Desk>> desks_;  // by volume; under mutex_
};

}  // namespace isola::sandbox
