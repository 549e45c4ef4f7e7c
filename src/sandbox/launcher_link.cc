#include "sandbox/launcher_link.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <deque>
#include <map>
#include <thread>

#include "base/log.h"
#include "kernel/process.h"
#include "launcher/reply.h"
#include "sandbox/bell.h"

namespace isola::sandbox {

namespace net = boost::asio;

struct LauncherLink::Answer {
  kernel::Message message;
  Reader in() const {
    Reader reader(message.bytes);
    reader.u32();
    reader.u8();
    return reader;
  }
  void wipe() { vault::wipe(message.bytes); }
};

// One connection. Everything in here runs on its home worker, but for `pending` results, which their askers read under
// `mutex`. There is a main one, which hears of the gate and says when the launcher was lost and found; each other
// worker that asks gets a line of its own, so that an answer comes to where the question was asked.
struct LauncherLink::Inner : std::enable_shared_from_this<LauncherLink::Inner> {
  Inner(net::io_context& context, Connect how)
      : home(context), connect(std::move(how)), socket(context), retry(context) {}

  struct Question {
    std::mutex mutex;
    Bell bell;
    std::optional<Result<kernel::Message>> answer;
    void set(Result<kernel::Message> result) {
      {
        std::lock_guard lock(mutex);
        if (!answer) answer.emplace(std::move(result));
      }
      bell.ring();
    }
  };

  net::io_context& home;
  Connect connect;
  net::posix::stream_descriptor socket;
  net::steady_timer retry;
  std::shared_ptr<const Listener> listener;  // never changed once there is something to hear
  std::shared_ptr<Inner> main;               // of a further line
  std::atomic<uint64_t> generation = 0;      // how often it was connected
  uint64_t seen = 0;                         // of a further line: the main one's, when it connected
  std::mutex lines_mutex;                    // of the main one, and what follows
  std::map<net::io_context*, std::shared_ptr<Inner>> lines;
  std::atomic<uint64_t> looked_at = 0;  // the generation whose version is known
  std::atomic<bool> same_version = false;
  std::atomic<bool> connected = false, started = false, stopped = false;
  bool writing = false, keeps_records = false;
  uint32_t last_tag = 0, gate_tag = 0;
  std::map<uint32_t, std::shared_ptr<Question>> pending;
  std::deque<std::string> queue;
  std::chrono::milliseconds pause{10};
  // Asked while the main one looks for a launcher: it will be there in a moment, or not, and then they hear of it.
  struct Waiting {
    launcher::Op op;
    std::string arguments;
    std::shared_ptr<Question> question;
  };
  std::vector<Waiting> waiting;
  bool dialing = false;
  std::mutex dial_mutex;
  std::thread dialer;  // of the main one, while it looks for a launcher; joined by stop()

  // For whoever asks on that worker.
  std::shared_ptr<Inner> line_of(net::io_context* worker) {
    if (!worker || worker == &home || !started || stopped) return shared_from_this();
    std::lock_guard lock(lines_mutex);
    auto& line = lines[worker];
    if (!line) {
      line = std::make_shared<Inner>(*worker, connect);
      line->main = shared_from_this();
      line->listener = listener;
      net::post(*worker, [line] { line->open(); });
    }
    return line->connected ? line : shared_from_this();
  }

  Result<Fd> dial() {
    if (!main) return connect(true);
    // The main one sees to it that there is a launcher.
    if (!main->connected) return fail(Code::unavailable, "the launcher is being restarted");
    return connect(false);
  }

  void open() {
    if (stopped) return opened(fail(Code::unavailable, "the server is stopping"));
    if (main || generation == 0) return opened(dial());
    // A launcher that starts takes in whatever lives: meanwhile this worker has others to answer.
    std::lock_guard lock(dial_mutex);
    if (stopped) return opened(fail(Code::unavailable, "the server is stopping"));
    if (dialer.joinable()) dialer.join();  // it has said its last word
    dialing = true;
    dialer = std::thread([self = shared_from_this()] {
      auto made = std::make_shared<Result<Fd>>(self->dial());
      net::post(self->home, [self, made] { self->opened(std::move(*made)); });
    });
  }

  void opened(Result<Fd> made) {
    dialing = false;
    take(std::move(made));
    for (auto& one : std::exchange(waiting, {})) ask(one.op, one.arguments, one.question);
  }

