// Pause, resume, snapshot and fork, through the launcher: what was running goes on, what was separate stays so, and
// what cannot be used says why.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/nsfs.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "e2e/images.h"
#include "image/image_store.h"

namespace isola::e2e {
namespace {

namespace fs = std::filesystem;
using launcher::LaunchRequest;

std::string status_of(launcher::Client& client, const std::string& id) {
  auto all = client.list();
  if (!all) return "";
  for (const auto& one : *all) {
    if (one.id != id) continue;
    std::string out;
    auto status = read_file(fmt::format("/proc/{}/status", one.pid)).value_or("");
    for (const char* name : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
                             "Seccomp_filters", "SigBlk", "SigIgn"}) {
      size_t at = status.find("\n" + std::string(name) + ":");
      if (at != status.npos) out += status.substr(at, status.find('\n', at + 1) - at);
    }
    return out + "\n" + read_file(fmt::format("/proc/{}/limits", one.pid)).value_or("");
  }
  return "";
}

uint32_t host_root_of(launcher::Client& client, const std::string& id) {
  auto all = client.list();
  unsigned inside = 0, outside = 0;
  if (all)
    for (const auto& one : *all)
      if (one.id == id)
        (void)std::sscanf(read_file(fmt::format("/proc/{}/uid_map", one.pid)).value_or("").c_str(), "%u %u", &inside,
                          &outside);
  return outside;
}

// Of its user namespace.
uint32_t owner_of(launcher::Client& client, const std::string& id) {
  auto all = client.list();
  uid_t owner = 0;
  if (all)
    for (const auto& one : *all)
      if (one.id == id) {
        Fd users(::open(fmt::format("/proc/{}/ns/user", one.pid).c_str(), O_RDONLY | O_CLOEXEC));
        EXPECT_EQ(::ioctl(users.get(), NS_GET_OWNER_UID, &owner), 0);
      }
  return owner;
}

void flip_byte(const std::string& path, off_t at) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(fd) << path;
  char byte = 0;
  ASSERT_EQ(::pread(fd.get(), &byte, 1, at), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(fd.get(), &byte, 1, at), 1);
}

class Images : public SharedIsland {
 protected:
  void SetUp() override {
    NEEDS_CRIU();
    SharedIsland::SetUp();
    client_.emplace(island().client());
  }
  void TearDown() override {
    if (client_) {
      auto live = client_->list();
      if (live)
        for (const auto& one : *live) (void)client_->kill(one.id);
      auto images = client_->images();
      if (images)
        for (const auto& image : *images) (void)client_->drop_image(image.id);
      client_.reset();
    }
    SharedIsland::TearDown();
  }
  launcher::Client& client() { return *client_; }
  std::string folder_of(const std::string& image) { return island().data() + "/images/" + image; }

  std::optional<launcher::Client> client_;
};

TEST_F(Images, APausedSandboxGoesOnAsAnotherAndAsItself) {
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  auto written = box->sh("echo kept >/root/file; echo also >/dev/shm/file; sleep 1000 & echo $! >/root/pid");
  ASSERT_OK(written);
  const std::string before = status_of(client(), box->id());
  auto saved = box->save(client(), true, false);
  ASSERT_OK(saved);
  EXPECT_GT(saved->memory_bytes, 1u << 20);
  // Nothing is left of it but the image.
  auto live = client().list();
  ASSERT_OK(live);
  EXPECT_TRUE(live->empty());
  auto images = client().images();
  ASSERT_OK(images);
  ASSERT_EQ(images->size(), 1u);
  EXPECT_EQ(images->front().id, saved->image);
  EXPECT_EQ(images->front().sandbox, box->id());
  EXPECT_EQ(images->front().verb, "pause");
  EXPECT_TRUE(images->front().memory);

  for (bool same : {true, false}) {
    SCOPED_TRACE(same ? "as itself" : "as another");
    LaunchRequest request{.ephemeral = false, .image = saved->image, .forked = !same, .id = same ? box->id() : ""};
    auto next = Counting::resume(client(), request, *box);
    ASSERT_OK(next);
    EXPECT_EQ(next->birth(), same ? Birth::resumed : Birth::forked);
    EXPECT_EQ(next->id() == box->id(), same);
    EXPECT_EQ(next->generation(), box->generation() + 1);
    auto counted = next->next();
    ASSERT_OK(counted);
    EXPECT_EQ(next->sh("cat /root/file /dev/shm/file; kill -0 $(cat /root/pid); id -u; domainname").value_or("failed"),
              "kept\nalso\n0\n" + next->id() + "\n");
    EXPECT_EQ(next->sh("id -u; echo x >/tmp/mine$$; stat -c %u /tmp/mine$$", "1000").value_or("failed"),
              "1000\n1000\n");
    // As protected as before.
    EXPECT_EQ(status_of(client(), next->id()), before);
    EXPECT_FALSE(next->sh("ls /proc/1/fd"));
    EXPECT_FALSE(next->sh("unshare -m true"));
    EXPECT_FALSE(next->sh("echo x >/dev/x"));
    auto killed = client().kill(next->id());
    ASSERT_OK(killed);
  }
}

