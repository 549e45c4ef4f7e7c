#include "boundary/gvisor/checkpoint.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "boundary/gvisor/bundle.h"
#include "boundary/jail/checkpoint.h"
#include "kernel/capability.h"
#include "kernel/helper.h"
#include "kernel/mount.h"
#include "kernel/process.h"

namespace isola::boundary::gvisor {

namespace {

using kernel::Helper;

constexpr int kImageFd = 3;
constexpr size_t kMostOutput = 64 << 10;
constexpr size_t kMostReason = 300;
constexpr auto kPatience = std::chrono::seconds(10);

struct Box {
  const Runsc& runsc;
  Fd relay;  // pidfd
  uint64_t capabilities = 0;
};

// Runs in a child of the helper, and becomes the box's. Returns only on failure.
int enter_and_run(const Box& box, std::vector<std::string> words, int output, int image) {
  constexpr int kAll =
      CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
  Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  // Until it is runsc its memory is a copy of the launcher's: nobody in the box may look at it.
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return 125;
  if (!null || ::dup2(null.get(), 0) < 0 || ::dup2(output, 1) < 0 || ::dup2(output, 2) < 0) return 125;
  if (::setns(box.relay.get(), kAll) < 0 || ::setgroups(0, nullptr) < 0 || ::setresgid(0, 0, 0) < 0 ||
      ::setresuid(0, 0, 0) < 0 || ::chdir("/") < 0)
    return 125;
  if (!kernel::limit_bounding_set(box.capabilities) || !kernel::set_capabilities(box.capabilities, box.capabilities, 0))
    return 125;
  // Whatever else is open is the host's, and stays outside.
  if (image >= 0 && image != kImageFd && ::dup2(image, kImageFd) < 0) return 125;
  if (image == kImageFd) ::fcntl(kImageFd, F_SETFD, 0);
  if (::close_range(static_cast<unsigned>(image >= 0 ? kImageFd + 1 : kImageFd), ~0U, 0) < 0) return 125;
  // In the box's pid namespace is only who is born now: it ends with the box, whatever happens here.
  pid_t pid = ::fork();
  if (pid < 0) return 125;
  if (pid > 0) {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 125;
  }
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  char* const env[] = {nullptr};
  ::execve(argv[0], argv.data(), env);
  return 125;
}

// One command of runsc's about the sandbox.
Result<void> tell(const Box& box, const std::vector<std::string>& command, int image = -1) {
  std::vector<std::string> words = {std::string("/") + kEngine};
  for (auto& flag : box.runsc.flags(kState)) words.push_back(std::move(flag));
  words.insert(words.end(), command.begin(), command.end());
  words.emplace_back(kContainer);
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  ISOLA_TRY(auto child, kernel::spawn(0, [&] { return enter_and_run(box, words, pipe.second.get(), image); }));
  pipe.second.reset();
  if (::fcntl(pipe.first.get(), F_SETFL, O_NONBLOCK) < 0) return sys_error("cannot listen to runsc");
  std::string text;
  // An engine that was taken over could keep the pipe open for ever: with the command the listening ends.
  for (bool over = false; !over;) {
    pollfd ready[2] = {{pipe.first.get(), POLLIN, 0}, {child.pidfd.get(), POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0 && errno != EINTR) return sys_error("cannot listen to runsc");
    over = ready[1].revents != 0;
    char buffer[4096];
    ssize_t n = -1;
    while (text.size() < kMostOutput && (n = ::read(pipe.first.get(), buffer, sizeof buffer)) > 0)
      text.append(buffer, static_cast<size_t>(n));
    if (n == 0 || text.size() >= kMostOutput) pipe.first.reset();  // and poll no longer looks at it
  }
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return fail(Code::unsupported, "runsc " + command.front() + ": " + reason_of(text));
}

// The folder for the files, seen through the box's map: what its root makes is the host's root's on disk. Whoever holds
// it reaches nothing but that folder.
Result<Fd> open_folder(const std::string& path, pid_t relay) {
  ISOLA_TRY(Fd userns, kernel::open_namespace(relay, "user"));
  ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, path));
  ISOLA_CHECK(
      kernel::set_attributes(tree.get(), {.nosuid = true, .nodev = true, .noexec = true, .idmap = userns.get()}));
  return tree;
}

// An engine that was taken over may have kept hold of the folder. From here on nobody changes it through this mount:
// the kernel refuses that as long as one file of it is open for writing. The engine closes them a moment after it has
// answered, and nobody is told when.
Result<void> close_folder(int folder) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    auto closed = kernel::set_attributes(folder, {.read_only = true});
    if (closed || closed.error().sys_errno != EBUSY) return closed;
    if (std::chrono::steady_clock::now() > deadline)
      return fail(Code::unsupported, "the engine does not let go of the files that it wrote");
    ::poll(nullptr, 0, 1);
  }
}

