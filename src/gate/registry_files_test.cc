#include "gate/registry_files.h"

#include <gtest/gtest.h>

namespace isola::gate {
namespace {

TEST(RegistryFiles, TomlAsItIsWritten) {
  auto found = toml_strings(
      "top = \"t\" # c\n[source.crates-io]\nreplace-with = 'm'\n[source.\"a.b\"]\nregistry = \"x\\\"y\"\n"
      "[registries]\ninner = { index = \"sparse+https://i.example/\", token = \"s\" }\nnumber = 3\nbad = \"open\n"
      "[[list]]\nx = \"no table\"\n# old = \"c\"\n");
  EXPECT_EQ(found["top"], "t");
  EXPECT_EQ(found["source.crates-io.replace-with"], "m");
  EXPECT_EQ(found["source.a\x1f"
                  "b.registry"],
            "x\"y");
  EXPECT_EQ(found["registries.inner.index"], "sparse+https://i.example/");
  EXPECT_FALSE(found.contains("registries.number"));
  EXPECT_FALSE(found.contains("registries.bad"));
  EXPECT_FALSE(found.contains("registries.x"));
  EXPECT_EQ(found["?.x"], "no table");
  EXPECT_EQ(found.size(), 6U) << "top, two of sources, two of inner, and x";
}

TEST(RegistryFiles, CargoGoesTheSameWay) {
  EXPECT_EQ(
      cargo_config("[source.crates-io]\nreplace-with = \"mirror\"\n"
                   "[source.mirror]\nregistry = \"sparse+https://u:p@cargo.example/index/\"\n"
                   "[source.vendored]\ndirectory = \"vendor\"\n[source.other]\nreplace-with = \"vendored\"\n"
                   "[registries.inner]\nindex = \"https://git.example/index\"\ntoken = \"secret\"\n"
                   "[registry]\ndefault = \"inner\"\ntoken = \"secret\"\n[http]\nproxy = \"u:p@proxy.example:1\"\n"),
      "registries.\"inner\".index = \"https://git.example/index\"\n"
      "registry.default = \"inner\"\n"
      "source.\"mirror\".registry = \"sparse+https://cargo.example/index/\"\n"
      "source.\"crates-io\".replace-with = \"mirror\"\n");
  EXPECT_EQ(cargo_config("[build]\njobs = 2\n"), "");
}

TEST(RegistryFiles, NpmScopesButNoTokens) {
  EXPECT_EQ(npm_config({{"@x:registry", "https://u:p@scoped.example/"},
                        {"//scoped.example/:_authToken", "s"},
                        {"_auth", "s"},
                        {"registry", "https://npm.example/"},
                        {"https-proxy", "http://proxy.example:3128"},
                        {"proxy", "null"}}),
            "@x:registry=https://scoped.example/\nhttps-proxy=http://proxy.example:3128\n");
}

TEST(RegistryFiles, MavenMirrorsAndActiveProfiles) {
  auto text = maven_settings(
      {"<settings><!-- <mirror><url>https://no.example</url></mirror> --><mirrors><mirror><id>m</id>"
       "<mirrorOf>*</mirrorOf><url>https://u:p@maven.example/m2</url></mirror></mirrors>"
       "<servers><server><id>m</id><password>secret</password></server></servers>"
       "<proxies><proxy><host>proxy.example</host><port>3128</port><password>secret</password></proxy></proxies></"
       "settings>",
       "<settings><profiles><profile><id>on</id><repositories><repository><id>r</id><url>https://r.example</url>"
       "</repository></repositories></profile><profile><id>off</id><repositories><repository><id>o</id>"
       "<url>https://off.example</url></repository></repositories></profile></profiles>"
       "<activeProfiles><activeProfile>on</activeProfile></activeProfiles></settings>"});
  EXPECT_NE(text.find("<mirror><id>m</id><mirrorOf>*</mirrorOf><url>https://maven.example/m2</url></mirror>"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("<proxy><host>proxy.example</host><port>3128</port></proxy>"), std::string::npos) << text;
  EXPECT_NE(text.find("<repository><id>r</id><url>https://r.example</url></repository>"), std::string::npos) << text;
  for (const char* kept : {"secret", "off.example", "no.example"})
    EXPECT_EQ(text.find(kept), std::string::npos) << kept << "\n" << text;
  EXPECT_EQ(maven_settings({"<settings></settings>", ""}), "");
}

TEST(RegistryFiles, AptOptionsWithoutFilesOfTheHost) {
  EXPECT_EQ(apt_options({"Acquire::http::Proxy \"http://u:p@proxy.example:3128\"",
                         "Acquire::https::CAInfo \"/etc/ssl/own.pem\"", "Acquire::Retries \"3\"",
                         "Acquire::http::Proxy-Auto-Detect \"apt-proxy\""}),
            "Acquire::http::Proxy \"http://proxy.example:3128\";\nAcquire::Retries \"3\";\n");
}

TEST(RegistryFiles, CargoNamesAreWrittenAsTheyWere) {
  EXPECT_EQ(cargo_config("[source.\"a.b\"]\nregistry = \"https://x.example/\\\"q\\\\\"\n"
                         "[source.c.d]\nregistry = \"https://nested.example/\"\n"
                         "[source.e]\nregistry = \"https://e.\x01\x7f"
                         "example/\"\n"),
            "source.\"a.b\".registry = \"https://x.example/\\\"q\\\\\"\n"
            "source.\"e\".registry = \"https://e.example/\"\n");
  EXPECT_EQ(cargo_config("[source.v]\nregistry = \"file\"\n[registries.r]\nindex = \"folder\"\n"), "");
  EXPECT_EQ(cargo_config("[registries.r]\nindex = \"https://u:p@r.example/\"\n[http]\nproxy = \"proxy.example:1\"\n"),
            "http.proxy = \"proxy.example:1\"\nregistries.\"r\".index = \"https://r.example/\"\n");
}

TEST(RegistryFiles, NpmValuesAreOnePlainLine) {
  EXPECT_EQ(npm_config({{"@x:registry", "https://a.example/\nevil=1"}, {"@y:registry", "https://b.example/ c"}}), "");
  EXPECT_EQ(npm_config({{"noproxy", "a@b.example"}, {"proxy", ""}}), "noproxy=a@b.example\n");
}

TEST(RegistryFiles, AMavenMirrorThatBlocksIsNoRegistry) {
  const std::string file =
      "<settings><mirrors><mirror><id>m</id><url>https://maven.example</url></mirror><mirror><id>b</id>"
      "<mirrorOf>external:http:*</mirrorOf><url>http://0.0.0.0/</url><blocked>true</blocked></mirror></mirrors></"
      "settings>";
  auto urls = xml_elements(without_blocked(file), "url");
  EXPECT_EQ(urls, std::vector<std::string>{"https://maven.example"});
  EXPECT_NE(maven_settings({file}).find("<url>http://0.0.0.0/</url><blocked>true</blocked></mirror>"),
            std::string::npos)
      << "inside it blocks, too";
}

TEST(RegistryFiles, MavenProfilesByDefaultAndPlugins) {
  auto text =
      maven_settings({"<settings><profiles><profile><id>d</id><activation><activeByDefault>true</activeByDefault>"
                      "</activation><pluginRepositories><pluginRepository><id>p</id>"
                      "<url>https://u:secret@plugins.example</url></pluginRepository></pluginRepositories>"
                      "</profile></profiles><mirrors><mirror><id>m</id><url><b>https://odd.example</b></url>"
                      "</mirror></mirrors></settings>"});
  EXPECT_NE(text.find("<pluginRepository><id>p</id><url>https://plugins.example</url></pluginRepository>"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("odd.example"), std::string::npos) << text;
}

TEST(RegistryFiles, AptProgramsAndQuotesStayOutside) {
  EXPECT_EQ(apt_options({"Acquire::http::ProxyAutoDetect \"apt-proxy\"", "Acquire::x \"a\"b\"", "Acquire::y none"}),
            "");
}

TEST(RegistryFiles, ThePasswordEndsAtTheLastSign) {
  EXPECT_EQ(without_password("https://u:p@w@a.example/x"), "https://a.example/x");
}

}  // namespace
}  // namespace isola::gate
