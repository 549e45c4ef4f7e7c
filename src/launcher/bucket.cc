#include "launcher/bucket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <limits.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/file.h"
#include "image/spawn.h"
#include "kernel/capability.h"
#include "kernel/mount.h"
#include "kernel/netlink.h"
#include "kernel/netlink_route.h"
#include "kernel/process.h"
#include "launcher/fixed_users.h"
#include "vault/seal.h"

namespace isola::launcher {

namespace {

using kernel::Helper;

constexpr size_t kMostCredentials = 4096;
constexpr int kCredentialsTime = 10'000;  // milliseconds: whoever opens them has less
constexpr const char* kScratch = "256m";  // of what is being read and written
constexpr const char* kNewRoot = "/tmp";  // in the client's own mount namespace
constexpr const char* kFuseDevice = "ISOLA_FUSE_DEVICE";

struct ClientParts {
  const BucketMount& bucket;
  Endpoint endpoint;
  uint32_t owner = 0;
  int credentials = -1, device = -1, log = -1, home = -1;
  const std::string& authorities;
  const std::string& program;
  const std::string& self;  // this program: /proc is another's in a new pid namespace
};

// ---- the client's root ----------------------------------------------------------------------------------------------

Result<void> put(const std::string& path, std::string_view text, mode_t mode = 0444) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file) return sys_error("cannot make " + path);
  return write_all(file.get(), text);
}

// Of the machine's, to be shown to the client: read-only, without devices and setuid programs.
struct Shown {
  Fd tree;
  std::string target;
  bool folder = false;
};

// What the machine does not have is left out, unless it must be there.
Result<void> take(std::vector<Shown>& all, const std::string& source, const std::string& target, bool must) {
  // By a descriptor: the machine's own symlinks are followed.
  Fd file(::open(source.c_str(), O_PATH | O_CLOEXEC));
  if (!file && !must) return {};
  struct stat what{};
  if (!file || ::fstat(file.get(), &what) < 0) return sys_error("cannot find " + source);
  ISOLA_TRY(Fd tree, kernel::clone_tree(file.get(), ""));
  ISOLA_CHECK(kernel::set_attributes(tree.get(), {.read_only = true, .nosuid = true, .nodev = true}));
  all.push_back({std::move(tree), target, S_ISDIR(what.st_mode)});
  return {};
}

Result<void> place(const std::vector<Shown>& all, int root) {
  for (const auto& shown : all) {
    const std::string at = std::string(kNewRoot) + shown.target;
    if (shown.folder) {
      ISOLA_CHECK(make_dirs(at));
    } else {
      ISOLA_CHECK(put(at, "", 0755));
    }
    ISOLA_CHECK(kernel::attach(shown.tree.get(), root, shown.target.substr(1)));
  }
  return {};
}

Result<std::string> trusted_authorities(const std::string& more) {
  std::string text = read_file("/etc/ssl/certs/ca-certificates.crt").value_or("");
  if (more.empty()) return text;
  ISOLA_TRY(std::string own, read_file(more));
  return text + "\n" + own;
}

