#include "launcher/client.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/file.h"
#include "launcher/reply.h"
#include "vault/seal.h"

namespace isola::launcher {

namespace {

// How long a launcher that somebody else started may take until it listens: it adopts what lives first.
constexpr auto kOtherStarts = std::chrono::seconds(30);
constexpr auto kLongestPause = std::chrono::milliseconds(100);

enum class Started { ready, by_another };

// Starts `isola launcher` as a daemon and waits for its word: "ready", "running" (another one has the folder), or why
// not.
Result<Started> start(const StartOptions& options) {
  std::string program = options.program;
  if (program.empty()) {
    char self[4096];
    ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
    if (n <= 0) return sys_error("cannot find this program");
    program.assign(self, static_cast<size_t>(n));
  }
  ISOLA_TRY(auto word, kernel::make_pipe());
  // The child keeps its end open under a number that its own argument names.
  constexpr int kReadyFd = 3;
  std::string linger = std::to_string(options.linger.count()) + "s", ready = std::to_string(kReadyFd);
  std::vector<std::string> arguments = {program,    "launcher",   "--data", options.data_dir, "--linger", linger,
                                        "--daemon", "--ready-fd", ready};
  if (!options.user.empty()) arguments.insert(arguments.end(), {"--user", options.user});
  if (!options.cache_dir.empty()) arguments.insert(arguments.end(), {"--cache", options.cache_dir});
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, word.second.get(), kReadyFd);
  pid_t pid = -1;
  int failed = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed) return sys_error("cannot start the launcher (" + program + ")", failed);
  word.second.reset();
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = ::read(word.first.get(), buffer, sizeof buffer)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot hear from the launcher");
    answer.append(buffer, static_cast<size_t>(n));
  }
  ::waitpid(pid, nullptr, 0);  // the daemon's parent, which leaves at once
  if (answer == "ready\n") return Started::ready;
  if (answer == "running\n") return Started::by_another;
  while (answer.ends_with('\n')) answer.pop_back();
  return fail(Code::unavailable, "the launcher did not start: " + (answer.empty() ? std::string("it died") : answer));
}

template <typename T>
Result<T> read_reply(const kernel::Message& message) {
  ISOLA_TRY(Reader in, open_reply(message.bytes));
  return read_value<T>(in);
}

}  // namespace

Result<Fd> connect_socket(const std::string& data_dir) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string path = data_dir + "/launcher.sock";
  if (path.size() >= sizeof address.sun_path)
    return fail(Code::invalid, "the data directory's path is too long: " + data_dir);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return sys_error("cannot create a socket");
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) {
    int e = errno;
    if (e == ENOENT || e == ECONNREFUSED) return fail(Code::unavailable, "no launcher runs on " + data_dir, e);
    return sys_error("cannot reach the launcher on " + data_dir, e);
  }
  return socket;
}

Result<Client> Client::connect(const std::string& data_dir) {
  ISOLA_TRY(Fd socket, connect_socket(data_dir));
  return Client(std::move(socket));
}

Result<Client> Client::connect_or_start(const StartOptions& options) {
  // A launcher that is just leaving, or one that somebody else started and that does not listen yet, has the folder's
  // lock without answering: we come back until one of them is done.
  const auto until = std::chrono::steady_clock::now() + kOtherStarts;
  std::chrono::milliseconds pause(1);
  do {
    auto client = connect(options.data_dir);
    if (client) {
      if (client->info()) return client;
    } else if (client.error().code != Code::unavailable) {
      return client;
    }
    ISOLA_TRY(Started started, start(options));
    if (started == Started::ready) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  } while (std::chrono::steady_clock::now() < until);
  return fail(Code::unavailable, "a launcher has " + options.data_dir + " but does not answer");
}

Result<kernel::Message> Client::call(Op op, const std::string& arguments, const std::vector<int>& fds) {
  uint32_t tag = ++last_tag_;
  Writer out;
  out.u32(tag);
  out.u8(static_cast<uint8_t>(op));
  out.bytes(arguments);
  if (out.data().size() > kMaxMessage) return fail(Code::invalid, "a request to the launcher is too large");
  std::string bytes = out.take();
  auto sent = kernel::send_message(socket_.get(), bytes, fds);
  vault::wipe(bytes);
  if (!sent) return std::unexpected(sent.error());
  for (;;) {
    ISOLA_TRY(auto message, kernel::receive_message(socket_.get()));
    if (message.bytes.empty()) return fail(Code::unavailable, "the launcher is gone");
    Reader in(message.bytes);
    uint32_t got = in.u32();
    if (got == tag) return message;
    if (got != 0) return fail(Code::corrupt, "the launcher answered another question");
    Ended event;
    decode(in, event);
    if (in.done()) events_.push_back(std::move(event));
  }
}

