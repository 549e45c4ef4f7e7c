#include "server/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file.h"

namespace isola::server {
namespace {

class ConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/isola-config-XXXXXX";
    folder_ = ::mkdtemp(pattern);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    ::unsetenv("ISOLA_POOL");
  }
  std::string file(const std::string& text) {
    std::ofstream(folder_ + "/isola.toml") << text;
    return folder_ + "/isola.toml";
  }
  std::string folder_;
};

TEST_F(ConfigTest, DefaultsAreSafe) {
  auto config = load_config("", {});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->listen, std::vector<std::string>{"127.0.0.1:8080"});
  EXPECT_FALSE(config->allow_plain);
  EXPECT_FALSE(config->allow_unquotaed_disk);
}

TEST_F(ConfigTest, AFlagWinsOverTheEnvironmentAndThatOverTheFile) {
  auto path = file("pool = 3\nlisten = [\"127.0.0.1:1\", \"[::1]:2\"]\n[defaults]\nmemory = \"1G\"\ncpus = 0.5\n");
  auto config = load_config(path, {});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->pool, 3u);
  EXPECT_EQ(config->listen, (std::vector<std::string>{"127.0.0.1:1", "[::1]:2"}));
  EXPECT_EQ(config->limits.memory, 1ull << 30);
  EXPECT_EQ(config->limits.cpus, 0.5);
  ::setenv("ISOLA_POOL", "4", 1);
  EXPECT_EQ(load_config(path, {})->pool, 4u);
  EXPECT_EQ(load_config(path, {{"pool", "5", "the command line"}})->pool, 5u);
}

TEST_F(ConfigTest, BuildsHaveTheirTime) {
  auto usual = load_config("", {});
  ASSERT_TRUE(usual) << usual.error().message;
  EXPECT_EQ(usual->build_timeout, std::chrono::hours(1));
  EXPECT_EQ(usual->build_ready_timeout, std::chrono::minutes(10));
  auto own = load_config(file("[builds]\ntimeout = \"2h\"\nready_timeout = \"90s\"\n"), {});
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_EQ(own->build_timeout, std::chrono::hours(2));
  EXPECT_EQ(own->build_ready_timeout, std::chrono::seconds(90));
}

TEST_F(ConfigTest, ADomainHasNoCase) {
  EXPECT_EQ(load_config("", {{"domain", "Ports.Example.ORG", "the command line"}})->domain, "ports.example.org");
}

TEST_F(ConfigTest, PortsHaveNamesOnTheMachineItself) {
  auto domain = [](std::vector<Given> flags) {
    auto config = load_config("", flags);
    return config ? domain_of_ports(*config) : config.error().message;
  };
  EXPECT_EQ(domain({}), "localhost");
  EXPECT_EQ(domain({{"listen", "127.0.0.1:1,[::1]:2", "the command line"}}), "localhost");
  EXPECT_EQ(domain({{"domain", "a.example", "the command line"}}), "a.example");
  EXPECT_EQ(domain({{"listen", "0.0.0.0:1", "the command line"}, {"allow_plain", "true", "the command line"}}), "");
}