// One tmpfs, which is also what the client writes its temporary files to: libraries, two programs, few words about the
// endpoint. No shell, no /proc, no /dev, nothing of the host's data.
Result<void> make_root(const ClientParts& parts) {
  ISOLA_CHECK(kernel::make_all_private());
  // Before the new root covers whatever lies in its place.
  std::vector<Shown> shown;
  ISOLA_CHECK(take(shown, "/usr/lib", "/usr/lib", true));
  ISOLA_CHECK(take(shown, "/usr/lib64", "/usr/lib64", false));
  ISOLA_CHECK(take(shown, parts.program, "/bin/s3fs", true));
  ISOLA_CHECK(take(shown, parts.self, "/bin/fusermount", true));
  ISOLA_CHECK(take(shown, "/etc/ld.so.cache", "/etc/ld.so.cache", false));
  ISOLA_CHECK(take(shown, "/etc/mime.types", "/etc/mime.types", false));
  ISOLA_TRY(std::string certificates, trusted_authorities(parts.authorities));
  ISOLA_TRY(Fd tmpfs, kernel::make_filesystem("tmpfs", {{"size", kScratch}, {"nr_inodes", "16384"}, {"mode", "0755"}},
                                              {.nosuid = true, .nodev = true}));
  auto open_root = [] { return Fd(::open(kNewRoot, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)); };
  Fd covered = open_root();
  if (!covered) return sys_error(std::string("cannot open ") + kNewRoot);
  ISOLA_CHECK(kernel::attach(tmpfs.get(), covered.get(), "."));
  Fd mounted = open_root();
  if (!mounted) return sys_error(std::string("cannot open ") + kNewRoot);
  const std::string root = kNewRoot;
  for (const char* folder : {"/bin", "/etc", "/etc/ssl", "/etc/ssl/certs", "/usr", "/tmp", "/m"})
    ISOLA_CHECK(make_dirs(root + folder));
  if (::symlink("usr/lib", (root + "/lib").c_str()) < 0 || ::symlink("usr/lib64", (root + "/lib64").c_str()) < 0)
    return sys_error("cannot make the root of a bucket's client");
  ISOLA_CHECK(place(shown, mounted.get()));
  // Whatever its name, the endpoint is behind the socket that the relay listens on.
  ISOLA_CHECK(put(root + "/etc/hosts", fmt::format("127.0.0.1 localhost\n127.0.0.1 {}\n", parts.endpoint.host)));
  ISOLA_CHECK(put(root + "/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"));
  ISOLA_CHECK(put(root + "/etc/passwd", "nobody:x:65534:65534::/:/\n"));
  ISOLA_CHECK(put(root + "/etc/group", "nogroup:x:65534:\n"));
  ISOLA_CHECK(put(root + "/etc/ssl/certs/ca-certificates.crt", certificates));
  if (::chmod((root + "/tmp").c_str(), 0700) < 0 || ::chown((root + "/tmp").c_str(), kNobody, kNobody) < 0 ||
      ::chown((root + "/m").c_str(), kNobody, kNobody) < 0)
    return sys_error("cannot give the client its folders");
  return {};
}

// The form that s3fs reads. They stay in a file that only this one process's mount namespace has.
Result<void> take_credentials(int from) {
  vault::Secret value = vault::Secret::of_size(kMostCredentials + 1);
  size_t size = 0;
  for (;;) {
    pollfd ready{from, POLLIN, 0};
    if (::poll(&ready, 1, kCredentialsTime) <= 0) return fail(Code::timeout, "the credentials did not come in time");
    ssize_t n = ::read(from, value.data() + size, kMostCredentials + 1 - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot read the credentials");
    if (n == 0) break;
    size += static_cast<size_t>(n);
    if (size > kMostCredentials) return fail(Code::invalid, "the credentials are too long");
  }
  std::string_view text = value.view().substr(0, size);
  while (text.ends_with('\n')) text.remove_suffix(1);
  const size_t colon = text.find(':');
  const bool plain = std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
  if (size == 0) return fail(Code::unavailable, "the credentials could not be had");
  if (!plain || colon == 0 || colon == std::string_view::npos || colon + 1 == text.size() ||
      text.find(':', colon + 1) != std::string_view::npos)
    return fail(Code::invalid, "the secret of a bucket is ACCESS_KEY_ID:SECRET_ACCESS_KEY");
  const std::string path = std::string(kNewRoot) + "/keys";
  ISOLA_CHECK(put(path, text, 0600));
  if (::chown(path.c_str(), kNobody, kNobody) < 0) return sys_error("cannot give the client its keys");
  return {};
}

// ---- the client's network -------------------------------------------------------------------------------------------

// Every address is here, and one socket listens: whoever holds its other side decides where a connection goes.
Result<Fd> make_listener(uint16_t port) {
  kernel::NetlinkBatch batch;
  kernel::add_link_up(batch, kernel::kLoopbackIndex);
  ISOLA_CHECK(kernel::add_everything_is_local(batch, kernel::kLoopbackIndex, "127.0.0.1"));
  ISOLA_TRY(auto route, kernel::NetlinkSocket::open(NETLINK_ROUTE));
  ISOLA_CHECK(route.run(batch));
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  if (!listener || ::bind(listener.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) < 0 ||
      ::listen(listener.get(), 128) < 0)
    return sys_error("cannot listen for a bucket's client");
  return listener;
}

// ---- becoming the client --------------------------------------------------------------------------------------------

Result<void> become_nobody() {
  if (::setgroups(0, nullptr) < 0 || ::setresgid(kNobody, kNobody, kNobody) < 0 ||
      ::setresuid(kNobody, kNobody, kNobody) < 0)
    return sys_error("cannot become nobody");
  ISOLA_CHECK(kernel::limit_bounding_set(0));
  ISOLA_CHECK(kernel::set_capabilities(0, 0, 0));
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return sys_error("cannot give up privileges");
  rlimit none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) < 0) return sys_error("cannot set a limit");
  return {};
}

