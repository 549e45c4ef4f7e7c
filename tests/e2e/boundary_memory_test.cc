// Pause, resume, snapshot and fork with memory, tried on each boundary that this machine has and that can. One that
// cannot is skipped, with the reason. What only the jail has to show about images is in image_test.cc.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/file.h"
#include "boundary/gvisor/runsc.h"
#include "e2e/images.h"
#include "gate/outside.h"
#include "image/image_store.h"

namespace isola::e2e {
namespace {

namespace fs = std::filesystem;
using launcher::LaunchRequest;

class BoundaryMemory : public ::testing::TestWithParam<BoundaryKind> {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    if (auto why = lacks_memory(GetParam()); !why.empty())
      GTEST_SKIP() << "memory with the boundary " << to_string(GetParam()) << ": " << why;
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    if (GetParam() == BoundaryKind::microvm && !test.starts_with("ForksAreApart") &&
        count("cases of memory on microvm", 1, 10) == 1)
      GTEST_SKIP() << "boundary microvm: only in the full run (ISOLA_TEST_FULL)";
    begin();
  }
  void begin(IslandOptions options = {}) { island_ = std::make_unique<Island>(std::move(options)); }

  LaunchRequest request() const {
    LaunchRequest request{.digest = island_->digest(), .ephemeral = false};
    request.boundary.wish = wish_for(GetParam());
    return request;
  }
  static LaunchRequest from(const std::string& image, bool forked = false, const std::string& id = "") {
    return {.ephemeral = false, .image = image, .forked = forked, .id = id};
  }
  std::string memory_of(const std::string& image) const { return island_->data() + "/images/" + image + "/memory"; }
  // The island looks for itself, when it goes, that nothing is left of all this.
  static void clear(launcher::Client& client) {
    auto live = client.list();
    ASSERT_OK(live);
    for (const auto& one : *live) (void)client.kill(one.id);
    auto images = client.images();
    ASSERT_OK(images);
    for (const auto& image : *images) (void)client.drop_image(image.id);
  }

