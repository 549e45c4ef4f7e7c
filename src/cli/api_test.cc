#include "cli/api.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/server_url.h"

namespace isola::cli {
namespace {

TEST(ApiError, SaysWhatTheServerSaysWithTheRequest) {
  Server server{.url = "http://h:1", .key = "k", .key_from = "ISOLA_API_KEY"};
  auto error = api_error(
      404, R"({"error":{"code":"not_found","message":"there is no sandbox \"x\"","request_id":"5f0c"}})", server);
  EXPECT_EQ(error.code, Code::not_found);
  EXPECT_EQ(error.message, "there is no sandbox \"x\" (request 5f0c)");
  EXPECT_EQ(api_error(429, "{}", server).code, Code::exhausted);
  EXPECT_EQ(api_error(409, "{}", server).code, Code::exists);
  EXPECT_EQ(api_error(503, "{}", server).code, Code::unavailable);
  EXPECT_EQ(api_error(502, "<html>\x1b[2Jno", server).message, "the server answered 502 <html>no");
}

TEST(ApiError, ExplainsAMissingAndAWrongKey) {
  std::string body = R"({"error":{"code":"unauthenticated","message":"no","request_id":"r"}})";
  auto none = api_error(401, body, {.url = "http://h:1"});
  EXPECT_EQ(none.code, Code::denied);
  EXPECT_EQ(none.message,
            "http://h:1 wants an API key: set ISOLA_API_KEY, or give the server's folder with --data (as root; a key "
            "lies in it) (request r)");
  auto wrong = api_error(401, body, {.url = "http://h:1", .key = "x", .key_from = "E2B_API_KEY"});
  EXPECT_NE(wrong.message.find("does not accept the API key of E2B_API_KEY"), std::string::npos) << wrong.message;
}

class FindServer : public ::testing::Test {
 protected:
  FindServer() {
    char name[] = "/tmp/isola-api-XXXXXX";
    common_.data_dir = ::mkdtemp(name);
    for (const char* variable : {"ISOLA_URL", "ISOLA_API_KEY", "E2B_API_KEY"}) ::unsetenv(variable);
    EXPECT_TRUE(replace_file(common_.data_dir + "/key", "e2b_local\n", 0600));
  }
  ~FindServer() override {
    for (const char* variable : {"ISOLA_URL", "ISOLA_API_KEY", "E2B_API_KEY"}) ::unsetenv(variable);
    std::filesystem::remove_all(common_.data_dir);
  }
  Common common_;
};

TEST_F(FindServer, DefaultsToThisMachine) {
  auto server = find_server(common_);
  ASSERT_TRUE(server);
  EXPECT_EQ(server->url, "http://127.0.0.1:8080");
  EXPECT_EQ(server->key, "") << "whoever listens there, no server of ours runs";
  EXPECT_EQ(nobody_answers(*server),
            "no server runs on " + common_.data_dir + ", nor at http://127.0.0.1:8080: `isola up` starts one");
}

TEST_F(FindServer, TheServerOfTheFolderGetsItsKey) {
  auto place = ServerUrl::claim(common_.data_dir);
  ASSERT_TRUE(place && place->publish("http://127.0.0.1:7"));
  pid_t pid = ::fork();  // record locks do not show to their holder
  if (pid == 0) {
    auto server = find_server(common_);
    ::_exit(server && server->url == "http://127.0.0.1:7" && server->key == "e2b_local" ? 7 : 0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST_F(FindServer, TheLocalKeyNeverLeavesThisMachine) {
  for (const char* url : {"https://sandboxes.example", "http://127.0.0.1.example:8080", "http://10.0.0.1:8080"}) {
    common_.url = url;
    auto server = find_server(common_);
    ASSERT_TRUE(server);
    EXPECT_EQ(server->url, url);
    EXPECT_EQ(server->key, "") << url;
  }
  common_.url = "http://localhost:9";
  EXPECT_EQ(find_server(common_)->key, "e2b_local");
}

TEST_F(FindServer, OptionsWinOverTheEnvironment) {
  ::setenv("ISOLA_URL", "http://127.0.0.1:1", 1);
  ::setenv("E2B_API_KEY", "e2b_b", 1);
  EXPECT_EQ(find_server(common_)->key, "e2b_b");
  ::setenv("ISOLA_API_KEY", "e2b_a", 1);
  auto server = find_server(common_);
  EXPECT_EQ(server->url, "http://127.0.0.1:1");
  EXPECT_EQ(server->key, "e2b_a");
  EXPECT_EQ(server->key_from, "ISOLA_API_KEY");
  common_.url = "http://127.0.0.1:2";
  common_.key_file = common_.data_dir + "/key";
  server = find_server(common_);
  EXPECT_EQ(server->url, "http://127.0.0.1:2");
  EXPECT_EQ(server->key, "e2b_local");
  common_.key_file = common_.data_dir + "/none";
  EXPECT_FALSE(find_server(common_));
}

TEST_F(FindServer, AFolderThatIsNamedMeansNoOtherServer) {
  ::setenv("ISOLA_URL", "http://127.0.0.1:1", 1);
  EXPECT_TRUE(names_server(common_));
  common_.data_given = true;
  EXPECT_FALSE(names_server(common_));
  auto server = find_server(common_);
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, Code::unavailable);
  EXPECT_NE(server.error().message.find(common_.data_dir), std::string::npos);
  common_.url = "http://127.0.0.1:2";
  EXPECT_EQ(find_server(common_)->url, "http://127.0.0.1:2");
}

TEST_F(FindServer, NonsenseIsRefused) {
  common_.url = "not a url";
  EXPECT_FALSE(find_server(common_));
}

TEST(Api, SaysThatNoServerIsThere) {
  Common common;
  common.url = "http://127.0.0.1:1";
  auto api = Api::open(common);
  ASSERT_TRUE(api);
  auto reply = api->get("/v1/sandboxes");
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().message, "no server answers at http://127.0.0.1:1: `isola up` starts one");
}

}  // namespace
}  // namespace isola::cli