// Moved where the next program expects them, and nothing else stays open.
Result<void> arrange(std::vector<int> sources) {
  constexpr int kParking = 100;
  for (int& fd : sources)
    if ((fd = ::fcntl(fd, F_DUPFD_CLOEXEC, kParking)) < 0) return sys_error("cannot arrange descriptors");
  for (size_t i = 0; i < sources.size(); ++i)
    if (::dup2(sources[i], static_cast<int>(i)) < 0) return sys_error("cannot arrange descriptors");
  if (::syscall(SYS_close_range, static_cast<unsigned>(sources.size()), ~0u, 0) < 0)
    return sys_error("cannot close inherited descriptors");
  return {};
}

std::vector<std::string> client_words(const ClientParts& parts) {
  const auto& bucket = parts.bucket;
  const auto& end = parts.endpoint;
  const bool usual = end.port == (end.tls ? 443 : 80);
  std::string options =
      fmt::format("url={}://{}{}", end.tls ? "https" : "http", end.host, usual ? "" : fmt::format(":{}", end.port));
  if (!bucket.region.empty()) options += ",endpoint=" + bucket.region;
  // auto_unmount makes libfuse ask "fusermount", see take_fuse(). A call that the endpoint does not answer ends with an
  // error after some seconds: programs inside wait for it in the kernel, where nothing but the answer ends it.
  options += fmt::format(
      ",auto_unmount,nonempty,allow_other,use_path_request_style,sigv4,passwd_file=/keys,uid={0},gid={0},umask=0,"
      "connect_timeout=5,readwrite_timeout=5,retries=1,stat_cache_expire=10,dbglevel=err",
      parts.owner);
  return {"s3fs", bucket.bucket + (bucket.prefix.empty() ? "" : ":/" + bucket.prefix), "/m", "-f", "-o", options};
}

Result<void> become_client(const ClientParts& parts) {
  Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null || ::dup2(parts.log, 2) < 0) return sys_error("cannot open /dev/null");
  ::setsid();
  ::umask(022);
  ISOLA_CHECK(make_root(parts));
  ISOLA_TRY(Fd listener, make_listener(parts.endpoint.port));
  const int fds[] = {listener.get()};
  ISOLA_CHECK(kernel::send_message(parts.home, "L", fds));
  ISOLA_CHECK(take_credentials(parts.credentials));
  if (::chdir(kNewRoot) < 0 || ::syscall(SYS_pivot_root, ".", ".") < 0 || ::umount2(".", MNT_DETACH) < 0 ||
      ::chdir("/") < 0)
    return sys_error("cannot change the root of a bucket's client");
  ISOLA_CHECK(become_nobody());
  // After the change of user, which would undo it: without its relay it is of no use.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0) return sys_error("cannot bind to the relay");
  ISOLA_CHECK(arrange({null.get(), 2, 2, parts.device}));
  auto words = client_words(parts);
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::string device = fmt::format("{}={}", kFuseDevice, kClientDevice);
  char* const env[] = {device.data(), const_cast<char*>("PATH=/bin"), const_cast<char*>("HOME=/"),
                       const_cast<char*>("TMPDIR=/tmp"), nullptr};
  ::execve("/bin/s3fs", argv.data(), env);
  return sys_error("cannot start s3fs");
}

// ---- the relay ------------------------------------------------------------------------------------------------------