  std::unique_ptr<Island> island_;
};

TEST_P(BoundaryMemory, APausedSandboxGoesOnAsItselfAndAsAnother) {
  auto client = island_->client();
  auto box = Counting::start(client, request());
  ASSERT_OK(box);
  auto wrote = box->sh("echo kept >/root/file; sleep 1000 & echo $! >/root/pid");
  ASSERT_OK(wrote);
  auto saved = box->save(client, true, false);
  ASSERT_OK(saved);
  EXPECT_GT(saved->memory_bytes, 100u << 10);
  auto live = client.list();
  ASSERT_OK(live);
  EXPECT_TRUE(live->empty()) << "nothing is left of it but the image";
  for (bool same : {true, false}) {
    SCOPED_TRACE(same ? "as itself" : "as another");
    auto next = Counting::resume(client, from(saved->image, !same, same ? box->id() : ""), *box);
    ASSERT_OK(next);
    EXPECT_EQ(next->birth(), same ? Birth::resumed : Birth::forked);
    EXPECT_EQ(next->id() == box->id(), same);
    EXPECT_EQ(next->generation(), box->generation() + 1);
    auto counted = next->next();
    ASSERT_OK(counted);
    EXPECT_EQ(next->sh("cat /root/file; kill -0 $(cat /root/pid) && echo lives; id -u").value_or("failed"),
              "kept\nlives\n0\n");
    auto all = client.list();
    ASSERT_OK(all);
    ASSERT_EQ(all->size(), 1u);
    EXPECT_EQ((*all)[0].kind, GetParam());
    auto killed = client.kill(next->id());
    ASSERT_OK(killed);
  }
  clear(client);
}

TEST_P(BoundaryMemory, AgainAndAgainWithoutMoreLayers) {
  auto client = island_->client();
  const int cycles = count("pause/resume cycles", 3, 20);
  auto box = Counting::start(client, request());
  ASSERT_OK(box);
  const std::string id = box->id();
  for (int i = 0; i < cycles; ++i) {
    SCOPED_TRACE(i);
    auto saved = box->save(client, true, false);
    ASSERT_OK(saved);
    auto again = from(saved->image, false, id);
    again.spend = true;
    auto next = Counting::resume(client, again, *box);
    ASSERT_OK(next);
    EXPECT_EQ(next->generation(), box->generation() + 1);
    box = std::move(next);
    auto images = client.images();
    ASSERT_OK(images);
    EXPECT_TRUE(images->empty());
    auto counted = box->next();
    ASSERT_OK(counted);
    EXPECT_EQ(box->sh(fmt::format("echo {0} >/root/f{0}; ls /root/f* | wc -l", i)).value_or("failed"),
              fmt::format("{}\n", i + 1));
  }
  clear(client);
}

TEST_P(BoundaryMemory, ForksAreApartAndTheSourceGoesOn) {
  auto client = island_->client();
  auto box = Counting::start(client, request());
  ASSERT_OK(box);
  ASSERT_TRUE(box->sh("echo parent >/root/who"));
  const uint32_t generation = box->generation();
  auto saved = box->save(client, true, true);
  ASSERT_OK(saved);
  // Over the same link, in the same generation.
  auto went_on = box->guest().go_on();
  ASSERT_OK(went_on);
  Counting at_fork = std::move(*Counting::resume(client, from(saved->image, true), *box));
  auto counted = box->next();
  ASSERT_OK(counted);
  ASSERT_TRUE(box->sh("echo later >/root/later"));
  auto second = Counting::resume(client, from(saved->image, true), at_fork);
  ASSERT_OK(second);
  std::set<std::string> random = {box->sh("head -c 16 /dev/urandom | od -An -tx1").value_or("")};
  for (Counting* child : {&at_fork, &*second}) {
    auto next = child->next();
    ASSERT_OK(next);
    EXPECT_EQ(child->generation(), generation + 1);
    EXPECT_EQ(child->sh("cat /root/who; test -e /root/later || echo apart; echo " + child->id() + " >/root/who")
                  .value_or("failed"),
              "parent\napart\n");
    EXPECT_TRUE(random.insert(child->sh("head -c 16 /dev/urandom | od -An -tx1").value_or("")).second);
  }
  for (Counting* child : {&at_fork, &*second})
    EXPECT_EQ(child->sh("cat /root/who").value_or("failed"), child->id() + "\n");
  EXPECT_EQ(box->sh("cat /root/who").value_or("failed"), "parent\n");
  auto still = box->next();
  ASSERT_OK(still);
  // A link that is made anew cuts the one before, in a fork as everywhere.
  auto attached = second->attach(client);
  ASSERT_OK(attached);
  EXPECT_EQ(second->generation(), generation + 2);
  auto on = second->next();
  ASSERT_OK(on);
  clear(client);
}

// A fork of a fork, and one that was frozen before.
TEST_P(BoundaryMemory, GenerationsInARowAndFrozenOnes) {
  auto client = island_->client();
  auto box = Counting::start(client, request());
  ASSERT_OK(box);
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    auto quiet = box->guest().quiesce();
    ASSERT_OK(quiet);
    auto frozen = client.freeze(box->id());
    ASSERT_OK(frozen);
    auto saved = client.checkpoint({.id = box->id(), .memory = true, .keep_running = false});
    ASSERT_OK(saved);
    auto next = Counting::resume(client, from(saved->image, true), *box);
    ASSERT_OK(next);
    box = std::move(next);
    auto counted = box->next();
    ASSERT_OK(counted);
  }
  clear(client);
}

TEST_P(BoundaryMemory, FilesAlone) {
  auto client = island_->client();
  auto box = Counting::start(client, request());
  ASSERT_OK(box);
  ASSERT_TRUE(box->sh("echo kept >/root/file"));
  auto snapshot = client.checkpoint({.id = box->id(), .memory = false, .keep_running = true});
  if (GetParam() == BoundaryKind::microvm) {
    ASSERT_FALSE(snapshot);
    EXPECT_EQ(snapshot.error().code, Code::unsupported) << snapshot.error().message;
  } else {
    ASSERT_OK(snapshot);
  }
  auto counted = box->next();
  ASSERT_OK(counted);
  if (snapshot) {
    auto sandbox = launch(client, from(snapshot->image));
    ASSERT_OK(sandbox);
    EXPECT_EQ(hear(*sandbox->guest, {"cat", "/root/file"}).out, "kept\n");
  }
  // And of an image with memory.
  auto saved = box->save(client, true, false);
  ASSERT_OK(saved);
  auto files = from(saved->image);
  files.files_only = true;
  auto other = launch(client, files);
  ASSERT_OK(other);
  EXPECT_EQ(hear(*other->guest, {"cat", "/root/file"}).out, "kept\n");
  clear(client);
}

