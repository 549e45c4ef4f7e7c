#include "interpreter/client.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "guest/dial.h"
#include "interpreter/events.h"
#include "interpreter/socket.h"

namespace isola::interpreter {

namespace net = boost::asio;
using namespace net::experimental::awaitable_operators;
using nlohmann::json;
using std::chrono::milliseconds;

namespace {

constexpr size_t kLongestAnswer = 4 << 20;
constexpr auto kAnswerTime = std::chrono::minutes(5);
constexpr milliseconds kStopTime = std::chrono::seconds(15);  // of one that nobody waits for
// For the program inside to come up, and to take a call: both are a matter of milliseconds, unless somebody inside has
// put another in its place.
constexpr milliseconds kStartTime = std::chrono::seconds(30), kDialTime = std::chrono::seconds(30);
constexpr milliseconds kSendTime = std::chrono::minutes(2);  // 64 MiB at the most

// A request of this size goes along with the dial: most cells save a way there and back. A larger one waits for the
// answer, so that it is not sent for nothing.
constexpr size_t kAlong = 16 << 10;

Task<void> pass(milliseconds time) {
  net::steady_timer timer(co_await net::this_coro::executor);
  timer.expires_after(time);
  co_await timer.async_wait(net::use_awaitable);
}

Task<Result<void>> send(sandbox::Channel& channel, std::string_view bytes, milliseconds time) {
  auto first = co_await (channel.write(bytes) || pass(time));
  if (first.index() == 0) co_return std::get<0>(std::move(first));
  co_return fail(Code::timeout, "the interpreter inside does not take what it is sent");
}

// Returns when somebody listens, and has the request. `request` outlives the call.
Task<Result<sandbox::ChannelPtr>> dial(sandbox::Service& service, sandbox::BoxPtr box, std::string_view request) {
  ISOLA_CO_TRY(auto link, co_await service.link(box));
  guest::DialPath where;
  where.path = std::string(kSocket);
  std::string args = guest::encode(where);
  sandbox::ChannelPtr channel = link->open(guest::Op::dial, std::move(args));
  const bool along = request.size() <= kAlong;
  if (along) (void)co_await send(*channel, request, kDialTime);  // what went wrong is in the reply
  auto first = co_await (channel->reply() || pass(kDialTime));
  if (first.index() != 0) co_return fail(Code::timeout, "the interpreter inside does not answer");
  ISOLA_CO_TRY(std::string dialled, std::move(std::get<0>(first)));
  if (!along) ISOLA_CO_CHECK(co_await send(*channel, request, kSendTime));
  co_return channel;
}

// Returns when it listens.
Task<Result<void>> start(sandbox::Service& service, sandbox::BoxPtr box) {
  sandbox::CommandSpec spec;
  spec.argv = {std::string(kProgram), "start"};
  spec.user = "root";
  spec.cwd = "/";
  spec.counted = false;
  spec.timeout = kStartTime;
  auto started = co_await service.run(box, std::move(spec));
  if (!started) {
    if (started.error().code == Code::not_found)
      co_return fail(
          Code::unsupported,
          "this sandbox has no interpreter: create it from the template code-interpreter, or one made from it");
    co_return std::unexpected(std::move(started).error());
  }
  sandbox::Running running = std::move(*started);
  std::string said;
  const auto until = std::chrono::steady_clock::now() + 2 * kStartTime;  // that it is ended in time is said inside, too
  for (;;) {
    auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) co_return fail(Code::timeout, "the interpreter inside does not start");
    auto frame = co_await running.channel->read_frame_for(left);
    if (!frame) break;
    if (said.size() < 4096 && frame->size() > guest::kPieceHeader) said += frame->substr(guest::kPieceHeader);
  }
  ISOLA_CO_TRY(std::string end, co_await running.channel->end());
  ISOLA_CO_TRY(guest::Exit exit, guest::decode<guest::Exit>(end));
  exit = co_await service.judged(box, running.info.id, exit);
  service.command_ended(box, running.info.id, exit);
  if (exit.code != 0 || exit.signal != 0)
    co_return fail(Code::internal, "the interpreter inside does not start: " + log::quoted(said));
  co_return Result<void>();
}

}  // namespace

// A request on its way in. It goes on when its caller leaves, since a step of it cannot be left half done (a sandbox
// that is being woken, a command that is being started); the cell that came in so is stopped at once.
struct Conversation::Opening {
  std::shared_ptr<sandbox::Service> service;
  sandbox::BoxPtr box;
  sandbox::Box::Use use;
  std::string request;
  bool begun = false, unwanted = false;
  std::optional<Result<sandbox::ChannelPtr>> outcome;
  sandbox::Bell bell;
};

Conversation::Conversation(sandbox::Service& service, sandbox::BoxPtr box, size_t longest)
    : opening_(new Opening{.service = service.shared_from_this(),
                           .box = box,
                           .use = box->use(),
                           .request = {},
                           .outcome = {},
                           .bell = {}}),
      longest_(longest),
      box_(std::move(box)) {}

Conversation::~Conversation() { opening_->unwanted = true; }

