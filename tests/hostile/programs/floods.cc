// Output: more than anybody wants, in shapes that nobody expects. First argument: MiB.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

Outcome flood(int fd, long mib, bool lines) {
  std::string block(65536, 'x');
  if (lines) {
    for (size_t i = 79; i < block.size(); i += 80) block[i] = '\n';
  }
  for (long n = 0; n < mib * 16; ++n) {
    for (size_t at = 0; at < block.size();) {
      ssize_t written = ::write(fd, block.data() + at, block.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return contained(fmt::format("write: {} after {} MiB", errno_name(errno), n / 16));
      at += static_cast<size_t>(written);
    }
  }
  return breach(fmt::format("\n{} MiB went out", mib));
}

Outcome output_flood(const Args& args) { return flood(1, args.number(0, 1024), true); }
Outcome error_flood(const Args& args) { return flood(2, args.number(0, 256), true); }
Outcome endless_line(const Args& args) { return flood(1, args.number(0, 256), false); }

// One byte per write: as many messages as bytes.
Outcome byte_drip(const Args& args) {
  long bytes = args.number(0, 200) * 1024;
  for (long n = 0; n < bytes; ++n) {
    if (::write(1, n % 80 == 79 ? "\n" : ".", 1) < 0) return contained("write: " + errno_name(errno));
  }
  return breach(fmt::format("\n{} writes of one byte", bytes));
}

// Everything that a terminal or a log might obey.
Outcome escapes(const Args&) {
  constexpr std::string_view kEscapes =
      "\x1b]0;title\x07\x1b[2J\x1b[H\x1b]52;c;aXNvbGE=\x07\x1bP\x1b\\\x00\x01\x02\xff\xfe\x80\r\n\x1b[?1049h\x1b[6n\x1b"
      "c";
  if (::write(1, kEscapes.data(), kEscapes.size()) < 0) return contained("write: " + errno_name(errno));
  return breach("\nescapes went out");
}

// A command that closes its outputs and goes on is still running.
Outcome closed_output(const Args& args) {
  ::fflush(nullptr);
  for (int fd = 0; fd < 3; ++fd) ::close(fd);
  wait_until(args.number(0, 2) * 1000, [] { return false; });
  return breach("it went on with closed outputs");
}

constexpr Program kFloodPrograms[] = {
    {"output-flood", "floods", "writes 1 GiB to stdout", "host memory stays bounded, other calls go on", output_flood,
     Expect::floods, kSlow | kNeedsNeighbour, "16"},
    {"error-flood", "floods", "writes 256 MiB to stderr", "host memory stays bounded, other calls go on", error_flood,
     Expect::floods, kSlow, "16"},
    {"endless-line", "floods", "writes 256 MiB without a newline", "host memory stays bounded", endless_line,
     Expect::floods, kSlow, "16"},
    {"byte-drip", "floods", "writes 200 KiB one byte at a time", "messages are joined; it ends in time", byte_drip,
     Expect::floods, 0, "8"},
    {"escapes", "floods", "writes terminal escapes and binary zeros", "they arrive as they are", escapes,
     Expect::floods},
    {"closed-output", "floods", "closes its outputs and goes on", "counted as running until it ends", closed_output,
     Expect::floods, kRunsBare, "1"},
};

}  // namespace

Family flood_programs() { return kFloodPrograms; }

}  // namespace isola::hostile
