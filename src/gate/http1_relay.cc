#include "gate/http1_relay.h"

#include <algorithm>

namespace isola::gate {

namespace {

constexpr size_t kDrain = 256 << 10;  // of a body that nobody wants, before the connection is given up instead
constexpr int kInterim = 16;
constexpr const char* kBlocked = "the answer has the value of a credential in it that is not to come back";

void write_fields(const Fields& fields, std::string& out) {
  for (const auto& field : fields) out += field.name + ": " + field.value + "\r\n";
}

}  // namespace

const char* phrase_of(int status) {
  switch (status) {
    case 400: return "Bad Request";
    case 403: return "Forbidden";
    case 421: return "Misdirected Request";
    case 431: return "Request Header Fields Too Large";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    default: return "Bad Gateway";
  }
}

Relay::State Http1Relay::pump() {
  for (int round = 0; round < kRounds; ++round) {
    bool moved = false;
    if (read(client_, from_client_, client_ended_,
             asks_ == Asks::head ? from_client_.size() <= kMaxHead
                                 : from_client_.size() < kPiece && to_server_.size() < kHigh))
      moved = true;
    if (read(server_, from_server_, server_ended_,
             answers_ == Answers::head ? from_server_.size() <= kMaxHead
                                       : from_server_.size() < kPiece && to_client_.size() < kHigh))
      moved = true;
    // Until neither can go on by itself.
    while (!broken_ && (step_request() || step_answer())) moved = true;
    if (broken_) return State::broken;
    for (auto [outbox, leg] : {std::pair(&to_server_, &server_), std::pair(&to_client_, &client_)}) {
      auto flushed = outbox->flush(*leg);
      if (flushed.how == Io::moved) moved = true;
      if (flushed.how != Io::failed && flushed.how != Io::ended) continue;
      // A server that hangs up on a large body may have said why.
      if (leg == &client_ || server_ended_) return State::broken;
      to_server_ = {}, server_ended_ = true, moved = true;
    }
    if (to_server_.empty() && asks_ != Asks::whole_body) whole_charge_.clear();
    if (close_ && to_client_.empty()) return State::done;
    if (!moved) return State::going;
  }
  return State::again;
}

// True if something came.
bool Http1Relay::read(Leg& leg, std::string& into, bool& ended, bool wanted) {
  if (ended || !wanted || broken_) return false;
  char piece[kPiece];
  auto moved = leg.read(piece, sizeof piece);
  if (moved.how == Io::blocked) return false;
  if (moved.how == Io::moved) return into.append(piece, moved.bytes), true;
  // Without a proper end, what was said may be less than what was meant: never passed on as whole.
  if (moved.how == Io::failed && &leg == &server_ && answers_ != Answers::nothing) broken_ = true;
  if (moved.how == Io::failed && &leg == &client_) broken_ = true;
  ended = true;
  return true;
}

// ---- requests -------------------------------------------------------------------------------------------------------

// True if it got on. Pieces of a body are taken only while there is room for them.
bool Http1Relay::step_request() {
  if (close_) return false;
  switch (asks_) {
    case Asks::head: return take_head();
    case Asks::value: return decide();
    case Asks::whole_body:
    case Asks::body:
    case Asks::drain: return take_body();
    case Asks::tunnel: return tunnel();
    case Asks::wait:
    case Asks::over: break;
  }
  return false;
}

bool Http1Relay::take_head() {
  while (from_client_.starts_with("\r\n")) from_client_.erase(0, 2);  // some send one behind a body
  if (from_client_.empty()) {
    if (client_ended_ || server_ended_) close_ = true;
    return false;
  }
  if (!head_end_.feed(from_client_)) {
    if (from_client_.size() > kMaxHead) {
      refuse(inspector_.refuse(431, Reason::bad_request, "the head is too large"), true);
      return true;
    }
    if (client_ended_) close_ = true;
    return false;
  }
  auto head = parse_request_head(std::string_view(from_client_).substr(0, head_end_.size()));
  if (head_end_.size() > kMaxHead) head = fail(Code::exhausted, "the head is too large");
  from_client_.erase(0, head_end_.size());
  head_end_.reset();
  request_ = {};
  if (head) {
    request_.method = head->method, request_.target = head->target;
    if (auto changed = to_origin_form(*head); !changed) head = std::unexpected(changed.error());
  }
  if (!head) {
    const int status = head.error().code == Code::exhausted ? 431 : head.error().code == Code::unsupported ? 501 : 400;
    // What follows cannot be told from a body any more.
    refuse(inspector_.refuse(status, Reason::bad_request, head.error().message, &request_), true);
    return true;
  }
  minor_ = head->minor;
  keeps_ = head->keep_alive && head->minor == 1;
  chunked_ = head->chunked;
  websocket_ = head->upgrade == "websocket" && head->method == "GET" && !head->chunked && head->length.value_or(0) == 0;
  body_ = chunked_ ? BodyReader::chunked() : BodyReader::of_length(head->length.value_or(0));
  request_ = {.method = head->method,
              .target = head->target,
              .authority = head->minor == 0 && head->host.empty() ? inspector_.name() : head->host,
              .fields = std::move(head->fields),
              .has_body = !body_.done()};
  remove_hop_fields(request_.fields);
  remove_field(request_.fields, "Host");
  expects_ = head->expects_continue;
  length_ = head->length.value_or(0);
  asks_ = Asks::value;
  decide();
  return true;
}

// False: it waits for a value.
bool Http1Relay::decide() {
  decision_ = inspector_.judge(request_);
  if (decision_.waits) return false;
  if (decision_.status) {
    // A client that waits for a word before it sends its body may send it all the same: then it would be a request.
    bool close = expects_ || length_ > kDrain || !keeps_;
    asks_ = close ? Asks::over : body_.done() ? Asks::head : Asks::drain;
    drained_ = 0;
    refuse(decision_, close);
    return true;
  }
  if (!decision_.wants_body) return pass_request(std::nullopt);
  asks_ = Asks::whole_body;
  whole_.clear();
  // It is wanted here, and the server's word for it comes too late.
  if (expects_) to_client_.add("HTTP/1.1 100 Continue\r\n\r\n");
  remove_field(request_.fields, "Expect");
  return true;
}

// "GET http://name/path" is for proxies: the name must be ours, and the server gets what servers get.
Result<void> Http1Relay::to_origin_form(RequestHead& head) const {
  if (head.target.starts_with('/') || head.target == "*" || head.method == "CONNECT") return {};
  std::string_view target = head.target;
  std::string_view scheme = inspector_.cleartext() ? "http://" : "https://";
  if (target.size() < scheme.size() || !same_name(target.substr(0, scheme.size()), scheme))
    return fail(Code::invalid, "a target that is neither a path nor a URL of this connection");
  target.remove_prefix(scheme.size());
  size_t end = std::min(target.find_first_of("/?"), target.size());
  auto authority = target.substr(0, end);
  if (authority != head.host) return fail(Code::invalid, "the target and Host are not the same host");
  std::string path(target.substr(end));
  head.target = path.starts_with('/') ? path : "/" + path;
  return {};
}

bool Http1Relay::pass_request(std::optional<std::string_view> body) {
  // What the server says before it is asked would be taken for the answer.
  while (read(server_, from_server_, server_ended_, from_server_.empty())) {
  }
  if (broken_ || !from_server_.empty()) {
    inspector_.refuse(502, Reason::bad_answer, "the server spoke before it was asked", &request_);
    return broken_ = true, false;
  }
  if (auto odd = inspector_.inject(request_, decision_, body); odd.status) {
    asks_ = Asks::over;
    refuse(odd, true);
    return true;
  }
  auto& out = to_server_.tail();
  out += request_.method + " " + request_.target + (minor_ == 1 ? " HTTP/1.1\r\n" : " HTTP/1.0\r\n");
  out += "Host: " + request_.authority + "\r\n";
  if (body) {
    remove_field(request_.fields, "Content-Length");
    request_.fields.push_back({"Content-Length", std::to_string(body->size())});
  } else if (chunked_) {
    out += "Transfer-Encoding: chunked\r\n";
  }
  if (websocket_)
    out += "Connection: Upgrade\r\nUpgrade: websocket\r\n";
  else if (!keeps_)
    out += "Connection: close\r\n";
  write_fields(request_.fields, out);
  out += "\r\n";
  if (body) out += *body;
  if (!decision_.bound.empty())
    for (auto& field : request_.fields) vault::wipe(field.value);
  request_.fields.clear();
  whole_ = std::string();
  asks_ = body || body_.done() ? Asks::wait : Asks::body;
  answers_ = Answers::head;
  screen_ = inspector_.screen();
  interim_ = 0;
  return true;
}

bool Http1Relay::take_body() {
  bool moved = false;
  while (!body_.done()) {
    if (asks_ == Asks::body && to_server_.size() >= kHigh) return moved;
    auto piece = body_.feed(from_client_);
    if (!piece) {
      auto decision = inspector_.refuse(400, Reason::bad_request, piece.error().message, &request_);
      if (asks_ == Asks::drain) return close_ = true;  // it has its answer
      // The server has half of it: it must not take the half for the whole.
      if (asks_ == Asks::body) return broken_ = true;
      asks_ = Asks::over;
      refuse(decision, true);
      return true;
    }
    if (piece->used == 0) {
      if (client_ended_) broken_ = true;
      return moved || broken_;
    }
    if (asks_ == Asks::body && !piece->data.empty()) {
      auto& out = to_server_.tail();
      if (chunked_) out += chunk_head(piece->data.size());
      out += piece->data;
      if (chunked_) out += "\r\n";
    }
    if (asks_ == Asks::whole_body) {
      if (!whole_charge_.add(piece->data.size())) {
        asks_ = Asks::over;
        refuse(inspector_.refuse(503, Reason::request, "too many bodies to sign at once", &request_), true);
        return true;
      }
      whole_ += piece->data;
    }
    drained_ += piece->data.size();
    from_client_.erase(0, piece->used);
    moved = true;
    if (asks_ == Asks::drain && drained_ > kDrain) return close_ = true;
    if (asks_ == Asks::whole_body && whole_.size() > Inspector::kMaxSignedBody) {
      asks_ = Asks::over;
      refuse(inspector_.refuse(413, Reason::request, "a body of more than 1 MiB cannot be signed anew", &request_),
             true);
      return true;
    }
  }
  if (asks_ == Asks::whole_body) return pass_request(std::string_view(whole_));
  if (asks_ == Asks::body && chunked_) to_server_.add(kLastChunk);
  asks_ = asks_ == Asks::drain ? Asks::head : Asks::wait;
  return true;
}

void Http1Relay::refuse(const Decision& decision, bool close) {
  auto body = refusal_body(decision);
  auto& out = to_client_.tail();
  out += "HTTP/1.1 " + std::to_string(decision.status) + " " + phrase_of(decision.status) +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  if (close) out += "Connection: close\r\n";
  out += "\r\n";
  if (request_.method != "HEAD") out += body;
  if (!close) return;
  asks_ = Asks::over;
  close_ = true;
}

// ---- answers --------------------------------------------------------------------------------------------------------

bool Http1Relay::step_answer() {
  switch (answers_) {
    case Answers::nothing:
      // Said before it was asked: whoever asks next would take it for his answer.
      if (!from_server_.empty()) return broken_ = true, false;
      return false;
    case Answers::head: return take_answer_head();
    case Answers::body: return take_answer_body();
    case Answers::tunnel:
    case Answers::over: break;
  }
  return false;
}

bool Http1Relay::bad_answer(Reason reason, const std::string& why) {
  auto decision = inspector_.refuse(502, reason, why, &request_);
  answers_ = Answers::over;
  from_server_.clear();
  refuse(decision, true);
  return true;
}

bool Http1Relay::take_answer_head() {
  if (!answer_end_.feed(from_server_)) {
    if (from_server_.size() > kMaxHead) return bad_answer(Reason::bad_answer, "the head of the answer is too large");
    if (server_ended_) return bad_answer(Reason::bad_answer, "the server hung up without an answer");
    return false;
  }
  if (answer_end_.size() > kMaxHead) return bad_answer(Reason::bad_answer, "the head of the answer is too large");
  auto head = parse_response_head(std::string_view(from_server_).substr(0, answer_end_.size()));
  from_server_.erase(0, answer_end_.size());
  answer_end_.reset();
  if (!head) return bad_answer(Reason::bad_answer, head.error().message);
  if (head->status == 101) {
    if (!websocket_ || head->upgrade != "websocket")
      return bad_answer(Reason::bad_answer, "the server changed the protocol without being asked");
    write_answer(*head);
    if (answers_ == Answers::over) return true;
    answers_ = Answers::tunnel, asks_ = Asks::tunnel;
    return true;
  }
  if (head->status < 200) {
    if (++interim_ > kInterim) return bad_answer(Reason::bad_answer, "too many answers before the answer");
    if (head->length || head->chunked) return bad_answer(Reason::bad_answer, "an interim answer with a body");
    if (minor_ == 1) write_answer(*head);
    return true;
  }
  const bool bare = request_.method == "HEAD" || head->status == 204 || head->status == 304;
  if (bare)
    answer_ = BodyReader::none();
  else if (head->chunked)
    answer_ = BodyReader::chunked();
  else if (head->length)
    answer_ = BodyReader::of_length(*head->length);
  else
    answer_ = BodyReader::until_end();
  if (encoding_of(head->fields) && !answer_.done() && decision_.searched)
    return bad_answer(Reason::encoded, kEncodedAnswer);
  // Until its end, a body that has no length of its own has one as chunks; HTTP/1.0 knows none.
  answer_chunked_ = !answer_.done() && !head->length && minor_ == 1 && head->chunked;
  if (!head->keep_alive || !keeps_ || (!answer_.done() && !head->length && !answer_chunked_)) keeps_ = false;
  write_answer(*head);
  if (answers_ == Answers::over) return true;
  answers_ = Answers::body;
  return true;
}

void Http1Relay::write_answer(const ResponseHead& head) {
  Fields fields = head.fields;
  remove_hop_fields(fields);
  remove_field(fields, "Alt-Svc");  // there is no other way to the server
  std::string text;
  text +=
      std::string(minor_ == 1 ? "HTTP/1.1 " : "HTTP/1.0 ") + std::to_string(head.status) + " " + head.phrase + "\r\n";
  if (head.status == 101)
    text += "Connection: Upgrade\r\nUpgrade: websocket\r\n";
  else if (head.status >= 200 && !keeps_)
    text += "Connection: close\r\n";
  if (head.status >= 200 && answer_chunked_) text += "Transfer-Encoding: chunked\r\n";
  write_fields(fields, text);
  text += "\r\n";
  screen_.whole(text);
  if (screen_.blocked()) return void(bad_answer(Reason::bad_answer, kBlocked));
  to_client_.add(text);
}

// A piece of the answer's body, as it is framed.
void Http1Relay::say(std::string_view piece) {
  if (piece.empty()) return;
  auto& out = to_client_.tail();
  if (answer_chunked_ && answers_ == Answers::body) {
    out += chunk_head(piece.size());
    out += piece;
    out += "\r\n";
  } else {
    out += piece;
  }
}

bool Http1Relay::begin_to_wait() {
  if (!holds() || pause_ != Pause::none) return false;
  pause_ = Pause::watched;
  return true;
}

void Http1Relay::let_go() {
  if (!holds() || pause_ != Pause::watched) return;
  pause_ = Pause::over;
  std::string few;
  screen_.idle(few);
  say(few);
}

bool Http1Relay::take_answer_body() {
  bool moved = false;
  while (!answer_.done()) {
    if (to_client_.size() >= kHigh) return moved;
    auto piece = answer_.feed(from_server_);
    if (!piece) {
      inspector_.refuse(502, Reason::bad_answer, piece.error().message, &request_);
      return broken_ = true, false;
    }
    if (piece->used == 0) {
      if (!server_ended_) return moved;
      if (!answer_.may_end()) return broken_ = true, false;
      answer_.end();
      moved = true;
      break;
    }
    pause_ = Pause::none;
    if (answer_chunked_) {
      std::string clean;
      screen_.feed(piece->data, clean);
      say(clean);
    } else {
      screen_.feed(piece->data, to_client_.tail());
    }
    if (screen_.blocked()) return broken_ = true, false;
    from_server_.erase(0, piece->used);
    moved = true;
  }
  answer_done();
  return true;
}

void Http1Relay::answer_done() {
  std::string rest;
  screen_.end(rest);
  say(rest);
  if (answer_chunked_) to_client_.add(kLastChunk);
  answers_ = Answers::nothing;
  // An answer that came before the end of its request: what is still to come of it must not be read as another.
  // And what comes behind an answer is none.
  if (!keeps_ || asks_ != Asks::wait || !from_server_.empty()) {
    asks_ = Asks::over, answers_ = Answers::over, close_ = true;
    return;
  }
  asks_ = Asks::head;
}

// After a 101 both may say what they like; what the server says is searched as ever.
bool Http1Relay::tunnel() {
  bool moved = false;
  if (!from_client_.empty() && to_server_.size() < kHigh) {
    to_server_.add(from_client_);
    from_client_.clear();
    moved = true;
  }
  if (!from_server_.empty() && to_client_.size() < kHigh) {
    pause_ = Pause::none;
    screen_.feed(from_server_, to_client_.tail());
    if (screen_.blocked()) return broken_ = true, false;
    from_server_.clear();
    moved = true;
  }
  if (server_ended_ && from_server_.empty()) {
    screen_.end(to_client_.tail());
    close_ = true;
  }
  if (client_ended_ && from_client_.empty() && to_server_.empty()) close_ = true;
  return moved;
}

}  // namespace isola::gate
