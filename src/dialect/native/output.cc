#include "dialect/native/output.h"

#include <nlohmann/json.hpp>

#include "dialect/native/views.h"
#include "dialect/shared/unread.h"
#include "http/error_reply.h"

namespace isola::native {

using nlohmann::json;
using sandbox::Running;

namespace {

constexpr auto kPing = std::chrono::milliseconds(15000);
constexpr auto kPause = std::chrono::hours(1);  // of a reader for whom the command waits: a person with a pager

bool went(const sandbox::BoxPtr& box) {
  State state = box->state();
  return state == State::ended || state == State::ending;
}

Task<Result<guest::Exit>> finish(sandbox::Service& service, Running& running) {
  auto end = co_await running.channel->end();
  if (!end) {
    // On its way into an image its link ends before it is known to be paused.
    if (running.box->is_shut()) {
      auto turn = co_await running.box->turn();
    }
    if (store::is_asleep(running.box->state())) co_return fail(Code::unavailable, "the sandbox was paused");
    // The sandbox went with the command: say what happened to it.
    auto record = running.box->record();
    if (went(running.box)) {
      std::string why = "the sandbox ended (" + std::string(to_string(record.end_reason)) + ")";
      if (!record.end_detail.empty()) why += ": " + record.end_detail;
      co_return fail(Code::unavailable, why);
    }
    co_return std::unexpected(std::move(end).error());
  }
  auto exit = guest::decode<guest::Exit>(*end);
  if (!exit) co_return exit;
  *exit = co_await service.judged(running.box, running.info.id, *exit);
  service.command_ended(running.box, running.info.id, *exit);
  co_return exit;
}

// One stream of a command, as the caller wants to have it.
class Collected {
 public:
  Collected(const OutputOptions& options, Shares::Share& share)
      : options_(options), share_(share), feed_(options.clean) {}
  void add(std::string_view bytes) {
    total_ += bytes.size();
    if (kept_ >= options_.most || kept_ + bytes.size() < total_) return;  // none behind what was left out
    bytes = bytes.substr(0, options_.most - kept_);
    bytes = bytes.substr(0, share_.take(bytes.size()));
    kept_ += bytes.size();
    text_ += options_.encoding == Encoding::base64 ? std::string(bytes) : feed_.feed(bytes);
  }
  void put(json& out, const std::string& name) {
    out[name] = options_.encoding == Encoding::base64 ? base64(text_) : text_ + feed_.finish();
    if (total_ > kept_) out[name + "_dropped_bytes"] = total_ - kept_;
  }

