#include "interpreter/agent/context.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include "interpreter/agent/message.h"

namespace isola::interpreter {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kStartTime = seconds(120);      // two cores with a hundred kernels that start take their time
constexpr auto kAskAgain = milliseconds(200);  // a kernel whose socket was not subscribed yet is asked anew
constexpr auto kInsist = seconds(3);           // an interrupted cell that goes on is interrupted again, then ended
constexpr auto kSettle = seconds(2);           // for the kernel's word that a cell is over, behind what it said last,
constexpr auto kSettleMost = seconds(30);      // and behind its reply
constexpr size_t kAtOnce = 256;                // messages in one turn: callers, deadlines and other kernels have theirs
constexpr size_t kAtTheEnd = 100'000;          // of a kernel that is gone
constexpr int kInsistences = 3;

// Code that sets variables in R, and gives them back afterwards. Names and values are quoted as R reads them.
std::string r_string(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out + "\"";
}

std::string r_set(const std::map<std::string, std::string>& env) {
  std::string names, values;
  for (const auto& [name, value] : env) {
    names += (names.empty() ? "" : ",") + r_string(name);
    values += (values.empty() ? "" : ",") + r_string(value);
  }
  return fmt::format(
      "options(isola.env=Sys.getenv(c({0}),unset=NA,names=TRUE));"
      "do.call(Sys.setenv,setNames(list({1}),c({0})))",
      names, values);
}

std::string r_lasting(const std::map<std::string, std::string>& env) {
  std::string all;
  for (const auto& [name, value] : env)
    all += fmt::format("do.call(Sys.setenv,setNames(list({}),{}));", r_string(value), r_string(name));
  return all;
}

constexpr const char* kRReset =
    "local({old<-getOption('isola.env');for(n in names(old))if(is.na(old[[n]]))Sys.unsetenv(n)else "
    "do.call(Sys.setenv,setNames(list(old[[n]]),n))})";

Json request(const std::string& code, bool silent) {
  return {
      {"code", code},         {"silent", silent},      {"store_history", !silent}, {"user_expressions", Json::object()},
      {"allow_stdin", false}, {"stop_on_error", false}};
}

}  // namespace

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    int number = WTERMSIG(status);
    return fmt::format("signal {} ({}{})", number, ::strsignal(number),
                       number == SIGKILL ? "; out of memory is the usual reason" : "");
  }
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

Context::Context(void* zmq, std::string folder, Info info)
    : zmq_(zmq), folder_(std::move(folder)), info_(std::move(info)) {}

Context::~Context() {
  for (auto& cell : queue_)
    cell->done({{"type", "end"}, {"status", "interrupted"}, {"message", "the context is gone"}});
  if (running_) running_->done({{"type", "end"}, {"status", "interrupted"}, {"message", "the context is gone"}});
  for (auto& waiter : waiters_) waiter(fail(Code::unavailable, "the context is gone"));
}

Json Context::describe() const {
  const char* state = running_ || !queue_.empty() ? "busy"
                      : phase_ == Phase::ready    ? "idle"
                      : phase_ == Phase::starting ? "starting"
                                                  : "off";
  return {{"id", info_.id},
          {"language", info_.spec.language},
          {"kernel", info_.spec.name},
          {"cwd", info_.cwd},
          {"state", state},
          {"waiting", queue_.size()},
          {"restarts", kernels_ > 0 ? kernels_ - 1 : 0}};
}

void Context::set_lasting(const std::map<std::string, std::string>& env) {
  if (phase_ == Phase::off) lasting_ = env;
}

void Context::run(CellPtr cell) {
  if (phase_ == Phase::off) lasting_ = cell->lasting;
  queue_.push_back(std::move(cell));
  pump();
}

void Context::when_ready(Waiter waiter) {
  if (phase_ == Phase::ready) return waiter({});
  waiters_.push_back(std::move(waiter));
  pump();
}