TEST_F(Images, PausedAndResumedAgainAndAgain) {
  const int cycles = count("pause/resume cycles", 5, 50);
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  std::string id = box->id();
  for (int i = 0; i < cycles; ++i) {
    SCOPED_TRACE(i);
    auto wrote = box->sh(fmt::format("echo {0} >/root/file{0}; ls /root/file* | wc -l", i));
    ASSERT_OK(wrote);
    EXPECT_EQ(*wrote, fmt::format("{}\n", i + 1));
    auto saved = box->save(client(), true, false);
    ASSERT_OK(saved);
    auto next = Counting::resume(client(), {.ephemeral = false, .image = saved->image, .id = id}, *box);
    ASSERT_OK(next);
    // The sandbox lives of the image's layers; the image itself is no longer needed.
    auto dropped = client().drop_image(saved->image);
    ASSERT_OK(dropped);
    box = std::move(next);
    auto counted = box->next();
    ASSERT_OK(counted);
  }
}

// A sandbox that is paused for the hundredth time stands on no more layers than at the first.
TEST_F(Images, ASpentImageLeavesNothingBehind) {
  const int cycles = count("pause/resume cycles of one layer", 4, 120);
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  const std::string id = box->id();
  auto begun = box->sh("rm /etc/issue; ln /etc/hostname /etc/other; echo 0 >>/etc/other");
  ASSERT_OK(begun);
  for (int i = 0; i < cycles; ++i) {
    SCOPED_TRACE(i);
    auto saved = box->save(client(), true, false);
    ASSERT_OK(saved);
    auto images = client().images();
    ASSERT_OK(images);
    ASSERT_EQ(images->size(), 1u);
    EXPECT_EQ(images->front().layers, 1u);
    if (i == 0) {
      // What cannot be restored is not used up.
      std::string inventory = folder_of(saved->image) + "/memory/inventory.img";
      flip_byte(inventory, 9);
      auto refused = client().launch({.ephemeral = false, .image = saved->image, .id = id, .spend = true});
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, Code::corrupt) << refused.error().message;
      flip_byte(inventory, 9);
    }
    auto next = Counting::resume(client(), {.ephemeral = false, .image = saved->image, .id = id, .spend = true}, *box);
    ASSERT_OK(next);
    images = client().images();
    ASSERT_OK(images);
    EXPECT_TRUE(images->empty());
    box = std::move(next);
    auto counted = box->next();
    ASSERT_OK(counted);
    auto wrote =
        box->sh(fmt::format("echo {0} >/root/file{0}; ls /root/file* | wc -l; ls /etc/issue 2>/dev/null; "
                            "[ /etc/hostname -ef /etc/other ] && echo same; tail -c 2 /etc/hostname",
                            i));
    EXPECT_EQ(wrote.value_or("failed"), fmt::format("{}\nsame\n0\n", i + 1));
  }
  // Of a snapshot nothing is used up.
  auto kept = box->save(client(), true, true);
  ASSERT_OK(kept);
  auto killed = client().kill(id);
  ASSERT_OK(killed);
  auto back = Counting::resume(client(), {.ephemeral = false, .image = kept->image, .id = id, .spend = true}, *box);
  ASSERT_OK(back);
  auto images = client().images();
  ASSERT_OK(images);
  EXPECT_EQ(images->size(), 1u);
}

