#include "image/image_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/file.h"
#include "base/hash/sha256.h"
#include "image/layer_store.h"
#include "image/layer_test.h"
#include "kernel/fault.h"

namespace isola::image {
namespace {

namespace fs = std::filesystem;

class ImageStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-images-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    store_ = std::make_unique<ImageStore>(folder_ + "/images");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void put(const Draft& draft, const std::string& name, const std::string& text) {
    std::ofstream(draft.memory + "/" + name, std::ios::binary) << text;
  }
  Result<Image> make() {
    ISOLA_TRY(auto draft, store_->begin());
    std::string large(2 * kChunk + 100, 'x');
    for (size_t i = 0; i < large.size(); i += 4096) large[i] = static_cast<char>(i >> 12);
    put(draft, "pages-1.img", large);
    put(draft, "core-1.img", "small");
    put(draft, "dump.log", "noise");
    Image image{.id = draft.id, .verb = "pause", .digest = std::string(64, 'd'), .memory = true};
    ISOLA_TRY(image.files, store_->sum_up(draft.id));
    ISOLA_CHECK(store_->commit(image));
    return image;
  }

  std::string folder_;
  std::unique_ptr<ImageStore> store_;
};

TEST_F(ImageStoreTest, IsThereWhenItIsCommittedAndNotBefore) {
  auto draft = store_->begin();
  ASSERT_TRUE(draft) << draft.error().message;
  EXPECT_FALSE(store_->find(draft->id));
  EXPECT_TRUE(store_->list()->empty());
  EXPECT_TRUE(store_->leftovers()->empty()) << "somebody works on it";
  draft->lock.reset();
  EXPECT_EQ(store_->leftovers()->size(), 1u);
  ASSERT_TRUE(store_->remove(draft->id));
  EXPECT_TRUE(store_->leftovers()->empty());

  auto image = make();
  ASSERT_TRUE(image) << image.error().message;
  ASSERT_EQ(image->files.size(), 2u);  // no logs
  EXPECT_EQ(image->files[1].chunks.size(), 3u);
  auto found = store_->find(image->id);
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, *image);
  EXPECT_EQ(store_->list()->size(), 1u);
}

TEST_F(ImageStoreTest, CorruptionIsNamedByFileAndChunk) {
  auto image = make();
  ASSERT_TRUE(image);
  ASSERT_TRUE(store_->seal(image->id));
  image = store_->find(image->id);
  ASSERT_TRUE(image);
  EXPECT_EQ(image->files[0].sha256.size(), 64u);
  EXPECT_TRUE(store_->verify(*image, true));
  std::string pages = store_->memory_folder(image->id) + "/pages-1.img";
  Fd fd(::open(pages.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::pwrite(fd.get(), "!", 1, kChunk + 7), 1);
  auto checked = store_->verify(*image, false);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Code::corrupt);
  EXPECT_NE(checked.error().message.find("pages-1.img, chunk 1"), std::string::npos) << checked.error().message;
  ASSERT_EQ(::ftruncate(fd.get(), 10), 0);
  EXPECT_NE(store_->verify(*image, false).error().message.find("10 bytes"), std::string::npos);
  ::unlink(pages.c_str());
  EXPECT_NE(store_->verify(*image, false).error().message.find("missing"), std::string::npos);
  // What is no file is not opened as one: a pipe would be waited for, a link leads elsewhere.
  ASSERT_EQ(::mkfifo(pages.c_str(), 0600), 0);
  EXPECT_NE(store_->verify(*image, false).error().message.find("not a file"), std::string::npos);
  ::unlink(pages.c_str());
  ASSERT_EQ(::symlink("/dev/zero", pages.c_str()), 0);
  EXPECT_EQ(store_->verify(*image, false).error().sys_errno, ELOOP);
}

