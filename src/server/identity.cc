#include "server/identity.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/file.h"
#include "base/ids.h"
#include "base/log.h"
#include "ledger/ratchet.h"
#include "sandbox/box.h"
#include "store/keys.h"
#include "vault/source.h"

namespace isola::server {

namespace {

// A system user without a home and a shell, as a package would make it.
Result<void> make_user(const std::string& name) {
  std::vector<std::string> words = {"useradd",      "--system", "--no-create-home",  "--home-dir",
                                    "/nonexistent", "--shell",  "/usr/sbin/nologin", name};
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  pid_t pid = -1;
  const char* environment[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", nullptr};
  int failed = ::posix_spawnp(&pid, "useradd", &actions, nullptr, argv.data(), const_cast<char**>(environment));
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (!failed) ::waitpid(pid, &status, 0);
  if (failed || !WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 9))
    return fail(Code::unavailable, "there is no user '" + name +
                                       "' and useradd could not make it; create one, or name another with --user");
  log::info("server", "made the system user {}", name);
  return {};
}

Result<passwd> find_user(const std::string& name) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    errno = 0;
    if (const passwd* found = ::getpwnam(name.c_str())) return *found;
    if (attempt == 0) ISOLA_CHECK(make_user(name));
  }
  return fail(Code::not_found, "there is no user '" + name + "'");
}

Result<void> own_folder(const std::string& path, mode_t mode, uid_t uid, gid_t gid) {
  if (::mkdir(path.c_str(), mode) < 0 && errno != EEXIST) return sys_error("cannot make " + path);
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return sys_error("cannot open " + path);
  if (::fchown(folder.get(), uid, gid) < 0 || ::fchmod(folder.get(), mode) < 0)
    return sys_error("cannot protect " + path);
  return {};
}

}  // namespace

Result<Identity> prepare_identity(const Config& config) {
  if (::geteuid() != 0)
    return fail(Code::denied,
                "isola serve must be started as root: it starts the launcher, then drops to the user " + config.user);
  ISOLA_TRY(passwd user, find_user(config.user));
  if (user.pw_uid == 0) return fail(Code::invalid, "user: the server must not stay root");
  Identity identity{.uid = user.pw_uid, .gid = user.pw_gid, .folder = config.data + "/server"};
  ISOLA_CHECK(make_dirs(config.data, 0711));
  if (::chmod(config.data.c_str(), 0711) < 0) return sys_error("cannot protect " + config.data);
  ISOLA_CHECK(own_folder(identity.folder, 0700, identity.uid, identity.gid));
  ISOLA_CHECK(
      ledger::provide_key(identity.folder + "/ledger.db", config.data + "/ledger.key", identity.uid, identity.gid));
  std::string path = config.data + "/key";
  if (auto text = read_file(path, 4096)) {
    while (!text->empty() && (text->back() == '\n' || text->back() == ' ')) text->pop_back();
    identity.first_key = *text;
    if (!store::is_key(identity.first_key)) return fail(Code::corrupt, path + " does not hold an API key");
  } else if (text.error().code != Code::not_found) {
    return std::unexpected(text.error());
  } else if (::access((identity.folder + "/store.db").c_str(), F_OK) < 0) {
    ISOLA_TRY(auto made, store::make_key("default", "first", store::Scope::admin, sandbox::now_millis()));
    identity.first_key = made.secret;
    ISOLA_CHECK(replace_file(path, made.secret + "\n", 0600));
  }
  return identity;
}

Result<void> drop_privileges(const Identity& identity) {
  if (::setgroups(0, nullptr) < 0 || ::setresgid(identity.gid, identity.gid, identity.gid) < 0 ||
      ::setresuid(identity.uid, identity.uid, identity.uid) < 0)
    return sys_error("cannot drop privileges");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return sys_error("cannot renounce new privileges");
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return sys_error("cannot protect the server's memory");
  if (::setresuid(0, 0, 0) == 0) return fail(Code::internal, "privileges came back after they were dropped");
  return {};
}

void forget_operators_secrets() {
  std::vector<char*> all;
  for (char** one = environ; *one; ++one)
    if (std::string_view(*one).starts_with(vault::kEnvPrefix)) all.push_back(*one);
  for (char* one : all) {
    std::string name(one, std::strcspn(one, "="));
    ::unsetenv(name.c_str());
    ::explicit_bzero(one, std::strlen(one));  // where the kernel put it, which /proc/PID/environ shows
  }
}

Result<bool> provide_first_key(store::Store& store, const std::string& secret) {
  auto project = store.find_project("default");
  if (!project && project.error().code == Code::not_found)
    ISOLA_CHECK(store.insert_project({.id = "default", .name = "default", .created = sandbox::now_millis()}));
  else if (!project)
    return std::unexpected(project.error());
  ISOLA_TRY(auto keys, store.list_keys(""));
  if (!keys.empty() || secret.empty()) return false;
  ISOLA_TRY(auto made, store::make_key("default", "first", store::Scope::admin, sandbox::now_millis()));
  ISOLA_TRY(made.record.hash, store::hash_key(secret));
  made.record.prefix = secret.substr(0, 8);
  ISOLA_CHECK(store.insert_key(made.record));
  return true;
}

Result<std::string> url_secret(const Identity& identity) {
  std::string path = identity.folder + "/url-secret";
  if (auto text = read_file(path, 4096); text && text->size() >= 40) return *text;
  std::string secret = new_token();
  ISOLA_CHECK(replace_file(path, secret, 0600));
  return secret;
}

}  // namespace isola::server