Task<void> Conversation::open_it(std::shared_ptr<Opening> opening) {
  Opening& o = *opening;
  Result<sandbox::ChannelPtr> channel = co_await dial(*o.service, o.box, o.request);
  bool absent = !channel && (channel.error().sys_errno == ENOENT || channel.error().sys_errno == ECONNREFUSED);
  if (absent && !o.unwanted) {
    auto started = co_await start(*o.service, o.box);
    if (!started)
      channel = std::unexpected(std::move(started).error());
    else if (!o.unwanted)
      channel = co_await dial(*o.service, o.box, o.request);
  }
  (void)std::exchange(o.request, std::string());  // to assign nothing would keep its memory
  if (channel && o.unwanted) {
    Conversation left(*o.service, o.box, kLongestAnswer);
    left.channel_ = std::move(*channel);
    co_await left.stop(kStopTime);
    co_return;
  }
  o.outcome = std::move(channel);
  o.bell.ring();
}

Task<Result<void>> Conversation::open(std::string request) {
  auto opening = opening_;
  opening->request = std::move(request) + '\n';
  opening->begun = true;
  net::any_io_executor executor = co_await net::this_coro::executor;
  net::co_spawn(executor, open_it(opening), net::detached);
  // All on one thread: nothing changes between a look and the wait.
  while (!opening->outcome) {
    uint64_t ticket = opening->bell.ticket();
    co_await opening->bell.wait(ticket);
  }
  ISOLA_CO_TRY(channel_, std::move(*opening->outcome));
  co_return Result<void>();
}

Task<Result<std::optional<std::string>>> Conversation::next(milliseconds time) {
  if (ready_.empty()) {
    auto line = co_await take(time);
    const bool plain = !line || !*line || (*line)->empty();
    if (plain || (sieves_.empty() && !(box_->screening() && box_->screening()->on()))) co_return line;
    auto out = co_await sifted(std::move(**line));
    if (!out) co_return std::unexpected(out.error());
    ready_.push_back(std::move(*out));
  }
  std::optional<std::string> next = std::move(ready_.front());
  ready_.pop_front();
  co_return next;
}

// The text of one message with what was held back of the one before. What another kind of message follows is the end.
Task<Result<std::string>> Conversation::sifted(std::string line) {
  ISOLA_CO_TRY(json event, parse_line(line));
  const bool typed = event.contains("type") && event["type"].is_string();
  const std::string type = typed ? event["type"].get<std::string>() : "";
  if ((type != "stdout" && type != "stderr") || !event.contains("text") || !event["text"].is_string()) {
    for (const char* name : {"stdout", "stderr"}) {
      ISOLA_CO_TRY(std::string rest, co_await last_of(name));
      json before = {{"type", name}, {"text", rest}};
      if (!rest.empty()) ready_.push_back(before.dump(-1, ' ', false, json::error_handler_t::replace));
    }
    co_return line;
  }
  auto& sieve = sieves_[type];
  if (!sieve) sieve = std::make_unique<sandbox::Sieve>(box_, type);
  const std::string text = event["text"].get<std::string>();
  ISOLA_CO_TRY(std::string passed, co_await sieve->pass(text));
  event["text"] = passed;
  // What is held back may begin in the middle of a letter: values need not be text.
  co_return event.dump(-1, ' ', false, json::error_handler_t::replace);
}

Task<Result<std::string>> Conversation::last_of(const std::string& name) {
  auto at = sieves_.find(name);
  if (at == sieves_.end()) co_return std::string();
  auto rest = co_await at->second->end();
  co_return rest;
}

Task<Result<std::optional<std::string>>> Conversation::take(milliseconds time) {
  std::optional<std::string> line;
  // Pieces of a line are no answer: they do not make it wait for longer.
  const auto until = std::chrono::steady_clock::now() + time;
  for (;;) {
    if (auto end = pending_.find('\n', searched_); end != std::string::npos) {
      line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      searched_ = 0;
      co_return line;
    }
    searched_ = pending_.size();
    if (over_) co_return line;
    if (pending_.size() > longest_) co_return fail(Code::corrupt, "the interpreter inside sent too long a line");
    auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      line.emplace();
      co_return line;
    }
    auto piece = co_await channel_->read_frame_for(left);
    if (!piece) {
      over_ = true;
      // Whole lines, or something broke on the way.
      if (!pending_.empty())
        co_return fail(Code::unavailable, "the interpreter inside stopped in the middle of a word");
      co_return line;
    }
    if (piece->empty()) {
      line.emplace();
      co_return line;
    }
    pending_ += *piece;
  }
}

Task<void> Conversation::interrupt(milliseconds time) {
  opening_->unwanted = true;
  // It can have come in while its caller left.
  if (!channel_ && opening_->outcome && *opening_->outcome) channel_ = **opening_->outcome;
  if (channel_) co_await stop(time);
}

Task<void> Conversation::stop(milliseconds time) {
  std::string word = "{\"op\":\"interrupt\"}\n";
  auto until = std::chrono::steady_clock::now() + time;
  (void)co_await send(*channel_, word, time);
  // Until it has stopped, so that dropping the channel does not overtake the word; but one that goes on talking, or
  // says nothing, keeps nobody.
  for (auto left = time; left.count() > 0;) {
    auto line = co_await take(left);
    if (!line || !*line) break;
    left = std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
  }
}

Task<Result<std::string>> ask_once(sandbox::Service& service, sandbox::BoxPtr box, std::string request) {
  Conversation talk(service, box, kLongestAnswer);
  ISOLA_CO_CHECK(co_await talk.open(std::move(request)));
  ISOLA_CO_TRY(auto line, co_await talk.next(kAnswerTime));
  if (!line) co_return fail(Code::unavailable, "the interpreter inside ended without an answer");
  if (line->empty()) co_return fail(Code::timeout, "the interpreter inside did not answer in time");
  co_return std::move(*line);
}

}  // namespace isola::interpreter