TEST_F(Images, ForksAreIndependentAndTheSourceGoesOn) {
  const int children = count("forks", 5, 20);
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  auto wrote = box->sh("echo parent >/root/who");
  ASSERT_OK(wrote);
  auto saved = box->save(client(), true, true);
  ASSERT_OK(saved);
  Counting at_fork = *Counting::resume(client(), {.ephemeral = false, .image = saved->image, .forked = true}, *box);
  auto attached = box->attach(client());
  ASSERT_OK(attached);
  auto counted = box->next();
  ASSERT_OK(counted);
  auto later = box->sh("echo later >/root/later");
  ASSERT_OK(later);

  std::vector<Counting> all;
  all.push_back(std::move(at_fork));
  for (int i = 1; i < children; ++i) {
    auto child = Counting::resume(client(), {.ephemeral = false, .image = saved->image, .forked = true}, all[0]);
    ASSERT_OK(child);
    all.push_back(std::move(*child));
  }
  std::set<uint32_t> ranges = {host_root_of(client(), box->id())};
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    for (size_t n = 0; n <= i % 3; ++n) {
      auto next = all[i].next();
      ASSERT_OK(next);
    }
    auto said = all[i].sh(fmt::format("cat /root/who; ls /root/later 2>&1 | wc -w; echo {} >/root/who; hostname", i));
    ASSERT_OK(said);
    EXPECT_TRUE(said->starts_with("parent\n")) << *said;
    EXPECT_TRUE(ranges.insert(host_root_of(client(), all[i].id())).second) << "two sandboxes share host ids";
    EXPECT_EQ(owner_of(client(), all[i].id()), host_root_of(client(), all[i].id()))
        << "what the kernel counts per owner of a user namespace is shared";
  }
  EXPECT_EQ(box->sh("cat /root/who /root/later").value_or("failed"), "parent\nlater\n");
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_FALSE(all[i].sh("test -e /root/later"));
    EXPECT_EQ(all[i].sh("cat /root/who").value_or("failed"), fmt::format("{}\n", i));
  }
  auto still = box->next();
  ASSERT_OK(still);
  // The image goes; those made of it live on.
  auto dropped = client().drop_image(saved->image);
  ASSERT_OK(dropped);
  for (auto& child : all) {
    auto next = child.next();
    ASSERT_OK(next);
    EXPECT_TRUE(child.sh("cat /root/who"));
  }
  auto again = client().launch({.image = saved->image});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::not_found);
}

// It is lifted for the restore itself, which reads what the sandbox never asked for.
TEST_F(Images, ALimitOfIoIsInForceAgain) {
  const LaunchRequest request{.digest = island().digest(), .limits = {.io_bytes_per_second = 4 << 20}};
  auto box = Counting::start(client(), request);
  if (!box && box.error().code == Code::unsupported) GTEST_SKIP() << box.error().message;
  ASSERT_OK(box);
  auto saved = box->save(client(), true, false);
  ASSERT_OK(saved);
  auto next = Counting::resume(client(), {.limits = request.limits, .image = saved->image}, *box);
  ASSERT_OK(next);
  auto tree = kernel::CgroupTree::detect({});
  ASSERT_OK(tree);
  auto group = tree->adopt(next->id());
  ASSERT_OK(group);
  auto limits = group->limits();
  group->release();
  ASSERT_OK(limits);
  EXPECT_EQ(limits->io_bytes_per_second, 4u << 20);
}

