#include "boundary/microvm/checkpoint.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "boundary/jail/checkpoint.h"
#include "boundary/microvm/command_line.h"
#include "boundary/microvm/monitor.h"
#include "boundary/microvm/state_stream.h"
#include "kernel/helper.h"
#include "kernel/process.h"

namespace isola::boundary::microvm {

namespace {

using kernel::Helper;

constexpr size_t kPage = StateStream::kPage;
constexpr uint64_t kMostState = 64 << 20;             // of the devices; some hundred KB are usual
constexpr auto kPatience = std::chrono::seconds(60);  // without a byte

// As the relay has them (guest/agent/machine_ends.h).
constexpr int kMonitor = 9, kMemoryFd = 10;

Result<Fd> take_from(const Fd& relay, int number) {
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_getfd, relay.get(), number, 0)));
  if (!fd) return sys_error("cannot reach the virtual machine");
  return fd;
}

Result<Monitor> take_monitor(const Fd& relay) {
  ISOLA_TRY(Fd socket, take_from(relay, kMonitor));
  int domain = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) < 0 || domain != AF_UNIX)
    return fail(Code::corrupt, "the virtual machine has no monitor any more");
  return Monitor(std::move(socket));
}

// None: the memory is an image's, of which what was changed is QEMU's own, and comes with the state.
Result<Fd> take_memory(const Fd& relay) {
  ISOLA_TRY(Fd memory, take_from(relay, kMemoryFd));
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0) return Fd();
  if ((seals & F_SEAL_SHRINK) == 0) return fail(Code::corrupt, "the virtual machine has no memory any more");
  return memory;
}

bool is_empty(const char* page) {
  static const char zeros[kPage] = {};
  return std::memcmp(page, zeros, kPage) == 0;
}

Result<void> put(int to, const char* bytes, size_t size, uint64_t at) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = ::pwrite(to, bytes + done, size - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot write the memory of the sandbox");
    done += static_cast<size_t>(n);
  }
  return {};
}

class Saving {
 public:
  Saving(Fd relay, const CheckpointSpec& spec) : relay_(std::move(relay)), spec_(spec) {}
  Result<std::string> run(Helper::Talk& talk);

 private:
  Result<void> open_files();
  Result<uint64_t> memory_size(Monitor& monitor);
  Result<void> save(Monitor& monitor);
  Result<void> read_state(int pipe, uint64_t memory);
  Result<void> await_end(Monitor& monitor);

  Fd relay_;
  const CheckpointSpec& spec_;
  Fd ram_, state_, shape_;
};

Result<void> Saving::open_files() {
  for (auto [fd, name] : {std::pair{&ram_, kRamFile}, std::pair{&state_, kStateFile}, std::pair{&shape_, kShapeFile}}) {
    *fd = Fd(::open((spec_.folder + "/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!*fd) return sys_error("cannot make the files of an image");
  }
  return {};
}

// Of {"return": {"base-memory": 466616320, …}}.
Result<uint64_t> Saving::memory_size(Monitor& monitor) {
  ISOLA_TRY(std::string answer, monitor.tell("query-memory-size-summary"));
  constexpr std::string_view kLabel = "\"base-memory\":";
  const size_t at = answer.find(kLabel);
  const uint64_t bytes = at == std::string::npos ? 0 : std::strtoull(answer.c_str() + at + kLabel.size(), nullptr, 10);
  if (bytes == 0 || bytes % kPage != 0 || bytes > (uint64_t{1} << 44))
    return fail(Code::corrupt, "the virtual machine does not say how much memory it has");
  return bytes;
}

Result<void> Saving::read_state(int pipe, uint64_t memory) {
  std::vector<bool> written(memory / kPage);
  uint64_t kept = 0;
  StateStream stream(
      memory,
      [&](uint64_t at, std::string_view page) -> Result<void> {
        const size_t number = at / kPage;
        if (!written[number] && is_empty(page.data())) return {};
        written[number] = true;
        return put(ram_.get(), page.data(), page.size(), at);
      },
      [&](std::string_view rest) -> Result<void> {
        kept += rest.size();
        if (kept > kMostState) return fail(Code::corrupt, "the virtual machine has too much state");
        return write_all(state_.get(), rest);
      });
  static char buffer[256 << 10];
  for (;;) {
    pollfd ready{pipe, POLLIN, 0};
    const int n = ::poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count()));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::timeout, "QEMU does not save the machine");
    const ssize_t got = ::read(pipe, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return sys_error("cannot read what QEMU saves");
    if (got == 0) return stream.finish();
    ISOLA_CHECK(stream.feed({buffer, static_cast<size_t>(got)}));
  }
}

// The last byte is written a moment before it says that it is done.
Result<void> Saving::await_end(Monitor& monitor) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    ISOLA_TRY(std::string answer, monitor.tell("query-migrate"));
    const std::string status = text_in(answer, "status");
    if (status == "completed") return {};
    if (status == "failed" || status == "cancelled")
      return fail(Code::unsupported, "QEMU could not save the machine: " + text_in(answer, "error-desc"));
    if (std::chrono::steady_clock::now() > deadline) return fail(Code::timeout, "QEMU does not save the machine");
    ::poll(nullptr, 0, 1);
  }
}

