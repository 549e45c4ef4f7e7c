// isola-api-bench [--quick|--full] [--json FILE] [--table FILE]: the server over HTTP, beside what it is built on.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/file.h"
#include "bench/api/world.h"

using namespace isola;
using namespace isola::bench;

namespace {

Result<void> measure(Mode mode, Report& report) {
  char self[4096];
  ssize_t n = ::readlink("/proc/self/exe", self, sizeof self - 1);
  if (n < 0) return sys_error("cannot find this program");
  std::string path(self, static_cast<size_t>(n));
  double load[1] = {0};
  if (::getloadavg(load, 1) == 1 && load[0] > 0.5) {
    char text[120];
    std::snprintf(text, sizeof text, "the machine was busy when this began (load %.2f)", load[0]);
    report.note(text);
  }
  const std::string isola = path.substr(0, path.rfind('/')) + "/isola";
  ISOLA_CHECK(bench_start(isola, report, mode));
  ISOLA_TRY(World world, World::start(isola));
  ISOLA_CHECK(bench_create(world, report, mode));
  ISOLA_CHECK(bench_requests(world, report, mode));
  return bench_previews(world, report, mode);
}

}  // namespace

int main(int argc, char** argv) {
  Mode mode = Mode::normal;
  std::string json, table;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--quick") {
      mode = Mode::quick;
    } else if (word == "--full") {
      mode = Mode::full;
    } else if ((word == "--json" || word == "--table") && i + 1 < argc) {
      (word == "--json" ? json : table) = argv[++i];
    } else {
      std::fprintf(stderr, "usage: isola-api-bench [--quick|--full] [--json FILE] [--table FILE]\n");
      return 2;
    }
  }
  Report report;
  report.note("boundary: jail (a shared kernel); template minimal; access log on, to a file");
  auto measured = measure(mode, report);
  if (!measured) {
    std::fprintf(stderr, "isola-api-bench: %s\n", measured.error().message.c_str());
    return 1;
  }
  std::string text = report.table();
  if (!table.empty()) (void)replace_file(table, text);
  if (!json.empty()) {
    const char* name = mode == Mode::quick ? "quick" : mode == Mode::full ? "full" : "normal";
    (void)report.write_json(json, name);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}
