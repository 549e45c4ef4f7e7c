// A jail with the real guest, a Python child and more goes through criu and comes back as another sandbox would: on a
// new root, with other host ids, in a new network namespace and control group, and exactly as protected as before.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "boundary/jail/jail.h"
#include "boundary/jail/stage.h"
#include "boundary/jail/syscall_policy.h"
#include "external_mounts.h"
#include "guest/client.h"
#include "image/mount_blob.h"
#include "image/template_cache.h"
#include "jail_image.h"
#include "kernel/capability.h"
#include "kernel/mount.h"
#include "launcher/client.h"

namespace isola::criu {
namespace {

namespace jail = boundary::jail;

// Takes a line, counts, answers. A thread tries all the while to look into process 1. Memory holds a random word.
constexpr char kCounter[] = R"(
import os, sys, threading, time
word, count, peeks, tries = os.urandom(16).hex(), 0, 0, 0
def peek():
    global peeks, tries
    while True:
        for path in ('/proc/1/fd/3', '/proc/1/fd/4', '/proc/1/mem', '/proc/1/environ'):
            try:
                os.close(os.open(path, os.O_RDWR if path.endswith('mem') else os.O_RDONLY | os.O_NONBLOCK))
                peeks += 1
            except PermissionError: pass
        tries += 1
        time.sleep(0.002)
threading.Thread(target=peek, daemon=True).start()
for line in sys.stdin:
    count += 1
    seen = tries
    while tries < seen + 2: time.sleep(0.001)
    print(word, count, peeks, flush=True)
)";

constexpr char kTicker[] = R"(
while :; do echo tick; sleep 0.02; done | while read x; do n=$((n+1)); echo $n >/tmp/.ticks; mv /tmp/.ticks /tmp/ticks; done
)";

constexpr char kStage[] = "/mnt";  // in this process alone

std::string criu_program() { return "/var/cache/isola/tools/criu"; }

#define ASSERT_OK(result)                              \
  do {                                                 \
    auto&& r_ = (result);                              \
    ASSERT_TRUE(r_.has_value()) << r_.error().message; \
  } while (0)

// A conversation with a guest, and with the counting child in it.
class Guest {
 public:
  explicit Guest(boundary::Link link) : client_(std::move(link.from_guest), std::move(link.to_guest)) {}
  guest::PipeClient& client() { return client_; }

  Result<std::string> sh(const std::string& script, const std::string& user = "") {
    std::string out;
    auto take = [&](std::string_view s) { out += s; };
    ISOLA_TRY(auto exit, client_.run({.argv = {"sh", "-c", script}, .user = user}, {.out = take, .err = take}));
    if (exit.code != 0) return fail(Code::internal, script + ": exit " + std::to_string(exit.code) + ": " + out);
    return out;
  }
  // Sends a line to the process and gives the next line of its answer.
  Result<std::string> ask(const std::shared_ptr<guest::Run>& run, std::string& received,
                          const std::string& line = "next") {
    ISOLA_CHECK(client_.write_stdin(run, line + "\n"));
    ISOLA_CHECK(client_.pump_until([&] { return received.find('\n') != received.npos || run->ended(); },
                                   std::chrono::seconds(30)));
    size_t end = received.find('\n');
    if (end == received.npos) return fail(Code::internal, "no answer from the counting child");
    std::string answer = received.substr(0, end);
    received.erase(0, end + 1);
    return answer;
  }