TEST_P(BoundaryMemory, ALauncherThatIsKilledBetweenPauseAndResume) {
  std::optional<Counting> box;
  std::string image;
  {
    auto client = island_->client();
    auto few = request();
    few.limits.open_files = 5000;
    auto started = Counting::start(client, few);
    ASSERT_OK(started);
    box = std::move(*started);
    auto saved = box->save(client, true, false);
    ASSERT_OK(saved);
    image = saved->image;
    island_->kill_launcher();
  }
  auto again = island_->start();
  ASSERT_OK(again);
  auto client = island_->client();
  auto next = Counting::resume(client, from(image, false, box->id()), *box);
  ASSERT_OK(next);
  auto counted = next->next();
  ASSERT_OK(counted);
  // And one that was restored outlives a launcher like any other.
  island_->kill_launcher();
  again = island_->start();
  ASSERT_OK(again);
  auto other = island_->client();
  auto attached = next->attach(other);
  ASSERT_OK(attached);
  counted = next->next();
  ASSERT_OK(counted);
  // One that only found it can keep it as well.
  auto saved = next->save(other, true, false);
  ASSERT_OK(saved);
  auto third = Counting::resume(other, from(saved->image, false, box->id()), *next);
  ASSERT_OK(third);
  counted = third->next();
  ASSERT_OK(counted);
  EXPECT_EQ(third->sh("ulimit -n").value_or("failed"), "5000\n");
  auto kept = image::ImageStore(island_->data() + "/images").find(saved->image);
  ASSERT_OK(kept);
  EXPECT_EQ(kept->limits.open_files, 5000u) << "a launcher that adopted it was never told";
  clear(other);
}

TEST_P(BoundaryMemory, OneFlippedBitIsRefused) {
  auto client = island_->client();
  auto box = Counting::start(client, request());
  ASSERT_OK(box);
  auto saved = box->save(client, true, false);
  ASSERT_OK(saved);
  fs::path largest;
  for (const auto& file : fs::directory_iterator(memory_of(saved->image)))
    if (largest.empty() || file.file_size() > fs::file_size(largest)) largest = file.path();
  auto flip = [&] {
    Fd fd(::open(largest.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(::pread(fd.get(), &byte, 1, 5000), 1);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(::pwrite(fd.get(), &byte, 1, 5000), 1);
  };
  flip();
  auto broken = Counting::resume(client, from(saved->image), *box);
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, Code::corrupt) << broken.error().message;
  EXPECT_NE(broken.error().message.find(std::string(largest.filename()) + ", chunk 0"), std::string::npos)
      << broken.error().message;
  flip();
  auto mended = Counting::resume(client, from(saved->image), *box);
  ASSERT_OK(mended);
  auto counted = mended->next();
  ASSERT_OK(counted);
  clear(client);
}

// Files that are missing, cut off, or no files at all: found before anything of them is used.
TEST_P(BoundaryMemory, BrokenFilesAreRefused) {
  auto client = island_->client();
  auto box = Counting::start(client, request());
  ASSERT_OK(box);
  auto saved = box->save(client, true, false);
  ASSERT_OK(saved);
  const fs::path folder = memory_of(saved->image), aside = island_->data() + "/aside.img";
  fs::path largest;
  for (const auto& file : fs::directory_iterator(folder))
    if (largest.empty() || file.file_size() > fs::file_size(largest)) largest = file.path();
  fs::rename(largest, aside);
  auto refused = [&](const char* how) {
    SCOPED_TRACE(how);
    auto broken = Counting::resume(client, from(saved->image), *box);
    ASSERT_FALSE(broken);
    EXPECT_NE(broken.error().message.find(largest.filename()), std::string::npos) << broken.error().message;
    fs::remove(largest);
    EXPECT_TRUE(eventually([&] { return client.list()->empty(); }));
  };
  refused("missing");
  fs::copy_file(aside, largest);
  fs::resize_file(largest, fs::file_size(aside) - 1);
  refused("cut off");
  fs::create_symlink(aside, largest);
  refused("a link");
  ASSERT_EQ(::mkfifo(largest.c_str(), 0600), 0);
  refused("a pipe");
  ASSERT_EQ(::mkdir(largest.c_str(), 0700), 0);
  refused("a folder");
  fs::rename(aside, largest);
  auto mended = Counting::resume(client, from(saved->image), *box);
  ASSERT_OK(mended);
  auto counted = mended->next();
  ASSERT_OK(counted);
  clear(client);
}

TEST_P(BoundaryMemory, AnotherBoundaryDoesNotTakeIt) {
  auto client = island_->client();
  auto box = Counting::start(client, request());
  ASSERT_OK(box);
  auto saved = box->save(client, true, false);
  ASSERT_OK(saved);
  auto other = from(saved->image);
  const auto kind = GetParam() == BoundaryKind::jail ? BoundaryKind::gvisor : BoundaryKind::jail;
  other.boundary.wish = wish_for(kind);
  auto refused = client.launch(other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unsupported) << refused.error().message;
  clear(client);
}

INSTANTIATE_TEST_SUITE_P(Each, BoundaryMemory,
                         ::testing::Values(BoundaryKind::jail, BoundaryKind::gvisor, BoundaryKind::microvm),
                         [](const auto& param) { return std::string(to_string(param.param)); });

// ---- gvisor alone ---------------------------------------------------------------------------------------------------

class GvisorMemory : public BoundaryMemory {};

// What runsc cannot save it says, and the sandbox goes on.
TEST_P(GvisorMemory, WhatCannotBeKeptIsSaidAndGoesOn) {
  auto client = island_->client();
  auto box = Counting::start(client, request());
  ASSERT_OK(box);
  auto holder = box->guest().start({.argv = {"/bin/sh", "-c",
                                             "exec 5>/root/gone; rm /root/gone; echo held >/root/held; "
                                             "exec sleep 1000"}});
  ASSERT_OK(holder);
  ASSERT_TRUE(eventually([&] { return box->sh("cat /root/held").has_value(); }));
  for (bool keep_running : {false, true}) {
    auto refused = box->save(client, true, keep_running);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::unsupported);
    EXPECT_NE(refused.error().message.find("a file that was deleted is still open"), std::string::npos)
        << refused.error().message;
    auto went_on = box->guest().go_on();
    ASSERT_OK(went_on);
    auto counted = box->next();
    ASSERT_OK(counted);
  }
  auto images = client.images();
  ASSERT_OK(images);
  EXPECT_TRUE(images->empty());
  ASSERT_TRUE(box->sh("kill " + std::to_string(holder->pid)));
  auto saved = box->save(client, true, true);
  ASSERT_OK(saved);
  clear(client);
}

