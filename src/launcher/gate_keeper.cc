#include "launcher/gate_keeper.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/file.h"
#include "base/ids.h"
#include "base/light_file.h"
#include "base/log.h"
#include "gate/control.h"
#include "vault/binding_wire.h"

namespace isola::launcher {

namespace {

constexpr int kControl = 3;
constexpr auto kShortLife = std::chrono::seconds(1);
constexpr auto kRestartPause = std::chrono::milliseconds(500);  // for one that dies at once; others are back at once
constexpr auto kSocketPause = std::chrono::milliseconds(100);
constexpr auto kPatience = std::chrono::seconds(5);  // of whoever asked
constexpr auto kHung = std::chrono::seconds(20);     // a gate that leaves something unanswered for so long is replaced
constexpr size_t kMostRequests = 65536, kMaxJobs = 64;  // to the gate, and of one sandbox
constexpr int kScanBuffer = 1 << 20;  // of streams on their way to the gate, beyond which their reader waits

// In the child: nothing of the launcher's but the conversation.
int become_gate(int control, const char* servers, const char* authorities) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::dup2(control, kControl) < 0) return 1;
  if (::syscall(SYS_close_range, kControl + 1, ~0u, 0) < 0) return 1;
  if (control == kControl) ::fcntl(kControl, F_SETFD, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  rlimit much{RLIM_INFINITY, RLIM_INFINITY};
  ::setrlimit(RLIMIT_MEMLOCK, &much);  // values of secrets stay out of the swap
  rlimit no{0, 0};
  ::setrlimit(RLIMIT_CORE, &no);
  const char* arguments[9] = {"isola", "gate", "--control", "3"};
  size_t next = 4;
  if (*servers) arguments[next++] = "--name-servers", arguments[next++] = servers;
  if (*authorities) arguments[next++] = "--authorities", arguments[next++] = authorities;
  const char* environment[] = {"PATH=/usr/bin:/bin", nullptr};
  ::execve("/proc/self/exe", const_cast<char**>(arguments), const_cast<char**>(environment));
  return 1;
}

constexpr size_t kControlSpare = 4096;  // of a message, for what stands around bindings
constexpr size_t kMostRevoked = 4096;   // that are remembered of one sandbox, the newest

// Of a list of bindings those that still hold.
std::string without(const std::string& bindings, const std::deque<std::string>& revoked) {
  if (bindings.empty() || revoked.empty()) return bindings;
  auto list = vault::decode_bindings(bindings);
  if (!list) return bindings;
  auto gone =
      std::erase_if(*list, [&](const auto& one) { return std::ranges::find(revoked, one.id) != revoked.end(); });
  return gone == 0 ? bindings : vault::encode_bindings(*list);
}

// Of what is open those that a new list still has.
std::string still_in(const std::string& opened, const std::string& bindings) {
  if (opened.empty()) return opened;
  auto list = vault::decode_bindings(opened), wanted = vault::decode_bindings(bindings);
  if (!list || !wanted) return {};
  std::erase_if(*list, [&](const auto& one) {
    return std::ranges::none_of(*wanted, [&](const auto& other) { return other.id == one.id; });
  });
  return vault::encode_bindings(*list);
}

// For the gate: it refuses what they are for.
std::string all_closed(const std::string& bindings) {
  auto list = vault::decode_bindings(bindings);
  if (!list) return {};
  for (auto& one : *list) one = vault::without_value(std::move(one));
  return vault::encode_bindings(*list);
}

// As Terms::trouble is.
vault::Reasons all_missing(const std::string& bindings, const std::string& why) {
  vault::Reasons missing;
  auto list = vault::decode_bindings(bindings);
  if (!list) missing[""] = why;
  if (list)
    for (const auto& one : *list) missing[one.id] = why;
  return missing;
}

}  // namespace

GateKeeper::~GateKeeper() {
  if (restart_) loop_.cancel(*restart_);
  if (patrol_) loop_.cancel(*patrol_);
  if (child_.pid <= 0) return;
  loop_.unwatch(socket_.get());
  ::kill(child_.pid, SIGKILL);
  ::waitpid(child_.pid, nullptr, 0);
}

