#include "interpreter/agent/kernel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace isola::interpreter {

namespace {

constexpr size_t kLastWords = 8 << 10, kWordsAtOnce = 64 << 10;
// In the order of Channel, then the one that we do not use; kernels want all five.
constexpr const char* kPorts[] = {"shell_port", "iopub_port", "control_port", "stdin_port", "hb_port"};

// Free a moment ago; for kernels that know no ipc sockets.
Result<int> free_port() {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof address;
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) < 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) < 0)
    return sys_error("cannot find a free port for the kernel");
  return ntohs(address.sin_port);
}

std::string filled(std::string word, const std::string& name, const std::string& value) {
  for (size_t at = 0; (at = word.find(name, at)) != std::string::npos; at += value.size())
    word.replace(at, name.size(), value);
  return word;
}

// The session that a process is in; nothing: it is gone, or only its remains are there.
std::optional<pid_t> session_of(const std::string& pid) {
  auto stat = read_file("/proc/" + pid + "/stat", 4096);
  if (!stat) return std::nullopt;
  auto name_end = stat->rfind(')');  // a program's name can hold anything
  char state = 0;
  int parent = 0, group = 0, session = 0;
  if (name_end == std::string::npos ||
      ::sscanf(stat->c_str() + name_end + 1, " %c %d %d %d", &state, &parent, &group, &session) != 4 || state == 'Z')
    return std::nullopt;
  return session;
}

// Everything that a kernel started and that did not leave its session: a shell in an endless loop, what runs in the
// background. More than once, since they can start others meanwhile.
void end_session(pid_t leader) {
  for (int round = 0; round < 20; ++round) {
    bool found = false;
    std::error_code error;
    for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
      std::string name = it->path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos || session_of(name) != leader) continue;
      pid_t pid = std::atoi(name.c_str());
      found |= ::kill(pid, SIGKILL) == 0 && pid != leader;
    }
    if (!found) return;
  }
}

}  // namespace

Result<std::unique_ptr<Kernel>> Kernel::start(void* zmq, const KernelSpec& spec, Options options) {
  if (!spec.broken.empty())
    return fail(Code::invalid, "the kernel " + spec.name + " cannot be started: " + spec.broken);
  std::unique_ptr<Kernel> kernel(new Kernel());
  kernel->options_ = std::move(options);
  kernel->session_ = random_hex(16);
  kernel->signer_ = std::make_unique<Signer>(random_hex(32), kernel->session_);
  kernel->interrupt_by_message_ = spec.interrupt_by_message;
  ISOLA_CHECK(make_dirs(kernel->options_.folder, 0700));
  ISOLA_CHECK(kernel->connect(zmq, spec));
  ISOLA_CHECK(kernel->spawn(spec));
  return kernel;
}