  void take(Result<Fd> made) {
    if (stopped) return;
    if (!made) {
      if (!main && pause.count() <= 10) log::warn("sandbox", "no launcher: {}", made.error().message);
      retry.expires_after(pause);
      pause = std::min(pause * 2, std::chrono::milliseconds(1000));
      return retry.async_wait([self = shared_from_this()](boost::system::error_code error) {
        if (!error) self->open();
      });
    }
    pause = std::chrono::milliseconds(10);
    ::fcntl(made->get(), F_SETFL, ::fcntl(made->get(), F_GETFL) | O_NONBLOCK);
    socket.assign(made->release());
    uint64_t before = std::exchange(seen, main ? main->generation.load() : 0);
    ++generation;
    connected = true;
    writing = false;
    read_soon();
    if (!main) watch_gate();
    // A further line that broke alone took with it who hears of the ends of what it had launched.
    bool lost = !main || (generation > 1 && before == seen);
    if (lost && !stopped && listener->connected) listener->connected();
  }

  // The answer to this question never ends: every event comes as one.
  void watch_gate() {
    gate_tag = next_tag();
    Writer out;
    out.u32(gate_tag);
    out.u8(static_cast<uint8_t>(launcher::Op::gate_events));
    launcher::GateWatch watch{.keeps = keeps_records};
    if (listener->gate_known) watch.known = listener->gate_known();
    encode(out, watch);
    queue.push_back(out.take());
    flush();
  }

  void acknowledge(uint64_t number) {
    if (!connected) return;  // the next launcher is told what is known
    Writer out;
    out.u32(gate_tag);
    out.u8(static_cast<uint8_t>(launcher::Op::gate_ack));
    out.u64(number);
    queue.push_back(out.take());
    flush();
  }

  uint32_t next_tag() { return ++last_tag ? last_tag : ++last_tag; }

  void broken(const Error& why) {
    if (!connected.exchange(false)) return;
    boost::system::error_code ignored;
    socket.close(ignored);
    queue.clear();
    auto failed = std::exchange(pending, {});
    for (auto& [tag, question] : failed) question->set(std::unexpected(why));
    if (!stopped) {
      if (!main) log::warn("sandbox", "lost the launcher: {}", why.message);
      dialing = !main;
      net::post(home, [self = shared_from_this()] { self->open(); });
    }
  }

  void read_soon() {
    socket.async_wait(net::posix::stream_descriptor::wait_read,
                      [self = shared_from_this()](boost::system::error_code error) {
                        if (!error) self->read();
                      });
  }

  void read() {
    while (connected) {
      auto message = kernel::receive_message(socket.native_handle());
      if (!message && message.error().sys_errno == EAGAIN) break;
      if (!message) return broken({Code::unavailable, "the launcher is gone: " + message.error().message});
      if (message->bytes.empty()) return broken({Code::unavailable, "the launcher is gone"});
      handle(std::move(*message));
    }
    if (connected) read_soon();
  }

  void handle(kernel::Message message) {
    Reader in(message.bytes);
    uint32_t tag = in.u32();
    if (tag == 0) {
      launcher::Ended event;
      decode(in, event);
      if (in.done() && !stopped && listener->ended) listener->ended(event);
      return;
    }
    if (tag == gate_tag) return handle_gate(in);
    auto at = pending.find(tag);
    if (at == pending.end()) return;
    auto question = std::move(at->second);
    pending.erase(at);
    auto opened = launcher::open_reply(message.bytes);
    if (opened) return question->set(std::move(message));
    question->set(std::unexpected(opened.error()));
  }

  void handle_gate(Reader in) {
    if (in.u8() != 0 || in.done()) return;  // refused, or only the word that it begins
    gate::Event event;
    decode(in, event);
    uint64_t number = in.u64();
    // One without a number comes again with it: somebody else keeps the records at the moment.
    if (in.done() && number != 0 && !stopped && listener->gate_event) listener->gate_event(event, number);
  }

  void ask(launcher::Op op, const std::string& arguments, const std::shared_ptr<Question>& question) {
    if (!connected && dialing) return waiting.push_back({op, arguments, question});
    if (!connected) return question->set(fail(Code::unavailable, "the launcher is being restarted; try again"));
    uint32_t tag = next_tag();
    Writer out;
    out.u32(tag);
    out.u8(static_cast<uint8_t>(op));
    out.bytes(arguments);
    if (out.data().size() > launcher::kMaxMessage)
      return question->set(fail(Code::invalid, "a request to the launcher is too large"));
    pending[tag] = question;
    queue.push_back(out.take());
    flush();
  }