Result<void> GateKeeper::start() {
  if (child_.pid > 0) return {};
  ISOLA_TRY(auto pair, kernel::socket_pair());
  int flags = ::fcntl(pair.first.get(), F_GETFL);
  if (::fcntl(pair.first.get(), F_SETFL, flags | O_NONBLOCK) < 0) return sys_error("cannot talk to the gate");
  ISOLA_TRY(child_, kernel::spawn(0, [&] {
              return become_gate(pair.second.get(), options_.servers.c_str(), options_.authorities.c_str());
            }));
  socket_ = std::move(pair.first);
  started_ = std::chrono::steady_clock::now();
  log::info("launcher", "the gate is process {}", child_.pid);
  give_key();
  // Its end is seen as the end of the conversation.
  return loop_.watch(socket_.get(), EPOLLIN, [this](uint32_t events) { ready(events); });
}

// Nobody waits for the answer: a gate that does not take it opens nothing, and says so when it is to.
void GateKeeper::give_key() {
  vault::Secret key = options_.key ? options_.key() : vault::Secret();
  if (key.empty()) return;
  Writer out;
  out.str(key.view());
  std::string bytes = out.take();
  request(static_cast<uint8_t>(gate::ControlOp::key), bytes, nullptr);
  vault::wipe(bytes);
}

void GateKeeper::unlocked() {
  if (child_.pid > 0) give_key();
  open_all_again();
}

void GateKeeper::open_all_again() {
  std::vector<std::string> ids;
  for (const auto& [id, entry] : entries_)
    if (entry.kept && !entry.kept->bindings.empty()) ids.push_back(id);
  for (const auto& id : ids) open_again(id);
}

// ---- what it is asked -----------------------------------------------------------------------------------------------

void GateKeeper::set_policy(const PolicyRequest& wanted, Done done) {
  // Judged here, so that an error in it is the caller's at once. A ceiling that is not given was judged before.
  if (auto read = gate::read_egress(wanted.policy, wanted.ceiling.value_or("")); !read)
    return done(std::unexpected(read.error()));
  if (auto there = sockets_(wanted.id); !there) return done(std::unexpected(there.error()));
  const bool known = entries_.contains(wanted.id);
  if (wanted.first && known) return done(std::string());
  if (!wanted.bindings.empty() && !options_.open) return done(fail(Code::unsupported, "this launcher has no vault"));
  if (known || !wanted.policy.empty() || !wanted.bindings.empty())
    return enqueue(wanted.id, {.change = wanted, .done = std::move(done)});
  Terms closed{.policy = "", .ceiling = wanted.ceiling.value_or("")};
  if (auto kept = keep(wanted.id, closed); !kept) return done(std::unexpected(kept.error()));
  entry_for(wanted.id).kept = std::move(closed);
  done(std::string());
  advance(wanted.id);
}

GateKeeper::Entry& GateKeeper::entry_for(const std::string& id) {
  auto [it, fresh] = entries_.try_emplace(id);
  if (fresh) it->second.serial = it->second.born = ++last_serial_;
  return it->second;
}

GateKeeper::Entry* GateKeeper::find(const std::string& id, uint64_t serial) {
  auto it = entries_.find(id);
  return it == entries_.end() || it->second.serial != serial ? nullptr : &it->second;
}

void GateKeeper::report(const std::string& id, Done done) {
  ask(id, static_cast<uint8_t>(gate::ControlOp::report), std::move(done));
}

void GateKeeper::certificate(const std::string& id, Done done) {
  ask(id, static_cast<uint8_t>(gate::ControlOp::certificate), std::move(done));
}

// Nobody waits for the gate to take its end: one that dies before it does closes it, and that is heard.
Result<Fd> GateKeeper::scan_channel() {
  if (child_.pid <= 0) {
    if (restart_ || entries_.empty()) return fail(Code::unavailable, "the gate is being restarted; try again");
    ISOLA_CHECK(start());
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
    return sys_error("cannot make a channel to the gate");
  Fd ours(ends[0]), theirs(ends[1]);
  for (int fd : ends) (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &kScanBuffer, sizeof kScanBuffer);
  request(static_cast<uint8_t>(gate::ControlOp::scan), "", nullptr, std::array{theirs.get()});
  return ours;
}

void GateKeeper::ask(const std::string& id, uint8_t question, Done done) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return done(fail(Code::not_found, "sandbox " + id + " has no network policy"));
  enqueue(id, {.question = question, .done = std::move(done)});
}