// It is paused: it goes on, whatever was before. One that does not can be used by nobody.
Result<void> go_on(const Box& box) {
  auto resumed = tell(box, {"resume"});
  if (!resumed) return fail(Code::unavailable, "the sandbox does not go on: " + resumed.error().message);
  return {};
}

Result<std::string> save(Helper::Talk& talk, const Box& box, pid_t pid, const CheckpointSpec& spec) {
  ISOLA_TRY(Fd folder, open_folder(spec.folder, pid));
  auto kept = [&]() -> Result<std::string> {
    ISOLA_CHECK(tell(box, {"pause"}));
    auto saved =
        tell(box, {"checkpoint", "--leave-running", "--image-path", "/proc/self/fd/" + std::to_string(kImageFd)},
             folder.get());
    if (!saved) return std::unexpected(saved.error().in("the memory of the sandbox cannot be saved"));
    ISOLA_CHECK(close_folder(folder.get()));
    // A launcher that died meanwhile will not know of this checkpoint: then it must not be.
    ISOLA_CHECK(talk.ask(jail::kAtRest, ""));
    return spec.at_rest();
  }();
  if (kept && !spec.keep_running) {
    ISOLA_CHECK(kernel::send_signal(box.relay.get(), SIGKILL));
    return kept;
  }
  ISOLA_CHECK(go_on(box));
  return kept;
}

}  // namespace

std::string reason_of(const std::string& output) {
  // "checkpoint failed: checkpointing container "isola": encoding error: WHAT:", then a trace of its stack.
  std::string line = output.substr(0, output.find('\n'));
  for (const char* before : {"encoding error: ", "encoding error at object "})
    if (size_t at = line.find(before); at != std::string::npos) line.erase(0, at + std::string(before).size());
  if (line.find("deleted and invalidated dentries") != std::string::npos)
    return "a file that was deleted is still open inside, and this runsc cannot keep that";
  if (line.find("cannot be saved in connected state") != std::string::npos)
    return "a connection to the outside is open, and this runsc cannot keep that";
  // It may hold names that the sandbox chose.
  line.resize(std::min(line.size(), kMostReason));
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  while (line.ends_with(':') || line.ends_with(' ')) line.pop_back();
  return line.empty() ? "it failed, and does not say why" : line;
}

Result<std::unique_ptr<Checkpointing>> begin_checkpoint(const Runsc& runsc, pid_t pid, uint64_t capabilities,
                                                        CheckpointSpec spec) {
  ISOLA_CHECK(runsc.keeps_memory());
  ISOLA_TRY(Fd relay, kernel::open_pidfd(pid));
  auto keep = spec.keep;
  keep.push_back(relay.get());
  Box box{runsc, std::move(relay), capabilities};
  ISOLA_TRY(auto helper, Helper::start({.name = "isola-keeper", .capabilities = kernel::kAllButMachine, .keep = keep},
                                       [&](Helper::Talk& talk) { return save(talk, box, pid, spec); }));
  return jail::watch_checkpoint(std::move(helper));
}

}  // namespace isola::boundary::gvisor
