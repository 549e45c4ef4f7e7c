#include "image/apt_sources.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/ids.h"
#include "image/tree.h"

namespace isola::image {
namespace {

using Strings = std::vector<std::string>;

TEST(OsRelease, IdAndCodename) {
  auto d = parse_os_release("NAME=\"X\"\nID=debian\nVERSION_CODENAME=bookworm\n").value();
  EXPECT_EQ(d.id, "debian");
  EXPECT_EQ(d.codename, "bookworm");
  EXPECT_EQ(parse_os_release("ID=\"ubuntu\"\nVERSION_CODENAME='noble'").value().codename, "noble");
}

TEST(OsRelease, OddOnesAreRefused) {
  EXPECT_FALSE(parse_os_release(""));
  EXPECT_FALSE(parse_os_release("ID=debian\n"));
  EXPECT_FALSE(parse_os_release("ID=debian\nVERSION_CODENAME=\"a b\"\n"));
  EXPECT_FALSE(parse_os_release("ID=debian\nVERSION_CODENAME=../x\n"));
}

TEST(OneLine, PlainAndWithOptions) {
  auto list = parse_one_line(
      "# a comment\n"
      "deb http://mirror.test/debian bookworm main contrib # trailing\n"
      "\n"
      "deb-src http://mirror.test/debian bookworm main\n"
      "  deb [ arch=amd64,arm64 signed-by=/k.gpg  trusted=yes odd ] https://other.test/d\tbookworm-updates main\r\n");
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].uris, Strings{"http://mirror.test/debian"});
  EXPECT_EQ(list[0].suites, Strings{"bookworm"});
  EXPECT_EQ(list[0].components, (Strings{"main", "contrib"}));
  EXPECT_EQ(list[0].signed_by, "");
  EXPECT_EQ(list[1].signed_by, "/k.gpg");
  EXPECT_EQ(list[1].trusted, "yes");
  EXPECT_EQ(list[1].architectures, (Strings{"amd64", "arm64"}));
  EXPECT_EQ(list[1].suites, Strings{"bookworm-updates"});
  EXPECT_EQ(list[1].components, Strings{"main"});
}

TEST(OneLine, OddInput) {
  for (const char* text :
       {"deb", "deb ", "deb http://only-uri.test", "deb [arch=amd64 http://x y z", "debx http://x y z", "deb []",
        "deb [a=b]", "\n\n\n", "#deb http://x y z", "deb\0http://x y z"})
    EXPECT_TRUE(parse_one_line(text).empty()) << text;
}

TEST(Deb822, StanzasCommentsAndContinuations) {
  auto list = parse_deb822(
      "Types: deb deb-src\n"
      "# in between\n"
      "URIs: http://a.test/debian\n"
      " http://b.test/debian\n"
      "suites: bookworm bookworm-updates\n"
      "Components: main\n"
      "Signed-By: /usr/share/keyrings/x.gpg\n"
      "\n\n"
      "Types: deb\nEnabled: no\nURIs: http://off.test\nSuites: bookworm\nComponents: main\n"
      "\n"
      "Types: deb-src\nURIs: http://src.test\nSuites: bookworm\nComponents: main\n"
      "\n"
      "Types: deb\nURIs: http://c.test\nSuites: bookworm-security\nComponents: main\n"
      "Signed-By:\n -----BEGIN PGP-----\n .\n abc\n -----END PGP-----");
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].uris, (Strings{"http://a.test/debian", "http://b.test/debian"}));
  EXPECT_EQ(list[0].suites, (Strings{"bookworm", "bookworm-updates"}));
  EXPECT_EQ(list[1].signed_by, "-----BEGIN PGP-----\n.\nabc\n-----END PGP-----");
}

TEST(Deb822, OddInput) {
  for (const char* text : {"", ":", "\n \n", " leading", "Types deb\nURIs x", "Types: deb",
                           "Types: deb\nURIs:\nSuites:", "URIs: http://x\nSuites: y"})
    EXPECT_TRUE(parse_deb822(text).empty()) << text;
}

TEST(Deb822, WhatIsWrittenIsReadBack) {
  std::vector<AptSource> sources = {
      {.uris = {"http://a.test/d"}, .suites = {"s", "s-updates"}, .components = {"main"}, .signed_by = "/k.gpg"},
      {.uris = {"http://b.test/d"},
       .suites = {"s"},
       .components = {"main", "x"},
       .signed_by = "-----BEGIN-----\n.\nabc\n-----END-----",
       .trusted = "yes",
       .architectures = {"amd64"}}};
  EXPECT_EQ(parse_deb822(to_deb822(sources, false)), sources);
}