void GateKeeper::enqueue(const std::string& id, Job job) {
  auto& jobs = entry_for(id).jobs;
  if (jobs.size() >= kMaxJobs) return job.done(fail(Code::unavailable, "too much is asked of the gate; try again"));
  job.number = ++last_job_;
  job.timer = loop_.after(kPatience, [this, id, number = job.number] { late(id, number); });
  jobs.push_back(std::move(job));
  advance(id);
}

// The job stays where it is if it is under way: what the gate takes is written down, whoever still waits.
void GateKeeper::late(const std::string& id, uint64_t number) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return;
  auto& jobs = it->second.jobs;
  auto job = std::find_if(jobs.begin(), jobs.end(), [&](const Job& one) { return one.number == number; });
  if (job == jobs.end()) return;
  auto done = std::exchange(job->done, nullptr);
  std::string why = job->trouble.empty() ? "the gate is being restarted" : job->trouble;
  if (job != jobs.begin() || !it->second.busy) jobs.erase(job);
  if (jobs.empty() && !it->second.kept && !it->second.busy) entries_.erase(it);
  done(fail(Code::unavailable, why + "; try again"));
}

void GateKeeper::advance(const std::string& id) {
  auto it = entries_.find(id);
  if (it == entries_.end() || it->second.busy) return;
  auto& entry = it->second;
  if (child_.pid <= 0) {
    if (restart_) return;  // then
    if (auto started = start(); !started) {
      log::error("launcher", "{}", started.error().message);
      if (!entry.jobs.empty()) entry.jobs.front().trouble = started.error().message;
      return restart_after(kRestartPause);
    }
  }
  if (!entry.jobs.empty() && (entry.jobs.front().change || entry.jobs.front().reopens)) return do_change(id, entry);
  if (!entry.told && entry.kept) return add_kept(id);
  if (!entry.jobs.empty()) return do_question(id, entry);
  if (!entry.kept) entries_.erase(it);
}

void GateKeeper::advance_all() {
  std::vector<std::string> ids;
  for (const auto& [id, entry] : entries_) ids.push_back(id);
  for (const auto& id : ids) advance(id);
}

void GateKeeper::revoke(const RevokeRequest& request, Done done) {
  auto it = entries_.find(request.id);
  if (it == entries_.end()) return done(std::string());
  auto& entry = it->second;
  for (const auto& binding : request.bindings) entry.revoked.push_back(binding);
  while (entry.revoked.size() > kMostRevoked) entry.revoked.pop_front();
  Result<void> kept;
  if (entry.kept && !entry.kept->bindings.empty()) {
    Terms narrower = *entry.kept;
    narrower.bindings = without(narrower.bindings, entry.revoked);
    narrower.opened = without(narrower.opened, entry.revoked);
    // A launcher that takes over must not find it. Where that cannot be written, it finds nothing, and lets nothing
    // out.
    if (narrower.bindings != entry.kept->bindings) kept = keep(request.id, narrower);
    if (!kept) ::unlink((options_.folder + "/" + request.id).c_str());
    entry.past.remember(entry.kept->opened, narrower.opened);
    entry.kept = std::move(narrower);
  }
  if (child_.pid <= 0 || !entry.sent) return done(kept ? Result<std::string>("") : std::unexpected(kept.error()));
  // Behind everything that was sent, of which this takes something away; what comes later does not have it (put).
  const uint64_t number = ++last_job_;
  revoking_[number] = [kept, done = std::move(done)](const Result<std::string>& told) {
    if (!told) return done(told);
    done(kept ? Result<std::string>("") : std::unexpected(kept.error()));
  };
  tell_now(request.id, *entry.sent, false, [this, number](const Result<std::string>& told) {
    if (auto waiting = revoking_.extract(number)) waiting.mapped()(told);
  });
}