TEST_F(Images, FilesOnly) {
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  auto wrote = box->sh("echo kept >/root/file; rm /etc/hostname; echo x >/dev/shm/gone");
  ASSERT_OK(wrote);
  launcher::CheckpointRequest snapshot{.id = box->id(), .memory = false, .keep_running = true};
  auto first = client().checkpoint(snapshot);
  ASSERT_OK(first);
  EXPECT_EQ(first->memory_bytes, 0u);
  auto counted = box->next();  // the link was not even touched
  ASSERT_OK(counted);
  wrote = box->sh("echo more >>/root/file");
  ASSERT_OK(wrote);
  launcher::CheckpointRequest pause{.id = box->id(), .memory = false, .keep_running = false};
  auto second = client().checkpoint(pause);
  ASSERT_OK(second);
  const char* wanted[] = {"kept\n", "kept\nmore\n"};
  for (int i = 0; i < 2; ++i) {
    LaunchRequest request{.ephemeral = false, .image = i == 0 ? first->image : second->image};
    auto sandbox = launch(client(), request);
    ASSERT_OK(sandbox);
    EXPECT_EQ(hear(*sandbox->guest, {"cat", "/root/file"}).out, wanted[i]);
    EXPECT_NE(hear(*sandbox->guest, {"test", "-e", "/etc/hostname"}).exit->code, 0);
    EXPECT_NE(hear(*sandbox->guest, {"test", "-e", "/dev/shm/gone"}).exit->code, 0);
    EXPECT_NE(hear(*sandbox->guest, {"pgrep", "python3"}).exit->code, 0);
  }
}

TEST_F(Images, OfMemoryImagesTheFilesAloneCanBeUsed) {
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  ASSERT_TRUE(box->sh("echo kept >/root/file"));
  auto saved = box->save(client(), true, false);
  ASSERT_OK(saved);
  LaunchRequest request{.image = saved->image, .files_only = true};
  auto sandbox = launch(client(), request);
  ASSERT_OK(sandbox);
  EXPECT_EQ(hear(*sandbox->guest, {"cat", "/root/file"}).out, "kept\n");
}

TEST_F(Images, CorruptionIsFoundAndNamed) {
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  auto saved = box->save(client(), true, false);
  ASSERT_OK(saved);
  // Of the process with the most memory.
  std::string pages, name;
  for (const auto& file : fs::directory_iterator(folder_of(saved->image) + "/memory"))
    if (std::string(file.path().filename()).starts_with("pages-") &&
        (pages.empty() || file.file_size() > fs::file_size(pages)))
      pages = file.path(), name = file.path().filename();
  ASSERT_GT(fs::file_size(pages), (2u << 20) + 100);
  auto whole = client().verify_image(saved->image, true);
  ASSERT_OK(whole);

  flip_byte(pages, (2 << 20) + 5);
  auto broken = Counting::resume(client(), {.image = saved->image}, *box);
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, Code::corrupt);
  EXPECT_NE(broken.error().message.find(name + ", chunk 2"), std::string::npos) << broken.error().message;
  auto scrubbed = client().verify_image(saved->image, true);
  ASSERT_FALSE(scrubbed);
  EXPECT_EQ(scrubbed.error().code, Code::corrupt);
  flip_byte(pages, (2 << 20) + 5);

  // criu by itself would read the missing part for ever.
  fs::copy_file(pages, pages + ".whole");
  fs::resize_file(pages, 1 << 20);
  auto cut = Counting::resume(client(), {.image = saved->image}, *box);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code, Code::corrupt) << cut.error().message;
  fs::rename(pages + ".whole", pages);

  flip_byte(folder_of(saved->image) + "/manifest.json", 200);
  auto forged = client().launch({.image = saved->image});
  ASSERT_FALSE(forged);
  EXPECT_EQ(forged.error().code, Code::corrupt) << forged.error().message;
  flip_byte(folder_of(saved->image) + "/manifest.json", 200);

  // Mended, it works: what was refused was refused for that one bit.
  auto mended = Counting::resume(client(), {.image = saved->image}, *box);
  ASSERT_OK(mended);
  auto counted = mended->next();
  ASSERT_OK(counted);
}