Result<void> Client::call_with_id(Op op, const std::string& id) {
  Writer out;
  out.str(id);
  ISOLA_TRY(auto message, call(op, out.data()));
  ISOLA_CHECK(open_reply(message.bytes));
  return {};
}

Result<Sandbox> Client::launch(const LaunchRequest& request, std::vector<int> trees) {
  Writer out;
  encode(out, request);
  ISOLA_TRY(auto message, call(Op::launch, out.data(), trees));
  Sandbox sandbox;
  ISOLA_TRY(sandbox.reply, read_reply<LaunchReply>(message));
  ISOLA_TRY(sandbox.link, take_link(message));
  return sandbox;
}

Result<boundary::Link> Client::link(const std::string& id) {
  Writer out;
  out.str(id);
  ISOLA_TRY(auto message, call(Op::link, out.data()));
  ISOLA_CHECK(open_reply(message.bytes));
  return take_link(message);
}

Result<Ended> Client::kill(const std::string& id) {
  Writer out;
  out.str(id);
  ISOLA_TRY(auto message, call(Op::kill, out.data()));
  return read_reply<Ended>(message);
}

Result<void> Client::own(const std::string& id) { return call_with_id(Op::own, id); }
Result<void> Client::freeze(const std::string& id) { return call_with_id(Op::freeze, id); }
Result<void> Client::thaw(const std::string& id) { return call_with_id(Op::thaw, id); }

Result<StatsReply> Client::stats(const std::string& id) {
  Writer out;
  out.str(id);
  ISOLA_TRY(auto message, call(Op::stats, out.data()));
  return read_reply<StatsReply>(message);
}

// The launcher answers in pages: a message has a size, a machine may have thousands.
template <typename T>
Result<std::vector<T>> Client::pages(Op op) {
  std::vector<T> all;
  std::string after;
  for (;;) {
    Writer out;
    out.str(after);
    ISOLA_TRY(auto message, call(op, out.data()));
    ISOLA_TRY(Reader in, open_reply(message.bytes));
    uint32_t count = in.u32();
    for (uint32_t i = 0; i < count && in.ok(); ++i) decode(in, all.emplace_back());
    bool more = in.u8() != 0;
    if (!in.done()) return unreadable_reply();
    if (!more || count == 0) return all;
    after = all.back().id;
  }
}

Result<std::vector<SandboxSummary>> Client::list() { return pages<SandboxSummary>(Op::list); }
Result<std::vector<ImageSummary>> Client::images() { return pages<ImageSummary>(Op::images); }

Result<CheckpointReply> Client::checkpoint(const CheckpointRequest& request) {
  Writer out;
  encode(out, request);
  ISOLA_TRY(auto message, call(Op::checkpoint, out.data()));
  return read_reply<CheckpointReply>(message);
}

Result<void> Client::drop_image(const std::string& image) { return call_with_id(Op::drop_image, image); }

Result<void> Client::verify_image(const std::string& image, bool thorough) {
  Writer out;
  out.str(image);
  out.u8(thorough);
  out.u8(0);
  ISOLA_TRY(auto message, call(Op::verify_image, out.data()));
  ISOLA_CHECK(open_reply(message.bytes));
  return {};
}

Result<void> Client::call_with_size(Op op, const std::string& id, uint64_t bytes) {
  Writer out;
  out.str(id);
  out.u64(bytes);
  ISOLA_TRY(auto message, call(op, out.data()));
  ISOLA_CHECK(open_reply(message.bytes));
  return {};
}

Result<void> Client::make_volume(const std::string& id, uint64_t bytes) {
  return call_with_size(Op::make_volume, id, bytes);
}
Result<void> Client::resize_volume(const std::string& id, uint64_t bytes) {
  return call_with_size(Op::resize_volume, id, bytes);
}
Result<void> Client::drop_volume(const std::string& id) { return call_with_id(Op::drop_volume, id); }
Result<std::vector<VolumeSummary>> Client::volumes() { return pages<VolumeSummary>(Op::volumes); }

Result<InfoReply> Client::info() {
  ISOLA_TRY(auto message, call(Op::info, {}));
  return read_reply<InfoReply>(message);
}

Result<void> Client::park(const std::string& name, uint32_t count, BoundaryKind kind) {
  Writer out;
  out.str(name);
  out.u32(count);
  out.u8(static_cast<uint8_t>(kind));
  ISOLA_TRY(auto message, call(Op::park, out.data()));
  ISOLA_CHECK(open_reply(message.bytes));
  return {};
}