// What the gate has already, as far as it still holds, and nothing that would have to be waited for.
void GateKeeper::tell_now(const std::string& id, const Terms& terms, bool cut, Done done) {
  auto& entry = entries_.at(id);
  Terms now = terms;
  now.bindings = without(now.bindings, entry.revoked);
  now.opened = without(now.opened, entry.revoked);
  const bool incomplete = !now.bindings.empty() && (!now.is_open || !now.trouble.empty());
  if (entry.sent) entry.past.remember(entry.sent->opened, now.opened);
  entry.sent = now;
  Writer out;
  encode(out, gate::SetPolicy{id, now.policy, now.ceiling, cut, now.opened, incomplete});
  request(static_cast<uint8_t>(gate::ControlOp::policy), out.data(), std::move(done));
}

void GateKeeper::do_change(const std::string& id, Entry& entry) {
  const Job& job = entry.jobs.front();
  if (job.reopens && !entry.kept) return finish_job(id, std::string());
  const Terms before = entry.kept.value_or(Terms{});
  Terms terms{.policy = before.policy, .ceiling = before.ceiling, .bindings = before.bindings};
  if (job.change) {
    terms.policy = job.change->policy;
    terms.ceiling = job.change->ceiling.value_or(before.ceiling);
    terms.bindings = job.change->bindings;
  }
  const bool cut = job.change && job.change->cut;
  // What it takes away is taken away before anything is opened: sources may be slow. Nobody waits for this answer,
  // the whole of it follows.
  if (job.change && !terms.bindings.empty() && entry.told && entry.sent) {
    Terms first = *entry.sent;
    first.policy = terms.policy;
    first.ceiling = terms.ceiling;
    first.opened = still_in(first.opened, terms.bindings);
    if (first.policy != entry.sent->policy || first.ceiling != entry.sent->ceiling ||
        first.opened != entry.sent->opened) {
      const uint64_t serial = entry.serial;
      tell_now(id, first, cut, nullptr);
      if (!find(id, serial)) return;  // the gate was found dead: it is done again
    }
  }
  open(id, terms, job.only_due, [this, id, closed = terms, cut, serial = entry.serial](const Result<Terms>& opened) {
    Entry* ready = find(id, serial);
    if (!ready) return;
    Terms fresh = opened ? *opened : closed;
    // Without them, rather than not at all: a change may take something away, and that does not wait. Where they are
    // the same as before, what was opened then still is.
    if (!opened) {
      log::warn("launcher", "the bindings of {} could not be opened: {}", id, opened.error().message);
      const bool same = ready->kept && ready->kept->is_open && ready->kept->bindings == fresh.bindings;
      fresh.opened = same ? ready->kept->opened : all_closed(fresh.bindings);
      fresh.is_open = same;
      fresh.trouble = same ? ready->kept->trouble : all_missing(fresh.bindings, opened.error().message);
    }
    put(id, fresh, ready->told, cut, [this, id, fresh, serial](const Result<std::string>& result) {
      if (find(id, serial)) took(id, fresh, result);
    });
  });
}

void GateKeeper::do_question(const std::string& id, Entry& entry) {
  if (!entry.kept) return finish_job(id, fail(Code::not_found, "sandbox " + id + " has no network policy"));
  entry.busy = true;
  Writer out;
  out.str(id);
  request(entry.jobs.front().question, out.data(),
          [this, id, serial = entry.serial](const Result<std::string>& result) {
            if (find(id, serial)) finish_job(id, result);
          });
}

// A gate that is new gets what was in force.
void GateKeeper::add_kept(const std::string& id) {
  const Entry& entry = entries_.at(id);
  open(id, *entry.kept, false, [this, id, serial = entry.serial](const Result<Terms>& opened) {
    Entry* entry = find(id, serial);
    if (!entry) return;
    if (opened) {
      std::string sealed = std::move(entry->kept->bindings);  // they may have been sealed anew meanwhile
      entry->kept = *opened;
      entry->kept->bindings = std::move(sealed);
      entry->kept->opened = without(entry->kept->opened, entry->revoked);
    }
    if (!opened) log::warn("launcher", "the bindings of {} could not be opened: {}", id, opened.error().message);
    // Without their values, rather than not at all: what it may reach is the same but for what they are for, and no
    // secret goes out.
    if (!opened || !opened->trouble.empty()) open_again_later(id);
    Terms terms = *entry->kept;
    if (!opened) terms.opened = all_closed(terms.bindings);
    put(id, terms, false, false, [this, id, serial](const Result<std::string>& result) {
      Entry* added = find(id, serial);
      if (!added) return;
      if (!result) return try_again(id);
      added->told = true;
      added->busy = false;
      advance(id);
    });
  });
}