// A scrub asks the disk; whoever loads an image has what is in memory already.
TEST_F(ImageStoreTest, WhatTheDiskHasLostIsFoundThoughMemoryHasIt) {
  StoreOptions options{.provider = "ext4-file", .reserve_bytes = 1};
  auto layers = open_layer_store(folder_, options, std::nullopt);
  if (!layers) GTEST_SKIP() << layers.error().message;
  auto layer = (*layers)->create("one", {.bytes = 64 * MiB});
  ASSERT_TRUE(layer) << layer.error().message;
  Fd disk(::open((folder_ + "/storage/files/one.ext4").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(disk);
  ImageStore store(*layer + "/upper/images");
  auto lose = [&](const std::string& path, const std::string& mark) {
    Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::syncfs(file.get()), 0);
    const off_t at = find_on_disk(disk.get(), mark);
    ASSERT_GE(at, 0);
    ASSERT_EQ(::pwrite(disk.get(), "!", 1, at + 5000), 1);
  };
  for (bool packed : {false, true}) {
    SCOPED_TRACE(packed);
    auto draft = store.begin();
    ASSERT_TRUE(draft) << draft.error().message;
    const std::string mark = "to be found again: " + draft->id, text = mark + std::string(100'000, 'x');
    Image image{.id = draft->id, .verb = "pause", .digest = std::string(64, 'd'), .memory = true};
    std::string path = draft->memory + "/pages-1.img";
    put(*draft, "pages-1.img", text);
    image.files = store.sum_up(image.id).value();
    if (packed) {
      path = store.root() + "/" + image.id + "/memory.tar.zst";
      std::filesystem::rename(draft->memory + "/pages-1.img", path);
      image.archives = {{.name = "memory.tar.zst", .size = text.size(), .chunks = {}, .sha256 = sha256(text).value()}};
    }
    EXPECT_TRUE(store.verify(image, true));
    lose(path, mark);
    EXPECT_TRUE(store.verify(image, false)) << "it is in memory still";
    auto checked = store.verify(image, true);
    ASSERT_FALSE(checked) << "nobody would have noticed";
    EXPECT_EQ(checked.error().code, Code::corrupt) << checked.error().message;
  }
}

TEST_F(ImageStoreTest, ABrokenManifestIsToldAndTheOthersAreListed) {
  auto one = make(), two = make();
  ASSERT_TRUE(one && two);
  std::ofstream(store_->root() + "/" + one->id + "/manifest.json") << "{}";
  std::vector<std::string> broken;
  auto all = store_->list([&](const std::string& id, const Error&) { broken.push_back(id); });
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 1u);
  EXPECT_EQ((*all)[0].id, two->id);
  EXPECT_EQ(broken, std::vector<std::string>{one->id});
  EXPECT_EQ(store_->find(one->id).error().code, Code::corrupt);
}

TEST_F(ImageStoreTest, DroppedIsGoneAtOnceAndSealingDoesNotBringItBack) {
  auto image = make();
  ASSERT_TRUE(image);
  ASSERT_TRUE(store_->drop(image->id));
  EXPECT_EQ(store_->find(image->id).error().code, Code::not_found);
  EXPECT_EQ(store_->drop(image->id).error().code, Code::not_found);
  EXPECT_FALSE(store_->seal(image->id));
  EXPECT_FALSE(store_->find(image->id));
  EXPECT_EQ(store_->leftovers()->size(), 1u);
  EXPECT_TRUE(store_->remove(image->id));
  EXPECT_TRUE(store_->remove(image->id));  // twice is fine
  EXPECT_EQ(store_->find("../images").error().code, Code::invalid);
  EXPECT_FALSE(store_->remove("../images"));
}

#ifdef ISOLA_FAULTS
// Whatever fails on the way: there is no image then.
TEST_F(ImageStoreTest, AFailureLeavesNoImage) {
  for (const char* what : {"mkdir:1:28", "fsync:1:28", "commit_image:1:28"}) {
    ASSERT_TRUE(kernel::fault::arm(what));
    auto image = make();
    kernel::fault::disarm();
    ASSERT_FALSE(image) << what;
    EXPECT_EQ(image.error().sys_errno, ENOSPC);
    EXPECT_TRUE(store_->list()->empty());
    auto leftovers = store_->leftovers();
    ASSERT_TRUE(leftovers.has_value());
    for (const auto& id : *leftovers) EXPECT_TRUE(store_->remove(id));
  }
  EXPECT_TRUE(make());
}
#endif

// Whoever seals an image read its manifest some time ago: what was written meanwhile stays.
TEST_F(ImageStoreTest, SealingDoesNotUndoWhatAnotherWrote) {
  auto image = make();
  ASSERT_TRUE(image);
  Fd lock(::open((folder_ + "/images/" + image->id + "/lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  pid_t sealer = ::fork();
  if (sealer == 0) {
    lock.reset();  // or it would hold what it waits for
    ::_exit(store_->seal(image->id) ? 0 : 1);
  }
  // "…: -> FLOCK  ADVISORY  WRITE <pid> …": it waits.
  const std::string waits = " " + std::to_string(sealer) + " ";
  bool there = false;
  for (int i = 0; i < 5000 && !there; ++i, ::usleep(1000)) {
    std::istringstream lines(read_file("/proc/locks", 4 << 20).value());
    for (std::string line; std::getline(lines, line);)
      there |= line.find("-> FLOCK") != std::string::npos && line.find(waits) != std::string::npos;
  }
  EXPECT_TRUE(there);
  Image packed = *image;
  packed.archives = {{.name = "memory.tar.zst", .size = 3, .chunks = {}, .sha256 = std::string(64, 'a')}};
  EXPECT_TRUE(store_->commit(packed));
  lock.reset();
  int status = -1;
  ASSERT_EQ(::waitpid(sealer, &status, 0), sealer);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*store_->find(image->id), packed);
}

TEST_F(ImageStoreTest, OnlyWhatIsThereIsChanged) {
  auto image = make();
  ASSERT_TRUE(image);
  image->layer_bytes = 7;
  ASSERT_TRUE(store_->change(*image));
  EXPECT_EQ(store_->find(image->id)->layer_bytes, 7u);
  ASSERT_TRUE(store_->drop(image->id));
  EXPECT_EQ(store_->change(*image).error().code, Code::not_found);
  EXPECT_FALSE(store_->find(image->id));
}

}  // namespace
}  // namespace isola::image
