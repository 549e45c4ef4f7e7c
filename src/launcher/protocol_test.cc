#include "launcher/protocol.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace isola::launcher {
namespace {

// Every value survives the way there and back; cut short anywhere, it is refused; with a byte too many, too.
template <typename T>
T there_and_back(const T& value) {
  Writer out;
  encode(out, value);
  const std::string bytes = out.data();
  for (size_t n = 0; n < bytes.size(); ++n) {
    Reader in(std::string_view(bytes).substr(0, n));
    T cut;
    decode(in, cut);
    EXPECT_FALSE(in.done()) << "cut to " << n << " of " << bytes.size();
  }
  {
    std::string longer = bytes + "x";
    Reader in(longer);
    T more;
    decode(in, more);
    EXPECT_FALSE(in.done()) << "a byte too many";
  }
  Reader in(bytes);
  T back;
  decode(in, back);
  EXPECT_TRUE(in.done());
  return back;
}

TEST(LauncherProtocol, LaunchRequest) {
  LaunchRequest request{.digest = std::string(64, 'd'),
                        .limits = {.cpus = 1.25,
                                   .memory = 123456789,
                                   .pids = 77,
                                   .disk = 1ull << 40,
                                   .open_files = 99,
                                   .io_bytes_per_second = 5,
                                   .wall_time = std::chrono::milliseconds(1234)},
                        .ephemeral = false,
                        .cold = true,
                        .allow_unquotaed = true,
                        .shown_targets = {"/mnt", "", std::string("a\0b", 3)},
                        .image = "maaaaaaaaaaaaaaaaaaaa",
                        .files_only = true,
                        .forked = true,
                        .id = "ibbbbbbbbbbbbbbbbbbbb",
                        .spend = true,
                        .life = 1ll << 42};
  auto back = there_and_back(request);
  EXPECT_EQ(back.digest, request.digest);
  EXPECT_EQ(back.limits, request.limits);
  EXPECT_EQ(back.ephemeral, false);
  EXPECT_EQ(back.cold, true);
  EXPECT_EQ(back.allow_unquotaed, true);
  EXPECT_EQ(back.shown_targets, request.shown_targets);
  EXPECT_EQ(back.image, request.image);
  EXPECT_EQ(back.files_only, true);
  EXPECT_EQ(back.forked, true);
  EXPECT_EQ(back.id, request.id);
  EXPECT_EQ(back.spend, true);
  EXPECT_EQ(back.life, 1ll << 42);
}

TEST(LauncherProtocol, Images) {
  auto request = there_and_back(CheckpointRequest{.id = "i1", .memory = false, .keep_running = true, .image = "m2"});
  EXPECT_EQ(request.id, "i1");
  EXPECT_FALSE(request.memory);
  EXPECT_TRUE(request.keep_running);
  EXPECT_EQ(request.image, "m2");
  CheckpointReply reply{.image = "m1", .parent = "m0", .memory_bytes = 1ull << 40, .layer_bytes = 7};
  reply.latency.add(Step::dump, std::chrono::nanoseconds(5));
  auto back = there_and_back(reply);
  EXPECT_EQ(back.image + back.parent, "m1m0");
  EXPECT_EQ(back.memory_bytes, 1ull << 40);
  EXPECT_EQ(back.layer_bytes, 7u);
  EXPECT_EQ(back.latency.of(Step::dump).count(), 5);
  auto summary = there_and_back(ImageSummary{.id = "m1",
                                             .sandbox = "i1",
                                             .verb = "pause",
                                             .parent = "m0",
                                             .digest = "d",
                                             .created = -5,
                                             .memory = true,
                                             .layers = 3,
                                             .memory_bytes = 8,
                                             .layer_bytes = 9});
  EXPECT_EQ(summary.id + summary.sandbox + summary.verb + summary.parent + summary.digest, "m1i1pausem0d");
  EXPECT_EQ(summary.created, -5);
  EXPECT_TRUE(summary.memory);
  EXPECT_EQ(summary.layers, 3u);
  EXPECT_EQ(summary.memory_bytes, 8u);
  EXPECT_EQ(summary.layer_bytes, 9u);
}

TEST(LauncherProtocol, ProcessorsThatAreNoNumber) {
  for (double cpus : {-1.0, std::nan(""), -std::numeric_limits<double>::infinity()})
    EXPECT_EQ(there_and_back(LaunchRequest{.limits = {.cpus = cpus}}).limits.cpus, 0);
  EXPECT_GE(there_and_back(LaunchRequest{.limits = {.cpus = 1e300}}).limits.cpus, 1e6);
  EXPECT_EQ(there_and_back(LaunchRequest{.limits = {.cpus = 0.29}}).limits.cpus, 0.29) << "rounded, not cut";
}

TEST(LauncherProtocol, TheBoundaryIsCarried) {
  boundary::Choice choice{.wish = BoundaryWish::strongest, .at_least = BoundaryKind::gvisor};
  EXPECT_EQ(there_and_back(LaunchRequest{.boundary = choice}).boundary, choice);
}

TEST(LauncherProtocol, LaunchReply) {
  LaunchReply reply{
      .id = "iaaaaaaaaaaaaaaaaaaaa", .birth = Birth::pooled, .kind = BoundaryKind::uml, .engine = {"linux", "6.1"}};
  reply.latency.add(Step::layer, std::chrono::nanoseconds(17));
  reply.latency.add(Step::exec, std::chrono::nanoseconds(1ll << 40));
  auto back = there_and_back(reply);
  EXPECT_EQ(back.id, reply.id);
  EXPECT_EQ(back.birth, reply.birth);
  EXPECT_EQ(back.kind, reply.kind);
  EXPECT_EQ(back.engine, reply.engine);
  EXPECT_EQ(back.latency.of(Step::layer).count(), 17);
  EXPECT_EQ(back.latency.of(Step::exec).count(), 1ll << 40);
}

TEST(LauncherProtocol, Summary) {
  auto back = there_and_back(SandboxSummary{.id = "i",
                                            .digest = "d",
                                            .state = State::frozen,
                                            .birth = Birth::forked,
                                            .parked = true,
                                            .pid = 42,
                                            .created = -1,
                                            .life = 1ll << 41});
  EXPECT_EQ(back.state, State::frozen);
  EXPECT_EQ(back.birth, Birth::forked);
  EXPECT_TRUE(back.parked);
  EXPECT_EQ(back.pid, 42);
  EXPECT_EQ(back.created, -1);
  EXPECT_EQ(back.life, 1ll << 41);
}

TEST(LauncherProtocol, EndedAndStats) {
  auto back = there_and_back(Ended{.id = "i", .reason = EndReason::oom, .status = -1, .usage = {1, 2, 3, 4, 5, 6}});
  EXPECT_EQ(back.reason, EndReason::oom);
  EXPECT_EQ(back.status, -1);
  EXPECT_EQ(back.usage.cpu_usec, 1u);
  EXPECT_EQ(back.usage.disk_bytes, 6u);
  EXPECT_EQ(there_and_back(StatsReply{.oom_kills = 9}).oom_kills, 9u);
}

TEST(LauncherProtocol, InfoAndError) {
  auto info = there_and_back(InfoReply{
      .version = "1",
      .pid = 7,
      .boundaries =
          {{.kind = BoundaryKind::jail, .offered = true, .engine = {"linux", "6.1", true}, .detail = "shared kernel"},
           {.kind = BoundaryKind::gvisor, .missing = "runsc"}},
      .layer_store = "btrfs",
      .disk_enforced = true,
      .live = 1,
      .parked = 2,
      .cleaning = 3,
      .protections = "x\ny"});
  EXPECT_EQ(info.parked, 2u);
  ASSERT_EQ(info.boundaries.size(), 2u);
  EXPECT_EQ(info.boundaries[0].engine, (boundary::Engine{"linux", "6.1", true}));
  EXPECT_EQ(info.boundaries[0].detail, "shared kernel");
  EXPECT_FALSE(info.boundaries[1].offered);
  EXPECT_EQ(info.boundaries[1].missing, "runsc");
  EXPECT_EQ(info.protections, "x\ny");
  auto error = there_and_back(Error{Code::exhausted, "no room", ENOSPC});
  EXPECT_EQ(error.code, Code::exhausted);
  EXPECT_EQ(error.message, "no room");
  EXPECT_EQ(error.sys_errno, ENOSPC);
}

// Numbers that name nothing must not become an enum that names nothing.
TEST(LauncherProtocol, UnknownWordsAreRefused) {
  Writer out;
  encode(out, Ended{.id = "i", .reason = EndReason::exited});
  std::string bytes = out.data();
  size_t at = bytes.find('i') + 1;
  bytes[at] = '\x63';
  Reader in(bytes);
  Ended ended;
  decode(in, ended);
  EXPECT_FALSE(in.done());
}

}  // namespace
}  // namespace isola::launcher