// The sockets of an adopted sandbox may still be in the hands of a gate that is just dying.
void GateKeeper::try_again(const std::string& id) {
  loop_.after(kSocketPause, [this, id, serial = entries_.at(id).serial] {
    Entry* entry = find(id, serial);
    if (!entry) return;
    entry->busy = false;
    advance(id);
  });
}

// The gate has answered a change: written down, or taken back where that cannot be.
void GateKeeper::took(const std::string& id, Terms terms, const Result<std::string>& result) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return;
  auto& entry = it->second;
  if (!result && !entry.told) {
    entry.jobs.front().trouble = result.error().message;
    // Nobody waits any more: it is not tried for ever.
    if (!entry.jobs.front().done) return finish_job(id, result);
    return try_again(id);
  }
  if (!result) return finish_job(id, result);
  entry.told = true;
  terms.bindings = without(terms.bindings, entry.revoked);  // while it was on its way
  terms.opened = without(terms.opened, entry.revoked);
  // What the gate could make nothing of is missing there.
  if (!result->empty() && terms.trouble.empty()) terms.trouble = all_missing(terms.bindings, *result);
  const bool reopens = entry.jobs.front().reopens;
  if (reopens && entry.kept) terms.bindings = entry.kept->bindings;  // they may have been sealed anew meanwhile
  if (auto kept = reopens ? Result<void>() : keep(id, terms); !kept) {
    log::error("launcher", "the policy of {} cannot be written down, and is taken back: {}", id, kept.error().message);
    // Without credentials: one of them may be what was to be taken away.
    Terms before = entry.kept.value_or(Terms{});
    entry.past.remember(before.opened, "");
    entry.past.remember(terms.opened, "");  // the gate had them for a moment
    before.bindings = before.opened = "";
    before.trouble.clear();
    before.is_open = false;
    if (entry.kept) entry.kept = before;
    // Nor may the next launcher find them. Where not even that can be written, it finds nothing, and lets nothing out.
    if (entry.kept && !keep(id, before)) ::unlink((options_.folder + "/" + id).c_str());
    put(id, before, true, true, [this, id, serial = entry.serial, error = kept.error()](const Result<std::string>&) {
      if (find(id, serial)) finish_job(id, std::unexpected(error));
    });
    return;
  }
  if (!terms.trouble.empty()) open_again_later(id);
  if (entry.kept) entry.past.remember(entry.kept->opened, terms.opened);
  vault::Reasons whys = terms.unsent;
  whys.insert(terms.trouble.begin(), terms.trouble.end());
  const std::string said = vault::encode_reasons(whys);
  entry.kept = std::move(terms);
  finish_job(id, said);
}

void GateKeeper::finish_job(const std::string& id, const Result<std::string>& result) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return;
  it->second.busy = false;
  if (!it->second.jobs.empty()) {
    Job job = std::move(it->second.jobs.front());
    it->second.jobs.pop_front();
    loop_.cancel(job.timer);
    if (job.done) job.done(result);
  }
  advance(id);
}

