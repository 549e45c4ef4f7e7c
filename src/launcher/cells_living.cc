// Cells: what can be asked of a living sandbox.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "launcher/cells.h"

namespace isola::launcher {

Cells::One* Cells::find_living(const std::string& id) {
  One* one = find(id);
  return one && one->cell && !one->entry.parked && one->state != State::ending ? one : nullptr;
}

// ---- links ----------------------------------------------------------------------------------------------------------

void Cells::link(const std::string& id, OwnerId owner, Linked done) {
  One* one = find_living(id);
  if (!one) return done(fail(Code::not_found, "there is no sandbox " + id));
  if (one->state == State::frozen || one->freezing) return done(fail(Code::unavailable, "the sandbox is frozen"));
  if (one->imaging) return done(fail(Code::unavailable, "an image of the sandbox is being made"));
  if (one->linking) return done(fail(Code::unavailable, "somebody else is just attaching to the sandbox"));
  begin_link(*one, owner, std::move(done));
}

void Cells::begin_link(One& one, OwnerId owner, Linked done) {
  const std::string id = one.entry.id;
  if (one.link_fd >= 0) {  // asked for by somebody who went away meanwhile
    set_owner(one, owner);
    one.linking.emplace(owner, std::move(done));
    return;
  }
  auto ready = one.cell->prepare_link();
  if (!ready) return done(std::unexpected(ready.error()));
  set_owner(one, owner);
  one.linking.emplace(owner, std::move(done));
  if (*ready < 0) return finish_link(id);
  one.link_fd = *ready;
  // A process inside can hold process 1 up for a while; it must not hold up whoever waits here for ever.
  // One that was just restored has run meanwhile: giving it up would leave its image behind with newer files.
  auto limit = !one.spending.empty() ? parts_.link_limit * 12 : parts_.link_limit;
  one.link_timer = parts_.loop.after(limit, [this, id] {
    if (One* it = find(id))
      it->link_timer.reset(), fail_link(*it, Error{Code::timeout, "the sandbox's guest does not answer"});
  });
  // EPOLLHUP comes unasked. Nothing else is wanted: unread bytes of the old generation would wake us for ever.
  if (auto watched = parts_.loop.watch(*ready, 0, [this, id](uint32_t) { finish_link(id); }); !watched)
    fail_link(one, watched.error());
}

void Cells::finish_link(const std::string& id) {
  One* one = find(id);
  if (!one) return;
  if (one->link_fd >= 0) parts_.loop.unwatch(std::exchange(one->link_fd, -1));
  if (one->link_timer) parts_.loop.cancel(*std::exchange(one->link_timer, std::nullopt));
  auto waiting = std::exchange(one->linking, std::nullopt);
  // Nobody waits any more: whoever comes next has the guest make another.
  if (!waiting && one->spending.empty()) return;
  // A guest that dies hangs up as well, and has no other link then: what it was made of is all that is left of it.
  auto link = one->cell->take_link();
  if (link) spent(*one);
  if (waiting) waiting->second(std::move(link));
}

void Cells::fail_link(One& one, const Error& error) {
  if (one.link_fd >= 0) parts_.loop.unwatch(std::exchange(one.link_fd, -1));
  if (one.link_timer) parts_.loop.cancel(*std::exchange(one.link_timer, std::nullopt));
  if (auto waiting = std::exchange(one.linking, std::nullopt)) waiting->second(std::unexpected(error));
}

// ---- freezing -------------------------------------------------------------------------------------------------------

void Cells::freeze(const std::string& id, Done done) {
  One* one = find_living(id);
  if (!one) return done(fail(Code::not_found, "there is no sandbox " + id));
  if (one->imaging) return done(fail(Code::unavailable, "an image of the sandbox is being made"));
  if (auto noted = note_frozen(*one, true); !noted) return done(noted);
  begin_freezing(*one, [this, id, done = std::move(done)](const Result<void>& frozen) {
    if (One* it = find(id); it && !frozen) (void)note_frozen(*it, false);
    done(frozen);
  });
}

// So that the launcher after this one leaves it as it was wanted.
Result<void> Cells::note_frozen(One& one, bool frozen) {
  if (one.entry.frozen == frozen) return {};
  one.entry.frozen = frozen;
  auto written = parts_.journal.write(one.entry);
  if (!written) one.entry.frozen = !frozen;
  return written;
}

void Cells::begin_freezing(One& one_, Done done) {
  One* one = &one_;
  const std::string id = one->entry.id;
  if (one->state == State::frozen) return done({});
  if (one->freezing) {
    one->freezing->waiting.push_back(std::move(done));
    return;
  }
  one->freezing = std::make_unique<Freezing>();
  one->freezing->waiting.push_back(std::move(done));
  // Processes that are starved of their processor time take a while to stop; nobody else waits for them.
  one->freezing->deadline = parts_.loop.after(parts_.freeze_limit, [this, id] {
    One* it = find(id);
    if (!it || !it->freezing) return;
    it->freezing->deadline.reset();
    give_up_freeze(*it, Error{Code::timeout, "the processes of the sandbox could not be stopped in time"});
  });
  if (auto begun = begin_freeze(*one); !begun) return give_up_freeze(*one, begun.error());
  ask_frozen(id);
}

Result<void> Cells::begin_freeze(One& one) {
  ISOLA_TRY(auto group, parts_.cgroups.adopt(one.entry.id));
  auto events = group.freeze_events();
  auto begun = events ? group.begin_freeze() : std::unexpected(events.error());
  group.release();
  ISOLA_CHECK(begun);
  one.freezing->events = std::move(*events);
  if (!one.freezing->events) return {};
  return parts_.loop.watch(one.freezing->events.get(), EPOLLPRI,
                           [this, id = one.entry.id](uint32_t) { ask_frozen(id); });
}

void Cells::ask_frozen(const std::string& id) {
  One* one = find(id);
  if (!one || !one->freezing) return;
  Freezing& freezing = *one->freezing;
  if (freezing.events) {  // reading it says that this change is known; any later one wakes us again
    char text[256];
    (void)!::pread(freezing.events.get(), text, sizeof text, 0);
  }
  auto frozen = [&]() -> Result<bool> {
    ISOLA_TRY(auto group, parts_.cgroups.adopt(id));
    auto answer = group.frozen();
    group.release();
    return answer;
  }();
  if (frozen && *frozen) {
    one->state = State::frozen;
    return finish_freeze(*one, {});
  }
  if (!frozen) return give_up_freeze(*one, frozen.error());
  if (freezing.events) return;
  freezing.again = parts_.loop.after(freezing.pause, [this, id] {
    if (One* it = find(id); it && it->freezing) it->freezing->again.reset(), ask_frozen(id);
  });
  freezing.pause = std::min(freezing.pause * 2, std::chrono::milliseconds(16));
}

// What has stopped already goes on.
void Cells::give_up_freeze(One& one, const Error& error) {
  if (auto group = parts_.cgroups.adopt(one.entry.id)) {
    (void)group->thaw();
    group->release();
  }
  finish_freeze(one, std::unexpected(error));
}

void Cells::finish_freeze(One& one, const Result<void>& result) {
  auto freezing = std::move(one.freezing);
  if (!freezing) return;
  if (freezing->deadline) parts_.loop.cancel(*freezing->deadline);
  if (freezing->again) parts_.loop.cancel(*freezing->again);
  if (freezing->events) parts_.loop.unwatch(freezing->events.get());
  for (auto& done : freezing->waiting) done(result);
}

Result<void> Cells::thaw(const std::string& id) {
  One* one = find_living(id);
  if (!one) return fail(Code::not_found, "there is no sandbox " + id);
  if (one->imaging) return fail(Code::unavailable, "an image of the sandbox is being made");
  return let_go_on(*one);
}

Result<void> Cells::let_go_on(One& one_) {
  One* one = &one_;
  const std::string id = one->entry.id;
  ISOLA_TRY(auto group, parts_.cgroups.adopt(id));
  auto thawed = group.thaw();
  group.release();
  ISOLA_CHECK(thawed);
  one->state = State::running;
  if (auto noted = note_frozen(*one, false); !noted) log::warn("launcher", "{}: {}", id, noted.error().message);
  finish_freeze(*one, fail(Code::unavailable, "the sandbox was thawed before it was frozen"));
  return {};
}

// ---- looking at them ------------------------------------------------------------------------------------------------

Result<StatsReply> Cells::stats(const std::string& id) {
  const One* one = find(id);
  if (!one) return fail(Code::not_found, "there is no sandbox " + id);
  ISOLA_TRY(auto group, parts_.cgroups.adopt(id));
  auto stats = group.stats();
  group.release();
  if (!stats) return std::unexpected(stats.error());
  StatsReply reply{stats->cpu_usec,  stats->memory_bytes, stats->memory_peak_bytes,
                   stats->oom_kills, stats->processes,    0};
  if (auto usage = parts_.layers.usage(layer_of(one->entry))) reply.disk_bytes = usage->bytes;
  return reply;
}

Result<uint64_t> Cells::page_cache(const std::string& id) {
  if (!find(id)) return fail(Code::not_found, "there is no sandbox " + id);
  ISOLA_TRY(auto group, parts_.cgroups.adopt(id));
  auto bytes = group.page_cache();
  group.release();
  return bytes;
}

OwnerId Cells::owner_of(const std::string& id) const {
  auto it = cells_.find(id);
  return it == cells_.end() ? 0 : it->second->owner;
}

std::vector<std::string> Cells::owned_by(OwnerId owner) const {
  auto it = owned_.find(owner);
  if (it == owned_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

bool Cells::open_to_user(const std::string& id) const {
  auto it = cells_.find(id);
  return it != cells_.end() && !it->second->entry.roots_own;
}

std::vector<SandboxSummary> Cells::list(const std::string& after, size_t max, bool for_root) const {
  std::vector<SandboxSummary> all;
  for (auto it = cells_.upper_bound(after); it != cells_.end() && all.size() < max; ++it) {
    const One& one = *it->second;
    if (one.entry.roots_own && !for_root) continue;
    all.push_back({.id = one.entry.id,
                   .digest = one.entry.digest,
                   .state = one.state,
                   .birth = one.entry.birth,
                   .kind = one.entry.kind,
                   .parked = one.entry.parked,
                   .ephemeral = one.entry.ephemeral,
                   .pid = one.entry.process.pid,
                   .created = one.entry.created,
                   .life = one.entry.life});
  }
  return all;
}

}  // namespace isola::launcher
