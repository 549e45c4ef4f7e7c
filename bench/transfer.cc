// A large file into a sandbox and out again over the link, against a process of the host that writes and reads it on a
// layer of the same kind.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "base/units.h"
#include "bench/stage.h"

namespace isola::bench {

namespace {

constexpr size_t kPiece = 64 << 10;

Result<double> host_writes(const std::string& path, uint64_t bytes) {
  const std::string piece(kPiece, 'x');
  auto start = Clock::now();
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) return sys_error("cannot write " + path);
  for (uint64_t done = 0; done < bytes; done += kPiece) ISOLA_CHECK(write_all(file.get(), piece));
  return micros_since(start);
}

Result<double> host_reads(const std::string& path) {
  std::string piece(kPiece, 0);
  auto start = Clock::now();
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return sys_error("cannot read " + path);
  while (::read(file.get(), piece.data(), piece.size()) > 0) {
  }
  return micros_since(start);
}

Result<double> guest_writes(guest::PipeClient& guest, const std::string& path, uint64_t bytes) {
  uint64_t left = bytes;
  auto start = Clock::now();
  ISOLA_TRY(auto done, guest.write_file({.path = path}, [&](char* buffer, size_t size) -> Result<size_t> {
    size_t n = std::min<uint64_t>(size, left);
    std::fill_n(buffer, n, 'x');
    left -= n;
    return n;
  }));
  if (done.bytes != bytes) return fail(Code::internal, "the guest wrote another number of bytes");
  return micros_since(start);
}

Result<double> guest_reads(guest::PipeClient& guest, const std::string& path, uint64_t bytes) {
  uint64_t got = 0;
  auto start = Clock::now();
  ISOLA_CHECK(guest.read_file({.path = path}, [&](std::string_view piece) -> Result<void> {
    got += piece.size();
    return {};
  }));
  if (got != bytes) return fail(Code::internal, "the guest sent another number of bytes");
  return micros_since(start);
}

}  // namespace

Result<void> bench_transfer(Stage& stage) {
  Report& report = stage.report();
  const uint64_t bytes = stage.pick<uint64_t>(64, 1024, 1024) << 20;
  const std::string group = fmt::format("A file of {} in and out", format_size(bytes)), path = "/root/large";
  report.progress(group);
  boundary::Limits limits{.memory = 1ull << 30, .disk = 4ull << 30};
  ISOLA_TRY(auto sandbox, stage.launcher().launch(
                              {.digest = stage.digest(), .limits = limits, .cold = true, .allow_unquotaed = true}));
  guest::PipeClient guest(std::move(sandbox.link.from_guest), std::move(sandbox.link.to_guest));
  Samples host_in, host_out, in, out;
  for (int round = 0; round < stage.pick(3, 3, 5); ++round) {
    ISOLA_TRY(double t1, host_writes(stage.root() + path, bytes));
    ISOLA_TRY(double t2, guest_writes(guest, path, bytes));
    ISOLA_TRY(double t3, host_reads(stage.root() + path));
    ISOLA_TRY(double t4, guest_reads(guest, path, bytes));
    host_in.add(t1), in.add(t2), host_out.add(t3), out.add(t4);
    ISOLA_CHECK(guest.remove({.path = path}));
    ::unlink((stage.root() + path).c_str());
  }
  ISOLA_CHECK(stage.launcher().kill(sandbox.reply.id));
  auto speed = [&](const Samples& s) {
    return fmt::format("{:.0f} MiB/s", static_cast<double>(bytes >> 20) / s.p50() * 1e6);
  };
  report.timing(group, "in, over the link", in, speed(in));
  report.timing(group, "out, over the link", out, speed(out));
  report.timing(group, "a host process writes it", host_in, speed(host_in));
  report.timing(group, "a host process reads it", host_out, speed(host_out));
  if (stage.mode() == Mode::quick) report.note("reduced: the file has 64 MiB, 1 GiB without --quick");
  return {};
}

}  // namespace isola::bench
