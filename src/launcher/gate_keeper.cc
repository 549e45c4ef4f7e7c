#include "launcher/gate_keeper.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "base/file.h"
#include "base/ids.h"
#include "base/light_file.h"
#include "base/log.h"
#include "gate/control.h"

namespace isola::launcher {

namespace {

constexpr int kControl = 3;
constexpr auto kShortLife = std::chrono::seconds(1);
constexpr auto kRestartPause = std::chrono::milliseconds(500);  // for one that dies at once; others are back at once
constexpr auto kSocketPause = std::chrono::milliseconds(100);
constexpr size_t kMaxQueued = 65536;

// In the child: nothing of the launcher's but the conversation.
int become_gate(int control, const char* servers) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::dup2(control, kControl) < 0) return 1;
  if (::syscall(SYS_close_range, kControl + 1, ~0u, 0) < 0) return 1;
  if (control == kControl) ::fcntl(kControl, F_SETFD, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const char* arguments[] = {"isola", "gate", "--control", "3", "--name-servers", servers, nullptr};
  if (!*servers) arguments[4] = nullptr;
  const char* environment[] = {"PATH=/usr/bin:/bin", nullptr};
  ::execve("/proc/self/exe", const_cast<char**>(arguments), const_cast<char**>(environment));
  return 1;
}

}  // namespace

GateKeeper::~GateKeeper() {
  if (restart_) loop_.cancel(*restart_);
  if (child_.pid <= 0) return;
  loop_.unwatch(socket_.get());
  ::kill(child_.pid, SIGKILL);
  ::waitpid(child_.pid, nullptr, 0);
}

Result<void> GateKeeper::start() {
  if (child_.pid > 0) return {};
  if (restart_) return fail(Code::unavailable, "the gate does not start; trying again");
  ISOLA_TRY(auto pair, kernel::socket_pair());
  int flags = ::fcntl(pair.first.get(), F_GETFL);
  if (::fcntl(pair.first.get(), F_SETFL, flags | O_NONBLOCK) < 0) return sys_error("cannot talk to the gate");
  ISOLA_TRY(child_, kernel::spawn(0, [&] { return become_gate(pair.second.get(), options_.servers.c_str()); }));
  socket_ = std::move(pair.first);
  started_ = std::chrono::steady_clock::now();
  log::info("launcher", "the gate is process {}", child_.pid);
  // Its end is seen as the end of the conversation.
  return loop_.watch(socket_.get(), EPOLLIN, [this](uint32_t events) { ready(events); });
}

// ---- what it is asked -----------------------------------------------------------------------------------------------

void GateKeeper::set_policy(const PolicyRequest& wanted, Done done) {
  auto known = entries_.find(wanted.id);
  std::string ceiling = wanted.ceiling.value_or(known == entries_.end() ? "" : known->second.ceiling);
  // Judged here, so that nothing unreadable is kept; an error in it is the caller's.
  if (auto read = gate::read_egress(wanted.policy, ceiling); !read) return done(std::unexpected(read.error()));
  if (auto there = sockets_(wanted.id); !there) return done(std::unexpected(there.error()));
  Entry next{wanted.policy, ceiling};
  if (auto kept = keep(wanted.id, next); !kept) return done(std::unexpected(kept.error()));
  auto& entry = entries_[wanted.id];
  next.told = entry.told;
  entry = std::move(next);
  if (auto started = start(); !started) return done(std::unexpected(started.error()));
  if (!entry.told) return add(wanted.id, std::move(done));
  Writer out;
  encode(out, gate::SetPolicy{wanted.id, wanted.policy, ceiling, wanted.cut});
  request(static_cast<uint8_t>(gate::ControlOp::policy), out.data(), std::move(done));
}

void GateKeeper::add(const std::string& id, Done done) {
  auto sockets = sockets_(id);
  if (!sockets) return done(std::unexpected(sockets.error()));
  auto& entry = entries_.at(id);
  gate::AddSandbox out{id, entry.policy, entry.ceiling};
  auto fds = gate::descriptors_of(**sockets, out.sockets);
  Writer writer;
  encode(writer, out);
  entry.told = true;
  auto heard = [this, id, done = std::move(done)](const Result<std::string>& result) {
    if (auto it = entries_.find(id); !result && it != entries_.end()) it->second.told = false;
    done(result);
  };
  request(static_cast<uint8_t>(gate::ControlOp::add), writer.data(), std::move(heard), fds);
}

// The sockets of an adopted sandbox may still be in the hands of a gate that is just dying.
void GateKeeper::add_again(const std::string& id) {
  auto it = entries_.find(id);
  if (it == entries_.end() || it->second.told || child_.pid <= 0) return;
  add(id, [this, id](const Result<std::string>& result) {
    if (result) return;
    loop_.after(kSocketPause, [this, id] { add_again(id); });
  });
}

void GateKeeper::report(const std::string& id, Done done) {
  auto it = entries_.find(id);
  if (it == entries_.end() || !it->second.told)
    return done(fail(Code::not_found, "sandbox " + id + " has no network policy"));
  Writer out;
  out.str(id);
  request(static_cast<uint8_t>(gate::ControlOp::report), out.data(), std::move(done));
}

void GateKeeper::forget(const std::string& id) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return;
  bool told = it->second.told;
  entries_.erase(it);
  ::unlink((options_.folder + "/" + id).c_str());
  if (!told || child_.pid <= 0) return;
  Writer out;
  out.str(id);
  request(static_cast<uint8_t>(gate::ControlOp::remove), out.data(), nullptr);
}

// ---- the conversation -----------------------------------------------------------------------------------------------