void GateKeeper::put(const std::string& id, const Terms& terms, bool told, bool cut, Done done) {
  auto& entry = entries_.at(id);
  entry.busy = true;
  if (told) return tell_now(id, terms, cut, std::move(done));
  Writer out;
  const bool incomplete = !terms.bindings.empty() && (!terms.is_open || !terms.trouble.empty());
  auto sockets = sockets_(id);
  if (!sockets) return done(std::unexpected(sockets.error()));
  // What a change drops was another gate's: this one never sees it, unless it is told.
  if (entry.kept) entry.past.remember(entry.kept->opened, terms.opened);
  gate::AddSandbox add{id, terms.policy, terms.ceiling};
  auto fds = gate::descriptors_of(**sockets, add.sockets);
  entry.sent = terms;
  add.bindings = entry.sent->opened = without(terms.opened, entry.revoked);
  add.incomplete = entry.had_a_gate && incomplete;  // that one may have used what is missing now
  if (options_.birth) add.birth = options_.birth(id);
  encode(out, add);
  if (!entry.past.empty() && out.data().size() + kControlSpare < gate::kMaxControl) {
    add.past = entry.past.text(gate::kMaxControl - kControlSpare - out.data().size());
    out = Writer();
    encode(out, add);
  }
  request(static_cast<uint8_t>(gate::ControlOp::add), out.data(), std::move(done), fds);
}

bool GateKeeper::forget(const std::string& id) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return false;
  bool known = it->second.told || it->second.busy;
  auto jobs = std::move(it->second.jobs);
  entries_.erase(it);
  ::unlink((options_.folder + "/" + id).c_str());
  for (auto& job : jobs) {
    loop_.cancel(job.timer);
    if (job.done) job.done(fail(Code::not_found, "sandbox " + id + " has ended"));
  }
  if (!known || child_.pid <= 0) return false;
  // Whoever waits for its end hears of it even if the gate hangs.
  const uint64_t serial = ++last_serial_;
  leaving_[id] = {serial, loop_.after(kPatience, [this, id, serial] { left(id, serial); })};
  Writer out;
  out.str(id);
  request(static_cast<uint8_t>(gate::ControlOp::remove), out.data(),
          [this, id, serial](const Result<std::string>&) { left(id, serial); });
  return leaving_.contains(id);  // unless the gate was found dead just now
}

// All of its events have been read: the gate tells them before it answers.
void GateKeeper::left(const std::string& id, uint64_t serial) {
  auto it = leaving_.find(id);
  if (it == leaving_.end() || it->second.serial != serial) return;
  loop_.cancel(it->second.timer);
  if (on_left) on_left(id);
  leaving_.erase(id);
}

// Each sandbox's own records say so, as whoever reads those sees no others, and those of all.
void GateKeeper::tell_restarted(const std::string& id) {
  using namespace std::chrono;
  const auto now = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
  if (on_event) on_event({.sandbox = id, .kind = gate::Event::Kind::restarted, .when = now});
}

// ---- the conversation -----------------------------------------------------------------------------------------------

void GateKeeper::request(uint8_t op, const std::string& arguments, Done done, std::span<const int> fds) {
  if (queue_.size() >= kMostRequests) {
    if (done) done(fail(Code::unavailable, "the gate does not answer"));
    return;
  }
  uint32_t tag = 0;
  if (done) {
    tag = ++last_tag_ ? last_tag_ : ++last_tag_;
    calls_[tag] = {std::move(done), std::chrono::steady_clock::now()};
    look_for_hang();
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
    return waiting.done(std::unexpected(error.error()));
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
    vault::wipe(queue_.front().bytes);  // it may have been the key
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
    const uint8_t kind = in.u8();
    if (kind == 1) {
      gate::Event event;
      decode(in, event);
      if (in.done()) hear(event);
      continue;
    }
    if (kind == 2) {
      std::string id = in.str();
      if (in.done()) wanted(id);
      continue;
    }
    uint32_t tag = in.u32();
    bool bad = in.u8() != 0;
    std::string text = in.str();
    auto call = in.done() ? calls_.find(tag) : calls_.end();
    if (call == calls_.end()) continue;
    auto done = std::move(call->second.done);
    calls_.erase(call);
    done(bad ? Result<std::string>(fail(Code::internal, text)) : Result<std::string>(std::move(text)));
  }
}

void GateKeeper::hear(const gate::Event& event) {
  if ((entries_.contains(event.sandbox) || leaving_.contains(event.sandbox)) && on_event) on_event(event);
}

