#include "bench/api/world.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "image/template_cache.h"

namespace isola::bench {

namespace fs = std::filesystem;
using nlohmann::json;

Result<Child> Child::start(const std::vector<std::string>& argv, const std::string& log, int inherit) {
  std::vector<char*> words;
  for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  Child child;
  child.pid_ = ::fork();
  if (child.pid_ < 0) return sys_error("cannot fork");
  if (child.pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), in = ::open("/dev/null", O_RDONLY);
    ::dup2(in, 0), ::dup2(out, 1), ::dup2(out, 2);
    if (inherit >= 0) ::fcntl(inherit, F_SETFD, 0);
    ::execvp(words[0], words.data());
    ::_exit(127);
  }
  return child;
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
}

int Child::wait() {
  int status = 0;
  while (pid_ > 0 && ::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return status;
}

double cpu_seconds(pid_t pid) {
  auto of = [](pid_t one, pid_t& parent) -> double {
    auto text = read_file("/proc/" + std::to_string(one) + "/stat");
    if (!text || text->rfind(')') == std::string::npos) return 0;
    std::istringstream in(text->substr(text->rfind(')') + 1));
    std::string word;
    double user = 0, system = 0;
    in >> word >> parent;
    for (int i = 0; i < 9; ++i) in >> word;
    in >> user >> system;
    return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  };
  pid_t parent = 0;
  double sum = of(pid, parent);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    pid_t one = std::atoi(entry.path().filename().c_str());
    if (one <= 0 || one == pid) continue;
    parent = 0;
    double used = of(one, parent);
    if (parent == pid) sum += used;
  }
  return sum;
}

bool have(const std::string& program) {
  std::istringstream path(std::string(::getenv("PATH") ? ::getenv("PATH") : "") + ":/usr/sbin:/usr/bin");
  for (std::string folder; std::getline(path, folder, ':');)
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

Result<std::string> output_of(const std::vector<std::string>& argv) {
  char name[] = "/tmp/isola-api-bench-out-XXXXXX";
  Fd file(::mkstemp(name));
  if (!file) return sys_error("cannot make a file");
  ISOLA_TRY(Child child, Child::start(argv, name));
  int status = child.wait();
  auto text = read_file(name);
  ::unlink(name);
  if (!text) return text;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return fail(Code::internal, argv[0] + " failed: " + *text);
  return text;
}

Result<World> World::start(const std::string& isola) {
  World world;
  world.isola_ = isola;
  char name[] = "/var/tmp/isola-api-bench-XXXXXX";
  if (!::mkdtemp(name)) return sys_error("cannot make a folder");
  world.folder_ = name;
  ::chmod(name, 0755);
  fs::create_directory(world.folder_ + "/data");
  ISOLA_TRY(auto found, image::TemplateCache("/var/cache/isola").find("minimal"));
  world.digest_ = found.digest;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return sys_error("cannot make a pipe");
  Fd ready(ends[0]), word(ends[1]);
  ISOLA_TRY(world.server_, Child::start({isola, "serve", "--listen", "127.0.0.1:0", "--data", world.folder_ + "/data",
                                         "--defaults-template", "minimal", "--pool", std::to_string(kParked),
                                         "--ready-fd", std::to_string(word.get())},
                                        world.folder_ + "/server.log", word.get()));
  word.reset();
  std::string said;
  char buffer[512];
  for (ssize_t n; (n = ::read(ready.get(), buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(n));
  if (!said.starts_with("ready ")) return fail(Code::internal, "the server did not start: " + said);
  world.url_ = said.substr(6, said.find('\n') - 6);
  ISOLA_TRY(world.key_, read_file(world.folder_ + "/data/key"));
  while (!world.key_.empty() && world.key_.back() == '\n') world.key_.pop_back();
  return world;
}

World::~World() {
  if (folder_.empty()) return;
  server_ = Child();
  std::string data = folder_ + "/data";
  (void)output_of({isola_, "launcher", "stop", "--all", "--data", data});
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

http::Client World::client() const {
  http::Client client(*http::parse_url(url_));
  client.header("Authorization", "Bearer " + key_);
  return client;
}

Result<void> World::wait_parked(launcher::Client& launcher, uint32_t count) const {
  ISOLA_CHECK(launcher.park(digest_, count));
  for (int i = 0; i < 20'000; ++i) {
    ISOLA_TRY(auto info, launcher.info());
    if (info.cleaning == 0 && info.parked >= count) return {};
    ::usleep(1000);
  }
  return fail(Code::timeout, "no parked jails after 20 s");
}

Result<std::string> World::create(http::Client& client) const {
  ISOLA_TRY(auto reply, client.send({.method = "POST", .target = "/v1/sandboxes", .body = "{}"}));
  if (reply.status != 201) return fail(Code::internal, "create: " + reply.body);
  return json::parse(reply.body, nullptr, false).value("id", "");
}

Result<void> World::remove(http::Client& client, const std::string& id) const {
  ISOLA_TRY(auto reply, client.send({.method = "DELETE", .target = "/v1/sandboxes/" + id}));
  if (reply.status != 204) return fail(Code::internal, "delete: " + reply.body);
  return {};
}

}  // namespace isola::bench
