#include "e2e/island.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "image/template_cache.h"

namespace isola::e2e {

namespace fs = std::filesystem;

bool full_suite() { return ::getenv("ISOLA_TEST_FULL") != nullptr; }

int count(const char* what, int fast, int full) {
  if (full_suite()) return full;
  std::printf("reduced: %s %d instead of %d (ISOLA_TEST_FULL=1 does all)\n", what, fast, full);
  return fast;
}

std::string digest_of(const std::string& template_name) {
  const char* cache = ::getenv("ISOLA_CACHE");
  auto found = image::TemplateCache(cache ? cache : "/var/cache/isola").find(template_name);
  return found ? found->digest : "";
}

Island::Island(IslandOptions options) : options_(std::move(options)), digest_(digest_of("minimal")) {
  if (options_.folder.empty()) {
    char name[] = "/tmp/isl-XXXXXX";  // short: a socket lies in it
    if (!::mkdtemp(name)) std::abort();
    data_ = name;
    own_folder_ = true;
  } else {
    data_ = options_.folder;
  }
  // What was chosen once stays, so a choice that is written down is as good as the launcher's option.
  if (!options_.layer_store.empty() &&
      (!make_dirs(data_ + "/storage", 0700) || !replace_file(data_ + "/storage/provider", options_.layer_store, 0600)))
    std::abort();
  taker_ = std::make_unique<CensusTaker>(data_);
  if (options_.start) {
    auto started = start();
    if (!started) ADD_FAILURE() << "the launcher did not start: " << started.error().message;
  }
}

Island::~Island() {
  stop();
  // Nobody is there any more, so nothing may be.
  EXPECT_TRUE(eventually([&] { return difference({}, census()).empty(); })) << "after everything:\n"
                                                                            << difference({}, census());
  std::error_code ignored;
  if (own_folder_) fs::remove_all(data_, ignored);
}

ProgramOptions Island::with_data(ProgramOptions options) const {
  options.env.push_back("ISOLA_DATA=" + data_);
  return options;
}

Argv Island::run_words(Argv words) const {
  Argv argv = {kIsola, "run", "--template", "minimal"};
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

Done Island::isola(Argv words, ProgramOptions options) {
  words.insert(words.begin(), kIsola);
  return run_program(words, with_data(std::move(options)));
}

Done Island::run(Argv words, ProgramOptions options) {
  return run_program(run_words(std::move(words)), with_data(std::move(options)));
}

Done Island::sh(const std::string& script, Argv flags, ProgramOptions options) {
  flags.insert(flags.end(), {"--", "sh", "-c", script});
  return run(std::move(flags), std::move(options));
}

Result<void> Island::start() {
  std::map<std::string, std::optional<std::string>> before;
  for (const auto& entry : options_.env) {
    auto equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    const char* old = ::getenv(name.c_str());
    before.emplace(name, old ? std::optional<std::string>(old) : std::nullopt);
    ::setenv(name.c_str(), entry.c_str() + equals + 1, 1);
  }
  auto client = launcher::Client::connect_or_start(
      {.data_dir = data_, .program = kIsola, .user = options_.user, .linger = std::chrono::seconds(300)});
  for (const auto& [name, value] : before) value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  if (!client) return std::unexpected(client.error());
  // Whatever an earlier launcher left is cleared first.
  if (!with_launcher_) {
    client = fail(Code::unavailable, "let go");  // a connection is a descriptor of the launcher
    Census last;
    // It may still be closing what it had open to start.
    eventually([&] {
      Census now = census();
      bool same = difference(last, now).empty();
      last = now;
      return same;
    });
    with_launcher_ = last;
  }
  return {};
}

std::optional<launcher::Client> Island::try_client() {
  auto client = launcher::Client::connect(data_);
  if (!client) return std::nullopt;
  return std::move(*client);
}

launcher::Client Island::client() {
  auto client = launcher::Client::connect(data_);
  if (!client) {
    ADD_FAILURE() << client.error().message;
    std::abort();
  }
  return std::move(*client);
}

pid_t Island::launcher_pid() {
  auto c = try_client();
  if (!c) return -1;
  auto info = c->info();
  return info ? info->pid : -1;
}

void Island::stop() {
  if (auto c = try_client()) (void)c->shutdown(true);
}

void Island::kill_launcher() {
  pid_t pid = launcher_pid();
  ASSERT_GT(pid, 1);
  auto pidfd = kernel::open_pidfd(pid);
  ASSERT_OK(pidfd);
  ::kill(pid, SIGKILL);
  pollfd gone{pidfd->get(), POLLIN, 0};
  ASSERT_EQ(::poll(&gone, 1, 20000), 1);
}

void Island::expect_unchanged(const std::string& after) {
  ASSERT_TRUE(with_launcher_) << "no launcher was ever started";
  {
    auto c = try_client();
    ASSERT_TRUE(c) << "the launcher is gone " << after;
    for (const char* name : {"minimal", "base"})
      if (auto digest = digest_of(name); !digest.empty()) {
        auto parked = c->park(digest, 0);
        ASSERT_TRUE(parked) << parked.error().message;
      }
  }
  auto even = [&] { return difference(*with_launcher_, census()).empty(); };
  EXPECT_TRUE(eventually(even)) << after << "\n" << difference(*with_launcher_, census());
}

std::unique_ptr<Island> SharedIsland::island_;
void SharedIsland::SetUpTestSuite() {
  if (!digest_of("minimal").empty()) island_ = std::make_unique<Island>();
}
void SharedIsland::TearDownTestSuite() { island_.reset(); }
void SharedIsland::SetUp() { NEEDS_TEMPLATE("minimal"); }
void SharedIsland::TearDown() {
  if (island_) island_->expect_unchanged();
}

void expect_complaint(const Done& done, int code, const std::string& saying) {
  EXPECT_EQ(done.code, code) << done.text();
  EXPECT_TRUE(done.err.starts_with("isola: ")) << done.text();
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.text();
  EXPECT_NE(done.err.find(saying), std::string::npos) << "should say: " << saying << "\n" << done.text();
  EXPECT_EQ(done.out, "") << done.text();
}

Result<Talking> talk(const std::string& id, boundary::Link link) {
  Talking talking{id, std::make_unique<guest::PipeClient>(std::move(link.from_guest), std::move(link.to_guest))};
  ISOLA_TRY(auto hello, talking.guest->hello());
  if (hello.id != id) return fail(Code::corrupt, "another sandbox answered: " + hello.id);
  return talking;
}

Result<Talking> launch(launcher::Client& client, const launcher::LaunchRequest& request) {
  ISOLA_TRY(auto sandbox, client.launch(request));
  return talk(sandbox.reply.id, std::move(sandbox.link));
}

Heard hear(guest::PipeClient& guest, const Argv& argv) {
  Heard heard;
  heard.exit = guest.run({.argv = argv}, {.out = [&](std::string_view s) { heard.out += s; },
                                          .err = [&](std::string_view s) { heard.err += s; }});
  return heard;
}

}  // namespace isola::e2e