// A launcher that cannot read a manifest when it starts takes nothing of that image away.
TEST_F(Images, AManifestThatCannotBeReadAtAStartCostsNothing) {
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  ASSERT_TRUE(box->sh("echo kept >/root/file"));
  auto saved = box->save(client(), true, false);
  ASSERT_OK(saved);
  const std::string manifest = folder_of(saved->image) + "/manifest.json";
  auto restart = [&] {
    client_.reset();
    island().kill_launcher();
    auto started = island().start();
    ASSERT_OK(started);
    client_.emplace(island().client());
    ASSERT_TRUE(eventually([&] { return client().info()->cleaning == 0; }));
  };
  flip_byte(manifest, 200);
  restart();
  auto refused = client().launch({.image = saved->image});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::corrupt) << refused.error().message;
  flip_byte(manifest, 200);
  auto mended = Counting::resume(client(), {.ephemeral = false, .image = saved->image, .id = box->id()}, *box);
  ASSERT_OK(mended);
  auto counted = mended->next();
  ASSERT_OK(counted);
  EXPECT_EQ(mended->sh("cat /root/file").value_or("failed"), "kept\n");
  ASSERT_TRUE(client().kill(mended->id()));
  ASSERT_TRUE(client().drop_image(saved->image));
  restart();  // what stayed for its sake goes
}

TEST_F(Images, WhatThisMachineCannotRestoreIsSaidInASentence) {
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  auto saved = box->save(client(), true, false);
  ASSERT_OK(saved);
  image::ImageStore store(island().data() + "/images");
  // SHA-256 is added by and by, and writes the manifest once more.
  ASSERT_TRUE(eventually([&] {
    auto image = store.find(saved->image);
    return image && !image->files.empty() && !image->files[0].sha256.empty();
  }));
  auto image = store.find(saved->image);
  ASSERT_OK(image);
  struct Case {
    std::function<void(image::Image&)> change;
    const char* says;
  } cases[] = {
      {[](image::Image& i) { i.host.kernel = "5.10.0"; }, "saved on Linux 5.10.0"},
      {[](image::Image& i) { i.host.checkpointer = "criu 3.17"; }, "saved by criu 3.17"},
      {[](image::Image& i) { i.host.cpu += " avx9000"; }, "processor lacks (avx9000)"},
      {[](image::Image& i) { i.boundary = "uml"; }, "boundary uml"},
  };
  for (const auto& one : cases) {
    auto other = *image;
    one.change(other);
    auto written = store.commit(other);
    ASSERT_OK(written);
    auto refused = client().launch({.image = saved->image});
    ASSERT_FALSE(refused) << one.says;
    EXPECT_EQ(refused.error().code, Code::unsupported);
    EXPECT_NE(refused.error().message.find(one.says), std::string::npos) << refused.error().message;
    if (other.boundary != image->boundary) continue;
    // Whoever asks before they give anything up for it is told the same.
    auto looked = client().verify_image(saved->image, false);
    ASSERT_FALSE(looked) << one.says;
    EXPECT_EQ(looked.error().message, refused.error().message);
  }
  auto written = store.commit(*image);
  ASSERT_OK(written);
  auto again = client().launch({.image = saved->image});
  ASSERT_OK(again);
}

TEST_F(Images, BadRequestsAreRefusedAndHarmNobody) {
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  auto refused = [&](const auto& result, Code code, const std::string& says) {
    ASSERT_FALSE(result) << says;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(says), std::string::npos) << result.error().message;
  };
  refused(client().checkpoint({.id = box->id()}), Code::invalid, "must be quiesced");
  refused(client().checkpoint({.id = "iaaaaaaaaaaaaaaaaaaaa"}), Code::not_found, "no sandbox");
  refused(client().launch({.image = "maaaaaaaaaaaaaaaaaaaa"}), Code::not_found, "no image");
  refused(client().launch({.image = "../../etc"}), Code::invalid, "m and 20");
  refused(client().launch({.digest = island().digest(), .image = "maaaaaaaaaaaaaaaaaaaa"}), Code::invalid,
          "not of both");
  refused(client().drop_image("maaaaaaaaaaaaaaaaaaaa"), Code::not_found, "no image");
  refused(client().drop_image("../run"), Code::not_found, "no image");
  refused(client().verify_image("../run", false), Code::invalid, "m and 20");
  auto saved = box->save(client(), true, true);
  ASSERT_OK(saved);
  auto attached = box->attach(client());
  ASSERT_OK(attached);
  refused(client().launch({.image = saved->image, .id = box->id()}), Code::exists, "already");
  refused(client().launch({.image = saved->image, .id = "../x"}), Code::invalid, "name of a sandbox");
  auto counted = box->next();
  ASSERT_OK(counted);
}