 private:
  guest::PipeClient client_;
};

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the guest of a sanitizer build needs libraries that no template has";
#endif
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    if (::access(criu_program().c_str(), X_OK) < 0) GTEST_SKIP() << "no criu here; `./dev criu` provides one";
    auto found = image::TemplateCache().find("minimal");
    if (!found) GTEST_SKIP() << "no template `minimal` here; `isola template build minimal` makes it";
    char name[] = "/tmp/isola-criu-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    data_ = name;
    digest_ = found->digest;
    home_ = Fd(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
    auto client = launcher::Client::connect_or_start({.data_dir = data_, .program = ISOLA_BINARY});
    ASSERT_OK(client);
    launcher_.emplace(std::move(*client));
    ASSERT_NO_FATAL_FAILURE(enter_launcher());
    ASSERT_NO_FATAL_FAILURE(prepare());
  }

  void TearDown() override {
    if (data_.empty()) return;
    checkpointer_.reset();
    layers_.reset();
    if (launcher_) {
      EXPECT_TRUE(launcher_->shutdown(true).has_value());
    }
    ASSERT_EQ(::setns(home_.get(), CLONE_NEWNS), 0);  // the private mounts go with the namespace
    std::error_code ignored;
    std::filesystem::remove_all(data_, ignored);
  }

  // To where the launcher's layers, blobs and stage are, with a private copy of its mount table.
  void enter_launcher() {
    auto info = launcher_->info();
    ASSERT_OK(info);
    auto mounts = kernel::open_namespace(info->pid, "mnt");
    ASSERT_OK(mounts);
    ASSERT_EQ(::setns(mounts->get(), CLONE_NEWNS), 0) << strerror(errno);
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0) << strerror(errno);
    ASSERT_OK(kernel::make_all_private());
    ASSERT_OK(kernel::keep_capabilities_across_setuid());  // as the launcher: overlays are mounted with borrowed ids
    // The data directory is closed to everybody but root, and criu looks the external mounts up as the sandbox's root.
    auto stage = kernel::clone_tree(AT_FDCWD, data_ + "/stage");
    ASSERT_OK(stage);
    Fd point(::open(kStage, O_PATH | O_DIRECTORY | O_CLOEXEC));
    ASSERT_OK(kernel::attach(stage->get(), point.get(), "."));
    ASSERT_EQ(::chdir(kStage), 0) << strerror(errno);
  }

  void prepare() {
    auto blob = image::mount_blob(image::TemplateCache().blob_path(digest_));
    ASSERT_OK(blob);
    ASSERT_OK(make_dirs(image_point()));
    ASSERT_OK(kernel::attach(blob->get(), AT_FDCWD, image_point()));
    auto layers = image::open_layer_store(data_, {}, image::AllowUnquotaedDisk{});
    ASSERT_OK(layers);
    layers_ = std::move(*layers);
    auto cgroups = kernel::CgroupTree::detect({.disk = data_});
    ASSERT_OK(cgroups);
    cgroups_.emplace(std::move(*cgroups));
    auto ranges = launcher::IdRanges::open(data_);
    ASSERT_OK(ranges);
    ranges_.emplace(std::move(*ranges));
    auto network = boundary::IslandNetwork::prepare();
    ASSERT_OK(network);
    network_.emplace(std::move(*network));
    auto filter = boundary::jail_syscall_program();
    ASSERT_OK(filter);
    wanted_ = {.id_count = jail::kIdCount,
               .capabilities = jail::kCapabilities,
               .filter_hash = filter->hash(),
               .mounts = jail::standard_mounts()};
    ASSERT_OK(prepare_sources(wanted_.mounts));
    checkpointer_.emplace(Checkpointer::Parts{.criu = criu_program(),
                                              .preload = ISOLA_CRIU_PRELOAD,
                                              .stage = kStage,
                                              .scratch = data_ + "/images",
                                              .layers = *layers_,
                                              .cgroups = *cgroups_,
                                              .ranges = *ranges_,
                                              .network = *network_,
                                              .mounts = wanted_.mounts,
                                              .limits = limits_});
  }

  struct Born {
    std::string id;
    pid_t pid = 0;
    boundary::Link link;
  };
  Result<Born> launch() {
    ISOLA_TRY(auto sandbox,
              launcher_->launch({.digest = digest_, .limits = limits_, .ephemeral = false, .allow_unquotaed = true}));
    Born born{.id = sandbox.reply.id, .link = std::move(sandbox.link)};
    ISOLA_TRY(auto all, launcher_->list());
    for (const auto& one : all)
      if (one.id == born.id) born.pid = one.pid;
    if (born.pid <= 0) return fail(Code::internal, "the launcher does not list its sandbox");
    return born;
  }

  // The dump of a sandbox of the launcher's: its files are copied while it stands still, since the launcher clears it
  // away as soon as it has ended.
  Result<Image> dump(const Born& born) {
    auto frozen = [&]() -> Result<std::vector<std::string>> {
      ISOLA_TRY(std::string layer, layers_->path(born.id));
      ISOLA_TRY(std::string copy, checkpointer_->copy_upper(layer + "/upper"));
      return std::vector<std::string>{copy, image_point()};
    };
    ISOLA_TRY(auto image, checkpointer_->dump(born.pid, frozen));
    for (;;) {  // nothing of the source is left when this returns
      ISOLA_TRY(auto event, launcher_->next_event());
      if (event && event->id == born.id) break;
      pollfd ready{launcher_->fd(), POLLIN, 0};
      if (::poll(&ready, 1, 30000) <= 0) return fail(Code::unavailable, "the launcher does not notice the end");
    }
    return image;
  }
  // The dump of one that we restored: its layer is simply not written to any more.
  Result<Image> dump(Restored& jail) {
    auto frozen = [&]() -> Result<std::vector<std::string>> {
      auto layers = jail.lowers;
      layers.insert(layers.begin(), jail.upper);
      return layers;
    };
    ISOLA_TRY(auto image, checkpointer_->dump(jail.pid.get(), frozen));
    jail.pid.wait();
    return image;
  }

  static Result<Guest> attach(boundary::Cell& cell) {
    ISOLA_TRY(int fd, cell.prepare_link());
    pollfd hangup{fd, 0, 0};
    if (fd >= 0 && ::poll(&hangup, 1, 30000) <= 0) return fail(Code::unavailable, "the guest makes no new link");
    ISOLA_TRY(auto link, cell.take_link());
    return Guest(std::move(link));
  }

  Result<void> check_protections(pid_t pid, uint32_t id_base, const std::string& cgroup) {
    wanted_.id_base = id_base;
    wanted_.cgroup = cgroup;
    wanted_.open_files = limits_.open_files;
    return jail::verify(pid, wanted_);
  }

  std::string image_point() const { return std::string(jail::kImages) + "/" + digest_; }

  std::string data_, digest_;
  Fd home_;
  boundary::Limits limits_{.memory = 256 << 20, .disk = 64 << 20};
  std::optional<launcher::Client> launcher_;
  std::unique_ptr<image::LayerStore> layers_;
  std::optional<kernel::CgroupTree> cgroups_;
  std::optional<launcher::IdRanges> ranges_;
  std::optional<boundary::IslandNetwork> network_;
  jail::Protections wanted_;
  std::optional<Checkpointer> checkpointer_;
};