Result<void> Saving::save(Monitor& monitor) {
  ISOLA_TRY(const uint64_t bytes, memory_size(monitor));
  ISOLA_TRY(std::string processors, monitor.tell("query-cpus-fast"));
  Shape shape{.memory = bytes, .processors = 0};
  for (size_t at = 0; (at = processors.find("\"cpu-index\":", at)) != std::string::npos; ++at) ++shape.processors;
  ISOLA_CHECK(parse_shape(describe(shape)));  // whoever restores it reads it, too
  ISOLA_CHECK(write_all(shape_.get(), describe(shape)));
  ISOLA_TRY(Fd memory, take_memory(relay_));
  if (::ftruncate(ram_.get(), static_cast<off_t>(bytes)) < 0) return sys_error("cannot make the files of an image");
  ISOLA_CHECK(
      monitor.tell("migrate-set-capabilities", R"({"capabilities":[{"capability":"x-ignore-shared","state":true}]})"));
  // At once, and not in rounds while it goes on.
  ISOLA_CHECK(monitor.tell("migrate-set-parameters", R"({"max-bandwidth":1099511627776,"downtime-limit":2000000})"));
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  (void)::fcntl(pipe.first.get(), F_SETPIPE_SZ, 1 << 20);
  ISOLA_CHECK(monitor.tell("getfd", R"({"fdname":"state"})", pipe.second.get()));
  pipe.second.reset();
  ISOLA_CHECK(monitor.tell("migrate", R"({"uri":"fd:state"})"));
  ISOLA_CHECK(read_state(pipe.first.get(), bytes));
  ISOLA_CHECK(await_end(monitor));
  if (memory) ISOLA_CHECK(copy_memory(memory.get(), ram_.get(), bytes));
  for (const Fd* fd : {&ram_, &state_, &shape_})
    if (::fchmod(fd->get(), 0644) < 0) return sys_error("cannot make the files of an image");
  return {};
}

Result<std::string> Saving::run(Helper::Talk& talk) {
  ISOLA_CHECK(open_files());
  ISOLA_TRY(Monitor monitor, take_monitor(relay_));
  ISOLA_CHECK(monitor.greet());
  auto kept = [&]() -> Result<std::string> {
    auto saved = save(monitor);
    if (!saved) return std::unexpected(saved.error().in("the memory of the sandbox cannot be saved"));
    // A launcher that died meanwhile will not know of this checkpoint: then it must not be.
    ISOLA_CHECK(talk.ask(jail::kAtRest, ""));
    return spec_.at_rest();
  }();
  if (kept && !spec_.keep_running) {
    ISOLA_CHECK(kernel::send_signal(relay_.get(), SIGKILL));
    return kept;
  }
  if (!kept) (void)monitor.tell("migrate_cancel");
  auto goes_on = monitor.tell("cont");
  if (!goes_on) return fail(Code::unavailable, "the sandbox does not go on: " + goes_on.error().message);
  return kept;
}

}  // namespace

Result<void> copy_memory(int memory, int to, uint64_t bytes) {
  static char buffer[256 << 10];
  for (off_t at = 0; at < static_cast<off_t>(bytes);) {
    const off_t data = ::lseek(memory, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    const off_t hole = data < 0 ? -1 : ::lseek(memory, data, SEEK_HOLE);
    if (hole < 0) return sys_error("cannot read the memory of the sandbox");
    for (at = data; at < hole;) {
      const ssize_t n = ::pread(memory, buffer, std::min<size_t>(sizeof buffer, static_cast<size_t>(hole - at)), at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return sys_error("cannot read the memory of the sandbox", n < 0 ? errno : EIO);
      // In runs of pages that are not empty.
      for (ssize_t from = 0; from < n;) {
        auto empty = [&](ssize_t page) { return page + static_cast<ssize_t>(kPage) <= n && is_empty(buffer + page); };
        ssize_t end = from;
        while (end < n && !empty(end)) end = std::min<ssize_t>(n, end + static_cast<ssize_t>(kPage));
        if (end > from)
          ISOLA_CHECK(put(to, buffer + from, static_cast<size_t>(end - from), static_cast<uint64_t>(at + from)));
        while (end < n && empty(end)) end += static_cast<ssize_t>(kPage);
        from = end;
      }
      at += n;
    }
  }
  return {};
}

Result<std::unique_ptr<Checkpointing>> begin_checkpoint(pid_t pid, CheckpointSpec spec) {
  ISOLA_TRY(Fd relay, kernel::open_pidfd(pid));
  auto keep = spec.keep;
  keep.push_back(relay.get());
  Saving saving(std::move(relay), spec);
  ISOLA_TRY(auto helper, Helper::start({.name = "isola-keeper", .capabilities = kernel::kAllButMachine, .keep = keep},
                                       [&](Helper::Talk& talk) { return saving.run(talk); }));
  return jail::watch_checkpoint(std::move(helper));
}

}  // namespace isola::boundary::microvm