void Context::start() {
  phase_ = Phase::starting;
  answered_ = heard_ = false;
  ++kernels_;
  // A name that nobody had: a kernel that outlived its isola-kernels may still listen in another.
  std::string folder = fmt::format("{}/{}", folder_, random_hex(6));
  auto kernel = Kernel::start(zmq_, info_.spec, {.folder = folder, .cwd = info_.cwd, .env = lasting_});
  if (!kernel) return start_failed(kernel.error());
  kernel_ = std::move(*kernel);
  auto now = Clock::now();
  start_by_ = now + kStartTime;
  ask_at_ = now + kAskAgain;
  kernel_->send(Kernel::Channel::shell, "kernel_info_request", Json::object());
}

void Context::start_failed(const Error& error) {
  kernel_.reset();
  phase_ = Phase::off;
  start_by_.reset();
  ask_at_.reset();
  auto waiters = std::exchange(waiters_, {});
  for (auto& waiter : waiters) waiter(std::unexpected(error));
  auto cells = std::exchange(queue_, {});
  for (auto& cell : cells)
    cell->done({{"type", "failure"}, {"code", to_string(error.code)}, {"message", error.message}});
}

void Context::pump() {
  if (phase_ == Phase::off && (!queue_.empty() || !waiters_.empty())) start();
  if (phase_ != Phase::ready) return;
  auto waiters = std::exchange(waiters_, {});
  for (auto& waiter : waiters) waiter({});
  if (running_ || queue_.empty()) return;
  CellPtr cell = std::move(queue_.front());
  queue_.pop_front();
  begin(std::move(cell));
}

void Context::begin(CellPtr cell) {
  running_ = std::move(cell);
  Cell& now = *running_;
  Json metadata = Json::object();
  std::map<std::string, std::string> fresh;
  for (const auto& [name, value] : now.lasting)
    if (auto known = lasting_.find(name); known == lasting_.end() || known->second != value) fresh[name] = value;
  if (info_.spec.cell_env == "metadata") {
    Json ours = Json::object();
    if (!now.env.empty()) ours["env"] = now.env;
    if (!fresh.empty()) ours["lasting"] = fresh;
    if (!ours.empty()) metadata["isola"] = ours;
  } else if (info_.spec.cell_env == "r") {
    if (!fresh.empty()) kernel_->send(Kernel::Channel::shell, "execute_request", request(r_lasting(fresh), true));
    if (!now.env.empty()) kernel_->send(Kernel::Channel::shell, "execute_request", request(r_set(now.env), true));
  } else if (!now.env.empty()) {
    CellPtr refused = std::move(running_);
    refused->done({{"type", "failure"},
                   {"code", "unsupported"},
                   {"message", "the kernel " + info_.spec.name + " takes no environment variables for one cell"}});
    return pump();
  }
  for (const auto& [name, value] : fresh) lasting_.insert_or_assign(name, value);
  if (info_.spec.displays_values) now.output->displays_values();
  now.output->say({{"type", "start"}, {"context", info_.id}, {"language", info_.spec.language}});
  now.began = Clock::now();
  if (now.timeout.count() > 0) deadline_ = now.began + now.timeout;
  insisted_ = 0;
  now.id = kernel_->send(Kernel::Channel::shell, "execute_request", request(now.code, false), metadata);
  if (info_.spec.cell_env == "r" && !now.env.empty())
    kernel_->send(Kernel::Channel::shell, "execute_request", request(kRReset, true));
  now.code.clear();  // it can be large, and nobody needs it again
}

void Context::readable() { read(kAtOnce); }