// Both ends of it are in the image.
TEST_P(GvisorMemory, AConnectionInsideLivesOn) {
  constexpr char kLoop[] = R"(
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
for line in sys.stdin:
    near.sendall(line.encode())
    print("heard", far.recv(100).decode(), end="", flush=True)
)";
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  std::string out;
  auto hears = [&](guest::PipeClient& guest, const std::shared_ptr<guest::Run>& run, const std::string& word) {
    out.clear();
    ASSERT_TRUE(guest.write_stdin(run, word + "\n"));
    ASSERT_TRUE(guest.pump_until([&] { return out.ends_with('\n'); }, std::chrono::seconds(60)));
    EXPECT_EQ(out, "heard " + word + "\n");
  };
  auto run = box->guest->begin_run({.argv = {"python3", "-u", "-c", kLoop}, .stdin_mode = guest::Stdin::pipe},
                                   {.out = [&](std::string_view s) { out += s; }});
  ASSERT_TRUE(box->guest->pump_until([&] { return run->pid() != 0; }, std::chrono::seconds(60)));
  hears(*box->guest, run, "before");
  auto quiet = box->guest->quiesce();
  ASSERT_OK(quiet);
  auto saved = client.checkpoint({.id = box->id, .memory = true, .keep_running = false});
  ASSERT_OK(saved);
  auto next = launch(client, from(saved->image));
  ASSERT_OK(next);
  auto attached = next->guest->begin_attach(run->pid(), run->seq(), {.out = [&](std::string_view s) { out += s; }});
  hears(*next->guest, attached, "after");
  clear(client);
}

