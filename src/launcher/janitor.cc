#include "launcher/janitor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/ids.h"
#include "base/log.h"
#include "image/image_store.h"
#include "image/tree.h"
#include "kernel/capability.h"
#include "kernel/helper.h"
#include "kernel/process.h"
#include "launcher/bucket.h"

namespace isola::launcher {

namespace {

// It removes folders of control groups and subvolumes or trees of layers that hold files of any owner, and kills what
// is left in a group. Nothing of that needs the network, other users' ids, modules, time or raw devices.
constexpr uint64_t kJanitorCapabilities = kernel::capability(CAP_SYS_ADMIN) | kernel::capability(CAP_DAC_OVERRIDE) |
                                          kernel::capability(CAP_DAC_READ_SEARCH) | kernel::capability(CAP_FOWNER) |
                                          kernel::capability(CAP_KILL);

constexpr size_t kHands = 3;
constexpr size_t kLongestJob = 160;
constexpr std::string_view kDrop = "-";
const std::string kGood = "+", kBad = "!";
constexpr std::string_view kReady = "+";

Result<void> confine(int socket, std::vector<int> keep) {
  keep.push_back(socket);
  // A helper that held a link, a lock or a pidfd would keep it alive.
  ISOLA_CHECK(kernel::close_all_but(std::move(keep)));
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0) return sys_error("cannot bind to the launcher");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return sys_error("cannot give up privileges");
  ::prctl(PR_SET_NAME, "isola-janitor", 0, 0, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ISOLA_CHECK(kernel::limit_bounding_set(kJanitorCapabilities));
  return kernel::set_capabilities(kJanitorCapabilities, kJanitorCapabilities, 0);
}

}  // namespace

Janitor::~Janitor() {
  for (auto& hand : hands_) lose(hand);
}

std::vector<pid_t> Janitor::pids() const {
  std::vector<pid_t> all;
  for (const auto& hand : hands_) all.push_back(hand.pid);
  return all;
}

Result<void> Janitor::start() {
  if (!ready_) {
    ready_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!ready_) return sys_error("cannot watch the janitor");
  }
  while (hands_.size() < kHands) {
    ISOLA_TRY(Hand hand, start_hand());
    epoll_event event{.events = EPOLLIN, .data = {.fd = hand.socket.get()}};
    if (::epoll_ctl(ready_.get(), EPOLL_CTL_ADD, hand.socket.get(), &event) < 0) {
      auto error = sys_error("cannot watch the janitor");
      lose(hand);
      return error;
    }
    hands_.push_back(std::move(hand));
  }
  hand_out();
  return {};
}

Result<Janitor::Hand> Janitor::start_hand() {
  ISOLA_TRY(auto pair, kernel::socket_pair());
  ISOLA_TRY(auto child, kernel::spawn(0, [&] {
              auto confined = confine(pair.second.get(), layers_.descriptors());
              (void)kernel::send_message(pair.second.get(),
                                         confined ? kReady : std::string_view(confined.error().message));
              return confined ? work(pair.second.get()) : 1;
            }));
  pair.second.reset();
  Hand hand{.pid = child.pid, .socket = std::move(pair.first), .jobs = {}};
  // One that cannot confine itself would only die and be replaced, for ever.
  auto word = kernel::receive_message(hand.socket.get());
  if (!word || word->bytes != kReady) {
    lose(hand);
    return fail(Code::internal, "the janitor cannot work: " + (word && !word->bytes.empty() ? word->bytes : "it died"));
  }
  return hand;
}

// Ends it, if it did not end by itself, and puts its jobs back.
void Janitor::lose(Hand& hand) {
  (void)::epoll_ctl(ready_.get(), EPOLL_CTL_DEL, hand.socket.get(), nullptr);
  hand.socket.reset();
  ::kill(hand.pid, SIGKILL);
  ::waitpid(hand.pid, nullptr, 0);
  waiting_.insert(waiting_.begin(), hand.jobs.begin(), hand.jobs.end());
  hand.jobs.clear();
}

Janitor::Hand* Janitor::least_busy() {
  auto it = std::ranges::min_element(hands_, {}, [](const Hand& hand) { return hand.jobs.size(); });
  return it == hands_.end() ? nullptr : &*it;
}