Result<void> Kernel::connect(void* zmq, const KernelSpec& spec) {
  Json file = {{"transport", spec.tcp() ? "tcp" : "ipc"},
               {"ip", spec.tcp() ? std::string("127.0.0.1") : options_.folder + "/s"},
               {"key", signer_->key()},
               {"signature_scheme", "hmac-sha256"},
               {"kernel_name", spec.name}};
  constexpr int kTypes[std::size(kChannels)] = {ZMQ_DEALER, ZMQ_SUB, ZMQ_DEALER, ZMQ_DEALER};
  for (size_t i = 0; i < std::size(kPorts); ++i) {
    int port = static_cast<int>(i) + 1;
    if (spec.tcp()) {
      ISOLA_TRY(port, free_port());
    }
    file[kPorts[i]] = port;
    if (i >= std::size(kTypes)) continue;
    void* socket = sockets_[i] = ::zmq_socket(zmq, kTypes[i]);
    if (!socket) return sys_error("cannot make a socket for the kernel");
    int none = 0, unlimited = 0, soon = 5, most = 100;
    ::zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    ::zmq_setsockopt(socket, ZMQ_RCVHWM, &unlimited, sizeof unlimited);
    ::zmq_setsockopt(socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
    ::zmq_setsockopt(socket, ZMQ_RECONNECT_IVL, &soon, sizeof soon);
    ::zmq_setsockopt(socket, ZMQ_RECONNECT_IVL_MAX, &most, sizeof most);
    if (kTypes[i] == ZMQ_SUB)
      ::zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    else
      ::zmq_setsockopt(socket, ZMQ_ROUTING_ID, session_.data(), session_.size());
    std::string where =
        spec.tcp() ? fmt::format("tcp://127.0.0.1:{}", port) : fmt::format("ipc://{}/s-{}", options_.folder, port);
    if (::zmq_connect(socket, where.c_str()) != 0) return sys_error("cannot connect to " + where);
  }
  connection_file_ = options_.folder + "/connection.json";
  return replace_file(connection_file_, dump(file), 0600);
}

Result<void> Kernel::spawn(const KernelSpec& spec) {
  std::vector<std::string> words, variables;
  for (const auto& word : spec.argv)
    words.push_back(filled(filled(word, "{connection_file}", connection_file_), "{resource_dir}", spec.folder));
  std::map<std::string, std::string> env;
  for (char** e = environ; *e; ++e) {
    std::string_view entry = *e;
    if (auto at = entry.find('='); at != std::string_view::npos)
      env[std::string(entry.substr(0, at))] = std::string(entry.substr(at + 1));
  }
  env["JPY_PARENT_PID"] = std::to_string(::getpid());  // kernels that look at it end when we do
  for (const auto& [name, value] : spec.env) env[name] = value;
  for (const auto& [name, value] : options_.env) env[name] = value;
  for (const auto& [name, value] : env) variables.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (auto& word : words) argv.push_back(word.data());
  for (auto& word : variables) envp.push_back(word.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return sys_error("cannot make a pipe");
  words_ = Fd(ends[0]);
  Fd theirs(ends[1]);
  ::fcntl(words_.get(), F_SETFL, O_NONBLOCK);

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), 2);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  ::posix_spawn_file_actions_addchdir_np(&actions, options_.cwd.c_str());
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  int error = ::posix_spawnp(&pid_, argv[0], &actions, &attributes, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error) {
    pid_ = 0;
    struct stat st;
    if (::stat(options_.cwd.c_str(), &st) < 0)
      return fail(Code::not_found, "the working folder " + options_.cwd + " is not there");
    return sys_error("the kernel " + spec.name + " cannot be started: " + words[0], error);
  }
  return {};
}

Kernel::~Kernel() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    end_session(pid_);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  for (void* socket : sockets_)
    if (socket) ::zmq_close(socket);
  std::error_code ignored;
  std::filesystem::remove_all(options_.folder, ignored);
}

std::string Kernel::send(Channel channel, const std::string& type, const Json& content, const Json& metadata) {
  std::string id = fmt::format("{}_{}", session_, ++sent_);
  Frames frames = signer_->pack(type, content, id, metadata);
  for (size_t i = 0; i < frames.size(); ++i)
    ::zmq_send(socket(channel), frames[i].data(), frames[i].size(),
               ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0));
  return id;
}

std::optional<Message> Kernel::receive(Channel channel) {
  for (;;) {
    Frames frames;
    for (bool more = true; more;) {
      zmq_msg_t part;
      ::zmq_msg_init(&part);
      if (::zmq_msg_recv(&part, socket(channel), ZMQ_DONTWAIT) < 0) {
        ::zmq_msg_close(&part);
        return std::nullopt;
      }
      frames.emplace_back(static_cast<const char*>(::zmq_msg_data(&part)), ::zmq_msg_size(&part));
      more = ::zmq_msg_more(&part) != 0;
      ::zmq_msg_close(&part);
    }
    if (auto message = signer_->unpack(frames)) return std::move(*message);
  }
}

void Kernel::interrupt() {
  if (interrupt_by_message_)
    send(Channel::control, "interrupt_request", Json::object());
  else if (pid_ > 0)
    ::kill(-pid_, SIGINT);
}

std::optional<int> Kernel::reap() {
  siginfo_t info{};
  if (pid_ <= 0 || ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
    return std::nullopt;
  end_session(pid_);  // while its number is still its own
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return status;
}

std::string Kernel::read_words() {
  std::string fresh;
  char buffer[4096];
  while (fresh.size() < kWordsAtOnce) {
    ssize_t n = ::read(words_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) words_.reset();
    if (n <= 0) break;
    last_words_.append(buffer, static_cast<size_t>(n));
    if (last_words_.size() > 2 * kLastWords) last_words_.erase(0, last_words_.size() - kLastWords);
    fresh += words_feed_.feed({buffer, static_cast<size_t>(n)});
  }
  return fresh;
}

}  // namespace isola::interpreter