  void flush() {
    while (connected && !writing && !queue.empty()) {
      auto sent = kernel::send_message(socket.native_handle(), queue.front());
      if (!sent && sent.error().sys_errno == EAGAIN) {
        writing = true;
        socket.async_wait(net::posix::stream_descriptor::wait_write,
                          [self = shared_from_this()](boost::system::error_code error) {
                            self->writing = false;
                            if (!error) self->flush();
                          });
        return;
      }
      if (!sent) return broken(sent.error());
      queue.pop_front();
    }
  }
};

std::shared_ptr<LauncherLink> LauncherLink::make(net::io_context& home, Connect connect) {
  std::shared_ptr<LauncherLink> link(new LauncherLink);
  link->inner_ = std::make_shared<Inner>(home, std::move(connect));
  return link;
}

void LauncherLink::start(Listener listener) {
  if (inner_->started.exchange(true)) return;
  {
    std::lock_guard lock(inner_->lines_mutex);
    inner_->listener = std::make_shared<const Listener>(std::move(listener));
  }
  // Dispatched like every request: what is asked from here on comes behind it.
  net::dispatch(inner_->home, [inner = inner_] { inner->open(); });
}

LauncherLink::~LauncherLink() { stop(); }

void LauncherLink::stop() {
  if (inner_->stopped.exchange(true)) return;
  std::vector<std::shared_ptr<Inner>> all = {inner_};
  {
    std::lock_guard lock(inner_->lines_mutex);
    for (auto& [worker, line] : inner_->lines) all.push_back(line);
    inner_->lines.clear();
  }
  std::thread dialer;
  {
    std::lock_guard lock(inner_->dial_mutex);
    dialer = std::move(inner_->dialer);
  }
  if (dialer.joinable()) dialer.join();
  for (auto& one : all) {
    one->stopped = true;
    net::post(one->home, [one] {
      one->retry.cancel();
      one->broken({Code::unavailable, "the server is stopping"});
    });
  }
}

void LauncherLink::acknowledge(uint64_t number) {
  net::dispatch(inner_->home, [inner = inner_, number] { inner->acknowledge(number); });
}

void LauncherLink::keep_records() {
  net::dispatch(inner_->home, [inner = inner_] {
    inner->keeps_records = true;
    if (inner->connected) inner->watch_gate();
  });
}

bool LauncherLink::connected() const { return inner_->connected; }

Task<Result<LauncherLink::Answer>> LauncherLink::ask(launcher::Op op, std::string arguments,
                                                     const Meanwhile* meanwhile) {
  auto question = std::make_shared<Inner::Question>();
  net::any_io_executor executor = co_await net::this_coro::executor;
  auto* worker = executor.target<net::io_context::executor_type>();
  auto line = inner_->line_of(worker ? &worker->context() : nullptr);
  net::dispatch(line->home, [inner = line, op, arguments = std::move(arguments), question] {
    inner->ask(op, arguments, question);
  });
  if (meanwhile) (*meanwhile)();
  for (;;) {
    uint64_t ticket = question->bell.ticket();
    {
      std::lock_guard lock(question->mutex);
      if (question->answer) {
        if (!*question->answer) co_return std::unexpected(question->answer->error());
        co_return Answer{std::move(**question->answer)};
      }
    }
    co_await question->bell.wait(ticket);
  }
}

namespace {

std::string only_id(const std::string& id) {
  Writer out;
  out.str(id);
  return out.take();
}

}  // namespace

Task<Result<Launched>> LauncherLink::launch(launcher::LaunchRequest request) {
  Writer out;
  encode(out, request);
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::launch, out.take()));
  Launched launched;
  ISOLA_CO_TRY(launched.reply, launcher::read_value<launcher::LaunchReply>(answer.in()));
  ISOLA_CO_TRY(launched.link, launcher::take_link(answer.message));
  co_return launched;
}

Task<Result<boundary::Link>> LauncherLink::link(std::string id) {
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::link, only_id(id)));
  co_return launcher::take_link(answer.message);
}

