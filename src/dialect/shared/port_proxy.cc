#include "dialect/shared/port_proxy.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <set>

#include "dialect/shared/line.h"
#include "dialect/shared/target.h"
#include "http/error_reply.h"
#include "http/message.h"
#include "http/url.h"
#include "sandbox/bell.h"
#include "sandbox/sieve.h"
#include "store/keys.h"

namespace isola::dialect {

namespace {

constexpr size_t kMaxHead = 256 << 10;
constexpr uint32_t kWindow = 512 << 10;                 // what a service inside may be ahead of its reader
constexpr auto kAnswerTime = std::chrono::minutes(10);  // until a service inside has said its first byte
constexpr auto kTakeTime = std::chrono::minutes(2);     // until it takes the next piece of a request
constexpr auto kLinger = std::chrono::seconds(30);      // of its silence, once the client has said its last word
constexpr int kMostHints = 16;                          // 1xx replies before the real one

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

bool of_this_hop(const std::string& name) {
  static const std::set<std::string> kNames = {"connection",        "keep-alive", "proxy-connection",   "te", "trailer",
                                               "transfer-encoding", "upgrade",    "proxy-authorization"};
  return kNames.contains(name);
}

// Headers that Connection names belong to this hop, too.
std::set<std::string> named_by_connection(std::span<const http::Field> fields) {
  std::set<std::string> names;
  for (const auto& field : fields) {
    if (lower(field.name) != "connection") continue;
    for (std::string_view rest = field.value; !rest.empty();) {
      auto comma = rest.find(',');
      auto word = rest.substr(0, comma);
      while (word.starts_with(' ')) word.remove_prefix(1);
      while (word.ends_with(' ')) word.remove_suffix(1);
      names.insert(lower(word));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
  return names;
}

// Cookies without those that open the door.
std::string without_token(std::string_view cookies) {
  std::string out;
  while (!cookies.empty()) {
    auto end = cookies.find(';');
    auto part = cookies.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    const bool ours = part.starts_with("isola_token=") || part.starts_with("isola_grant=");
    if (!part.empty() && !ours) out += (out.empty() ? "" : "; ") + std::string(part);
    if (end == std::string_view::npos) break;
    cookies.remove_prefix(end + 1);
  }
  return out;
}

// Whether the address of a page has what opened the door, under whatever spelling.
bool has_right(std::string_view address) {
  auto mark = address.find('?');
  if (mark == std::string_view::npos) return false;
  auto query = http::percent_decode(address.substr(mark));
  return !query || query->contains("isola_");
}

// `searched`: what comes back is, and has to be readable for that.
std::string head_for(const http::Exchange& ex, const std::string& target, const std::string& host, bool upgrade,
                     bool chunked, bool searched) {
  std::string head = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", ex.method(), target, host);
  auto hop = named_by_connection(ex.headers());
  for (const auto& field : ex.headers()) {
    std::string name = lower(field.name);
    if (name == "host" || name == "content-length" || name == "expect" || of_this_hop(name) || hop.contains(name))
      continue;
    if (name.starts_with("x-isola-") || name.starts_with("x-forwarded-")) continue;
    // What brought the request here, and what opened the door. A service may have tokens of its own, of that name too,
    // and listen to webhooks.
    if (name == "e2b-sandbox-id" || name == "e2b-sandbox-port" || name == "e2b-traffic-access-token") continue;
    if (name == "x-access-token" && !token_names(field.value).empty()) continue;
    if (searched && (name == "accept-encoding" || name == "sec-websocket-extensions")) continue;
    if (name == "x-api-key" || name == "authorization") {
      std::string_view key = field.value.starts_with("Bearer ") ? field.value.substr(7) : field.value;
      if (store::is_key(key)) continue;
    }
    if (name == "referer" && has_right(field.value)) continue;
    if (name == "cookie") {
      std::string cookies = without_token(field.value);
      if (!cookies.empty()) head += fmt::format("{}: {}\r\n", field.name, cookies);
      continue;
    }
    head += fmt::format("{}: {}\r\n", field.name, field.value);
  }
  if (searched) head += "Accept-Encoding: identity\r\n";
  head += fmt::format("X-Forwarded-For: {}\r\nX-Forwarded-Host: {}\r\nX-Forwarded-Proto: {}\r\n", ex.peer(),
                      ex.host_header(), ex.secure() ? "https" : "http");
  if (upgrade)
    head += fmt::format("Connection: Upgrade\r\nUpgrade: {}\r\n", ex.header("upgrade"));
  else
    head += "Connection: close\r\n";
  if (chunked)
    head += "Transfer-Encoding: chunked\r\n";
  else if (ex.has_body() && ex.body_length())
    head += fmt::format("Content-Length: {}\r\n", *ex.body_length());
  else if (ex.method() == "POST" || ex.method() == "PUT" || ex.method() == "PATCH")
    head += "Content-Length: 0\r\n";
  return head + "\r\n";
}

Task<void> pause(std::chrono::steady_clock::duration time) {
  sandbox::Bell never;
  (void)co_await never.wait_for(never.ticket(), time);
}

// Nothing: the service takes no more, for too long.
Task<std::optional<Result<void>>> give(LinePtr channel, std::string_view bytes) {
  using namespace boost::asio::experimental::awaitable_operators;
  auto first = co_await (channel->write(bytes) || pause(kTakeTime));
  if (first.index() == 1) co_return std::nullopt;
  co_return std::get<0>(first);
}

// The request's body, to the end.
Task<Result<void>> send_body(http::Exchange& ex, LinePtr channel, bool chunked) {
  while (ex.has_body()) {
    auto piece = co_await ex.read_some();
    if (!piece) co_return std::unexpected(std::move(piece).error());
    if (piece->empty()) break;
    std::string bytes = chunked ? fmt::format("{:x}\r\n", piece->size()) : std::string();
    bytes += *piece;
    if (chunked) bytes += "\r\n";
    auto sent = co_await give(channel, bytes);
    if (!sent) co_return fail(Code::timeout, "the service inside does not take the request");
    if (!*sent) co_return Result<void>();  // it answers without reading it all
  }
  std::string last = "0\r\n\r\n";
  if (chunked) (void)co_await channel->write(last);
  co_return Result<void>();
}

// The reply's head; `rest` is what came behind it.
Task<Result<void>> read_head(LinePtr channel, http::ResponseParser& parser, std::string& rest) {
  http::HeadScanner scan;
  for (;;) {
    auto state = rest.empty() ? http::HeadScanner::State::more : scan.feed(rest);
    if (state == http::HeadScanner::State::bad) co_return fail(Code::corrupt, "the service inside does not speak HTTP");
    if (state == http::HeadScanner::State::complete) break;
    if (rest.size() > kMaxHead) co_return fail(Code::corrupt, "the service inside sent too long a head");
    auto piece = co_await channel->read_frame_for(kAnswerTime);
    if (!piece) {
      auto why = channel->broken();
      co_return fail(Code::unavailable,
                     why ? why->message : "the service inside closed the connection without an answer");
    }
    if (piece->empty()) co_return fail(Code::timeout, "the service inside did not answer in time");
    rest += *piece;
  }
  ISOLA_CO_CHECK(parser.head(std::string_view(rest).substr(0, scan.size())));
  rest.erase(0, scan.size());
  co_return Result<void>();
}

Task<void> up(http::RawStream& client, LinePtr channel, bool& spoken) {
  for (;;) {
    auto piece = co_await client.read_some();
    spoken = !piece || piece->empty();
    if (!piece) co_return channel->cancel();
    if (spoken) break;
    auto sent = co_await give(channel, *piece);
    if (!sent) co_return channel->cancel();
    if (!*sent) break;
  }
  spoken = true;
  co_await channel->close_write();
}

Task<void> down(http::RawStream& client, LinePtr channel, const bool& spoken) {
  for (;;) {
    bool last = spoken;
    auto piece = co_await channel->read_for(kLinger);
    if (!piece) break;
    if (piece->empty()) {
      if (!last) continue;
      channel->cancel();  // half-closed or gone looks the same: a service that is silent, too, is not waited for
      break;
    }
    if (auto sent = co_await client.write(*piece); !sent) {
      channel->cancel();
      break;
    }
  }
  (void)co_await client.shutdown_write();
  // The service is gone: a client that does not take its leave, too, is shown out.
  (void)co_await channel->end();
  if (spoken) co_return;
  co_await pause(kLinger);
  client.close();
}

// Both ways until both are done.
Task<void> tunnel(http::Exchange& ex, LinePtr channel, std::string already) {
  using namespace boost::asio::experimental::awaitable_operators;
  auto client = ex.take_over();
  if (!client) co_return;
  if (auto sent = co_await (*client)->write(already); !sent) co_return;
  bool spoken = false;
  co_await (up(**client, channel, spoken) && down(**client, channel, spoken));
}

}  // namespace

void say_no(http::Exchange& ex, int status, const std::string& code, const std::string& message) {
  if (ex.header("accept").find("text/html") == std::string_view::npos)
    return ex.fail(http::ErrorReply{status, code, message, {}});
  // The message is ours, but for what a sandbox may have put into an error: no markup gets through.
  std::string text;
  for (char c : message) text += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  ex.set_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'");
  ex.reply(status,
           fmt::format("<!doctype html><title>{0} {1}</title><style>body{{font:16px system-ui;margin:15vh auto;"
                       "max-width:34em;padding:0 1em}}</style><h1>{1}</h1><p>{2}</p><p><small>request {3}</small></p>",
                       status, http::reason_of(status), text, ex.request_id()),
           "text/html; charset=utf-8");
}

namespace {

// The service inside must not wait for a rest that never comes, nor we for its answer. The client is told why, if
// there is something to tell and it has heard nothing yet; one that hung up is not.
void leave(http::Exchange& ex, const LinePtr& channel, const std::optional<Error>& why = {}) {
  channel->cancel();
  if (why && !ex.replied())
    ex.fail(*why);
  else
    ex.abort();
}

// The head of the real reply, behind 103 Early Hints and the like.
Task<Result<void>> read_final_head(const http::Exchange& ex, LinePtr channel, http::ResponseParser& parser,
                                   std::string& rest) {
  for (int hints = 0; hints <= kMostHints; ++hints) {
    parser.reset();
    if (ex.method() == "HEAD") parser.no_body();
    ISOLA_CO_CHECK(co_await read_head(channel, parser, rest));
    if (parser.status >= 200 || parser.status == 101) co_return Result<void>();
  }
  co_return fail(Code::corrupt, "the service inside announces an answer and does not give it");
}

// The service's reply, to its end. The link has looked through its bytes; the body of one in chunks is looked through
// once more, without what stands between them.
Task<void> pass_reply(http::Exchange& ex, LinePtr channel, sandbox::BoxPtr box, bool upgrade) {
  using namespace boost::asio::experimental::awaitable_operators;
  http::ResponseParser parser;
  std::string rest;
  Result<void> answered;
  if (upgrade) {
    auto first = co_await (read_final_head(ex, channel, parser, rest) || ex.gone());
    if (first.index() == 1) co_return leave(ex, channel);
    answered = std::get<0>(first);
  } else {
    answered = co_await read_final_head(ex, channel, parser, rest);
  }
  if (!answered) {
    channel->cancel();  // whoever still sends the request must not wait for it to be taken
    co_return say_no(ex, 502, "bad_gateway", answered.error().message);
  }
  if (parser.status == 101 && !upgrade) {
    channel->cancel();
    co_return say_no(ex, 502, "bad_gateway", "the service inside switched protocols although nobody asked");
  }
  if (parser.status == 101) {
    std::string already(parser.text());
    already += rest;
    co_return co_await tunnel(ex, channel, std::move(already));
  }
  std::vector<http::Field> fields;
  auto hop = named_by_connection(parser.fields);
  for (const auto& field : parser.fields) {
    std::string name = lower(field.name);
    if (of_this_hop(name) || hop.contains(name) || name == "content-length") continue;
    fields.push_back(field);
  }
  ex.begin_raw(parser.status, parser.reason, fields, parser.length);
  std::string none;
  if (rest.empty() && !parser.done()) {  // the head alone: what follows may take its time
    if (auto sent = co_await ex.write(none); !sent) co_return channel->cancel();
  }
  sandbox::Sieve sieve(box, "port");
  for (std::string_view input = rest; !parser.done();) {
    auto piece = parser.body(input);
    if (!piece) co_return ex.abort();
    if (!piece->data.empty() && parser.chunked) {
      auto sifted = co_await sieve.pass(piece->data);
      if (!sifted) co_return leave(ex, channel);
      if (auto sent = co_await ex.write(*sifted); !sent) co_return channel->cancel();
    } else if (!piece->data.empty()) {
      if (auto sent = co_await ex.write(piece->data); !sent) co_return channel->cancel();
    }
    input.remove_prefix(piece->used);
    if (piece->used == 0 && piece->data.empty()) {
      std::string kept(input);  // half of a chunk's head at most
      auto more = co_await channel->read();
      if (!more) {
        if (channel->broken()) co_return leave(ex, channel);  // nobody must take a part for the whole
        if (auto ended = parser.end_of_input(); !ended) co_return ex.abort();
        break;
      }
      rest = kept.empty() ? std::move(*more) : kept + *more;
      input = rest;
    }
  }
  if (parser.chunked) {
    auto last = co_await sieve.end();
    if (!last) co_return leave(ex, channel);
    if (!last->empty()) (void)co_await ex.write(*last);
  }
  (void)co_await ex.finish();
}

// The sandbox itself is not to be reached: as every other call into it says that.
void not_reached(http::Exchange& ex, const Error& error) {
  if (error.code == Code::unavailable && error.sys_errno == EBUSY)
    return say_no(ex, 409, "conflict", error.message);  // another call has to come first
  if (error.code != Code::exhausted && error.code != Code::unavailable)
    return say_no(ex, 502, "bad_gateway", error.message);
  ex.set_header("Retry-After", "1");
  if (error.code == Code::exhausted) return say_no(ex, 429, "exhausted", error.message);
  say_no(ex, 503, "unavailable", error.message);
}

// What becomes of the request's body, for those who wait for it.
struct Upload {
  bool over = false, answered = false;  // the latter: the reply was there before its end
  std::optional<Error> failed;
  sandbox::Bell bell;
};

// Ends when the client is gone, or its body could not be passed on.
Task<void> send_and_watch(http::Exchange& ex, LinePtr channel, bool chunked, Upload& upload) {
  auto sent = co_await send_body(ex, channel, chunked);
  if (!sent) {
    upload.failed = sent.error();
    co_return;
  }
  upload.over = true;
  upload.bell.ring();
  co_await ex.gone();
}

// A service may answer before it has read everything, and its answer may be what makes the client send more.
Task<void> pass_reply_and_wait(http::Exchange& ex, LinePtr channel, sandbox::BoxPtr box, Upload& upload) {
  co_await pass_reply(ex, channel, std::move(box), false);
  upload.answered = true;
  while (!upload.over) co_await upload.bell.wait(upload.bell.ticket());
}

}  // namespace

Task<void> forward(sandbox::Service& service, http::Exchange& ex, sandbox::BoxPtr box, uint16_t port,
                   std::string target) {
  Passage plain;
  co_await forward(service, ex, std::move(box), port, std::move(target), plain);
}

Task<void> forward(sandbox::Service& service, http::Exchange& ex, sandbox::BoxPtr box, uint16_t port,
                   std::string target, Passage passage) {
  using namespace boost::asio::experimental::awaitable_operators;
  auto dial = box->dial();
  if (!dial) {
    ex.set_header("Retry-After", "1");
    co_return say_no(ex, 503, "busy", "this sandbox has as many connections to its ports as it can take");
  }
  auto use = box->use();
  auto link = co_await service.link(box);
  if (!link) co_return not_reached(ex, link.error());
  sandbox::ChannelPtr dialling = (*link)->open(guest::Op::dial, guest::encode(guest::Dial{port}), kWindow);
  auto dialled = co_await dialling->reply();
  if (!dialled && passage.closed) co_return passage.closed(ex);
  if (!dialled)
    co_return say_no(
        ex, 502, "bad_gateway",
        fmt::format("nothing answers on port {} of sandbox {}: {}", port, box->id(), dialled.error().message));
  const std::string host = passage.host.empty() ? fmt::format("localhost:{}", port) : passage.host;
  LinePtr channel;
  if (passage.tls) {
    auto secured = co_await Line::secure(Line::wire(dialling), box, host);
    if (!secured)
      co_return say_no(ex, 502, "bad_gateway",
                       fmt::format("port {} of this sandbox: {}", port, secured.error().message));
    channel = std::move(*secured);
  } else {
    channel = std::make_shared<Line>(Line::wire(std::move(dialling)));
  }
  ex.keep_encoding();
  bool upgrade = ex.wants_upgrade() && !ex.header("upgrade").empty();
  bool chunked = ex.has_body() && !ex.body_length();
  const bool searched = box->screening() && box->screening()->on();
  std::string head = head_for(ex, target, host, upgrade, chunked, searched);
  if (auto sent = co_await channel->write(head); !sent)
    co_return say_no(ex, 502, "bad_gateway", "the service inside closed the connection");

  if (upgrade) {
    // Nothing else is read from the client before it is known whether the bytes that follow are still HTTP.
    auto sent = co_await send_body(ex, channel, chunked);
    if (!sent) co_return leave(ex, channel, sent.error());
    co_return co_await pass_reply(ex, channel, box, true);
  }
  Upload upload;
  auto first = co_await (send_and_watch(ex, channel, chunked, upload) || pass_reply_and_wait(ex, channel, box, upload));
  if (first.index() == 0 && !upload.answered) leave(ex, channel, upload.failed);
}

}  // namespace isola::dialect