void GateKeeper::request(uint8_t op, const std::string& arguments, Done done, std::span<const int> fds) {
  if (queue_.size() >= kMaxQueued) {
    if (done) done(fail(Code::unavailable, "the gate does not answer"));
    return;
  }
  uint32_t tag = 0;
  if (done) {
    tag = ++last_tag_ ? last_tag_ : ++last_tag_;
    calls_[tag] = std::move(done);
  }
  Writer out;
  out.u8(op);
  out.u32(tag);
  out.bytes(arguments);
  Outgoing message{out.take(), {}};
  // Copies: the sandbox may end before the message leaves.
  for (int fd : fds) {
    message.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, kKeptFrom));
    if (message.fds.back()) continue;
    auto error = sys_error("cannot hand the sandbox's sockets to the gate");
    if (tag == 0) return;
    auto waiting = std::move(calls_.extract(tag).mapped());
    return waiting(std::unexpected(error.error()));
  }
  queue_.push_back(std::move(message));
  flush();
}

void GateKeeper::flush() {
  while (!queue_.empty()) {
    std::vector<int> fds;
    for (const auto& fd : queue_.front().fds) fds.push_back(fd.get());
    auto sent = kernel::send_message(socket_.get(), queue_.front().bytes, fds);
    if (!sent && sent.error().sys_errno == EAGAIN) break;
    // It is gone, or cannot be spoken to any longer, which is the same: everything is told again to the next one.
    if (!sent) return died();
    queue_.pop_front();
  }
  bool wants = !queue_.empty();
  if (wants == waits_for_room_) return;
  waits_for_room_ = wants;
  (void)loop_.watch(socket_.get(), wants ? EPOLLIN | EPOLLOUT : EPOLLIN, [this](uint32_t events) { ready(events); });
}

void GateKeeper::ready(uint32_t events) {
  if (events & EPOLLOUT) flush();
  if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)) || !socket_) return;
  // Many at a time, but not for ever: a gate with much to tell must not keep the launcher from its work.
  for (int i = 0; i < 64; ++i) {
    auto message = kernel::receive_message(socket_.get(), gate::kMaxControl);
    if (!message && message.error().sys_errno == EAGAIN) return;
    if (!message || message->bytes.empty()) return died();
    Reader in(message->bytes);
    if (in.u8() == 1) {
      std::string_view whole = in.rest();
      Reader event(whole);
      gate::Event read;
      event.u32();
      decode(event, read);
      if (event.done() && entries_.contains(read.sandbox) && on_event) on_event(whole);
      continue;
    }
    uint32_t tag = in.u32();
    bool bad = in.u8() != 0;
    std::string text = in.str();
    auto call = in.done() ? calls_.find(tag) : calls_.end();
    if (call == calls_.end()) continue;
    auto done = std::move(call->second);
    calls_.erase(call);
    done(bad ? Result<std::string>(fail(Code::internal, text)) : Result<std::string>(std::move(text)));
  }
}

void GateKeeper::died() {
  if (child_.pid <= 0) return;  // known already
  loop_.unwatch(socket_.get());
  socket_.reset();
  ::kill(child_.pid, SIGKILL);  // one that only closed the conversation is of no use
  ::waitpid(child_.pid, nullptr, 0);
  child_ = {};
  log::error("launcher", "the gate has died; its connections are cut");
  queue_.clear();
  waits_for_room_ = false;
  for (auto& [id, entry] : entries_) entry.told = false;
  for (auto& [tag, done] : std::exchange(calls_, {})) done(fail(Code::unavailable, "the gate has died"));
  if (entries_.empty()) return;
  bool at_once = std::chrono::steady_clock::now() - started_ > kShortLife;
  restart_ = loop_.after(at_once ? std::chrono::milliseconds(0) : kRestartPause, [this] {
    restart_.reset();
    if (auto started = start(); !started) {
      log::error("launcher", "{}", started.error().message);
      return give_up(started.error());
    }
    for (auto& [id, entry] : entries_) add_again(id);
  });
}

void GateKeeper::give_up(const Error&) {
  restart_ = loop_.after(kRestartPause, [this] {
    restart_.reset();
    if (auto started = start(); !started) return give_up(started.error());
    for (auto& [id, entry] : entries_) add_again(id);
  });
}

// ---- what outlives the launcher -------------------------------------------------------------------------------------

Result<void> GateKeeper::keep(const std::string& id, const Entry& entry) const {
  ISOLA_CHECK(make_dirs(options_.folder, 0700));
  Writer out;
  out.str(entry.policy);
  out.str(entry.ceiling);
  return replace_file_lightly(options_.folder + "/" + id, out.data(), 0600);  // its sandbox dies with the machine
}

Result<void> GateKeeper::restore() {
  std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(options_.folder.c_str()), ::closedir);
  if (!folder) return errno == ENOENT ? Result<void>() : sys_error("cannot read " + options_.folder);
  while (const dirent* one = ::readdir(folder.get())) {
    std::string id = one->d_name, path = options_.folder + "/" + id;
    if (!is_sandbox_id(id)) continue;
    auto bytes = read_file(path);
    Reader in(bytes ? *bytes : std::string_view());
    Entry entry{in.str(), in.str()};
    // One whose sockets cannot be opened yet is still there; one that is not there is to be forgotten.
    auto there = sockets_(id);
    if (!in.done() || (!there && there.error().code == Code::not_found)) {
      ::unlink(path.c_str());
      continue;
    }
    entries_[id] = std::move(entry);
  }
  if (entries_.empty()) return {};
  ISOLA_CHECK(start());
  for (auto& [id, entry] : entries_) add_again(id);
  return {};
}

}  // namespace isola::launcher