// criu does without an archive of it where nothing is in it: so with nothing, with something, and with nothing but
// another mode.
TEST_F(Images, SharedMemoryIsAsItWas) {
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  const std::pair<const char*, const char*> steps[] = {
      {"true", "[ $(stat -c %a:%u:%g /dev/shm) = 1777:0:0 ] && [ -z \"$(ls -A /dev/shm)\" ]"},
      {"mkdir /dev/shm/a && echo kept >/dev/shm/a/b && chmod 640 /dev/shm/a/b",
       "[ $(cat /dev/shm/a/b) = kept ] && [ $(stat -c %a /dev/shm/a/b) = 640 ]"},
      {"rm -r /dev/shm/a; chmod 750 /dev/shm", "[ $(stat -c %a /dev/shm) = 750 ] && [ -z \"$(ls -A /dev/shm)\" ]"}};
  for (const auto& [make, check] : steps) {
    SCOPED_TRACE(make);
    ASSERT_TRUE(box->sh(make));
    ASSERT_TRUE(box->sh(check)) << "before";
    auto saved = box->save(client(), true, false);
    ASSERT_OK(saved);
    auto next = Counting::resume(client(), {.ephemeral = false, .image = saved->image}, *box);
    ASSERT_OK(next);
    box = std::move(next);
    EXPECT_TRUE(box->sh(check)) << "after";
  }
}

// Connections inside whose ends have not sent everything yet, since nobody reads: nothing of it is lost.
TEST_F(Images, WhatConnectionsInsideHaveNotSentIsSentAfterwards) {
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  constexpr char kFull[] = R"(
import hashlib, os, socket, time
ends, sums = [], []
for address in '127.0.0.1', '10.255.255.254':
    server = socket.create_server((address, 0))
    one = socket.create_connection(server.getsockname()); other, _ = server.accept()
    for writer, reader in (one, other), (other, one):
        writer.setblocking(False)
        sum, size = hashlib.sha256(), 0
        try:
            while True:
                piece = os.urandom(65536)
                n = writer.send(piece); sum.update(piece[:n]); size += n
        except BlockingIOError: pass
        writer.setblocking(True)
        ends.append(reader); sums.append((size, sum.digest()))
open('/tmp/full', 'w').close()
while not os.path.exists('/tmp/go'): time.sleep(0.01)
for reader, (size, wanted) in zip(ends, sums):
    sum = hashlib.sha256()
    while size > 0:
        piece = reader.recv(min(size, 1 << 20)); assert piece; sum.update(piece); size -= len(piece)
    assert sum.digest() == wanted
ends[0].sendall(b'more'); assert ends[1].recv(4) == b'more'
open('/tmp/done', 'w').close()
)";
  ASSERT_TRUE(box->sh(fmt::format("cat >/root/full.py <<'.'\n{}\n.\npython3 /root/full.py >/tmp/said 2>&1 &", kFull)));
  ASSERT_TRUE(eventually([&] { return bool(box->sh("test -e /tmp/full")); }));
  for (int generation = 0; generation < 2; ++generation) {
    SCOPED_TRACE(generation);
    auto saved = box->save(client(), true, false);
    ASSERT_OK(saved);
    auto next = Counting::resume(client(), {.ephemeral = false, .image = saved->image}, *box);
    ASSERT_OK(next);
    box = std::move(next);
  }
  ASSERT_TRUE(box->sh("touch /tmp/go"));
  EXPECT_TRUE(eventually([&] { return bool(box->sh("test -e /tmp/done")); }, std::chrono::seconds(60)))
      << box->sh("cat /tmp/said").value_or("failed");
}

