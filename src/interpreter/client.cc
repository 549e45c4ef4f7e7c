#include "interpreter/client.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "guest/dial.h"
#include "interpreter/socket.h"

namespace isola::interpreter {

using nlohmann::json;

namespace {

constexpr size_t kMaxLine = 192 << 20;
constexpr auto kAnswerTime = std::chrono::minutes(5);
constexpr std::chrono::milliseconds kStopTime = std::chrono::seconds(15);

// A request of this size goes along with the dial: most cells save a way there and back. A larger one waits for the
// answer, so that it is not sent for nothing.
constexpr size_t kAlong = 16 << 10;

// Returns when somebody listens, and has the request. `request` outlives the call.
Task<Result<sandbox::ChannelPtr>> dial(sandbox::Service& service, sandbox::BoxPtr box, std::string_view request) {
  ISOLA_CO_TRY(auto link, co_await service.link(box));
  guest::DialPath where;
  where.path = std::string(kSocket);
  std::string args = guest::encode(where);
  sandbox::ChannelPtr channel = link->open(guest::Op::dial, std::move(args));
  const bool along = request.size() <= kAlong;
  if (along) (void)co_await channel->write(request);  // what went wrong is in the reply
  ISOLA_CO_TRY(std::string dialled, co_await channel->reply());
  if (!along) ISOLA_CO_CHECK(co_await channel->write(request));
  co_return channel;
}

// Returns when it listens.
Task<Result<void>> start(sandbox::Service& service, sandbox::BoxPtr box) {
  sandbox::CommandSpec spec;
  spec.argv = {std::string(kProgram), "start"};
  spec.user = "root";
  spec.cwd = "/";
  spec.counted = false;
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
  for (;;) {
    auto frame = co_await running.channel->read_frame();
    if (!frame) break;
    if (said.size() < 4096 && frame->size() > guest::kPieceHeader) said += frame->substr(guest::kPieceHeader);
  }
  ISOLA_CO_TRY(std::string end, co_await running.channel->end());
  ISOLA_CO_TRY(guest::Exit exit, guest::decode<guest::Exit>(end));
  service.command_ended(box, running.info.id, exit);
  if (exit.code != 0 || exit.signal != 0)
    co_return fail(Code::internal, "the interpreter inside does not start: " + log::quoted(said));
  co_return Result<void>();
}

}  // namespace

Task<Result<std::unique_ptr<Conversation>>> ask(sandbox::Service& service, sandbox::BoxPtr box, std::string request) {
  sandbox::Box::Use use = box->use();
  request += '\n';
  auto channel = co_await dial(service, box, request);
  bool absent = !channel && (channel.error().sys_errno == ENOENT || channel.error().sys_errno == ECONNREFUSED);
  if (absent) {
    ISOLA_CO_CHECK(co_await start(service, box));
    channel = co_await dial(service, box, request);
  }
  if (!channel) co_return std::unexpected(std::move(channel).error());
  co_return std::make_unique<Conversation>(std::move(*channel), box, std::move(use));
}

Task<Result<std::optional<std::string>>> Conversation::next(std::chrono::milliseconds time) {
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
  json event = json::parse(line, nullptr, false);
  const bool typed = event.is_object() && event.contains("type") && event["type"].is_string();
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

Task<Result<std::optional<std::string>>> Conversation::take(std::chrono::milliseconds time) {
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
    if (pending_.size() > kMaxLine) co_return fail(Code::corrupt, "the interpreter inside sent too long a line");
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
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

Task<void> Conversation::interrupt() {
  std::string word = "{\"op\":\"interrupt\"}\n";
  (void)co_await channel_->write(word);
  // Until it has stopped, so that dropping the channel does not overtake the word; but one that goes on talking, or
  // says nothing, keeps nobody.
  auto until = std::chrono::steady_clock::now() + kStopTime;
  for (auto left = kStopTime; left.count() > 0;) {
    auto line = co_await next(left);
    if (!line || !*line) break;
    left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  }
}

Task<Result<std::string>> ask_once(sandbox::Service& service, sandbox::BoxPtr box, std::string request) {
  ISOLA_CO_TRY(auto talk, co_await ask(service, box, std::move(request)));
  ISOLA_CO_TRY(auto line, co_await talk->next(kAnswerTime));
  if (!line) co_return fail(Code::unavailable, "the interpreter inside ended without an answer");
  if (line->empty()) co_return fail(Code::timeout, "the interpreter inside did not answer in time");
  co_return std::move(*line);
}

}  // namespace isola::interpreter
