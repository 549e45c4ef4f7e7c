#include "launcher/journal.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace isola::launcher {
namespace {

class JournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-journal-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    auto opened = Journal::open(folder_ + "/run");
    ASSERT_TRUE(opened) << opened.error().message;
    journal_ = std::move(*opened);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static JournalEntry example() {
    return {.id = "iaaaaaaaaaaaaaaaaaaaa",
            .id_base = 0x40010000,
            .digest = std::string(64, 'a'),
            .layer = "iaaaaaaaaaaaaaaaaaaaa-b1c2d3",
            .lowers = {"mbbbbbbbbbbbbbbbbbbbb", "icccccccccccccccccccc"},
            .image = "mbbbbbbbbbbbbbbbbbbbb",
            .shown = true,
            .volumes = {{"vddddddddddddddddddddd", "/data/here"}},
            .kind = BoundaryKind::gvisor,
            .process = {4711, 123456789},
            .handle = "word",
            .birth = Birth::pooled,
            .parked = true,
            .ephemeral = true,
            .frozen = true,
            .created = 1700000000,
            .life = 1700000000001};
  }
  std::vector<JournalEntry> all() {
    auto entries = journal_.read_all();
    EXPECT_TRUE(entries);
    return entries.value_or(std::vector<JournalEntry>{});
  }
  void put(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/run/" + name) << text; }

  std::string folder_;
  Journal journal_;
};

TEST_F(JournalTest, RoundTrip) {
  auto wrote = example();
  ASSERT_TRUE(journal_.write(wrote));
  auto entries = all();
  ASSERT_EQ(entries.size(), 1u);
  const auto& read = entries[0];
  EXPECT_EQ(read.id, wrote.id);
  EXPECT_EQ(read.id_base, wrote.id_base);
  EXPECT_EQ(read.digest, wrote.digest);
  EXPECT_EQ(read.process.pid, wrote.process.pid);
  EXPECT_EQ(read.process.start_time, wrote.process.start_time);
  EXPECT_EQ(read.birth, wrote.birth);
  EXPECT_EQ(read.kind, wrote.kind);
  EXPECT_EQ(read.handle, wrote.handle);
  EXPECT_EQ(read.parked, wrote.parked);
  EXPECT_EQ(read.ephemeral, wrote.ephemeral);
  EXPECT_TRUE(read.frozen);
  EXPECT_EQ(read.created, wrote.created);
  EXPECT_EQ(read.life, wrote.life);
  EXPECT_EQ(read.layer, wrote.layer);
  EXPECT_EQ(read.lowers, wrote.lowers);
  EXPECT_EQ(read.image, wrote.image);
  EXPECT_EQ(read.shown, wrote.shown);
  ASSERT_EQ(read.volumes.size(), wrote.volumes.size());
  EXPECT_EQ(read.volumes[0].id, wrote.volumes[0].id);
  EXPECT_EQ(read.volumes[0].target, wrote.volumes[0].target);
  EXPECT_EQ(read.boot, journal_.boot());
  EXPECT_FALSE(journal_.boot().empty());
}

TEST_F(JournalTest, AsManyLayersFitAsThereMayBe) {
  auto entry = example();
  entry.lowers.assign(kMostLowers, "iaaaaaaaaaaaaaaaaaaaa-b1c2d3");
  ASSERT_TRUE(journal_.write(entry));
  ASSERT_EQ(all().size(), 1u);
  EXPECT_EQ(all()[0].lowers, entry.lowers);
  entry.lowers.clear();
  entry.frozen = false;
  ASSERT_TRUE(journal_.write(entry));
  EXPECT_FALSE(all()[0].frozen);
  EXPECT_TRUE(all()[0].lowers.empty());
  EXPECT_EQ(all()[0].process.pid, 4711);
}

// Longer than a page, it could be torn by a kill between two: so it comes as a new file, and what stood there before is
// whole to the end, for whoever has it open.
TEST_F(JournalTest, ALongEntryIsNeverWrittenInPlace) {
  auto entry = example();
  const std::string path = folder_ + "/run/" + entry.id;
  auto lengthen = [&](char letter, size_t count) {
    entry.volumes.assign(count, {"vddddddddddddddddddddd", "/" + std::string(500, letter)});
  };
  auto text_of = [](std::istream& in) { return std::string(std::istreambuf_iterator<char>(in), {}); };
  auto replaced = [&](const char* what) {
    std::ifstream before(path);
    std::ifstream copy(path);
    const std::string old = text_of(copy);
    EXPECT_TRUE(journal_.write(entry)) << what;
    EXPECT_EQ(text_of(before), old) << what << " was written in place";
    EXPECT_EQ(all().at(0).volumes.size(), entry.volumes.size()) << what;
    EXPECT_EQ(all().at(0).process.pid, entry.process.pid) << what;
  };
  ASSERT_TRUE(journal_.write(entry));
  lengthen('a', 10);
  replaced("a long one over a short one");
  lengthen('b', 12);
  entry.process.pid = 47110;
  replaced("a long one over a long one");
  lengthen('c', 1);
  replaced("a short one over a long one");
  struct stat one{}, other{};
  ASSERT_EQ(::stat(path.c_str(), &one), 0);
  entry.parked = false;
  ASSERT_TRUE(journal_.write(entry));
  ASSERT_EQ(::stat(path.c_str(), &other), 0);
  EXPECT_EQ(one.st_ino, other.st_ino) << "a short one over a short one costs one write";
  EXPECT_FALSE(all().at(0).parked);
}

TEST_F(JournalTest, LaterEntriesReplaceEarlierOnes) {
  auto entry = example();
  ASSERT_TRUE(journal_.write(entry));
  entry.parked = false;
  entry.process.pid = 1;
  ASSERT_TRUE(journal_.write(entry));
  ASSERT_EQ(all().size(), 1u);
  EXPECT_FALSE(all()[0].parked);
  EXPECT_EQ(all()[0].process.pid, 1);
  journal_.erase(entry.id);
  EXPECT_TRUE(all().empty());
  journal_.erase(entry.id);  // twice is fine
}

// Killed between writing and naming: what was written is no entry, whatever it says, and the one before it stands.
TEST_F(JournalTest, HalfWritten) {
  auto entry = example();
  ASSERT_TRUE(journal_.write(entry));
  put(".1.0", "3 ibbbbbbbbbbbbbbbbbbbb 107");
  auto entries = all();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].process.pid, 4711);
}