Task<Result<void>> LauncherLink::ask_with_id(launcher::Op op, std::string id) {
  auto answer = co_await ask(op, only_id(id));
  if (!answer) co_return std::unexpected(std::move(answer).error());
  co_return Result<void>();
}

Task<Result<void>> LauncherLink::own(std::string id) { return ask_with_id(launcher::Op::own, std::move(id)); }
Task<Result<void>> LauncherLink::freeze(std::string id) { return ask_with_id(launcher::Op::freeze, std::move(id)); }
Task<Result<void>> LauncherLink::thaw(std::string id) { return ask_with_id(launcher::Op::thaw, std::move(id)); }

Task<Result<launcher::Ended>> LauncherLink::kill(std::string id) {
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::kill, only_id(id)));
  co_return launcher::read_value<launcher::Ended>(answer.in());
}

Task<Result<launcher::StatsReply>> LauncherLink::stats(std::string id) {
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::stats, only_id(id)));
  co_return launcher::read_value<launcher::StatsReply>(answer.in());
}

// A launcher outlives servers, and an earlier one lets go of whoever asks for what it does not know.
Task<bool> LauncherLink::is_of_this_version() {
  const uint64_t generation = inner_->generation;
  if (inner_->looked_at != generation) {
    auto known = co_await info();
    if (!known) co_return false;
    inner_->same_version = known->version == ISOLA_VERSION;
    inner_->looked_at = generation;
  }
  co_return inner_->same_version;
}

Task<Result<uint64_t>> LauncherLink::page_cache(std::string id) {
  const bool known = co_await is_of_this_version();
  if (!known) co_return 0;
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::page_cache, only_id(id)));
  Reader in = answer.in();
  uint64_t bytes = in.u64();
  if (!in.done()) co_return fail(Code::corrupt, "the launcher sent a malformed answer");
  co_return bytes;
}

Task<Result<launcher::InfoReply>> LauncherLink::info() {
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::info, {}));
  co_return launcher::read_value<launcher::InfoReply>(answer.in());
}

Task<Result<void>> LauncherLink::park(std::string digest, uint32_t count) {
  Writer out;
  out.str(digest);
  out.u32(count);
  out.u8(static_cast<uint8_t>(BoundaryKind::jail));  // the pools of the others are for those who ask the launcher
  auto answer = co_await ask(launcher::Op::park, out.take());
  if (!answer) co_return std::unexpected(std::move(answer).error());
  co_return Result<void>();
}

Task<Result<std::string>> LauncherLink::set_policy(launcher::PolicyRequest request, const Meanwhile* meanwhile) {
  Writer out;
  encode(out, request);
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::set_policy, out.take(), meanwhile));
  Reader in = answer.in();
  if (in.done()) co_return std::string();
  std::string missing = in.str();
  if (!in.done()) co_return launcher::unreadable_reply();
  co_return missing;
}

Task<Result<void>> LauncherLink::revoke(launcher::RevokeRequest request) {
  Writer out;
  encode(out, request);
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::revoke, out.take()));
  co_return Result<void>();
}

Task<Result<std::string>> LauncherLink::certificate(std::string id) {
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::certificate, only_id(id)));
  Reader in = answer.in();
  std::string pem = in.str();
  if (!in.done()) co_return launcher::unreadable_reply();
  co_return pem;
}

Task<Result<launcher::VaultState>> LauncherLink::vault_state() {
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::vault_state, {}));
  co_return launcher::read_value<launcher::VaultState>(answer.in());
}

Task<Result<std::vector<std::string>>> LauncherLink::reseal(std::vector<std::string> sealed) {
  Writer out;
  out.strs(sealed);
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::vault_reseal, out.take()));
  Reader in = answer.in();
  auto fresh = in.strs();
  if (!in.done() || fresh.size() != sealed.size()) co_return launcher::unreadable_reply();
  co_return fresh;
}

Task<Result<vault::Secret>> LauncherLink::open_value(std::string sealed) {
  Writer out;
  out.str(sealed);
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::vault_open, out.take()));
  Reader in = answer.in();
  vault::Secret value(in.view());
  const bool whole = in.done();
  answer.wipe();
  if (!whole) co_return launcher::unreadable_reply();
  co_return value;
}