TEST(Deb822, PasswordsStayOnTheMachine) {
  std::vector<AptSource> s = {
      {.uris = {"https://me:se@cret@a.test/d", "http://b.test/@x"}, .suites = {"s"}, .components = {"m"}}};
  EXPECT_NE(to_deb822(s, false).find("se@cret"), std::string::npos);
  EXPECT_NE(to_deb822(s, true).find("URIs: https://a.test/d http://b.test/@x\n"), std::string::npos)
      << to_deb822(s, true);
}

TEST(OfDistribution, OnlyItsOwnSuites) {
  auto list = of_distribution(
      {{.uris = {"http://a.test"},
        .suites = {"bookworm", "bookworm-updates", "bookworm/updates", "bookwormish", "trixie", "stable", "bookworm/"},
        .components = {"main"}},
       {.uris = {"http://vendor.test"}, .suites = {"nodistro"}, .components = {"main"}},
       {.uris = {"cdrom:[Debian]"}, .suites = {"bookworm"}, .components = {"main"}},
       {.uris = {"http://flat.test"}, .suites = {"bookworm"}, .components = {}}},
      {.id = "debian", .codename = "bookworm"});
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].suites, (Strings{"bookworm", "bookworm-updates", "bookworm/updates"}));
}

TEST(AptOptions, OnlyHowToReachSources) {
  auto options = pick_apt_options(
      "APT::Architecture \"amd64\";\nAcquire::http::Proxy \"http://p.test:3128\";\nAcquire::https \"\";\n"
      "Acquire::Check-Valid-Until \"false\";\nAcquire::AllowInsecureRepositories \"1\";\nAcquire::http::Proxy::x.test "
      "\"DIRECT\";\nAcquire::https::CAInfo \"\";\nDPkg::Pre-Invoke:: \"rm -rf /\";\n");
  EXPECT_EQ(options, (Strings{"Acquire::http::Proxy \"http://p.test:3128\"", "Acquire::Check-Valid-Until \"false\"",
                              "Acquire::http::Proxy::x.test \"DIRECT\""}));
}

TEST(NamedFiles, KeyringsAndMirrorLists) {
  std::vector<AptSource> s = {
      {.uris = {"mirror+file:/etc/apt/mirrors/a.list"},
       .suites = {"s"},
       .components = {"m"},
       .signed_by = "/k1.gpg,/k2.gpg"},
      {.uris = {"http://x.test"}, .suites = {"s"}, .components = {"m"}, .signed_by = "-----BEGIN\n/not/a/file"},
      {.uris = {"http://x.test"}, .suites = {"s"}, .components = {"m"}, .signed_by = "/k1.gpg"},
      {.uris = {"http://x.test"}, .suites = {"s"}, .components = {"m"}, .signed_by = "ABCDEF0123 /a/../b"}};
  EXPECT_EQ(named_files(s), (Strings{"/k1.gpg", "/k2.gpg", "/etc/apt/mirrors/a.list"}));
}

TEST(HostSources, ReadFromFolders) {
  std::string root = "/tmp/isola-apt-" + new_sandbox_id();
  ASSERT_TRUE(make_dirs(root + "/etc/apt/sources.list.d"));
  EXPECT_FALSE(read_host_sources(root));
  ASSERT_TRUE(replace_file(root + "/etc/os-release", "ID=debian\nVERSION_CODENAME=bookworm\n"));
  EXPECT_EQ(read_host_sources(root).error().code, Code::not_found);
  ASSERT_TRUE(replace_file(root + "/etc/apt/sources.list", "deb http://a.test bookworm main\n"));
  std::string parts = root + "/etc/apt/sources.list.d/";
  ASSERT_TRUE(replace_file(parts + "b.list", "deb http://b.test bookworm-security main\n"));
  ASSERT_TRUE(
      replace_file(parts + "c.sources", "Types: deb\nURIs: http://c.test\nSuites: bookworm\nComponents: main\n"));
  ASSERT_TRUE(replace_file(parts + "d.list.disabled", "deb http://d.test bookworm main\n"));
  ASSERT_TRUE(replace_file(parts + "e.sources", "Types: deb\nURIs: http://e.test\nSuites: sid\nComponents: main\n"));
  auto host = read_host_sources(root);
  ASSERT_TRUE(host) << host.error().message;
  ASSERT_EQ(host->sources.size(), 3u);
  EXPECT_EQ(host->sources[0].uris[0], "http://a.test");
  EXPECT_EQ(host->sources[1].uris[0], "http://b.test");
  EXPECT_EQ(host->sources[2].uris[0], "http://c.test");
  EXPECT_TRUE(remove_tree(root));
}

}  // namespace
}  // namespace isola::image
