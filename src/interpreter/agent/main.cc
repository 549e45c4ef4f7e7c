// isola-kernels: the client of Jupyter kernels inside a sandbox (docs/interpreter.md).
//
//   isola-kernels start            as root: listens on kSocket, then goes on as the user, in the background; returns
//   when
//                                  callers can come, also if one is there already
//   isola-kernels serve SOCKET     in the foreground, as whoever calls; for tests
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "interpreter/agent/server.h"
#include "interpreter/socket.h"

namespace {

using namespace isola;
using namespace isola::interpreter;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof address.sun_path) return fail(Code::invalid, "the socket's path is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool somebody_listens(const std::string& path) {
  auto address = address_of(path);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return address && fd && ::connect(fd.get(), reinterpret_cast<sockaddr*>(&*address), sizeof *address) == 0;
}

Result<Fd> listen_at(const std::string& path) {
  ISOLA_TRY(sockaddr_un address, address_of(path));
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return sys_error("cannot make a socket");
  ::unlink(path.c_str());
  mode_t before = ::umask(0177);
  int bound = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  ::umask(before);
  if (bound < 0) return sys_error("cannot listen on " + path);
  if (::listen(fd.get(), 128) < 0) return sys_error("cannot listen on " + path);
  return fd;
}

struct Person {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string name = "root", home = "/root";
};

Person kernels_user() {
  if (const passwd* entry = ::getpwnam("user")) return {entry->pw_uid, entry->pw_gid, entry->pw_name, entry->pw_dir};
  return {};
}

Result<void> become(const Person& person) {
  if (person.uid == 0) return {};
  if (::initgroups(person.name.c_str(), person.gid) < 0 || ::setresgid(person.gid, person.gid, person.gid) < 0 ||
      ::setresuid(person.uid, person.uid, person.uid) < 0)
    return sys_error("cannot become the user " + person.name);
  ::setenv("HOME", person.home.c_str(), 1);
  ::setenv("USER", person.name.c_str(), 1);
  ::setenv("LOGNAME", person.name.c_str(), 1);
  return {};
}

int complain(const Error& error) {
  std::fprintf(stderr, "isola-kernels: %s\n", error.text().c_str());
  return 1;
}

Result<void> serve(Fd listener, const std::string& folder, const std::string& home) {
  ::signal(SIGPIPE, SIG_IGN);
  Server server(std::move(listener), {.folder = folder, .home = home});
  return server.run();
}

// Two that start at the same time: one of them holds the lock, the other finds it listening.
Result<void> start() {
  const std::string folder(kFolder), sockets = folder + "/kernels";
  ISOLA_CHECK(make_dirs(folder, 0755));
  Fd lock(::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock || ::lockf(lock.get(), F_LOCK, 0) < 0) return sys_error("cannot take the lock in " + folder);
  if (somebody_listens(std::string(kSocket))) return {};
  Person person = kernels_user();
  std::error_code ignored;
  std::filesystem::remove_all(sockets, ignored);
  ISOLA_CHECK(make_dirs(sockets, 0700));
  if (::chown(sockets.c_str(), person.uid, person.gid) < 0) return sys_error("cannot give away " + sockets);
  ISOLA_TRY(Fd listener, listen_at(std::string(kSocket)));
  pid_t child = ::fork();
  if (child < 0) return sys_error("cannot go to the background");
  if (child > 0) return {};  // whoever connects now waits in the socket's queue until the child takes it
  ::setsid();
  int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {0, 1, 2}) ::dup2(nothing, fd);
  lock.reset();
  auto done = become(person);
  if (done && ::chdir(person.home.c_str()) < 0) done = sys_error("cannot enter " + person.home);
  if (done) done = serve(std::move(listener), sockets, person.home);
  ::_exit(done ? 0 : 1);
}

}  // namespace

int main(int argc, char** argv) {
  std::string word = argc > 1 ? argv[1] : "";
  if (word == "--version") {
    std::puts("isola-kernels " ISOLA_VERSION);
    return 0;
  }
  if (word == "start" && argc == 2) {
    auto started = start();
    return started ? 0 : complain(started.error());
  }
  if (word == "serve" && argc == 3) {
    std::string path = argv[2];
    auto listener = listen_at(path);
    if (!listener) return complain(listener.error());
    const char* home = std::getenv("HOME");
    auto served = serve(std::move(*listener), path + ".kernels", home ? home : "/");
    return served ? 0 : complain(served.error());
  }
  std::fputs("usage: isola-kernels start | serve SOCKET | --version\n", stderr);
  return 2;
}
