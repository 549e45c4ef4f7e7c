#include "launcher/cells.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/file.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/units.h"
#include "kernel/mount.h"

namespace isola::launcher {

namespace {

constexpr auto kParentLimit = std::chrono::seconds(10);  // for a helper that has said its last word
constexpr auto kLongest = std::chrono::years(100);       // of a sandbox's life: clocks must be able to say when that is

}  // namespace

kernel::CgroupLimits Cells::group_limits(const boundary::Limits& limits) {
  return {.cpus = limits.cpus,
          .memory = limits.memory,
          .pids = limits.pids,
          .io_bytes_per_second = limits.io_bytes_per_second};
}

int64_t Cells::boot_clock() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

Cells::Cells(Parts parts)
    : parts_(parts),
      bounds_(parts.layers.place()),
      janitor_(parts.cgroups, parts.layers, {.images = parts.kept, .scratch = parts.scratch}),
      store_(parts.kept) {}
Cells::~Cells() = default;

Cells::One* Cells::find(const std::string& id) {
  auto it = cells_.find(id);
  return it == cells_.end() ? nullptr : it->second.get();
}

void Cells::set_owner(One& one, OwnerId owner) {
  if (one.owner) {
    auto& set = owned_[one.owner];
    set.erase(one.entry.id);
    if (set.empty()) owned_.erase(one.owner);
  }
  one.owner = owner;
  if (owner) owned_[owner].insert(one.entry.id);
}

void Cells::count_live(One& one, bool live) {
  if (one.counted == live) return;
  one.counted = live;
  live ? ++live_ : --live_;
  if (live_ > 0) watch_living();
}

size_t Cells::ending() const {
  return static_cast<size_t>(std::ranges::count_if(cells_, [](const auto& cell) { return bool(cell.second->reason); }));
}

size_t Cells::cleaning() const { return janitor_.pending() + held_; }

// ---- start and adoption ---------------------------------------------------------------------------------------------

Result<void> Cells::start() {
  ISOLA_CHECK(janitor_.start());
  ISOLA_CHECK(watch_janitor());
  ISOLA_TRY(auto entries, parts_.journal.read_all());
  std::set<std::string> known;  // sandboxes, and layers
  ISOLA_CHECK(start_images(known));
  for (auto& entry : entries) {
    known.insert({entry.id, layer_of(entry)});
    known.insert(entry.lowers.begin(), entry.lowers.end());
    ISOLA_CHECK(adopt(std::move(entry)));
  }
  ISOLA_CHECK(clear_unknown_ranges(known));
  ISOLA_TRY(auto layers, parts_.layers.list());
  for (const auto& id : layers) {
    if (known.contains(id) || is_doubtful(id) || is_volume_id(id)) continue;
    // The layer of an image that is packed: its sandbox has long left its group and may be resumed at any moment, under
    // the same name and with this layer. So this is the very job that an unpacking waits for, and no other beside it.
    const bool groups_too = is_sandbox_id(id) && !layer_images_.contains(id);
    ISOLA_CHECK(janitor_.take(Janitor::group_and_layer(groups_too ? id : "", id)));
  }
  doubt_undone();
  return {};
}

// False: somebody else has the ids by now, so there is nothing to give back, and whoever lives with them must not go
// on. After a boot that is the rule: all ranges were free then, and this entry's may be any launcher's.
Result<bool> Cells::keep_ids(JournalEntry& entry) {
  if (entry.boot != parts_.journal.boot()) entry.id_base = 0;
  if (entry.id_base == 0) return true;
  auto kept = parts_.ranges.keep(entry.id_base, entry.id);
  if (kept) return true;
  if (kept.error().code != Code::exists) return std::unexpected(kept.error());
  log::warn("launcher", "{}: {}", entry.id, kept.error().message);
  entry.id_base = 0;
  return false;
}

// Those of one that was adopted, as they are installed: the journal has them not, since they can be changed.
void Cells::read_limits(One& one) {
  auto group = parts_.cgroups.known(one.entry.id, false);
  if (auto now = group.limits()) {
    one.limits.cpus = now->cpus;
    one.limits.memory = now->memory;
    one.limits.pids = now->pids;
  } else {
    log::warn("launcher", "{}: {}", one.entry.id, now.error().message);
  }
  group.release();
  if (auto disk = parts_.layers.limit(layer_of(one.entry)); disk && *disk > 0) one.limits.disk = *disk;
}

Result<void> Cells::adopt(JournalEntry entry) {
  ISOLA_TRY(bool kept, keep_ids(entry));
  One& it = *(cells_[entry.id] = std::make_unique<One>());
  it.entry = entry;
  it.entry.parked = false;
  use_layers(it, true);
  auto* boundary = find_boundary(entry.kind);
  // One whose boundary this launcher does not have cannot be spoken to, and is ended with everything in its group.
  auto cell = boundary && entry.boot == parts_.journal.boot() && entry.process.pid > 0
                  ? boundary->adopt({.kind = entry.kind, .process = entry.process, .handle = entry.handle})
                  : Result<std::unique_ptr<boundary::Cell>>(fail(Code::not_found, "not of this boot"));
  if (!cell) {
    it.ended.reason = EndReason::host_restart;
    // What it was resumed from is there still: its guest had not answered.
    if (auto image = kept_.find(entry.image);
        image != kept_.end() && !image->second.layers.empty() && image->second.layers.front() == layer_of(entry))
      it.spending = entry.image;
    clear(it);
    return {};
  }
  it.cell = std::move(*cell);
  it.state = State::running;
  read_limits(it);
  if (auto so_far = stats(entry.id)) it.old_oom_kills = so_far->oom_kills;
  count_live(it, true);
  ISOLA_CHECK(parts_.loop.watch(it.cell->exit_fd(), EPOLLIN, [this, id = entry.id](uint32_t) { exited(id); }));
  // Parked jails are cheap to make anew; ephemeral ones belonged to a connection that went with the old launcher.
  if (!kept || entry.parked || entry.ephemeral) {
    end(it, kept ? EndReason::killed : EndReason::boundary_failure);
    return {};
  }
  // The old launcher may have been in the middle of stopping it for an image, or for somebody: that is made an end of.
  if (entry.frozen)
    begin_freezing(it, [this, id = entry.id](const Result<void>& frozen) {
      if (frozen) return;
      log::warn("launcher", "{}: {}", id, frozen.error().message);
      if (One* one = find(id)) (void)note_frozen(*one, false);  // it runs: nobody is to stop it later
    });
  else if (auto thawed = thaw(entry.id); !thawed)
    log::warn("launcher", "{}: {}", entry.id, thawed.error().message);
  if (entry.deadline > 0)
    arm_deadline(it, std::chrono::milliseconds(std::max<int64_t>(0, entry.deadline - boot_clock())));
  log::info("launcher", "adopted {}", entry.id);
  return {};
}

// A range that the journal does not know: of a launcher that was killed before it could write down what for, or whose
// journal was lost. It names the sandbox, and so the control group and the layer that may be there.
Result<void> Cells::clear_unknown_ranges(std::set<std::string>& known) {
  std::set<uint32_t> used;
  for (const auto& [id, one] : cells_) used.insert(one->entry.id_base);
  ISOLA_TRY(auto taken, parts_.ranges.mine());
  for (const auto& [base, id] : taken) {
    if (used.contains(base)) continue;
    if (!is_sandbox_id(id)) {
      parts_.ranges.give_back(base);
      continue;
    }
    if (!known.insert(id).second) {
      // Of an entry that could not be read: its processes may still live, and have these ids until they are gone.
      if (One* it = find(id); it && it->entry.id_base == 0)
        it->entry.id_base = base;
      else
        parts_.ranges.give_back(base);
      continue;
    }
    One& it = *(cells_[id] = std::make_unique<One>());
    it.entry.id = id;
    it.entry.id_base = base;
    use_layers(it, true);
    it.ended.reason = EndReason::host_restart;
    clear(it);
  }
  return {};
}

// ---- launching ------------------------------------------------------------------------------------------------------

Result<void> Cells::check(const LaunchRequest& request) const {
  const auto& limits = request.limits;
  const auto& most = bounds_.now();
  if (!is_digest(request.digest)) return fail(Code::invalid, "an image is named by its SHA-256 digest");
  if (!request.id.empty() && !is_sandbox_id(request.id)) return fail(Code::invalid, "not the name of a sandbox");
  if (!request.id.empty() && cells_.contains(request.id))
    return fail(Code::exists, "there is a sandbox " + request.id + " already");
  // Groups are the machine's: one of that name that is not ours is another launcher's, and what fails here is cleared
  // away by name.
  if (!request.id.empty() && parts_.cgroups.has(request.id))
    return fail(Code::exists, "there is a sandbox " + request.id + " of another launcher on this machine");
  if (limits.memory < (8u << 20)) return fail(Code::invalid, "a sandbox needs at least 8 MiB of memory");
  if (limits.memory > most.memory)
    return fail(Code::invalid, "the memory limit is more than this machine has (" + format_size(most.memory) + ")");
  if (limits.cpus < 0.01 || limits.cpus > most.cpus)
    return fail(Code::invalid,
                fmt::format("the cpu limit must be between 0.01 and the machine's {} processors", most.cpus));
  if (limits.pids < 4) return fail(Code::invalid, "a sandbox needs at least 4 processes");
  if (limits.pids > most.pids)
    return fail(Code::invalid, fmt::format("a sandbox can have at most {} processes on this machine", most.pids));
  if (limits.disk < image::kSmallestLayer) return fail(Code::invalid, "a sandbox needs at least 1 MiB of disk");
  // What a sandbox was paused with it may have again: nothing grows by that, and the disk may have been another one.
  const auto kept = kept_.find(request.image);
  if (limits.disk > std::max(most.disk, kept == kept_.end() ? 0 : kept->second.disk))
    return fail(Code::invalid, "the disk limit is more than this machine's disk has (" + format_size(most.disk) + ")");
  if (limits.open_files < 32) return fail(Code::invalid, "a sandbox needs at least 32 open files");
  if (limits.open_files > most.open_files)
    return fail(Code::invalid,
                fmt::format("a process can have at most {} open files on this machine", most.open_files));
  if (limits.wall_time.count() < 0) return fail(Code::invalid, "the time limit is negative");
  if (limits.wall_time > kLongest) return fail(Code::invalid, "the time limit is more than a hundred years");
  if (!parts_.layers.enforces() && !request.allow_unquotaed)
    return fail(
        Code::unsupported,
        parts_.no_disk_limit + "; `isola doctor` says what would help, --allow-unquotaed-disk accepts the risk");
  return {};
}

boundary::Boundary* Cells::find_boundary(BoundaryKind kind) const {
  auto it = std::ranges::find(parts_.boundaries, kind, [](const boundary::Boundary* b) { return b->kind(); });
  return it == parts_.boundaries.end() ? nullptr : *it;
}

Result<void> Cells::choose_boundary(LaunchRequest& request) const {
  ISOLA_TRY(BoundaryKind kind, boundary::choose(request.boundary, parts_.offers));
  if (!find_boundary(kind)) return fail(Code::internal, "a boundary is offered that is not there");
  request.boundary.wish = wish_for(kind);
  return {};
}

void Cells::launch(LaunchRequest request, std::vector<Fd> trees, OwnerId owner, Launched done) {
  if (request.image.empty())
    if (auto ok = choose_boundary(request); !ok) return done(std::unexpected(ok.error()));
  if (!request.image.empty()) look_again(request.image);
  if (!request.image.empty())
    if (auto ok = resolve_image(request); !ok) return done(std::unexpected(ok.error()));
  if (auto ok = check(request); !ok) return done(std::unexpected(ok.error()));
  if (auto ok = check_volumes(request); !ok) return done(std::unexpected(ok.error()));
  if (trees.size() != request.shown_targets.size())
    return done(fail(Code::invalid, "each shown folder needs one descriptor"));
  // What goes on by itself can have been restored ahead; what goes back to its own files and name cannot.
  const bool usual = request.image.empty() || (request.forked && !request.files_only && !request.spend);
  if (usual && !request.cold && trees.empty() && request.volumes.empty() && request.buckets.empty() &&
      request.id.empty() && claim(request, owner, done))
    return;
  begin(std::move(request), std::move(trees), owner, false, std::move(done));
}

void Cells::begin(LaunchRequest request, std::vector<Fd> trees, OwnerId owner, bool park, Launched done) {
  auto owned = std::make_unique<One>();
  One& one = *owned;
  one.entry = {.id = request.id.empty() ? new_sandbox_id() : request.id,
               .digest = request.digest,
               .image = request.image,
               .shown = !trees.empty(),
               .kind = chosen(request),
               .parked = park,
               .ephemeral = request.ephemeral,
               .roots_own = request.roots_own,
               .created = static_cast<int64_t>(::time(nullptr)),
               .life = request.life};
  for (const auto& volume : request.volumes) one.entry.volumes.push_back({volume.id, volume.target});
  for (const auto& bucket : request.buckets) one.entry.volumes.push_back({"bucket", bucket.target});
  one.limits = request.limits;
  one.launched = std::move(done);
  cells_[one.entry.id] = std::move(owned);
  set_owner(one, owner);
  if (park) {
    auto& pool = pools_[pool_of(one.entry)];
    ++pool.have;
    pool.making = one.being_parked = true;
  }
  if (!park) count_live(one, true);
  if (auto made = make(one, std::move(request), std::move(trees)); !made) {
    one.failure = made.error();
    clear(one);
  }
}

Result<void> Cells::make(One& one, LaunchRequest request, std::vector<Fd> trees) {
  Stopwatch watch(one.latency);
  ISOLA_TRY(boundary::LaunchSpec spec, spec_for(one, request));
  use_layers(one, true);
  ISOLA_TRY(one.entry.id_base, parts_.ranges.take(one.entry.id));
  spec.id_base = one.entry.id_base;
  ISOLA_CHECK(parts_.journal.write(one.entry));
  if (!one.spending.empty()) {
    ISOLA_TRY(spec.layer, take_back(layer_of(one.entry), request.limits.disk));
  } else {
    ISOLA_TRY(spec.layer, parts_.layers.create(layer_of(one.entry), {.bytes = request.limits.disk}, one.entry.lowers));
  }
  ISOLA_TRY(auto lowers, parts_.layers.lowers(layer_of(one.entry), one.entry.lowers));
  spec.lowers.insert(spec.lowers.begin(), lowers.begin(), lowers.end());
  ISOLA_CHECK(image::verify_limit(parts_.layers, layer_of(one.entry), request.limits.disk));
  watch.lap(Step::layer);
  // The boundary limits the processor time when it is done: a sandbox that may use little must not take long to make,
  // since the launcher waits for it at some points.
  auto at_birth = group_limits(request.limits);
  at_birth.cpus = 0;
  ISOLA_TRY(auto group, parts_.cgroups.create(one.entry.id, at_birth));
  // Likewise what a restore reads. (Lifted, not left out: on v1 those who are born must be in that group already.)
  auto lifted =
      one.restored && one.entry.kind == BoundaryKind::jail && at_birth.wants_io() ? group.set_io({}) : Result<void>();
  group.release();  // from here on it is the janitor's to remove, by name
  ISOLA_CHECK(lifted);
  watch.lap(Step::cgroups);
  if (!request.buckets.empty()) return mount_buckets(one, std::move(request), std::move(trees), std::move(spec));
  return start_launch(one, request, std::move(trees), std::move(spec));
}

namespace {

// A restore reads as much as there is memory. A machine whose instructions are translated starts many times slower than
// one that the processor helps, and slower still where there are several at once.
int patience_factor(const boundary::Boundary& boundary, bool restored) {
  if (restored) return 10;
  return boundary.kind() == BoundaryKind::microvm && !boundary.engine().accelerated ? 4 : 1;
}

}  // namespace

Result<void> Cells::start_launch(One& one, const LaunchRequest& request, std::vector<Fd> trees,
                                 boundary::LaunchSpec spec) {
  for (size_t i = 0; i < trees.size(); ++i)
    spec.shown.push_back({.tree = std::move(trees[i]), .target = request.shown_targets[i], .hosts = true});
  for (const auto& volume : request.volumes) {
    ISOLA_TRY(Fd tree, open_volume(volume));
    spec.shown.push_back({std::move(tree), volume.target, volume.read_only});
  }
  const auto limit = parts_.launch_limit * patience_factor(boundary_of(one), spec.memory.has_value());
  ISOLA_TRY(one.launching, boundary_of(one).begin(std::move(spec)));
  if (one.limits.wall_time.count() > 0) one.entry.deadline = boot_clock() + one.limits.wall_time.count();
  ISOLA_CHECK(write_down(one));
  one.launch_timer = parts_.loop.after(limit, [this, id = one.entry.id] {
    One* it = find(id);
    if (!it || !it->launching) return;
    it->launch_timer.reset();
    it->failure = Error{Code::timeout, "the sandbox did not come to life in time"};
    clear(*it);
  });
  return parts_.loop.watch(one.launching->fd(), EPOLLIN, [this, id = one.entry.id](uint32_t) { advance(id); });
}

// Before the guest's first instruction: a launcher that starts after us must find it.
Result<void> Cells::write_down(One& one) {
  if (one.entry.process.pid != 0) return {};
  const auto name = one.launching->name();
  if (name.process.pid <= 0) return {};
  // Without the moment of its start a number names nobody.
  if (name.process.start_time == 0) return fail(Code::internal, "the sandbox's first process died at birth");
  one.entry.process = name.process;
  one.entry.handle = name.handle;
  ISOLA_CHECK(parts_.journal.write(one.entry));
  return one.launching->proceed();
}

void Cells::advance(const std::string& id) {
  One* one = find(id);
  if (!one || !one->launching) return;
  auto cell = one->launching->advance();
  if (cell && !*cell) {  // not yet
    auto written = write_down(*one);
    if (written) return;
    cell = std::unexpected(written.error());
  }
  parts_.loop.unwatch(one->launching->fd());
  if (one->launch_timer) parts_.loop.cancel(*std::exchange(one->launch_timer, std::nullopt));
  if (!cell) {
    one->failure = cell.error();
    clear(*one);
    return;
  }
  for (int i = 0; i < static_cast<int>(Step::count_); ++i)
    one->latency.add(static_cast<Step>(i), one->launching->latency().of(static_cast<Step>(i)));
  one->cell = std::move(*cell);
  auto leftovers = one->launching->take_leftovers();
  one->launching.reset();
  if (!one->entry.image.empty()) reap_soon();  // helpers of the restore
  born(*one);
  janitor_.drop(std::move(leftovers));
}

void Cells::born(One& one) {
  const std::string id = one.entry.id;
  one.state = State::running;
  if (one.restored) (void)janitor_.take(Janitor::scratch_folder(id));
  if (auto watched = parts_.loop.watch(one.cell->exit_fd(), EPOLLIN, [this, id](uint32_t) { exited(id); }); !watched) {
    one.failure = watched.error();
    clear(one);
    return;
  }
  if (!one.entry.parked) return hand_over(one, one.entry.birth);
  one.restored ? link_ahead(one) : enter_pool(one);
}

void Cells::arm_deadline(One& one, std::chrono::milliseconds left) {
  one.deadline = parts_.loop.after(left, [this, id = one.entry.id] {
    if (One* it = find(id)) it->deadline.reset(), end(*it, EndReason::deadline);
  });
}

void Cells::hand_over(One& one, Birth birth) {
  const std::string id = one.entry.id;
  if (one.limits.wall_time.count() > 0) arm_deadline(one, one.limits.wall_time);
  if (one.link) return finish_launch(one, birth, std::move(*std::exchange(one.link, std::nullopt)));
  if (one.restored) {
    // Its guest had another link, or none: it makes a new one, and says hello under its new name.
    auto begun = std::chrono::steady_clock::now();
    return this->link(id, one.owner, [this, id, birth, begun](Result<boundary::Link> link) {
      One* it = find(id);
      if (!it) return;
      it->latency.add(Step::relink, std::chrono::steady_clock::now() - begun);
      finish_launch(*it, birth, std::move(link));
    });
  }
  finish_launch(one, birth, one.cell->take_link());
}

void Cells::finish_launch(One& one, Birth birth, Result<boundary::Link> link) {
  const std::string id = one.entry.id;
  auto done = std::exchange(one.launched, nullptr);
  if (!done) return;  // it ended meanwhile
  if (!link) {
    one.failure = link.error();
    one.launched = std::move(done);
    end(one, EndReason::boundary_failure);
    return;
  }
  spent(one);
  done(std::pair(LaunchReply{.id = id,
                             .birth = birth,
                             .kind = one.cell->kind(),
                             .engine = boundary_of(one).engine(),
                             .latency = one.latency},
                 std::move(*link)));
}

// ---- ending ---------------------------------------------------------------------------------------------------------

void Cells::end(One& one, EndReason reason) {
  if (!one.reason) one.reason = reason;
  leave_pool(one);
  count_live(one, false);
  if (!one.cell && (one.launching || one.mounting)) return clear(one);  // half-made: dropped as it is
  if (one.cell) {
    end_servers_later(one);
    const bool still = one.state == State::frozen || (one.imaging && one.imaging->froze);
    one.state = State::ending;
    finish_freeze(one, fail(Code::not_found, "the sandbox has ended"));
    // A frozen sandbox dies only once it is thawed (v1); its group is thawed by whoever removes it too. Of what stands
    // still nothing runs again: what its files are at this instant they stay.
    if (auto group = parts_.cgroups.adopt(one.entry.id); group) {
      if (!still || !group->kill_frozen()) {
        (void)one.cell->kill();  // before anything moves again: process 1 takes the others along
        (void)group->thaw();
      }
      group->release();
    }
    (void)one.cell->kill();
  }
}

// A restored one is the child of its helper until that has ended, which may take longer than it lives. Told before, its
// end would leave a zombie, and nobody would know how it died.
bool Cells::can_be_waited_for(One& one) {
  int parent = one.cell->parent_fd();
  if (parent < 0 || one.parent_late) return true;
  parts_.loop.unwatch(parent);
  pollfd gone{parent, POLLIN, 0};
  if (::poll(&gone, 1, 0) != 0) return true;
  if (!parts_.loop.watch(parent, EPOLLIN, [this, id = one.entry.id](uint32_t) { exited(id); })) return true;
  one.state = State::ending;  // no new link, freeze or image
  fail_link(one, Error{Code::not_found, "the sandbox has ended"});
  finish_freeze(one, fail(Code::not_found, "the sandbox has ended"));
  // One that the kernel does not let go of keeps nobody: what is left of it is reaped with the helper.
  if (!one.parent_timer)
    one.parent_timer = parts_.loop.after(kParentLimit, [this, id = one.entry.id] {
      if (One* it = find(id)) it->parent_timer.reset(), it->parent_late = true, exited(id);
    });
  return false;
}

void Cells::exited(const std::string& id) {
  One* one = find(id);
  if (!one || !one->cell) return;
  parts_.loop.unwatch(one->cell->exit_fd());
  if (one->imaging && !one->imaging->exited && one->imaging->work) {
    // A pause ends like this, and so does a checkpoint that goes wrong: whoever makes it says which.
    one->imaging->exited = true;
    return;
  }
  if (!can_be_waited_for(*one)) return;
  one->ended.status = one->cell->exit_status().value_or(-1);
  if (auto usage = stats(id)) one->ended.usage = *usage;
  EndReason reason = one->reason.value_or(EndReason::exited);
  // Process 1 never leaves by itself unless it was told to: killed from outside, or by the kernel for memory.
  // (An engine that dies of that is told by its relay's exit code, which is then no guest's.)
  // Of one that was adopted nobody learns the status, since it is nobody's child: what its group counted tells.
  const bool unknown = one->ended.status == -1;
  const bool starved = one->ended.usage.oom_kills > one->old_oom_kills;
  if (!one->reason && (unknown ? starved : WIFSIGNALED(one->ended.status) || one->entry.kind != BoundaryKind::jail))
    reason = starved ? EndReason::oom : EndReason::boundary_failure;
  one->ended.reason = reason;
  clear(*one);
}

void Cells::clear(One& one) {
  leave_pool(one);
  count_live(one, false);
  one.state = State::ending;
  if (one.deadline) parts_.loop.cancel(*std::exchange(one.deadline, std::nullopt));
  if (one.launch_timer) parts_.loop.cancel(*std::exchange(one.launch_timer, std::nullopt));
  if (one.parent_timer) parts_.loop.cancel(*std::exchange(one.parent_timer, std::nullopt));
  if (one.launching) parts_.loop.unwatch(one.launching->fd());
  if (one.mounting || one.launching) kill_servers(one.entry.id);  // whoever is half-made may wait for them
  forget_servers(one);
  fail_link(one, Error{Code::not_found, "the sandbox has ended"});
  finish_freeze(one, fail(Code::not_found, "the sandbox has ended"));
  const bool restoring = one.launching && !one.entry.image.empty();
  if (one.cell && on_drop && on_drop(one.entry.id)) one.held = true, ++held_;
  if (one.cell && one.cell->parent_fd() >= 0) parts_.loop.unwatch(one.cell->parent_fd());
  one.launching.reset();  // kills and reaps what is half-made
  one.cell.reset();
  bring_disk_back(one);
  note_outrun(one);
  if (one.parent_late) reap_soon();
  if (restoring) (void)janitor_.take(Janitor::scratch_folder(one.entry.id)), reap_soon();
  // A layer that became part of an image stays.
  std::string layer = layer_of(one.entry);
  writing_.erase(layer);
  adopt_drafts();
  one.layer_stays = layer_images_.contains(layer) || is_doubtful(layer);
  if (one.layer_stays) layer.clear();
  if (auto told = janitor_.take(Janitor::group_and_layer(one.entry.id, layer, one.entry.has_buckets())); !told)
    log::error("launcher", "{}", told.error().message);
}

void Cells::cleared(const std::string& id) {
  auto it = cells_.find(id);
  if (it == cells_.end()) return;
  it->second->empty = true;
  if (it->second->held) return;
  auto one = std::move(it->second);
  cells_.erase(it);
  if (one->entry.id_base != 0) parts_.ranges.give_back(one->entry.id_base);
  parts_.journal.erase(id);
  use_layers(*one, false);
  if (one->entry.has_buckets()) reap_soon();  // those who served them
  drop_unused(one->entry.lowers);
  // It may have been the first to read some of its image, and took that with it.
  if (images_.contains(one->entry.digest)) warm(one->entry.digest);
  if (one->layer_stays) drop_unused({layer_of(one->entry)});  // unless its image went meanwhile
  one->ended.id = id;
  if (one->imaging) report_image(*one->imaging);
  const bool told = one->imaging && one->imaging->owner == one->owner;
  if (one->launched)
    one->launched(std::unexpected(one->failure.value_or(Error{Code::unavailable, "the launch was ended"})));
  else if (on_ended && one->owner && !told)
    on_ended(one->owner, one->ended);
  for (auto& gone : one->gone) gone(one->ended);
  set_owner(*one, 0);
  if (!pools_.empty()) refill_soon();
  if (on_change) on_change();
}

void Cells::let_go(const std::string& id) {
  auto it = cells_.find(id);
  if (it == cells_.end()) return;
  if (std::exchange(it->second->held, false)) --held_;
  if (it->second->empty) cleared(id);
}

Result<void> Cells::own(const std::string& id, OwnerId owner) {
  One* one = find(id);
  if (!one || one->entry.parked) return fail(Code::not_found, "there is no sandbox " + id);
  set_owner(*one, owner);
  return {};
}

Result<const boundary::IslandSockets*> Cells::sockets(const std::string& id) {
  One* one = find(id);
  if (!one || !one->cell || one->entry.parked || one->state == State::ending)
    return fail(Code::not_found, "there is no sandbox " + id);
  return one->cell->sockets();
}

std::string Cells::birth_of(const std::string& id) {
  One* one = find(id);
  if (!one) return {};
  return std::to_string(one->entry.process.pid) + "-" + std::to_string(one->entry.process.start_time);
}

void Cells::kill(const std::string& id, Gone done) {
  One* one = find(id);
  if (!one || one->entry.parked) return done(fail(Code::not_found, "there is no sandbox " + id));
  one->gone.push_back(std::move(done));
  if (!one->reason) end(*one, EndReason::killed);
}

void Cells::owner_gone(OwnerId owner) {
  auto it = owned_.find(owner);
  if (it == owned_.end()) return;
  auto ids = it->second;
  for (const auto& id : ids) {
    One* one = find(id);
    if (!one) continue;
    set_owner(*one, 0);
    if (one->linking && one->linking->first == owner) one->linking.reset();  // whoever comes next may have the link
    if (one->entry.ephemeral && !one->reason) end(*one, EndReason::killed);
  }
}

void Cells::kill_all() {
  kill_parked();
  for (auto& [id, one] : cells_)
    if (!one->reason) end(*one, EndReason::killed);
}

}  // namespace isola::launcher