TEST_F(ConfigTest, MistakesAreNamedWithTheirPlace) {
  auto message = [&](const std::string& text) {
    auto config = load_config(file(text), {});
    return config ? std::string("accepted") : config.error().message;
  };
  EXPECT_NE(message("pol = 3").find("there is no setting 'pol'"), std::string::npos);
  EXPECT_NE(message("pool = \"many\"").find("pool: must be a whole number"), std::string::npos);
  EXPECT_NE(message("pool = -1").find("pool"), std::string::npos);
  EXPECT_NE(message("a = [1").find("line 1"), std::string::npos);
  EXPECT_NE(message("[\n\n@"), "accepted");
  EXPECT_NE(message("pool = 1\n\xef\xb6\xbf = 2").find("line 2: only ASCII"), std::string::npos);
  EXPECT_EQ(message("pool = 1 # \xc3\xbc\n[prices]\ncurrency = \"\\u20ac # \\\" \"\n"), "accepted");
  EXPECT_NE(message("[prices]\ncurrency = \"\xe2\x82\xac\"").find("line 2: only ASCII"), std::string::npos);
  EXPECT_NE(message("[defaults]\nmemory = \"lots\"").find("defaults.memory"), std::string::npos);
  EXPECT_NE(message("tls_key = \"x\"").find("both"), std::string::npos);
  EXPECT_NE(message("data = \"relative\"").find("absolute"), std::string::npos);
  EXPECT_NE(message("[log]\nlevel = \"loud\"").find("log.level"), std::string::npos);
  EXPECT_NE(message("[e2b]\nimages = [\"ubuntu:22.04\"]").find("e2b.images"), std::string::npos);
  EXPECT_EQ(message("[e2b]\nimages = [\"ubuntu:22.04=base\"]"), "accepted");
  EXPECT_NE(message("[builds]\ntimeout = \"0s\"").find("builds.timeout: must be"), std::string::npos);
  EXPECT_NE(message("[builds]\nready_timeout = \"10ms\"").find("builds.ready_timeout: must be"), std::string::npos);
  EXPECT_FALSE(load_config(folder_ + "/missing.toml", {}));
}

TEST_F(ConfigTest, OtherAddressesWantTlsOrAWord) {
  for (const char* address : {"0.0.0.0:80", "192.0.2.1:80", "[::]:80", ":80"}) {
    auto config = load_config("", {{"listen", address, "a test"}});
    ASSERT_FALSE(config) << address;
    EXPECT_EQ(config.error().code, Code::denied);
    EXPECT_TRUE(load_config("", {{"listen", address, "a test"}, {"allow_plain", "true", "a test"}}));
    EXPECT_TRUE(load_config(
        "", {{"listen", address, "a test"}, {"tls_certificate", "c", "a test"}, {"tls_key", "k", "a test"}}));
  }
  for (const char* address : {"127.0.0.1:80", "127.1.2.3:80", "[::1]:80", "localhost:80"})
    EXPECT_TRUE(load_config("", {{"listen", address, "a test"}})) << address;
  for (const char* address : {"bogus", "example.org:80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "[::1:80"}) {
    auto config = load_config("", {{"listen", address, "a test"}});
    ASSERT_FALSE(config) << address;
    EXPECT_EQ(config.error().code, Code::invalid) << address << ": " << config.error().message;
  }
}

TEST_F(ConfigTest, EverySettingSurvivesBeingWrittenAndReadAgain) {
  Config config;
  for (const auto& setting : settings()) {
    std::string text = setting.get(config);
    auto set = setting.set(config, text);
    ASSERT_TRUE(set) << setting.name << ": " << set.error().message;
    EXPECT_EQ(setting.get(config), text) << setting.name;
  }
}

TEST_F(ConfigTest, TheDocumentListsEverySettingAsItIs) {
  auto document = read_file(ISOLA_SOURCE_DIR "/docs/configuration.md");
  ASSERT_TRUE(document) << document.error().message;
  Config config;
  size_t rows = 0;
  for (const auto& setting : settings()) {
    std::string value = setting.get(config);
    std::string row = "| `" + std::string(setting.name) + "` | `" + flag_of(setting) + "` | `" + variable_of(setting) +
                      "` | " + std::string(setting.kind) + " | " + (value.empty() ? "" : "`" + value + "`") + " | " +
                      std::string(setting.help) + " |";
    EXPECT_NE(document->find(row), std::string::npos) << "docs/configuration.md lacks this row:\n" << row;
    ++rows;
  }
  size_t listed = 0;
  for (size_t at = 0; (at = document->find("\n| `", at)) != std::string::npos; ++at) ++listed;
  EXPECT_EQ(listed, rows) << "the document has rows for settings that are not there";
}

}  // namespace
}  // namespace isola::server
