#include "gate/registries.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "base/file.h"
#include "gate/registry_files.h"

namespace isola::gate {
namespace {

TEST(Registries, AddressesInText) {
  auto found = endpoints_in(
      "deb http://mirror.example/debian x\nhttps://u:p@Pkg.example:8443/simple, ftp://no.example "
      "sparse+https://idx.example/",
      "t");
  EXPECT_EQ(found, (std::vector<Endpoint>{
                       {"mirror.example", 80, "t"}, {"pkg.example", 8443, "t"}, {"idx.example", 443, "t"}}));
  EXPECT_TRUE(endpoints_in("https://:1 https://a\xff https:// http://x:99999", "t").empty());
  EXPECT_EQ(without_password("https://u:p@a.example/x,https://b.example"), "https://a.example/x,https://b.example");
  EXPECT_EQ(without_password("direct"), "direct");
  EXPECT_EQ(without_password("https://u:p#w@a.example/simple"), "");
  EXPECT_EQ(without_password("https://b.example/x,https://u:p/w@a.example/y|direct"), "https://b.example/x,|direct");
}

TEST(Registries, SettingsOfIniFiles) {
  auto found = settings_in(
      "[global]\n# c\nindex-url = https://a.example/simple\nextra-index-url =\n  https://b.example\n  "
      "https://c.example\n@scope:registry=https://d.example\nq = \"x\"\n");
  EXPECT_EQ(found["index-url"], "https://a.example/simple");
  EXPECT_EQ(found["extra-index-url"], "https://b.example https://c.example");
  EXPECT_EQ(found["@scope:registry"], "https://d.example");
  EXPECT_EQ(found["q"], "x");
}

TEST(Registries, ReadFromAMachinesConfiguration) {
  char name[] = "/tmp/isola-registries-XXXXXX";
  ASSERT_TRUE(::mkdtemp(name));
  std::string root = name;
  auto put = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    ASSERT_TRUE(replace_file(root + path, text));
  };
  put("/etc/os-release", "ID=debian\nVERSION_CODENAME=bookworm\n");
  put("/etc/apt/sources.list", "deb http://apt.example/debian bookworm main\n");
  std::filesystem::create_directories(root + "/etc/apt/sources.list.d");
  put("/etc/pip.conf", "[global]\nindex-url = https://user:secret@pip.example/simple\ncert = /etc/ssl/own.pem\n");
  put("/etc/ssl/own.pem", "-----BEGIN CERTIFICATE-----\n");
  put("/home/u/.npmrc",
      "registry=https://npm.example:4873/\n@x:registry=http://scoped.example\n//npm.example/:_authToken=s\n");
  put("/home/u/.cargo/config.toml", "[source.m]\nregistry = \"sparse+https://cargo.example/index/\"\n");
  put("/home/u/.cargo/registry/index/index.example-0123456789abcdef/config.json",
      "{\"dl\":\"https://dl.example/crates\"}");
  put("/home/u/.m2/settings.xml",
      "<settings xmlns=\"http://schema.example/x\"><!-- <url>https://no.example</url> "
      "--><mirror><url>https://maven.example/m2</url></mirror></settings>");
  auto found = read_registries(
      {.root = root,
       .home = "/home/u",
       .ask_tools = false,
       .environment = {
           {"GOPROXY", "https://go.example|direct"}, {"GOSUMDB", "sum.example"}, {"GOPRIVATE", "*.corp.example"}}});
  std::filesystem::remove_all(root);
  std::string all;
  for (const auto& one : found.endpoints) all += one.tool + "=" + one.name + ":" + std::to_string(one.port) + " ";
  EXPECT_EQ(all,
            "apt=apt.example:80 pip=pip.example:443 npm=scoped.example:80 npm=npm.example:4873 go=go.example:443 "
            "go=sum.example:443 cargo=cargo.example:443 cargo=index.example:443 cargo=dl.example:443 "
            "maven=maven.example:443 ");
  EXPECT_EQ(found.environment["PIP_INDEX_URL"], "https://pip.example/simple") << "without the password";
  EXPECT_EQ(found.environment["NPM_CONFIG_REGISTRY"], "https://npm.example:4873/");
  EXPECT_EQ(found.environment["GOPROXY"], "https://go.example|direct");
  EXPECT_EQ(found.environment["PIP_CERT"], "/etc/ssl/isola-registries.pem");
  EXPECT_EQ(found.files["/.cargo/config.toml"], "source.\"m\".registry = \"sparse+https://cargo.example/index/\"\n");
  EXPECT_EQ(found.files["/etc/isola/npmrc"], "@x:registry=http://scoped.example\n");
  EXPECT_EQ(found.environment["NPM_CONFIG_GLOBALCONFIG"], "/etc/isola/npmrc");
  EXPECT_NE(found.files["/etc/isola/maven-settings.xml"].find("<url>https://maven.example/m2</url>"),
            std::string::npos);
  EXPECT_NE(found.files["/etc/mavenrc"].find("-gs /etc/isola/maven-settings.xml"), std::string::npos);
  EXPECT_NE(found.files["/etc/apt/sources.list.d/debian.sources"].find("http://apt.example/debian"), std::string::npos);
  EXPECT_EQ(found.environment["GOSUMDB"], "sum.example");
  EXPECT_EQ(found.environment["GOPRIVATE"], "*.corp.example");
  EXPECT_EQ(found.files.size(), 6U);
  auto policy = registries_policy(found);
  EXPECT_EQ(policy.rules.size(), 10U);
  EXPECT_EQ(to_text(policy.rules[0]), "allow apt.example:80 local");
  EXPECT_EQ(policy.otherwise, Action::deny);
}

TEST(Registries, Presets) {
  EXPECT_EQ(preset_policy("none", {}).value(), Policy::none());
  EXPECT_EQ(preset_policy("all", {}).value(), Policy::all());
  EXPECT_EQ(preset_policy("package-registries", {.endpoints = {{"a.example", 443, "x"}}})->rules.size(), 1U);
  EXPECT_FALSE(preset_policy("some", {}));
}

}  // namespace
}  // namespace isola::gate