// False: there is more.
bool Context::read(size_t most) {
  using Channel = Kernel::Channel;
  bool all = true;
  // The reply is read last: what the cell said came before it.
  for (Channel channel : {Channel::iopub, Channel::input, Channel::shell, Channel::control})
    for (size_t left = most; kernel_; --left) {
      if (left == 0) {
        all = false;
        break;
      }
      auto message = kernel_->receive(channel);
      if (!message) break;
      if (phase_ == Phase::starting) {
        (channel == Channel::iopub ? heard_ : answered_) = true;
        if (answered_ && heard_) {
          phase_ = Phase::ready;
          start_by_.reset();
          ask_at_.reset();
          pump();
        }
        continue;
      }
      take(*message, channel == Channel::iopub);
    }
  return all;
}

// What a program that the cell started wrote there is the cell's, where the kernel itself writes nothing.
void Context::words() {
  if (!kernel_ || kernel_->words_fd() < 0) return;
  std::string fresh = kernel_->read_words();
  if (info_.spec.words_are_output && running_ && !fresh.empty()) running_->output->text("stdout", fresh);
}

void Context::take(const Message& message, bool said) {
  if (!running_ || message.parent != running_->id) return;
  if (message.type == "status") {
    if (text_of(message.content, "execution_state") == "idle") running_->idle = true;
  } else if (message.type == "execute_reply") {
    running_->reply = message.content;
    if (auto payload = message.content.find("payload"); payload != message.content.end() && payload->is_array())
      for (const auto& one : *payload)
        if (one.is_object() && text_of(one, "source") == "ask_exit") running_->exits = true;
    settle_by_ = Clock::now() + kSettle;
    settle_latest_ = Clock::now() + kSettleMost;
  } else if (message.type == "input_request") {
    refuse_input();
  } else if (message.type != "error" || running_->stop != "input") {
    running_->output->take(message);
  }
  // What it says is not over while something comes.
  if (said && settle_by_) settle_by_ = std::min(Clock::now() + kSettle, *settle_latest_);
  maybe_finish();
}

// A kernel was told that nobody can be asked (allow_stdin), and asks all the same, as R's does: it would wait for ever.
void Context::refuse_input() {
  if (!running_->stop.empty()) return;
  Message said{.type = "error", .parent = running_->id, .content = Json::object(), .metadata = {}};
  said.content["ename"] = "StdinNotImplementedError";
  said.content["evalue"] = "the cell asked for input, but nobody is there to be asked";
  running_->output->take(said);
  stop("input");
}

void Context::maybe_finish() {
  if (!running_ || !running_->reply || !running_->idle || running_->exits) return;
  words();  // they came before the kernel's word that it is over
  const char* otherwise = running_->output->failed() ? "error" : "ok";  // of a reply that cannot be read
  Json end = {{"type", "end"}, {"status", text_of(*running_->reply, "status", otherwise) == "ok" ? "ok" : "error"}};
  if (!running_->stop.empty()) {
    end["status"] = running_->stop == "input" ? "error" : running_->stop;
    if (running_->stop == "timeout")
      end["message"] = fmt::format("the cell ran longer than {} s and was interrupted; the variables are kept",
                                   static_cast<double>(running_->timeout.count()) / 1000);
  }
  finish(std::move(end));
}

void Context::finish(Json end) {
  CellPtr cell = std::move(running_);
  deadline_.reset();
  settle_by_.reset();
  settle_latest_.reset();
  if (cell->reply && (*cell->reply)["execution_count"].is_number_integer())
    end["execution_count"] = (*cell->reply)["execution_count"];
  end["duration_ms"] = std::chrono::duration_cast<milliseconds>(Clock::now() - cell->began).count();
  if (cell->output->dropped() > 0) end["dropped_bytes"] = cell->output->dropped();
  cell->output->end();
  // A kernel that stops a cell without a word about it: the caller gets one.
  if (end["status"] == "error" && !cell->output->failed()) {
    const Json& reply = *cell->reply;
    cell->output->say({{"type", "error"},
                       {"name", text_of(reply, "ename", "Error")},
                       {"value", text_of(reply, "evalue", "the kernel says that the cell failed, and not how")},
                       {"traceback", Json::array()}});
  }
  cell->done(end);
  pump();
}

