#include "boundary/microvm/saving.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "boundary/microvm/command_line.h"
#include "boundary/microvm/state_stream.h"
#include "kernel/process.h"

namespace isola::boundary::microvm {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kPage = StateStream::kPage;
constexpr uint64_t kMostState = 64 << 20;  // of the devices; some hundred KB are usual
// Of its memory: a page that changes while it is saved comes once more. Each is written where it belongs, so this is
// about time, and not about room.
constexpr uint64_t kMostRounds = 16;
constexpr uint64_t kSlowest = 4 << 20;  // bytes of its memory in a second

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

// Of {"return": {"base-memory": 466616320, …}}.
Result<uint64_t> memory_size(Monitor& monitor, uint64_t most) {
  ISOLA_TRY(std::string answer, monitor.tell("query-memory-size-summary"));
  constexpr std::string_view kLabel = "\"base-memory\":";
  const size_t at = answer.find(kLabel);
  const uint64_t bytes = at == std::string::npos ? 0 : std::strtoull(answer.c_str() + at + kLabel.size(), nullptr, 10);
  if (bytes == 0 || bytes % kPage != 0)
    return fail(Code::corrupt, "the virtual machine does not say how much memory it has");
  if (bytes > most)
    return fail(Code::corrupt,
                fmt::format("the virtual machine says that it has {} MiB of memory: more than its limit", bytes >> 20));
  return bytes;
}

class Saving {
 public:
  Saving(Monitor& monitor, const SavedFiles& files, uint64_t memory, const Patience& patience)
      : monitor_(monitor),
        files_(files),
        memory_(memory),
        patience_(patience),
        deadline_(Clock::now() + patience.least + milliseconds(memory * 1000 / kSlowest)) {}
  Result<void> write_shape();
  Result<void> migrate();

 private:
  Result<void> page(uint64_t at, std::string_view bytes);
  Result<void> rest(std::string_view bytes);
  Result<void> read_state(int pipe, const std::string& asked);
  Result<bool> wait(int pipe, bool answered);  // false: it is the monitor that has something to say
  Result<void> await_end();

  Monitor& monitor_;
  const SavedFiles& files_;
  uint64_t memory_;
  const Patience& patience_;
  Clock::time_point deadline_;
  std::vector<bool> written_ = std::vector<bool>(memory_ / kPage);
  uint64_t pages_ = 0, kept_ = 0;
};

Result<void> Saving::write_shape() {
  ISOLA_TRY(std::string processors, monitor_.tell("query-cpus-fast"));
  Shape shape{.memory = memory_, .processors = 0};
  for (size_t at = 0; (at = processors.find("\"cpu-index\":", at)) != std::string::npos; ++at) ++shape.processors;
  ISOLA_CHECK(parse_shape(describe(shape)));  // whoever restores it reads it, too
  return write_all(files_.shape.get(), describe(shape));
}

Result<void> Saving::page(uint64_t at, std::string_view bytes) {
  if (++pages_ > kMostRounds * written_.size())
    return fail(Code::corrupt, "the virtual machine does not come to an end with its memory");
  const size_t number = at / kPage;
  if (!written_[number] && is_empty(bytes.data())) return {};
  written_[number] = true;
  return put(files_.ram.get(), bytes.data(), bytes.size(), at);
}

Result<void> Saving::rest(std::string_view bytes) {
  kept_ += bytes.size();
  if (kept_ > kMostState) return fail(Code::corrupt, "the virtual machine has too much state");
  return write_all(files_.state.get(), bytes);
}

Result<bool> Saving::wait(int pipe, bool answered) {
  for (;;) {
    pollfd ready[] = {{pipe, POLLIN, 0}, {monitor_.fd(), POLLIN, 0}};
    const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now());
    const auto time = std::min(left, patience_.silence);
    const int n = time.count() > 0 ? ::poll(ready, answered ? 1 : 2, static_cast<int>(time.count())) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::timeout, "QEMU does not save the machine");
    return ready[0].revents != 0;
  }
}