uint32_t host_root_of(pid_t pid) {
  auto map = read_file("/proc/" + std::to_string(pid) + "/uid_map");
  unsigned inside = 0, outside = 0;
  if (map) (void)std::sscanf(map->c_str(), "%u %u", &inside, &outside);
  return outside;
}

// What `status` and `limits` say about privileges, without what names this one process.
std::string privileges(pid_t pid) {
  std::string out;
  auto status = read_file("/proc/" + std::to_string(pid) + "/status").value_or("");
  for (const char* name : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters",
                           "SigBlk", "SigIgn", "NSpid"}) {
    size_t at = status.find("\n" + std::string(name) + ":");
    if (at == status.npos) continue;
    std::string line = status.substr(at, status.find('\n', at + 1) - at);
    if (std::string(name) == "NSpid") line = line.substr(line.rfind('\t'));
    out += line;
  }
  return out + "\n" + read_file("/proc/" + std::to_string(pid) + "/limits").value_or("");
}

TEST_F(CheckpointTest, GuestAndPythonChildLiveOn) {
  auto born = launch();
  ASSERT_OK(born);
  Guest before(std::move(born->link));
  auto hello = before.client().hello();
  ASSERT_OK(hello);

  std::string answers;
  guest::RunCallbacks callbacks{.out = [&](std::string_view s) { answers += s; },
                                .err = [&](std::string_view s) { answers += s; }};
  auto run =
      before.client().begin_run({.argv = {"python3", "-c", kCounter}, .stdin_mode = guest::Stdin::pipe}, callbacks);
  auto first = before.ask(run, answers);
  ASSERT_OK(first);
  auto ticker = before.client().start({.argv = {"sh", "-c", kTicker}, .user = "1000"});
  ASSERT_OK(ticker);
  ASSERT_OK(before.sh("until [ -s /tmp/ticks ]; do sleep 0.01; done; echo kept >/root/file; echo also >/dev/shm/file"));
  EXPECT_EQ(*first, first->substr(0, 32) + " 1 0");
  ASSERT_OK(check_protections(born->pid, host_root_of(born->pid), born->id));
  const std::string privileges_before = privileges(born->pid);
  const uint32_t base_before = host_root_of(born->pid);
  const uint32_t python = run->pid();
  const uint64_t seen = run->seq();

  ASSERT_OK(before.client().quiesce());
  auto image = dump(*born);
  ASSERT_OK(image);
  auto jail = checkpointer_->restore(*image);
  ASSERT_OK(jail);

  // As protected as a newborn, with ids, control group and network of its own.
  EXPECT_NE(jail->id_base, base_before);
  ASSERT_OK(check_protections(jail->pid.get(), jail->id_base, jail->layer_id));
  EXPECT_EQ(privileges(jail->pid.get()), privileges_before);
  auto netns = kernel::open_namespace(jail->pid.get(), "net");
  ASSERT_OK(netns);
  auto installed = network_->describe(netns->get()), expected = network_->expected();
  ASSERT_OK(installed);
  ASSERT_OK(expected);
  EXPECT_EQ(*installed, *expected);

  auto after = attach(*jail->cell);
  ASSERT_OK(after);
  auto again = after->client().hello();
  ASSERT_OK(again);
  EXPECT_EQ(again->generation, hello->generation + 1);
  EXPECT_EQ(again->id, hello->id);

  answers.clear();
  auto attached = after->client().begin_attach(python, seen, callbacks);
  auto second = after->ask(attached, answers);
  ASSERT_OK(second);
  EXPECT_EQ(*second, first->substr(0, 32) + " 2 0");  // the same word, the next number, and never a look into process 1

  auto ticks = after->sh("cat /tmp/ticks");
  ASSERT_OK(ticks);
  ASSERT_OK(after->sh("n=" + std::to_string(std::atoi(ticks->c_str())) +
                      "; while [ $(cat /tmp/ticks) -le $n ]; do sleep 0.01; done"));
  EXPECT_EQ(
      after->sh("cat /root/file /dev/shm/file; id -u; echo new >/root/new; stat -c %u /root/new").value_or("failed"),
      "kept\nalso\n0\n0\n");
  EXPECT_EQ(after->sh("id -u; echo x >/tmp/mine; stat -c %u /tmp/mine", "1000").value_or("failed"), "1000\n1000\n");
  EXPECT_FALSE(after->sh("ls /proc/1/fd").has_value());
  EXPECT_FALSE(after->sh("cat /proc/1/environ").has_value());
  // New processes inherit the filter and the limits of the restored guest.
  EXPECT_FALSE(after->sh("unshare -m true").has_value());
}