// Watches, listeners, terminals, pipelines and threads, from one generation to the next.
TEST_F(Images, ProgramsOfAllKindsLiveOn) {
  auto box = Counting::start(client(), island().digest());
  ASSERT_OK(box);
  guest::PipeClient* guest = &box->guest();
  std::string typed, listened;
  auto into = [](std::string& s) {
    return guest::RunCallbacks{.out = [&s](std::string_view b) { s += b; },
                               .err = [&s](std::string_view b) { s += b; }};
  };
  auto await = [&](std::string& text, const std::string& wanted) {
    auto pumped = guest->pump_until([&] { return text.find(wanted) != text.npos; }, std::chrono::seconds(30));
    EXPECT_TRUE(pumped.has_value() && text.find(wanted) != text.npos) << "wanted " << wanted << ", got " << text;
    text.clear();
  };
  constexpr char kListener[] = R"(
import socket, threading, time, os
n = 0
def tick():
    global n
    while True: n += 1; time.sleep(0.005)
threading.Thread(target=tick, daemon=True).start()
inner = socket.socketpair()
s = socket.create_server(('127.0.0.1', 8000))
c1 = socket.create_connection(('127.0.0.1', 8000)); c2, _ = s.accept()
own = socket.create_server(('10.255.255.254', 8001))
d1 = socket.create_connection(('10.255.255.254', 8001)); d2, _ = own.accept()
gone = open('/tmp/gone', 'w+'); gone.write('deleted'); gone.flush(); os.unlink('/tmp/gone')
print('listening', flush=True)
while True:
    c, _ = s.accept()
    word = c.recv(100)
    inner[0].sendall(word); got = inner[1].recv(100)
    c1.sendall(got); got = c2.recv(100)
    d2.sendall(got); got = d1.recv(100)
    before = n
    while n <= before: time.sleep(0.001)
    gone.seek(0)
    c.sendall(b'hello ' + got + b' ' + gone.read().encode()); c.close()
)";
  auto shell =
      guest->begin_run({.argv = {"bash", "--norc"}, .stdin_mode = guest::Stdin::pipe, .pty = true}, into(typed));
  auto listener = guest->begin_run({.argv = {"python3", "-c", kListener}, .user = "1000"}, into(listened));
  await(listened, "listening");
  auto wrote = guest->write_stdin(shell, "kept=me$((1+1))\necho ready$((1))\n");
  ASSERT_OK(wrote);
  await(typed, "ready1");
  ASSERT_TRUE(
      box->sh("while :; do echo tick; sleep 0.02; done | while read x; do n=$((n+1)); echo $n >/tmp/.t; "
              "mv /tmp/.t /tmp/ticks; done >/dev/null 2>&1 &"));
  for (int generation = 1; generation <= 2; ++generation) {
    SCOPED_TRACE(generation);
    const uint32_t pid = shell->pid();
    const uint64_t seen = shell->seq();
    auto saved = box->save(client(), true, false);
    ASSERT_OK(saved);
    auto next = Counting::resume(client(), {.ephemeral = false, .image = saved->image}, *box);
    ASSERT_OK(next);
    box = std::move(next);
    guest = &box->guest();
    typed.clear();
    shell = guest->begin_attach(pid, seen, into(typed));
    wrote = guest->write_stdin(shell, "echo still $kept; tty\n");
    ASSERT_OK(wrote);
    await(typed, "still me2\r\n/dev/pts/");
    auto connection = guest->dial(8000);
    ASSERT_OK(connection);
    wrote = guest->write(*connection, "again");
    ASSERT_OK(wrote);
    await((*connection)->received, "hello again deleted");
    ASSERT_TRUE(
        box->sh("n=$(cat /tmp/ticks); timeout 20 sh -c \"while [ \\$(cat /tmp/ticks) -le $n ]; do sleep 0.01; done\""));
    auto counted = box->next();
    ASSERT_OK(counted);
  }
}

}  // namespace
}  // namespace isola::e2e
