#include "sandbox/volume_desk.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/log.h"

namespace isola::sandbox {

namespace net = boost::asio;

namespace {

constexpr size_t kMost = 32;                      // of all projects together: each is a jail
constexpr size_t kMostOfOne = 8;                  // of one project, so that there is room for others
constexpr auto kStays = std::chrono::seconds(5);  // after its last use
constexpr const char* kPlace = "/volume";
constexpr auto kPatience = std::chrono::seconds(30);
constexpr uint64_t MiB = 1 << 20;

boundary::Limits small() { return {.cpus = 1, .memory = 128 * MiB, .pids = 16, .disk = 32 * MiB}; }

}  // namespace

// Under the VolumeDesk's mutex, but for the bell.
struct VolumeDesk::Desk {
  std::string project;
  std::string sandbox;
  std::shared_ptr<GuestLink> link;  // nothing: it is being made
  std::optional<Error> failed;
  size_t users = 0;
  bool leaving = false;  // leave_later runs
  std::chrono::steady_clock::time_point used;
  Bell bell;
};

struct VolumeDesk::Use::Hold {
  std::weak_ptr<VolumeDesk> owner;
  std::string volume;
  std::shared_ptr<Desk> desk;
  ~Hold() {
    if (auto there = owner.lock()) there->give_back(volume, desk);
  }
};

VolumeDesk::Use::~Use() = default;

VolumeDesk::VolumeDesk(std::shared_ptr<LauncherLink> launcher, Workers next_worker)
    : launcher_(std::move(launcher)), next_worker_(std::move(next_worker)) {}
VolumeDesk::~VolumeDesk() = default;

// Under the mutex.
VolumeDesk::Use VolumeDesk::hand_out(const std::string& volume, const std::shared_ptr<Desk>& desk) {
  ++desk->users;
  Use use;
  use.hold_ = std::make_shared<Use::Hold>(weak_from_this(), volume, desk);
  use.link_ = desk->link;
  return use;
}

Task<Result<VolumeDesk::Use>> VolumeDesk::open(std::string project, std::string volume, std::string digest,
                                               bool read_only, std::shared_ptr<const Screening> screening) {
  auto self = shared_from_this();
  for (;;) {
    std::shared_ptr<Desk> desk;
    uint64_t ticket = 0;
    bool ours = false;
    {
      std::lock_guard lock(mutex_);
      auto at = desks_.find(volume);
      // One whose guest is gone is of no use to anybody.
      if (at != desks_.end() && at->second->link && at->second->link->closed()) desks_.erase(at), at = desks_.end();
      if (at != desks_.end() && at->second->link) co_return hand_out(volume, at->second);
      ours = at == desks_.end();
      auto same = [&](const auto& one) { return one.second->project == project; };
      if (ours && (desks_.size() >= kMost || static_cast<size_t>(std::ranges::count_if(desks_, same)) >= kMostOfOne))
        co_return fail(Code::exhausted, "the files of too many volumes are being looked at; try again");
      if (ours) {
        at = desks_.emplace(volume, std::make_shared<Desk>()).first;
        at->second->project = project;
      }
      desk = at->second;
      ticket = desk->bell.ticket();
    }
    if (ours) {
      auto begun = co_await begin(volume, digest, read_only, screening, desk);
      if (!begun) co_return std::unexpected(std::move(begun).error());
      continue;
    }
    co_await desk->bell.wait(ticket);
    std::lock_guard lock(mutex_);
    if (desk->failed) co_return std::unexpected(*desk->failed);
  }
}

Task<Result<void>> VolumeDesk::begin(std::string volume, std::string digest, bool read_only,
                                     std::shared_ptr<const Screening> screening, std::shared_ptr<Desk> desk) {
  std::string sandbox;
  std::shared_ptr<GuestLink> link;
  auto make = [&]() -> Task<Result<void>> {
    launcher::LaunchRequest ask;
    ask.digest = digest;
    ask.limits = small();
    ask.ephemeral = true;  // it ends with our connection: whatever happens to us, nothing is left
    ask.cold = true;
    launcher::VolumeMount mount;
    mount.id = volume;
    mount.target = kPlace;
    mount.read_only = read_only;
    ask.volumes.push_back(mount);
    ISOLA_CO_TRY(Launched launched, co_await launcher_->launch(std::move(ask)));
    sandbox = launched.reply.id;
    link = GuestLink::start(next_worker_(), std::move(launched.link), kPatience, screening);
    guest::PathArgs root;
    root.path = kPlace;
    ISOLA_CO_TRY(std::string entered, co_await link->call(guest::Op::enter, guest::encode(root)));
    co_return Result<void>();
  };
  auto made = co_await make();
  if (!made && !sandbox.empty()) {
    link->close();
    (void)co_await launcher_->kill(sandbox);
  }
  {
    std::lock_guard lock(mutex_);
    if (made) {
      desk->sandbox = sandbox;
      desk->link = link;
      desk->used = std::chrono::steady_clock::now();
    } else {
      desk->failed = made.error();
      if (auto at = desks_.find(volume); at != desks_.end() && at->second == desk) desks_.erase(at);
    }
  }
  desk->bell.ring();
  co_return made;
}

void VolumeDesk::give_back(const std::string& volume, const std::shared_ptr<Desk>& desk) {
  {
    std::lock_guard lock(mutex_);
    --desk->users;
    desk->used = std::chrono::steady_clock::now();
    if (desk->users > 0 || std::exchange(desk->leaving, true)) return;
  }
  // May begin before it returns: not under the mutex.
  net::co_spawn(next_worker_(), leave_later(volume, desk), net::detached);
}

Task<void> VolumeDesk::leave_later(std::string volume, std::shared_ptr<Desk> desk) {
  auto self = shared_from_this();
  for (;;) {
    std::chrono::steady_clock::duration left;
    {
      std::lock_guard lock(mutex_);
      left = desk->used + kStays - std::chrono::steady_clock::now();
      if (desk->users > 0) {
        desk->leaving = false;  // whoever gives it back last begins anew
        co_return;
      }
      if (left.count() <= 0)
        if (auto at = desks_.find(volume); at != desks_.end() && at->second == desk) desks_.erase(at);
    }
    if (left.count() <= 0) break;
    Bell never;
    (void)co_await never.wait_for(never.ticket(), left);
  }
  desk->link->close();
  (void)co_await launcher_->kill(desk->sandbox);
}

Task<void> VolumeDesk::close(std::string volume) {
  auto self = shared_from_this();
  std::shared_ptr<Desk> desk;
  {
    std::lock_guard lock(mutex_);
    auto at = desks_.find(volume);
    if (at == desks_.end() || !at->second->link) co_return;
    desk = at->second;
    desks_.erase(at);
  }
  desk->link->close({Code::unavailable, "the volume is being removed"});
  (void)co_await launcher_->kill(desk->sandbox);
}

}  // namespace isola::sandbox