Result<void> Client::set_policy(const PolicyRequest& request) {
  Writer out;
  encode(out, request);
  ISOLA_TRY(auto message, call(Op::set_policy, out.data()));
  ISOLA_CHECK(open_reply(message.bytes));
  return {};
}

Result<VaultState> Client::vault_state() {
  ISOLA_TRY(auto message, call(Op::vault_state, {}));
  return read_reply<VaultState>(message);
}

Result<void> Client::call_with_passphrase(Op op, std::string_view passphrase) {
  Writer out;
  out.str(passphrase);
  std::string arguments = out.take();
  auto message = call(op, arguments);
  vault::wipe(arguments);
  if (!message) return std::unexpected(message.error());
  ISOLA_CHECK(open_reply(message->bytes));
  return {};
}

Result<void> Client::unlock_vault(std::string_view passphrase) {
  return call_with_passphrase(Op::vault_unlock, passphrase);
}
Result<void> Client::protect_vault(std::string_view passphrase) {
  return call_with_passphrase(Op::vault_protect, passphrase);
}

Result<void> Client::rotate_vault(RotatePhase phase) {
  Writer out;
  out.u8(static_cast<uint8_t>(phase));
  ISOLA_TRY(auto message, call(Op::vault_rotate, out.data()));
  ISOLA_CHECK(open_reply(message.bytes));
  return {};
}

Result<std::vector<std::string>> Client::reseal(const std::vector<std::string>& sealed) {
  Writer out;
  out.strs(sealed);
  ISOLA_TRY(auto message, call(Op::vault_reseal, out.data()));
  ISOLA_TRY(Reader in, open_reply(message.bytes));
  auto fresh = in.strs();
  if (!in.done() || fresh.size() != sealed.size()) return unreadable_reply();
  return fresh;
}

Result<std::string> Client::signing_keys(SigningWish wish) {
  Writer out;
  out.u8(static_cast<uint8_t>(wish));
  ISOLA_TRY(auto message, call(Op::vault_signing, out.data()));
  ISOLA_TRY(Reader in, open_reply(message.bytes));
  std::string keys = in.str();
  if (!in.done()) return unreadable_reply();
  return keys;
}

Result<std::string> Client::gate_report(const std::string& id) {
  Writer out;
  out.str(id);
  ISOLA_TRY(auto message, call(Op::gate_report, out.data()));
  ISOLA_TRY(Reader in, open_reply(message.bytes));
  std::string report = in.str();
  if (!in.done()) return unreadable_reply();
  return report;
}

Result<void> Client::watch_gate() {
  Writer out;
  encode(out, GateWatch{});
  ISOLA_TRY(auto message, call(Op::gate_events, out.data()));
  ISOLA_CHECK(open_reply(message.bytes));
  return {};
}

Result<gate::Event> Client::next_gate_event() {
  ISOLA_TRY(auto message, kernel::receive_message(socket_.get()));
  if (message.bytes.empty()) return fail(Code::unavailable, "the launcher is gone");
  ISOLA_TRY(Reader in, open_reply(message.bytes));
  gate::Event event;
  decode(in, event);
  in.u64();  // its number: we only look on
  if (!in.done()) return fail(Code::corrupt, "unreadable event from the launcher");
  return event;
}

Result<void> Client::admit(uint32_t user) {
  Writer out;
  out.u32(user);
  ISOLA_TRY(auto message, call(Op::admit, out.data()));
  ISOLA_CHECK(open_reply(message.bytes));
  return {};
}

Result<void> Client::shutdown(bool end_all) {
  Writer out;
  out.u8(end_all);
  ISOLA_TRY(auto message, call(Op::shutdown, out.data()));
  ISOLA_CHECK(open_reply(message.bytes));
  for (;;) {
    auto rest = kernel::receive_message(socket_.get());
    if (!rest || rest->bytes.empty()) return {};
  }
}

Result<std::optional<Ended>> Client::next_event() {
  if (events_.empty()) {
    pollfd ready{socket_.get(), POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) return std::nullopt;
    ISOLA_TRY(auto message, kernel::receive_message(socket_.get()));
    if (message.bytes.empty()) return fail(Code::unavailable, "the launcher is gone");
    Reader in(message.bytes);
    Ended event;
    if (in.u32() != 0) return fail(Code::corrupt, "the launcher answered a question that was not asked");
    decode(in, event);
    if (!in.done()) return fail(Code::corrupt, "unreadable event from the launcher");
    return event;
  }
  Ended event = std::move(events_.front());
  events_.pop_front();
  return event;
}

}  // namespace isola::launcher
