// Buckets of sandboxes (bucket.h): a launch with some waits until each is there. Who serves one lives as long as the
// sandbox has it mounted, in a control group beside the sandbox's; and dies at the latest when that is cleared away.
#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include "base/log.h"
#include "launcher/bucket.h"
#include "launcher/cells.h"
#include "launcher/fixed_users.h"

namespace isola::launcher {

// Behind everything that a launch makes before its boundary begins.
Result<void> Cells::mount_buckets(One& one, LaunchRequest request, std::vector<Fd> trees, boundary::LaunchSpec spec) {
  const std::string id = one.entry.id;
  ISOLA_TRY(auto group, parts_.cgroups.create(bucket_group(id), bucket_limits(request.buckets.size())));
  auto doors = group.doors();
  group.release();  // the janitor's to remove, with the sandbox's own
  if (!doors) return std::unexpected(doors.error());
  one.mounting = std::make_unique<Mounting>(Mounting{std::move(request), std::move(trees), std::move(spec), {}, {}});
  one.mounting->mounts.resize(one.mounting->request.buckets.size());
  for (const auto& bucket : one.mounting->request.buckets) {
    auto started = start_server(one, bucket, *doors);
    if (!started) return std::unexpected(started.error().in("the bucket at " + bucket.target));
  }
  one.launch_timer = parts_.loop.after(parts_.bucket_limit, [this, id] {
    One* it = find(id);
    if (!it || !it->mounting) return;
    it->launch_timer.reset();
    it->failure = Error{Code::timeout, "a bucket of the sandbox was not there in time: its store does not answer"};
    clear(*it);
  });
  return {};
}

Result<void> Cells::start_server(One& one, const BucketMount& bucket, const kernel::CgroupDoors& doors) {
  const std::string id = one.entry.id;
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  ISOLA_TRY(auto helper, start_bucket(bucket, one.entry.id_base + kUser, doors, pipe.first.get(), parts_.authorities));
  const size_t number = one.mounting->helpers.size();
  const pid_t pid = helper.pid();
  Fd pidfd = helper.take_pidfd();
  ISOLA_CHECK(parts_.loop.watch(pidfd.get(), EPOLLIN, [this, id, pid](uint32_t) { server_ended(id, pid); }));
  one.servers.push_back({pid, std::move(pidfd)});
  const int words = helper.fd();
  one.mounting->helpers.push_back(std::move(helper));
  ISOLA_CHECK(parts_.loop.watch(words, EPOLLIN, [this, id, number](uint32_t) { bucket_mounted(id, number); }));
  // The launcher has no copy of either end afterwards: the client hears the end of what comes. What went wrong is told
  // by whoever opens it; the client only knows that nothing came.
  open_secret(bucket.sealed, pipe.second, [this, id, bucket](const Result<std::string>& opened) {
    if (opened) return;
    // Behind whatever we are in the middle of.
    parts_.loop.after({}, [this, id, bucket, error = opened.error().in("the credentials")] {
      if (One* it = find(id); it && it->mounting) bucket_failed(*it, bucket, error);
    });
  });
  return {};
}

void Cells::bucket_mounted(const std::string& id, size_t number) {
  One* one = find(id);
  if (!one || !one->mounting) return;
  Mounting& mounting = *one->mounting;
  auto word = mounting.helpers[number].next();
  parts_.loop.unwatch(mounting.helpers[number].fd());
  if (word && (word->kind != kBucketMounted || word->fds.size() != 1))
    word = fail(Code::internal, "unexpected word from who serves it");
  if (!word) return bucket_failed(*one, mounting.request.buckets[number], word.error());
  mounting.mounts[number] = std::move(word->fds[0]);
  if (!std::ranges::all_of(mounting.mounts, [](const Fd& mount) { return mount.valid(); })) return;
  if (one->launch_timer) parts_.loop.cancel(*std::exchange(one->launch_timer, std::nullopt));
  auto done = std::move(one->mounting);
  for (size_t i = 0; i < done->mounts.size(); ++i) {
    const auto& bucket = done->request.buckets[i];
    done->spec.shown.push_back(
        {.tree = std::move(done->mounts[i]), .target = bucket.target, .read_only = bucket.read_only, .mapped = false});
  }
  one->latency.add(Step::buckets, std::chrono::steady_clock::now() - done->begun);
  auto started = start_launch(*one, done->request, std::move(done->trees), std::move(done->spec));
  if (started) return;
  one->failure = started.error();
  clear(*one);
}

void Cells::bucket_failed(One& one, const BucketMount& bucket, const Error& error) {
  if (!one.failure) one.failure = error.in("the bucket at " + bucket.target);
  clear(one);
}

void Cells::server_ended(const std::string& id, pid_t pid) {
  One* one = find(id);
  if (!one) return;
  auto it = std::ranges::find(one->servers, pid, &Server::pid);
  if (it == one->servers.end()) return;
  parts_.loop.unwatch(it->pidfd.get());
  one->servers.erase(it);
  (void)::waitpid(pid, nullptr, WNOHANG);
  if (one->cell && one->state != State::ending)
    log::warn("launcher", "{}: who serves one of its buckets has ended; the folder answers with errors", id);
}

// Files that are open there are saved when their processes end; whoever waits for a store that does not answer waits in
// the kernel, where even a SIGKILL does not reach it until who serves the bucket is gone.
void Cells::end_servers_later(One& one) {
  if (!one.entry.has_buckets() || one.servers_timer) return;
  one.servers_timer = parts_.loop.after(parts_.bucket_grace, [this, id = one.entry.id] {
    if (One* it = find(id)) it->servers_timer.reset(), kill_servers(id);
  });
}

void Cells::kill_servers(const std::string& id) {
  One* one = find(id);
  if (!one || !one->entry.has_buckets()) return;
  auto group = parts_.cgroups.adopt(bucket_group(id));
  if (!group) return;
  if (auto pids = group->processes())
    for (pid_t pid : *pids) ::kill(pid, SIGKILL);
  group->release();
}

// The janitor ends them; they are reaped like others whom nobody waits for.
void Cells::forget_servers(One& one) {
  if (one.servers_timer) parts_.loop.cancel(*std::exchange(one.servers_timer, std::nullopt));
  if (one.mounting)
    for (const auto& helper : one.mounting->helpers)
      if (helper.valid()) parts_.loop.unwatch(helper.fd());
  one.mounting.reset();
  for (const auto& server : one.servers) parts_.loop.unwatch(server.pidfd.get());
  one.servers.clear();
}

}  // namespace isola::launcher