void Context::stop(const std::string& why) {
  if (!running_) return;
  if (running_->stop.empty()) running_->stop = why;
  kernel_->interrupt();
  // Whoever asks again and again does not put it off.
  auto by = Clock::now() + kInsist;
  if (!deadline_ || by < *deadline_) deadline_ = by;
}

void Context::interrupt() { stop("interrupted"); }

void Context::cancel(const CellPtr& cell) {
  if (running_ == cell) return stop("interrupted");
  auto found = std::find(queue_.begin(), queue_.end(), cell);
  if (found == queue_.end()) return;
  queue_.erase(found);
  cell->done({{"type", "end"}, {"status", "interrupted"}, {"message", "the cell never began"}});
}

void Context::say_died(const std::string& how) {
  if (!running_) return;
  running_->output->say({{"type", "error"}, {"name", "KernelDied"}, {"value", how}, {"traceback", Json::array()}});
  finish({{"type", "end"}, {"status", "kernel_died"}, {"message", how}});
}

void Context::restart() {
  kernel_.reset();
  phase_ = Phase::off;
  start_by_.reset();
  ask_at_.reset();
  start();
  say_died("the context was restarted while the cell ran; its variables are gone");
}

void Context::reap() {
  if (!kernel_) return;
  if (auto status = kernel_->reap()) kernel_ended(*status);
}

void Context::kernel_ended(int status) {
  read(kAtTheEnd);  // what it had said before
  if (!kernel_) return;
  words();
  std::string words = kernel_->last_words();
  bool starting = phase_ == Phase::starting;
  std::string how = how_it_ended(status);
  if (starting && info_.spec.transport.empty()) {
    // Some know no ipc sockets, and say so by ending.
    info_.spec.transport = "tcp";
    --kernels_;
    kernel_.reset();
    return start();
  }
  if (starting) {
    while (!words.empty() && words.back() == '\n') words.pop_back();
    return start_failed(Error{Code::unavailable, "the kernel " + info_.spec.name + " ended while it started (" + how +
                                                     ")" + (words.empty() ? "" : ":\n" + words)});
  }
  bool asked = running_ && running_->exits;
  kernel_.reset();
  phase_ = Phase::off;
  start();
  say_died(fmt::format("the kernel ended{}: {}; a new one was started, its variables are gone",
                       asked ? " because the cell asked for it" : "", how));
}

void Context::tick(Clock::time_point now) {
  if (start_by_ && now >= *start_by_) {
    kernel_->read_words();
    return start_failed(Error{Code::timeout, "the kernel " + info_.spec.name + " did not answer in time" +
                                                 (kernel_->last_words().empty() ? "" : ":\n" + kernel_->last_words())});
  }
  if (ask_at_ && now >= *ask_at_) {
    ask_at_ = now + kAskAgain;
    kernel_->send(Kernel::Channel::shell, "kernel_info_request", Json::object());
  }
  if (settle_by_ && now >= *settle_by_) {
    settle_by_.reset();
    settle_latest_.reset();
    if (running_) running_->idle = true, running_->exits = false;
    maybe_finish();
  }
  if (deadline_ && now >= *deadline_ && running_) {
    deadline_.reset();
    if (insisted_++ < kInsistences) return stop("timeout");
    std::string why = running_->stop;
    kernel_.reset();
    phase_ = Phase::off;
    start();
    say_died(
        fmt::format("the cell did not stop when it was interrupted ({}), so its kernel was ended; a new one was "
                    "started, its variables are gone",
                    why));
  }
}

std::optional<Clock::time_point> Context::next() const {
  std::optional<Clock::time_point> out;
  for (const auto& one : {start_by_, ask_at_, settle_by_, deadline_})
    if (one && (!out || *one < *out)) out = one;
  return out;
}

}  // namespace isola::interpreter
