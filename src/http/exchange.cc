#include "http/exchange.h"

#include <fmt/format.h>

#include "base/shares.h"
#include "http/connection.h"
#include "http/text.h"
#include "http/websocket.h"

namespace isola::http {

namespace {

void put_field(std::string& out, std::string_view name, std::string_view value) {
  if (!is_token(name)) return;  // somebody else's words must not become lines of ours
  out += name;
  out += ": ";
  for (char c : value) out += (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 127 ? ' ' : c;
  out += "\r\n";
}

bool hop_by_hop(std::string_view name) {
  for (std::string_view hop : {"Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Upgrade", "TE",
                               "Trailer", "Proxy-Connection", "Proxy-Authenticate", "X-Request-Id"}) {
    if (equal_nocase(name, hop)) return true;
  }
  return false;
}

}  // namespace

Exchange::Exchange(Connection& connection) : state_(std::make_unique<State>(connection)) {}
Exchange::~Exchange() = default;

std::string_view Exchange::method() const { return state_->connection.parser().method; }
std::string_view Exchange::path() const { return state_->path; }
std::string_view Exchange::target() const { return state_->target; }
std::string_view Exchange::query_text() const { return state_->query_text; }
std::string_view Exchange::param(std::string_view name) const {
  if (!state_->route) return {};
  for (size_t i = 0; i < state_->values.size(); i++) {
    if (state_->route->names[i] == name) return state_->values[i];
  }
  return {};
}
const Pairs& Exchange::queries() const { return state_->queries; }
std::optional<std::string_view> Exchange::query(std::string_view name) const {
  for (const auto& [key, value] : state_->queries) {
    if (key == name) return value;
  }
  return {};
}
std::string_view Exchange::header(std::string_view name) const {
  return find_field(state_->connection.parser().fields, name);
}
std::span<const Field> Exchange::headers() const { return state_->connection.parser().fields; }
std::string_view Exchange::host() const { return state_->host; }
std::string_view Exchange::host_header() const { return header("Host"); }
std::string_view Exchange::origin() const { return header("Origin"); }
std::string_view Exchange::peer() const { return state_->connection.peer(); }
std::string_view Exchange::request_id() const { return state_->request_id; }
bool Exchange::waits_to_send() const { return state_->expects_continue; }
uint64_t Exchange::number() const { return state_->number; }
bool Exchange::secure() const { return state_->connection.transport().tls != nullptr; }
bool Exchange::wants_upgrade() const { return !header("Upgrade").empty() && has_item(header("Connection"), "upgrade"); }
const Route* Exchange::route() const { return state_->route; }
std::string_view Exchange::raw_head() const { return state_->connection.parser().text(); }

void Exchange::note(std::string name, std::string value) {
  state_->notes.emplace_back(std::move(name), std::move(value));
}
std::string_view Exchange::noted(std::string_view name) const {
  for (const auto& [key, value] : state_->notes) {
    if (key == name) return value;
  }
  return {};
}

Task<Result<std::string_view>> Exchange::read_some() { return state_->connection.body_some(*state_); }

namespace {

// Bodies that are being put together: who sends many of them, each nearly to its end, must not take the memory of
// everybody; nor who asks for many large replies and reads none. Small ones are free: a connection costs as much.
constexpr size_t kMostCollected = 256 << 20, kFreeOfCharge = 64 << 10;
Shares& collected() {
  static Shares shares(kMostCollected);
  return shares;
}
Shares& unsent() {
  static Shares shares(kMostCollected);
  return shares;
}

// Whoever has no project yet is known by its address.
std::string payer_of(const Exchange& ex) {
  std::string_view project = ex.noted("project");
  return std::string(project.empty() ? ex.peer() : project);
}

}  // namespace

Task<Result<std::string>> Exchange::read_all(size_t max) {
  State& s = *state_;
  s.body_limit = std::min<uint64_t>(s.body_limit, max);
  std::string all;
  if (auto length = body_length()) all.reserve(std::min<uint64_t>(*length, s.body_limit));
  Shares::Share share = collected().of(payer_of(*this));
  for (;;) {
    auto piece = co_await s.connection.body_some(s);
    if (!piece) co_return std::unexpected(std::move(piece).error());
    if (piece->empty()) co_return all;
    if (all.size() + piece->size() > kFreeOfCharge) ISOLA_CO_CHECK(share.take_all(piece->size(), "request bodies"));
    all += *piece;
  }
}

std::optional<uint64_t> Exchange::body_length() const {
  if (state_->inflater) return {};
  return state_->connection.parser().length;
}
bool Exchange::has_body() const {
  const auto& parser = state_->connection.parser();
  return parser.chunked || parser.length.value_or(0) > 0;
}
void Exchange::keep_encoding() {
  state_->inflater.reset();
  if (!state_->body_failed) state_->body_status = 0;
}
void Exchange::body_limit(uint64_t bytes) { state_->body_limit = bytes; }
void Exchange::body_time(std::chrono::milliseconds time) { state_->body_time = time; }

void Exchange::write_time(std::chrono::milliseconds time) { state_->connection.write_time(time); }

void Exchange::reply(int status, std::string body, std::string_view type) {
  State& s = *state_;
  if (s.begun || s.finished || s.taken || s.aborted) return;
  s.body_share.reset();
  if (body.size() > kFreeOfCharge) {
    auto share = unsent().of(payer_of(*this));
    if (auto room = share.take_all(body.size(), "replies that nobody has read"); !room) return fail(room.error(), 1);
    s.body_share.emplace(std::move(share));
  }
  s.pending = true;
  s.status = status;
  s.body = std::move(body);
  s.type = s.body.empty() ? std::string_view() : type;
}

void Exchange::set_header(std::string_view name, std::string_view value) { put_field(state_->headers, name, value); }

void Exchange::fail(const Error& error, std::optional<int> retry_after_s) {
  ErrorReply reply = error_reply(error);
  reply.retry_after_s = retry_after_s;
  if (state_->body_failed && state_->body_status) {
    reply.status = state_->body_status;
    reply.code = reply.status == 413 ? "too_large" : reply.status == 408 ? "timeout" : "invalid";
  }
  fail(reply);
}

void Exchange::fail(const ErrorReply& reply) {
  if (state_->begun) return abort();  // too late for words
  if (reply.retry_after_s) set_header("Retry-After", fmt::to_string(*reply.retry_after_s));
  if (state_->group) {
    state_->group->dresser()(*this, reply);
  } else {
    plain_dress(*this, reply);
  }
}

Task<Result<void>> Exchange::send() {
  if (!state_->pending) co_return isola::fail(Code::invalid, "there is no reply to send");
  Result<void> sent = co_await state_->connection.send_reply(*state_);
  co_return sent;
}

bool Exchange::replied() const {
  const State& s = *state_;
  return s.pending || s.begun || s.finished || s.taken || s.aborted;
}
int Exchange::status() const { return state_->status; }

void Exchange::begin(int status, std::string_view type, std::optional<uint64_t> length) {
  State& s = *state_;
  if (s.begun || s.finished || s.taken || s.aborted) return;
  s.pending = false;
  s.begun = true;
  s.status = status;
  s.type = type;
  s.length = length;
}

void Exchange::begin_raw(int status, std::string_view reason, std::span<const Field> headers,
                         std::optional<uint64_t> length) {
  begin(status, "", length);
  State& s = *state_;
  s.raw_head = fmt::format("HTTP/1.1 {} ", status);
  for (char c : reason) s.raw_head += static_cast<unsigned char>(c) < ' ' || c == 127 ? ' ' : c;
  s.raw_head += "\r\n";
  std::string_view named;  // the sender's own list of fields that are meant for us alone
  for (const Field& field : headers) {
    if (equal_nocase(field.name, "Connection")) named = field.value;
  }
  for (const Field& field : headers) {
    if (!hop_by_hop(field.name) && !has_item(named, field.name)) put_field(s.raw_head, field.name, field.value);
  }
}

Task<Result<void>> Exchange::write(std::string_view bytes) { return state_->connection.send_piece(*state_, bytes); }

Task<Result<void>> Exchange::finish() { return state_->connection.send_end(*state_); }

void Exchange::abort() {
  if (state_->taken) return;
  state_->aborted = true;
  state_->pending = false;
  state_->connection.reset();
}

Task<void> Exchange::gone() { return state_->connection.gone(*state_, Connection::Gone::silent); }
Task<void> Exchange::left() { return state_->connection.gone(*state_, Connection::Gone::asked); }
Task<void> Exchange::cut_off() { return state_->connection.gone(*state_, Connection::Gone::unreachable); }

}  // namespace isola::http