// In the helper, which becomes the relay. The result is never good: then it is another program.
Result<std::string> serve_bucket(const Helper::Talk& talk, const BucketMount& bucket, uint32_t owner,
                                 const kernel::CgroupDoors& doors, int credentials, const std::string& authorities) {
  ISOLA_CHECK(doors.enter());
  ISOLA_TRY(Endpoint endpoint, parse_endpoint(bucket.endpoint));
  ISOLA_TRY(std::string program, find_bucket_client());
  Fd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device) return sys_error("cannot open /dev/fuse");
  std::vector<kernel::FilesystemOption> options = {{"source", "bucket"},       {"fd", std::to_string(device.get())},
                                                   {"rootmode", "40000"},      {"user_id", "0"},
                                                   {"group_id", "0"},          {"allow_other", ""},
                                                   {"default_permissions", ""}};
  if (bucket.read_only) options.push_back({"ro", ""});
  ISOLA_TRY(Fd mount,
            kernel::make_filesystem("fuse", options, {.read_only = bucket.read_only, .nosuid = true, .nodev = true}));
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length < 0) return sys_error("cannot find this program");
  const std::string self(path, static_cast<size_t>(length));
  ISOLA_TRY(auto home, kernel::socket_pair());
  ISOLA_TRY(auto log, kernel::make_pipe());
  const ClientParts parts{.bucket = bucket,
                          .endpoint = endpoint,
                          .owner = owner,
                          .credentials = credentials,
                          .device = device.get(),
                          .log = log.second.get(),
                          .home = home.second.get(),
                          .authorities = authorities,
                          .program = program,
                          .self = self};
  ISOLA_TRY(auto client, kernel::spawn(
                             CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS,
                             [&] {
                               home.first.reset();
                               mount.reset();  // it would keep itself alive
                               auto failed = become_client(parts);
                               (void)write_all(2, "isola: " + failed.error().message + "\n");
                               return 1;
                             },
                             doors.folder.get()));
  // Held here, a dead client would leave those waiting who use the folder.
  device.reset();
  ::close(credentials);
  home.second.reset();
  log.second.reset();
  ISOLA_TRY(auto message, kernel::receive_message(home.first.get()));
  if (message.fds.empty()) {
    char text[512];
    ssize_t n = ::read(log.first.get(), text, sizeof text);
    return fail(Code::internal,
                "a bucket's client died at birth: " + std::string(text, n > 0 ? static_cast<size_t>(n) : 0));
  }
  ISOLA_CHECK(become_nobody());
  Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return sys_error("cannot open /dev/null");
  // What goes wrong from here on, the relay itself says.
  ISOLA_CHECK(arrange({null.get(), null.get(), null.get(), talk.socket(), mount.get(), message.fds[0].get(),
                       log.first.get(), client.pidfd.get()}));
  std::string port = std::to_string(endpoint.port), pid = std::to_string(client.pid);
  const char* argv[] = {"isola",      "bucket-relay", endpoint.host.c_str(),
                        port.c_str(), pid.c_str(),    bucket.inside ? "inside" : "open",
                        nullptr};
  const char* env[] = {"PATH=/usr/local/bin:/usr/bin:/bin", nullptr};
  ::execve("/proc/self/exe", const_cast<char**>(argv), const_cast<char**>(env));
  const Error error = sys_error("cannot start the relay of a bucket").error();
  (void)kernel::send_message(kRelayControl, Helper::failed_word(error));
  ::_exit(1);
}

}  // namespace

kernel::CgroupLimits bucket_limits(size_t buckets) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint64_t kEach = uint64_t{2} << 30;  // such a relay takes more than half of the usual by itself
#else
  constexpr uint64_t kEach = uint64_t{384} << 20;
#endif
  return {.cpus = 1, .memory = buckets * kEach, .pids = static_cast<uint32_t>(buckets * 64)};
}

Result<std::string> find_bucket_client() {
  auto found = image::find_program("s3fs");
  if (!found) return fail(Code::unsupported, "buckets cannot be mounted here: the program s3fs is not installed");
  if (::access("/dev/fuse", R_OK | W_OK) < 0)
    return fail(Code::unsupported, "buckets cannot be mounted here: this machine has no /dev/fuse (modprobe fuse)");
  return found;
}

Result<Helper> start_bucket(const BucketMount& bucket, uint32_t owner, const kernel::CgroupDoors& doors,
                            int credentials, const std::string& authorities) {
  std::vector<int> keep = {credentials};
  for (const auto& door : doors.files) keep.push_back(door.get());
  if (doors.folder) keep.push_back(doors.folder.get());
  return Helper::start(
      {.name = "isola-bucket", .capabilities = kernel::kAllButMachine, .keep = keep, .cgroup = doors.folder.get()},
      [&](Helper::Talk& talk) { return serve_bucket(talk, bucket, owner, doors, credentials, authorities); });
}

int take_fuse(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "-u") == 0) return 0;  // it was never mounted there
  const char* socket = std::getenv("_FUSE_COMMFD");
  const char* device = std::getenv(kFuseDevice);
  if (!socket || !device) return 1;
  const int fds[] = {std::atoi(device)};
  return kernel::send_message(std::atoi(socket), std::string_view("\0", 1), fds) ? 0 : 1;
}

}  // namespace isola::launcher