void GateKeeper::look_for_hang() {
  if (patrol_ || calls_.empty()) return;
  auto until = calls_.begin()->second.since + kHung;
  patrol_ = loop_.after(until - std::chrono::steady_clock::now(), [this] {
    patrol_.reset();
    if (calls_.empty() || calls_.begin()->second.since + kHung > std::chrono::steady_clock::now())
      return look_for_hang();
    log::error("launcher", "the gate does not answer, and is replaced");
    died();
  });
}

// What it told before it died.
void GateKeeper::hear_out() {
  for (;;) {
    auto message = kernel::receive_message(socket_.get(), gate::kMaxControl);
    if (!message || message->bytes.empty()) return;
    Reader in(message->bytes);
    if (in.u8() != 1) continue;
    gate::Event event;
    decode(in, event);
    if (in.done()) hear(event);
  }
}

void GateKeeper::died() {
  if (child_.pid <= 0) return;  // known already
  loop_.unwatch(socket_.get());
  ::kill(child_.pid, SIGKILL);  // one that only closed the conversation is of no use
  ::waitpid(child_.pid, nullptr, 0);
  child_ = {};
  hear_out();
  socket_.reset();
  log::error("launcher", "the gate has died; its connections are cut");
  // What it had not told by then is gone with it.
  std::vector<std::string> had = {""};  // first: whoever is told may end some of them
  for (const auto& [id, entry] : entries_)
    if (entry.told || entry.busy) had.push_back(id);
  for (const auto& [id, leaving] : leaving_) had.push_back(id);
  for (const auto& id : had) tell_restarted(id);
  queue_.clear();
  waits_for_room_ = false;
  // What was under way is done again, in its order, by the next one: nobody knows how far this one came with it.
  calls_.clear();
  std::vector<std::pair<std::string, uint64_t>> going;
  for (const auto& [id, leaving] : leaving_) going.emplace_back(id, leaving.serial);
  for (const auto& [id, serial] : going) left(id, serial);
  for (auto& [number, done] : std::exchange(revoking_, {})) done(std::string());
  for (auto& [id, entry] : entries_) {
    entry.serial = ++last_serial_;
    entry.told = entry.busy = false;
    if (entry.sent) {
      entry.had_a_gate = true;
      // It may have taken a change that it did not answer any more.
      entry.past.remember(entry.sent->opened, entry.kept ? entry.kept->opened : std::string());
      entry.sent.reset();
    }
    std::erase_if(entry.jobs, [](const Job& job) { return !job.done; });  // but for what was given up already
  }
  if (entries_.empty()) return;
  bool at_once = std::chrono::steady_clock::now() - started_ > kShortLife;
  restart_after(at_once ? std::chrono::milliseconds(0) : kRestartPause);
}

void GateKeeper::restart_after(std::chrono::milliseconds pause) {
  if (restart_) return;
  restart_ = loop_.after(pause, [this] {
    restart_.reset();
    advance_all();
  });
}

// ---- what outlives the launcher -------------------------------------------------------------------------------------

Result<void> GateKeeper::keep(const std::string& id, const Terms& terms) const {
  // One without either is as closed without a gate.
  if (terms.policy.empty() && terms.ceiling.empty() && terms.bindings.empty()) {
    std::string path = options_.folder + "/" + id;
    if (::unlink(path.c_str()) < 0 && errno != ENOENT) return sys_error("cannot remove " + path);
    return {};
  }
  ISOLA_CHECK(make_dirs(options_.folder, 0700));
  Writer out;
  out.str(terms.policy);
  out.str(terms.ceiling);
  out.str(terms.bindings);
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
    Terms terms;
    terms.policy = in.str();
    terms.ceiling = in.str();
    if (in.ok() && !in.done()) terms.bindings = in.str();  // an earlier version knew none
    // One whose sockets cannot be opened yet is still there; one that is not there is to be forgotten.
    auto there = sockets_(id);
    if (!in.done() || (!there && there.error().code == Code::not_found)) {
      ::unlink(path.c_str());
      continue;
    }
    auto& entry = entry_for(id);
    entry.kept = std::move(terms);
    entry.had_a_gate = true;
    tell_restarted(id);  // the gate that had it went with the launcher before this one
  }
  if (entries_.empty()) return {};
  ISOLA_CHECK(start());
  advance_all();
  return {};
}

}  // namespace isola::launcher