// Whatever cannot be read is still known by its name, so that it is cleared away; it is never taken for alive.
TEST_F(JournalTest, Garbage) {
  ASSERT_TRUE(journal_.write(example()));
  std::ifstream in(folder_ + "/run/" + example().id);
  std::string whole((std::istreambuf_iterator<char>(in)), {});
  const std::string id = "icccccccccccccccccccc";
  // Cut anywhere, or of another id, or of another version.
  std::string line = whole;
  line.replace(line.find(example().id), id.size(), id);
  const size_t last_word = line.find_last_not_of(" \n") + 1;
  for (size_t n = 0; n <= last_word; ++n) {
    put(id, line.substr(0, n));
    for (const auto& entry : all()) {
      if (entry.id == id) {
        EXPECT_EQ(entry.process.pid, 0) << "cut to " << n;
      }
    }
    EXPECT_EQ(all().size(), 2u) << n;
  }
  for (const std::string& text : {whole, "8" + line.substr(1), std::string(100000, 'x'),
                                  std::string("3 ") + id + " -1 x y z", std::string(64, '\0')}) {
    put(id, text);
    for (const auto& entry : all()) {
      if (entry.id == id) {
        EXPECT_EQ(entry.process.pid, 0) << text.substr(0, 60);
      }
    }
  }
  put(id, line);
  for (const auto& entry : all()) {
    if (entry.id == id) {
      EXPECT_EQ(entry.process.pid, 4711) << "the whole line is readable";
    }
  }
}

TEST_F(JournalTest, ForeignFilesAreLeftAlone) {
  put("README", "not ours");
  std::filesystem::create_directory(folder_ + "/run/idddddddddddddddddddd");
  auto entries = all();
  ASSERT_EQ(entries.size(), 1u);  // a folder with an id's name: unreadable, so to be cleared away
  EXPECT_EQ(entries[0].process.pid, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/run/README"));
}

// What a launcher of an earlier version left is adopted by this one: then every sandbox was a jail.
TEST_F(JournalTest, EntriesOfEarlierVersionsAreRead) {
  const std::string id = "ieeeeeeeeeeeeeeeeeeee";
  const std::string start = " " + id + " 1000 " + std::string(64, 'a') + " 4711 5 1 0 1 0 7 8 boot";
  for (const std::string& text :
       {"3" + start + "\n", "4" + start + " - - 0 l1,l2\n", "5" + start + " - - 0 l1,l2 v1:/data\n",
        "6" + start + " - - 0 l1,l2 v1:/data jail -\n"}) {
    put(id, text);
    ASSERT_EQ(all().size(), 1u);
    EXPECT_EQ(all()[0].process.pid, 4711) << text;
    EXPECT_EQ(all()[0].kind, BoundaryKind::jail) << text;
    EXPECT_EQ(all()[0].handle, "") << text;
    EXPECT_EQ(all()[0].life, 0) << text;
  }
  // A boundary of a later version: nobody here could speak to it.
  put(id, "6" + start + " - - 0 - - antimatter -\n");
  EXPECT_EQ(all()[0].process.pid, 0);
}

TEST_F(JournalTest, AnotherBootIsToldApart) {
  put("ieeeeeeeeeeeeeeeeeeee",
      "3 ieeeeeeeeeeeeeeeeeeee 0 " + std::string(64, 'a') + " 4711 5 0 0 0 0 0 0 another-boot\n");
  ASSERT_EQ(all().size(), 1u);
  EXPECT_EQ(all()[0].boot, "another-boot");
  EXPECT_NE(all()[0].boot, journal_.boot());
}

}  // namespace
}  // namespace isola::launcher