// Two each: the next is there when one is done, and few wait behind one that takes long.
void Janitor::hand_out() {
  constexpr size_t kUnderWay = 2;
  while (!waiting_.empty()) {
    Hand* hand = least_busy();
    if (!hand || hand->jobs.size() >= kUnderWay) return;
    // A dead one is noticed by collect(), which puts its jobs back.
    if (!kernel::send_message(hand->socket.get(), waiting_.front())) return;
    hand->jobs.insert(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

bool Janitor::work_on(const Job& job) const {
  auto good = [&](const Result<void>& result) {
    if (!result) log::warn("janitor", "{}: {}", job, result.error().message);
    return result.has_value();
  };
  if (job[0] == '%') return places_.images.empty() || good(image::ImageStore(places_.images).remove(job.substr(1)));
  if (job[0] == '~') {
    std::string id = job.substr(1);
    return places_.scratch.empty() || !is_sandbox_id(id) || good(image::remove_tree(places_.scratch + "/" + id));
  }
  size_t slash = job.find('/');
  if (slash == std::string::npos) return good(fail(Code::invalid, "not a job"));
  std::string id = job.substr(0, slash), layer = job.substr(slash + 1);
  const bool helpers = layer.ends_with('/');
  if (helpers) layer.pop_back();
  // Those who wait for them are killed in the next step, so it is not for good yet that they are.
  if (helpers && !good(cgroups_.remove(bucket_group(id)))) return false;
  // The layer goes between the group's processes and the group itself: its inodes are charged to the group, which would
  // otherwise linger on in the kernel, removed but not gone.
  if (!id.empty())
    if (auto group = cgroups_.adopt(id)) {
      auto killed = group->kill_all();
      group->release();
      // Whoever lives could still steer what is done to his files.
      if (!good(killed)) return false;
    }
  bool destroyed = layer.empty() || good(layers_.destroy(layer));
  bool removed = id.empty() || good(cgroups_.remove(id));
  return destroyed && removed;
}

int Janitor::work(int socket) const {
  for (;;) {
    auto message = kernel::receive_message(socket, kLongestJob);
    if (!message || message->bytes.empty()) return 0;
    if (message->bytes == kDrop) continue;  // its descriptors close right here
    if (!kernel::send_message(socket, (work_on(message->bytes) ? kGood : kBad) + message->bytes)) return 0;
  }
}

Result<void> Janitor::take(const Job& job) {
  if (jobs_.insert(job).second) waiting_.push_back(job);
  hand_out();
  return {};
}

void Janitor::drop(std::vector<Fd> fds) {
  Hand* hand = least_busy();
  if (!hand || fds.empty()) return;
  // Never waits: a janitor that is behind with its work is not worth a delay of ours. One that is at work reads
  // nothing, and what piled up there would keep the next job from being handed out: then they close here.
  if (!hand->jobs.empty()) return;
  int flags = ::fcntl(hand->socket.get(), F_GETFL);
  ::fcntl(hand->socket.get(), F_SETFL, flags | O_NONBLOCK);
  std::vector<int> raw;
  for (const auto& fd : fds) raw.push_back(fd.get());
  (void)kernel::send_message(hand->socket.get(), kDrop, raw);
  ::fcntl(hand->socket.get(), F_SETFL, flags);
}

Result<void> Janitor::collect(const std::function<void(const Job& job, bool good)>& done) {
  size_t died = 0;
  for (auto& hand : hands_) {
    for (pollfd ready{hand.socket.get(), POLLIN, 0}; ::poll(&ready, 1, 0) > 0;) {
      auto message = kernel::receive_message(hand.socket.get(), kLongestJob + 1);
      if (!message || message->bytes.empty()) {
        lose(hand);
        ++died;
        break;
      }
      Job job = message->bytes.substr(1);
      if (hand.jobs.erase(job) && jobs_.erase(job)) done(job, message->bytes[0] == kGood[0]);
    }
  }
  std::erase_if(hands_, [](const Hand& hand) { return !hand.socket; });
  hand_out();
  if (died) return fail(Code::unavailable, fmt::format("{} of the janitor's processes died", died));
  return {};
}

}  // namespace isola::launcher