// Files that say of themselves that they are whole and are not: what the engine makes of them it makes in its box, and
// the launch fails.
TEST_P(GvisorMemory, ForgedFilesFailTheLaunch) {
  auto client = island_->client();
  auto box = Counting::start(client, request());
  ASSERT_OK(box);
  auto saved = box->save(client, true, false);
  ASSERT_OK(saved);
  image::ImageStore store(island_->data() + "/images");
  // The launcher adds to the manifest, later: not while it is written here.
  ASSERT_TRUE(eventually([&] {
    auto sealed = store.find(saved->image);
    return sealed && !sealed->files.empty() && !sealed->files[0].sha256.empty();
  }));
  const std::string folder = memory_of(saved->image);
  std::map<std::string, std::string> good;
  for (const auto& file : fs::directory_iterator(folder)) {
    auto text = read_file(file.path(), 1 << 30);
    ASSERT_OK(text);
    good[file.path().filename()] = *text;
  }
  auto forge = [&](const std::function<std::string(const std::string&)>& change) {
    for (const auto& [name, text] : good) {
      auto written = replace_file(folder + "/" + name, change(text), 0600);
      ASSERT_OK(written);
    }
    auto image = store.find(saved->image);
    ASSERT_OK(image);
    auto files = store.sum_up(saved->image);
    ASSERT_OK(files);
    image->files = std::move(*files);
    auto changed = store.change(*image);
    ASSERT_OK(changed);
  };
  const std::pair<const char*, std::function<std::string(const std::string&)>> kForgeries[] = {
      {"empty", [](const std::string&) { return std::string(); }},
      {"half", [](const std::string& text) { return text.substr(0, text.size() / 2); }},
      {"noise",
       [](std::string text) {
         uint32_t random = 1;
         for (char& c : text) c = static_cast<char>((random = random * 1664525 + 1013904223) >> 24);
         return text;
       }},
  };
  for (const auto& [how, change] : kForgeries) {
    SCOPED_TRACE(how);
    forge(change);
    auto failed = Counting::resume(client, from(saved->image), *box);
    ASSERT_FALSE(failed);
    std::printf("%s: %s\n", how, failed.error().message.c_str());
    EXPECT_TRUE(eventually([&] { return client.list()->empty(); }));
  }
  forge([](const std::string& text) { return text; });
  auto mended = Counting::resume(client, from(saved->image), *box);
  ASSERT_OK(mended);
  auto counted = mended->next();
  ASSERT_OK(counted);
  clear(client);
}

// A runsc that changed under an image: refused with both versions, and none the worse for it.
TEST_P(GvisorMemory, AnotherVersionIsRefused) {
  island_.reset();
  auto runsc = boundary::gvisor::Runsc::find();
  ASSERT_OK(runsc);
  char folder[] = "/tmp/isola-runsc-XXXXXX";
  ASSERT_TRUE(::mkdtemp(folder));
  const std::string path = std::string(folder) + "/runsc", fake = std::string(folder) + "/other";
  std::ofstream(fake) << "#!/bin/sh\ncase $1 in --version) echo 'runsc version 0.0~20990101.0';; *) exec "
                      << runsc->program << " \"$@\";; esac\n";
  ASSERT_EQ(::chmod(fake.c_str(), 0755), 0);
  auto use = [&](const std::string& program) {
    ::unlink(path.c_str());
    ASSERT_EQ(::symlink(program.c_str(), path.c_str()), 0);
  };
  use(runsc->program);
  begin({.env = {"ISOLA_RUNSC=" + path}});
  std::optional<Counting> box;
  std::string image;
  {
    auto client = island_->client();
    auto started = Counting::start(client, request());
    ASSERT_OK(started);
    box = std::move(*started);
    auto saved = box->save(client, true, false);
    ASSERT_OK(saved);
    image = saved->image;
  }
  island_->kill_launcher();
  use(fake);
  auto again = island_->start();
  ASSERT_OK(again);
  {
    auto client = island_->client();
    auto refused = client.launch(from(image, false, box->id()));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::unsupported);
    for (const std::string& version : {runsc->version, std::string("0.0~20990101.0")})
      EXPECT_NE(refused.error().message.find("runsc " + version), std::string::npos) << refused.error().message;
  }
  island_->kill_launcher();
  use(runsc->program);
  again = island_->start();
  ASSERT_OK(again);
  auto client = island_->client();
  auto next = Counting::resume(client, from(image, false, box->id()), *box);
  ASSERT_OK(next);
  auto counted = next->next();
  ASSERT_OK(counted);
  clear(client);
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Only, GvisorMemory, ::testing::Values(BoundaryKind::gvisor),
                         [](const auto& param) { return std::string(to_string(param.param)); });