// It may begin to write before it answers, and answer only when it has written: it is read from whatever happens.
Result<void> Saving::read_state(int pipe, const std::string& asked) {
  StateStream stream(
      memory_, [&](uint64_t at, std::string_view bytes) { return page(at, bytes); },
      [&](std::string_view bytes) { return rest(bytes); });
  static char buffer[256 << 10];
  bool answered = false;
  for (;;) {
    ISOLA_TRY(bool has_come, wait(pipe, answered));
    if (!has_come) {
      ISOLA_TRY(auto answer, monitor_.answer(asked));  // that it cannot is an error, and there is nothing to read
      answered = answer.has_value();
      continue;
    }
    const ssize_t got = ::read(pipe, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return sys_error("cannot read what QEMU saves");
    if (got == 0) break;
    ISOLA_CHECK(stream.feed({buffer, static_cast<size_t>(got)}));
  }
  return stream.finish();
}

// The last byte is written a moment before it says that it is done.
Result<void> Saving::await_end() {
  for (;;) {
    ISOLA_TRY(std::string answer, monitor_.tell("query-migrate"));
    const std::string status = text_in(answer, "status");
    if (status == "completed") return {};
    if (status == "failed" || status == "cancelled")
      return fail(Code::unsupported, "QEMU could not save the machine: " + text_in(answer, "error-desc"));
    if (Clock::now() > deadline_) return fail(Code::timeout, "QEMU does not save the machine");
    ::poll(nullptr, 0, 1);
  }
}

Result<void> Saving::migrate() {
  ISOLA_CHECK(
      monitor_.tell("migrate-set-capabilities", R"({"capabilities":[{"capability":"x-ignore-shared","state":true}]})"));
  // At once, and not in rounds while it goes on.
  ISOLA_CHECK(monitor_.tell("migrate-set-parameters", R"({"max-bandwidth":1099511627776,"downtime-limit":2000000})"));
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  (void)::fcntl(pipe.first.get(), F_SETPIPE_SZ, 1 << 20);
  ISOLA_CHECK(monitor_.tell("getfd", R"({"fdname":"state"})", pipe.second.get()));
  pipe.second.reset();
  ISOLA_TRY(const std::string asked, monitor_.begin("migrate", R"({"uri":"fd:state"})"));
  ISOLA_CHECK(read_state(pipe.first.get(), asked));
  return await_end();
}

}  // namespace

Result<void> save_machine(Monitor& monitor, const Fd& memory, const SavedFiles& files, uint64_t most,
                          const Patience& patience) {
  ISOLA_TRY(const uint64_t bytes, memory_size(monitor, most));
  Saving saving(monitor, files, bytes, patience);
  ISOLA_CHECK(saving.write_shape());
  if (::ftruncate(files.ram.get(), static_cast<off_t>(bytes)) < 0)
    return sys_error("cannot make the files of an image");
  ISOLA_CHECK(saving.migrate());
  return memory ? copy_memory(memory.get(), files.ram.get(), bytes) : Result<void>();
}

Result<void> let_go_on(Monitor& monitor, bool failed, milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  // What was given up ends in its own time, and nothing goes on before that.
  if (failed) (void)monitor.tell("migrate_cancel");
  for (bool over = !failed; !over && Clock::now() < deadline;) {
    ISOLA_TRY(std::string answer, monitor.tell("query-migrate"));
    const std::string status = text_in(answer, "status");
    over = status.empty() || status == "none" || status == "completed" || status == "failed" || status == "cancelled";
    if (!over) ::poll(nullptr, 0, 1);
  }
  for (;;) {
    auto goes_on = monitor.tell("cont");
    // Refused for the moment ("Migration is not finalized yet").
    const bool later = !goes_on && goes_on.error().code == Code::unsupported && Clock::now() < deadline;
    if (goes_on || !later) return goes_on ? Result<void>() : std::unexpected(goes_on.error());
    ::poll(nullptr, 0, 1);
  }
}

Result<void> copy_memory(int memory, int to, uint64_t bytes) {
  static char buffer[256 << 10];
  for (off_t at = 0; at < static_cast<off_t>(bytes);) {
    const off_t data = ::lseek(memory, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    off_t hole = data < 0 ? -1 : ::lseek(memory, data, SEEK_HOLE);
    if (hole < 0) return sys_error("cannot read the memory of the sandbox");
    hole = std::min(hole, static_cast<off_t>(bytes));
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

}  // namespace isola::boundary::microvm
