// Real work inside and outside: the same commands on the same template, in a sandbox, in a chroot whose writable layer
// is of the same kind (so only the boundary differs), and in a chroot on the host's own file system.
#include <fmt/format.h>

#include "bench/stage.h"

namespace isola::bench {

namespace {

struct Job {
  std::string name, script;
  bool toolchain = false;
};

// Each leaves nothing behind and says nothing.
std::vector<Job> jobs(unsigned cores, int size) {
  return {
      {"python loop (one core)",
       fmt::format("exec python3 -c 'x = 0\nfor i in range({}): x = (x * 31 + i) % 1000003'", 1'500'000 * size)},
      {"many small files, tar, sort",
       fmt::format("set -e; mkdir /root/w; cd /root/w; mkdir a b; i=0; "
                   "while [ $i -lt {} ]; do echo \"line $i of a file\" > a/$i; i=$((i+1)); done; "
                   "tar cf t.tar a; tar xf t.tar -C b; find b -type f | sort | xargs cat | sort -r | sha256sum > sum; "
                   "cp -r a c; cd /; rm -rf /root/w",
                   600 * size)},
      {"compile and link C",
       fmt::format("set -e; mkdir /root/w; cd /root/w; i=0; while [ $i -lt {0} ]; do "
                   "{{ echo '#include <stdio.h>'; echo '#include <string.h>'; j=0; while [ $j -lt 40 ]; do "
                   "echo \"int f${{i}}_$j(const char *s, int n) {{ int r = n; for (int k = 0; k < n; ++k) r = r * 31 + "
                   "s[k % 7] + (int)strlen(s); if (r == $j) puts(s); return r; }}\"; j=$((j+1)); done; }} > u$i.c; "
                   "i=$((i+1)); done; echo 'int main(void) {{ return 0; }}' > main.c; "
                   "ls *.c | xargs -n 1 -P {1} gcc -O1 -c; gcc -o program *.o; ./program; cd /; rm -rf /root/w",
                   6 * size, cores),
       true},
  };
}

}  // namespace

Result<void> bench_work(Stage& stage) {
  Report& report = stage.report();
  report.progress("work inside and outside");
  auto base = stage.borrow_template("base");
  if (!base) report.note("the template base is not built here: no compile job, the others on minimal");
  std::string digest = base ? *base : stage.digest();
  ISOLA_TRY(std::string same, stage.outside_root("work", digest, true));
  ISOLA_TRY(std::string plain, stage.outside_root("work-plain", digest, false));
  boundary::Limits limits{.cpus = static_cast<double>(stage.cores()), .memory = 2ull << 30, .disk = 8ull << 30};
  ISOLA_TRY(auto sandbox,
            stage.launcher().launch({.digest = digest, .limits = limits, .cold = true, .allow_unquotaed = true}));
  guest::PipeClient guest(std::move(sandbox.link.from_guest), std::move(sandbox.link.to_guest));

  const std::string group = "Work inside and outside";
  const int rounds = stage.pick(3, 7, 15);
  for (const auto& job : jobs(stage.cores(), stage.pick(1, 2, 4))) {
    if (job.toolchain && !base) continue;
    Samples inside, outside, host;
    const std::vector<std::string> argv = {"/bin/sh", "-c", job.script};
    // Three in turn, each round beginning with another one; the first round only warms the caches.
    for (int round = -1; round < rounds; ++round) {
      for (int i = 0; i < 3; ++i) {
        int which = (round + 1 + i) % 3;
        Result<Timing> timing = which == 0   ? run_in(guest, argv)
                                : which == 1 ? run_program({.argv = argv, .root = same})
                                             : run_program({.argv = argv, .root = plain});
        if (!timing) return std::unexpected(timing.error());
        if (round >= 0) (which == 0 ? inside : which == 1 ? outside : host).add(timing->exit);
      }
    }
    double ratio = paired_ratio(inside, outside);
    report.timing(group, job.name + ": inside", inside, fmt::format("{:.3f}× outside", ratio));
    report.timing(group, job.name + ": outside, same kind of layer", outside);
    report.timing(group, job.name + ": outside, the host's own file system", host,
                  fmt::format("inside is {:.3f}× this", paired_ratio(inside, host)));
    report.goal(job.name + ", inside against outside", ratio, 1.05);
  }
  ISOLA_CHECK(stage.launcher().kill(sandbox.reply.id));
  return {};
}

}  // namespace isola::bench