// Tells the name of everything that is created in a folder.
std::string watcher_script() {
  return "$| = 1; $folder = '/root/watched'; $fd = syscall(" + std::to_string(SYS_inotify_init1) + ", 0); syscall(" +
         std::to_string(SYS_inotify_add_watch) + ", $fd, $folder, 0x100) > 0 or die; open($in, '<&=', $fd); " +
         "print qq(watching\\n); while (sysread($in, $event, 4096)) { print unpack('x16Z*', $event), qq(\\n) }";
}
constexpr char kListener[] = R"(
import socket
s = socket.create_server(('127.0.0.1', 8000))
print('listening', flush=True)
while True:
    c, _ = s.accept()
    c.sendall(b'hello ' + c.recv(100)); c.close()
)";

TEST_F(CheckpointTest, WatchesListenersAndTerminalsLiveOnForGenerations) {
  const int generations = std::getenv("ISOLA_TEST_FULL") ? 4 : 2;
  auto born = launch();
  ASSERT_OK(born);
  std::optional<Guest> guest(std::in_place, std::move(born->link));
  auto hello = guest->client().hello();
  ASSERT_OK(hello);
  ASSERT_OK(guest->sh("mkdir /root/watched"));
  std::string watched, listened, typed;
  auto into = [](std::string& s) {
    return guest::RunCallbacks{.out = [&s](std::string_view b) { s += b; },
                               .err = [&s](std::string_view b) { s += b; }};
  };
  auto await = [&](std::string& text, const std::string& wanted) {
    auto pumped = guest->client().pump_until([&] { return text.find(wanted) != text.npos; }, std::chrono::seconds(30));
    EXPECT_TRUE(pumped.has_value() && text.find(wanted) != text.npos) << "wanted " << wanted << ", got " << text;
    text.clear();
  };
  auto watcher = guest->client().begin_run({.argv = {"perl", "-e", watcher_script()}}, into(watched));
  auto listener = guest->client().begin_run({.argv = {"python3", "-c", kListener}, .user = "1000"}, into(listened));
  auto shell = guest->client().begin_run({.argv = {"bash", "--norc"}, .stdin_mode = guest::Stdin::pipe, .pty = true},
                                         into(typed));
  await(watched, "watching");
  await(listened, "listening");
  ASSERT_OK(guest->client().write_stdin(shell, "kept=me$((1+1))\necho ready$((1))\n"));
  await(typed, "ready1");

  std::optional<Restored> jail;
  for (int generation = 1; generation <= generations; ++generation) {
    SCOPED_TRACE(generation);
    const uint32_t pids[] = {watcher->pid(), shell->pid()};
    const uint64_t seen[] = {watcher->seq(), shell->seq()};
    ASSERT_OK(guest->client().quiesce());
    auto image = jail ? dump(*jail) : dump(*born);
    ASSERT_OK(image);
    auto next = checkpointer_->restore(*image);
    ASSERT_OK(next);
    jail.emplace(std::move(*next));
    ASSERT_OK(check_protections(jail->pid.get(), jail->id_base, jail->layer_id));
    auto attached = attach(*jail->cell);
    ASSERT_OK(attached);
    guest.emplace(std::move(*attached));
    auto again = guest->client().hello();
    ASSERT_OK(again);
    EXPECT_EQ(again->generation, hello->generation + static_cast<uint32_t>(generation));
    watched.clear(), typed.clear();
    watcher = guest->client().begin_attach(pids[0], seen[0], into(watched));
    shell = guest->client().begin_attach(pids[1], seen[1], into(typed));

    ASSERT_OK(guest->sh("touch /root/watched/file" + std::to_string(generation)));
    await(watched, "file" + std::to_string(generation));
    ASSERT_OK(guest->client().write_stdin(shell, "echo still $kept; tty\n"));
    await(typed, "still me2\r\n/dev/pts/");
    auto connection = guest->client().dial(8000);
    ASSERT_OK(connection);
    ASSERT_OK(guest->client().write(*connection, "again"));
    await((*connection)->received, "hello again");
  }
}

}  // namespace
}  // namespace isola::criu