// ---- connections to the outside
// ---------------------------------------------------------------------------------------

class BoundaryMemoryNet : public BoundaryMemory {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    if (auto why = lacks_memory(GetParam()); !why.empty())
      GTEST_SKIP() << "memory with the boundary " << to_string(GetParam()) << ": " << why;
    home_ = gate::own_netns();
    auto cable = gate::Cable::make();
    ASSERT_OK(cable);
    cable_ = std::move(*cable);
    ASSERT_EQ(::setns(cable_->gate.get(), CLONE_NEWNET), 0);
    auto outside = gate::Outside::open(cable_->outside);
    ASSERT_OK(outside);
    outside_ = std::move(*outside);
    outside_->set("a.example", {"203.0.113.10"});
    begin({.env = {std::string("ISOLA_NAME_SERVERS=") + gate::kNameServer + ":53"}});
  }
  void TearDown() override {
    island_.reset();
    outside_.reset();
    if (home_) {
      ASSERT_EQ(::setns(home_.get(), CLONE_NEWNET), 0);
    }
  }
  Fd home_;
  std::optional<gate::Cable> cable_;
  std::unique_ptr<gate::Outside> outside_;
};

// Holds one connection, has closed another, and greets over a third for each line.
constexpr char kGreeter[] = R"(
import socket, sys
def greet(keep=False):
    try:
        s = socket.create_connection(("a.example", 22), 20)
        text = s.recv(100).decode().strip()
        if keep: return s
        s.close()
        return text
    except OSError as e: return type(e).__name__
held = greet(True)
greet()
for line in sys.stdin:
    try: held.settimeout(20); held.sendall(b"x" * 100); old = "open"
    except OSError as e: old = "cut"
    if old == "open":
        try: old = "open" if held.recv(100) else "cut"
        except TimeoutError: pass
        except OSError: old = "cut"
    print(old, greet(), flush=True)
)";

TEST_P(BoundaryMemoryNet, ConnectionsToTheOutsideAreCutAndNewOnesWork) {
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  const std::string policy = "allow a.example:22";
  ASSERT_TRUE(client.set_policy({.id = box->id, .policy = policy}));
  ASSERT_EQ(hear(*box->guest, {"/bin/sh", "-c", "echo nameserver 10.255.255.254 > /etc/resolv.conf"}).exit->code, 0);
  std::string out;
  auto run = box->guest->begin_run({.argv = {"python3", "-u", "-c", kGreeter}, .stdin_mode = guest::Stdin::pipe},
                                   {.out = [&](std::string_view s) { out += s; }});
  ASSERT_TRUE(box->guest->pump_until([&] { return run->pid() != 0; }, std::chrono::seconds(60)));
  // The first answer says that both connections were made.
  ASSERT_TRUE(box->guest->write_stdin(run, "go\n"));
  ASSERT_TRUE(box->guest->pump_until([&] { return out.ends_with('\n'); }, std::chrono::seconds(120)));
  EXPECT_NE(out.find("hello from 203.0.113.10"), std::string::npos) << out;
  const uint32_t pid = run->pid();
  const uint64_t seen = run->seq();
  auto quiet = box->guest->quiesce();
  ASSERT_OK(quiet);
  auto saved = client.checkpoint({.id = box->id, .memory = true, .keep_running = false});
  ASSERT_OK(saved);
  auto next = launch(client, from(saved->image));
  ASSERT_OK(next);
  ASSERT_TRUE(client.set_policy({.id = next->id, .policy = policy}));
  out.clear();
  auto attached = next->guest->begin_attach(pid, seen, {.out = [&](std::string_view s) { out += s; }});
  ASSERT_TRUE(next->guest->write_stdin(attached, "go\n"));
  ASSERT_TRUE(next->guest->pump_until([&] { return out.ends_with('\n'); }, std::chrono::seconds(120)));
  EXPECT_EQ(out, "cut hello from 203.0.113.10\n");
  clear(client);
}

INSTANTIATE_TEST_SUITE_P(Each, BoundaryMemoryNet,
                         ::testing::Values(BoundaryKind::jail, BoundaryKind::gvisor, BoundaryKind::microvm),
                         [](const auto& param) { return std::string(to_string(param.param)); });

}  // namespace
}  // namespace isola::e2e