 private:
  const OutputOptions& options_;
  Shares::Share& share_;
  TextFeed feed_;
  std::string text_;
  uint64_t total_ = 0, kept_ = 0;
};

}  // namespace

Shares::Share room_for_answer(const std::string& project) {
  static Shares shares(size_t{128} << 20);
  return shares.of(project);
}

Result<Piece> read_piece(std::string_view frame) {
  Reader in(frame);
  Piece piece;
  piece.stream = static_cast<guest::Stream>(in.u8());
  piece.seq = in.u64();
  piece.bytes = in.rest();
  if (!in.ok()) return fail(Code::corrupt, "the sandbox sent malformed output");
  return piece;
}

uint64_t lost_in(const Piece& piece) {
  Reader in(piece.bytes);
  return in.u64();
}

void explain_start(http::Exchange& ex, const Error& error) {
  bool missing = error.code == Code::not_found && error.sys_errno == ENOENT;
  bool unfit = (error.code == Code::denied && error.sys_errno == EACCES) || error.sys_errno == E2BIG ||
               error.sys_errno == ENOEXEC || error.sys_errno == ETXTBSY || error.sys_errno == ELIBBAD;
  if (missing || unfit) {
    std::string code = missing ? "command_not_found" : "command_not_executable";
    ex.fail(http::ErrorReply{http::status_of(error.code), code, error.message, {}});
  }
}

Task<Result<json>> collect(sandbox::Service& service, Running& running, const OutputOptions& options,
                           Shares::Share& room) {
  Collected out(options, room), err(options, room);
  uint64_t lost = 0;
  for (;;) {
    auto frame = co_await running.channel->read_frame();
    if (!frame) break;
    ISOLA_CO_TRY(Piece piece, read_piece(*frame));
    if (piece.stream == guest::Stream::gap)
      lost += lost_in(piece);
    else
      (piece.stream == guest::Stream::err ? err : out).add(piece.bytes);
  }
  ISOLA_CO_TRY(guest::Exit exit, co_await finish(service, running));
  json result = view(exit);
  result["command_id"] = running.info.id;
  out.put(result, "stdout");
  err.put(result, "stderr");
  if (lost) result["lost_bytes"] = lost;
  result["untrusted"] = {"stdout", "stderr"};
  co_return result;
}

Task<Result<void>> stream(sandbox::Service& service, http::Exchange& ex, Running running,
                          const OutputOptions& options) {
  mark_untrusted(ex);
  if (options.held) ex.write_time(kPause);
  ex.begin(200, "application/x-ndjson");
  json start = {
      {"type", "start"}, {"command_id", running.info.id}, {"pid", running.info.pid}, {"sandbox", running.box->id()}};
  std::string line = dump(start) + "\n";
  TextFeed feeds[2] = {TextFeed(options.clean), TextFeed(options.clean)};
  bool here = true, marked = !options.there;
  uint64_t position = options.from;
  const auto executor = co_await boost::asio::this_coro::executor;
  dialect::Unread unread(executor, service, running);
  if (auto sent = co_await ex.write(line); !sent) here = false;
  while (here) {
    if (!marked && position >= *options.there) {
      marked = true;
      line = dump({{"type", "caught_up"}, {"seq", *options.there}}) + "\n";
      if (auto sent = co_await ex.write(line); !sent || !options.follow) {
        if (sent) (void)co_await ex.finish();
        co_return Result<void>();
      }
    }
    auto frame = co_await running.channel->read_frame_for(kPing);
    if (!frame) break;
    if (frame->empty()) {
      line = "{\"type\":\"ping\"}\n";
    } else {
      auto piece = read_piece(*frame);
      if (!piece) {
        ex.abort();
        co_return Result<void>();
      }
      if (piece->stream == guest::Stream::gap) {
        position = piece->seq;
        line = dump({{"type", "gap"}, {"lost_bytes", lost_in(*piece)}, {"seq", piece->seq}}) + "\n";
      } else {
        bool err = piece->stream == guest::Stream::err;
        position = piece->seq + piece->bytes.size();
        json event = {{"type", err ? "stderr" : "stdout"}, {"seq", piece->seq + piece->bytes.size()}};
        if (options.encoding == Encoding::base64)
          event["data"] = base64(piece->bytes);
        else
          event["data"] = feeds[err].feed(piece->bytes);
        line = dump(event) + "\n";
      }
    }
    unread.begins();
    if (auto sent = co_await ex.write(line); !sent) here = false;
    unread.ends();
  }
  if (!here) {
    service.detach(std::move(running));
    co_return Result<void>();
  }
  auto exit = co_await finish(service, running);
  for (bool err : {false, true}) {
    std::string last = feeds[err].finish();  // a character that was cut off
    if (last.empty()) continue;
    line = dump({{"type", err ? "stderr" : "stdout"}, {"data", last}, {"seq", position}}) + "\n";
    (void)co_await ex.write(line);
  }
  if (exit) {
    json event = view(*exit);
    event["type"] = "exit";
    event["seq"] = exit->seq;
    line = dump(event) + "\n";
  } else {
    json error = {{"code", http::error_reply(exit.error()).code}, {"message", exit.error().message}};
    if (store::is_asleep(running.box->state())) error["code"] = "paused";  // attach again from `seq`
    if (went(running.box)) error["end_reason"] = to_string(running.box->record().end_reason);
    json event = {{"type", "error"}, {"error", error}};
    line = dump(event) + "\n";
  }
  (void)co_await ex.write(line);
  (void)co_await ex.finish();
  co_return Result<void>();
}

}  // namespace isola::native
