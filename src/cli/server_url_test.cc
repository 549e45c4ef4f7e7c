#include "cli/server_url.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "kernel/process.h"

namespace isola::cli {
namespace {

class ServerUrlTest : public ::testing::Test {
 protected:
  ServerUrlTest() {
    char name[] = "/tmp/isola-url-XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~ServerUrlTest() override { std::filesystem::remove_all(dir_); }
  // In a process of its own: record locks do not show to their holder.
  template <typename Body>
  int elsewhere(Body body) {
    pid_t pid = ::fork();
    if (pid == 0) ::_exit(body());
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string dir_;
};

TEST_F(ServerUrlTest, IsFoundWhileTheServerLives) {
  EXPECT_FALSE(find_server_url(dir_));
  {
    auto mine = ServerUrl::claim(dir_);
    ASSERT_TRUE(mine) << mine.error().message;
    EXPECT_EQ(elsewhere([&] { return find_server_url(dir_) ? 1 : 0; }), 0) << "it is only starting";
    ASSERT_TRUE(mine->publish("http://127.0.0.1:8080"));
    EXPECT_EQ(elsewhere([&] { return find_server_url(dir_) == "http://127.0.0.1:8080" ? 7 : 0; }), 7);
    EXPECT_EQ(elsewhere([&] {
                auto second = ServerUrl::claim(dir_);
                return !second && second.error().code == Code::exists ? 7 : 0;
              }),
              7);
  }
  EXPECT_FALSE(find_server_url(dir_));
}

// Whoever may read the URL must be able neither to hold up a server nor to pass for one.
TEST_F(ServerUrlTest, TheLockIsTheOwnersAlone) {
  {
    auto mine = ServerUrl::claim(dir_);
    ASSERT_TRUE(mine && mine->publish("http://127.0.0.1:9"));
  }
  struct stat lock{}, url{};
  ASSERT_EQ(::stat((dir_ + "/server.lock").c_str(), &lock), 0);
  ASSERT_EQ(::stat((dir_ + "/server.url").c_str(), &url), 0);
  EXPECT_EQ(lock.st_mode & 0777, 0600u);
  EXPECT_EQ(url.st_mode & 0777, 0644u);
  Fd theirs(::open((dir_ + "/server.url").c_str(), O_RDONLY | O_CLOEXEC));
  struct flock shared{};
  shared.l_type = F_RDLCK;
  ASSERT_EQ(::fcntl(theirs.get(), F_SETLK, &shared), 0);
  EXPECT_EQ(elsewhere([&] { return ServerUrl::claim(dir_) ? 7 : 0; }), 7);
  EXPECT_EQ(elsewhere([&] { return find_server(dir_) ? 0 : 7; }), 7);
}

TEST_F(ServerUrlTest, WhatAKilledServerLeftIsNotBelieved) {
  auto said = kernel::make_pipe();
  ASSERT_TRUE(said);
  pid_t pid = ::fork();
  if (pid == 0) {
    auto mine = ServerUrl::claim(dir_);
    if (!mine || !mine->publish("http://127.0.0.1:9")) ::_exit(1);
    (void)!::write(said->second.get(), "x", 1);
    for (;;) ::pause();
  }
  char byte;
  ASSERT_EQ(::read(said->first.get(), &byte, 1), 1);
  EXPECT_TRUE(find_server_url(dir_));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_GT(std::filesystem::file_size(dir_ + "/server.url"), 0u);
  EXPECT_FALSE(find_server_url(dir_));
}

}  // namespace
}  // namespace isola::cli