Task<Result<std::string>> LauncherLink::signing_keys() {
  Writer out;
  out.u8(static_cast<uint8_t>(launcher::SigningWish::look));
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::vault_signing, out.take()));
  Reader in = answer.in();
  std::string keys = in.str();
  if (!in.done()) co_return launcher::unreadable_reply();
  co_return keys;
}

Task<Result<std::string>> LauncherLink::gate_report(std::string id) {
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::gate_report, only_id(id)));
  Reader in = answer.in();
  std::string text = in.str();
  if (!in.done()) co_return launcher::unreadable_reply();
  co_return text;
}

// A list that comes in pages, each after the last name of the one before.
template <typename T>
Task<Result<std::vector<T>>> LauncherLink::pages(launcher::Op op) {
  std::vector<T> all;
  std::string after;
  for (;;) {
    ISOLA_CO_TRY(Answer answer, co_await ask(op, only_id(after)));
    Reader in = answer.in();
    uint32_t count = in.u32();
    for (uint32_t i = 0; i < count && in.ok(); ++i) decode(in, all.emplace_back());
    bool more = in.u8() != 0;
    if (!in.done()) co_return launcher::unreadable_reply();
    if (!more || count == 0) co_return all;
    after = all.back().id;
  }
}

Task<Result<std::vector<launcher::SandboxSummary>>> LauncherLink::list() {
  return pages<launcher::SandboxSummary>(launcher::Op::list);
}

Task<Result<std::vector<launcher::ImageSummary>>> LauncherLink::images() {
  return pages<launcher::ImageSummary>(launcher::Op::images);
}

Task<Result<launcher::VolumeSummary>> LauncherLink::volume(std::string id) {
  Writer out;
  out.str(id);
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::look_at_volume, out.take()));
  co_return launcher::read_value<launcher::VolumeSummary>(answer.in());
}

Task<Result<std::vector<launcher::VolumeSummary>>> LauncherLink::volumes() {
  return pages<launcher::VolumeSummary>(launcher::Op::volumes);
}

Task<Result<void>> LauncherLink::ask_with_size(launcher::Op op, std::string id, uint64_t bytes) {
  Writer out;
  out.str(id);
  out.u64(bytes);
  auto answer = co_await ask(op, out.take());
  if (!answer) co_return std::unexpected(std::move(answer).error());
  co_return Result<void>();
}

Task<Result<void>> LauncherLink::make_volume(std::string id, uint64_t bytes) {
  return ask_with_size(launcher::Op::make_volume, std::move(id), bytes);
}
Task<Result<void>> LauncherLink::resize_volume(std::string id, uint64_t bytes) {
  return ask_with_size(launcher::Op::resize_volume, std::move(id), bytes);
}
Task<Result<void>> LauncherLink::sync_volume(std::string id) {
  return ask_with_id(launcher::Op::sync_volume, std::move(id));
}
Task<Result<void>> LauncherLink::drop_volume(std::string id) {
  return ask_with_id(launcher::Op::drop_volume, std::move(id));
}

Task<Result<launcher::CheckpointReply>> LauncherLink::checkpoint(launcher::CheckpointRequest request) {
  Writer out;
  encode(out, request);
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::checkpoint, out.take()));
  co_return launcher::read_value<launcher::CheckpointReply>(answer.in());
}

Task<Result<void>> LauncherLink::drop_image(std::string image) {
  return ask_with_id(launcher::Op::drop_image, std::move(image));
}

Task<Result<launcher::PackReply>> LauncherLink::pack_image(std::string image, bool pack) {
  Writer out;
  out.str(image);
  out.u8(pack);
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::pack_image, out.take()));
  co_return launcher::read_value<launcher::PackReply>(answer.in());
}

Task<Result<Fd>> LauncherLink::scan_channel() {
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::scan_channel, {}));
  if (answer.message.fds.size() != 1) co_return fail(Code::corrupt, "the launcher sent no socket");
  co_return std::move(answer.message.fds[0]);
}

Task<Result<void>> LauncherLink::verify_image(std::string image, bool thorough,
                                              std::optional<launcher::LaunchRequest> wanted) {
  Writer out;
  out.str(image);
  out.u8(thorough);
  out.u8(wanted.has_value());
  if (wanted) encode(out, *wanted);
  ISOLA_CO_TRY(Answer answer, co_await ask(launcher::Op::verify_image, out.take()));
  co_return Result<void>();
}

}  // namespace isola::sandbox
