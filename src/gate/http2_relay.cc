#include "gate/http2_relay.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace isola::gate {

namespace {

constexpr size_t kMostReset = 500;   // streams that a client began and took back: then it is told to calm down
constexpr size_t kMostInterim = 16;  // answers before the answer, of one stream
constexpr size_t kMostQueued = size_t{4} * Http2Relay::kStreams;  // frames that wait to be sent
constexpr size_t kMostCollecting = 4;                             // bodies that are gathered to be signed

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

nghttp2_nv pair_of(std::string_view name, std::string_view value, bool secret = false) {
  auto bytes = [](std::string_view text) { return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data())); };
  return {bytes(name), bytes(value), name.size(), value.size(),
          static_cast<uint8_t>(secret ? NGHTTP2_NV_FLAG_NO_INDEX : NGHTTP2_NV_FLAG_NONE)};
}

std::vector<nghttp2_nv> pairs_of(const Fields& fields) {
  std::vector<nghttp2_nv> out;
  for (const auto& field : fields) out.push_back(pair_of(field.name, field.value));
  return out;
}

}  // namespace

struct Http2Relay::Stream {
  explicit Stream(Http2Relay& relay, int32_t id)
      : owner(relay),
        client_id(id),
        head_charge(relay.budget_),
        body_charge(relay.budget_),
        answer_charge(relay.budget_) {}
  Http2Relay& owner;
  int32_t client_id, server_id = -1;
  Request request;
  Decision decision;
  std::string scheme;
  bool asked = false;    // its request is judged
  bool refused = false;  // and answered here
  bool too_large = false, no_room = false;
  bool waits = false;  // for a value
  size_t head_bytes = 0;
  Charge head_charge, body_charge, answer_charge;  // of what waits here

  std::string up, whole;
  bool up_end = false, up_waits = false, up_dead = false, collects = false;
  bool told = false;  // all of its answer is sent

  int status = 0;
  Fields answer;
  bool answered = false;  // with a final status
  size_t interim = 0;
  size_t answer_bytes = 0;
  Screen screen;
  Pause pause = Pause::none;  // since the screen was fed
  std::string down;
  size_t down_at = 0, down_owed = 0;  // owed: received, and not yet given back to the server's window
  Fields down_trailers;
  bool down_end = false, down_waits = false;

  // The last bytes that came, while all before them are on their way.
  bool holds() const { return down_waits && !down_end && screen.holds(); }
  // A field of either kind of head; false if there is no room for it.
  bool add(Fields& fields, size_t& bytes, std::string_view name, std::string_view value) {
    const size_t more = name.size() + value.size() + 32;
    bytes += more;
    if (bytes > kMaxHead || fields.size() >= kMaxFields || !answer_charge.add(more)) return false;
    fields.push_back({std::string(name), std::string(value)});
    return true;
  }
};

// What nghttp2 calls, for both sessions.
struct Http2Callbacks {
  using Stream = Http2Relay::Stream;
  static Http2Relay& relay(void* user) { return *static_cast<Http2Relay*>(user); }
  static bool is_client(Http2Relay& self, nghttp2_session* session) { return self.client_.get() == session; }

  static int begin_headers(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
    auto& self = relay(user);
    if (!is_client(self, session) || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    int32_t id = frame->hd.stream_id;
    self.streams_[id] = std::make_unique<Stream>(self, id);
    ++self.opened_;
    return 0;
  }

  static int header(nghttp2_session* session, const nghttp2_frame* frame, const uint8_t* name_at, size_t name_size,
                    const uint8_t* value_at, size_t value_size, uint8_t, void* user) {
    auto& self = relay(user);
    std::string_view name(reinterpret_cast<const char*>(name_at), name_size),
        value(reinterpret_cast<const char*>(value_at), value_size);
    if (!is_client(self, session)) {
      Stream* stream = self.of_server(frame->hd.stream_id);
      if (!stream) return 0;
      if (name == ":status") {
        std::from_chars(value.data(), value.data() + value.size(), stream->status);
      } else if (!stream->add(stream->answered ? stream->down_trailers : stream->answer, stream->answer_bytes, name,
                              value)) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;  // ends this stream
      }
      return 0;
    }
    Stream* stream = self.find(frame->hd.stream_id);
    if (!stream) return 0;
    // What comes behind a request was not judged with it, and goes nowhere.
    if (stream->asked) return 0;
    auto& request = stream->request;
    const size_t more = name.size() + value.size() + 32;
    stream->head_bytes += more;
    if (stream->head_bytes > kMaxHead) {
      stream->too_large = true;
    } else if (!stream->head_charge.add(more)) {
      stream->no_room = true;
    } else if (name == ":method") {
      request.method = value;
    } else if (name == ":path") {
      request.target = value;
    } else if (name == ":scheme") {
      stream->scheme = value;
    } else if (name == ":authority" || name == "host") {
      // Both may be there, and must then be the same: else one of them is for somebody else.
      if (!request.authority.empty() && request.authority != value)
        request.authority += " and " + std::string(value);
      else
        request.authority = value;
    } else if (request.fields.size() >= kMaxFields) {
      stream->too_large = true;
    } else if (name != "proxy-authorization") {
      request.fields.push_back({std::string(name), std::string(value)});
    }
    return 0;
  }

  static int frame_received(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
    auto& self = relay(user);
    const bool end = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (is_client(self, session)) {
      Stream* stream = self.find(frame->hd.stream_id);
      if (frame->hd.type == NGHTTP2_RST_STREAM && ++self.reset_ > kMostReset && self.reset_ > self.opened_ / 2)
        nghttp2_session_terminate_session(session, NGHTTP2_ENHANCE_YOUR_CALM);
      if (!stream) return 0;
      if (frame->hd.type == NGHTTP2_HEADERS && !stream->asked)
        self.asked(*stream, end);
      else if ((frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS) && end)
        self.upload_ended(*stream);
      return 0;
    }
    if (frame->hd.type == NGHTTP2_GOAWAY) self.server_leaves();
    Stream* stream = self.of_server(frame->hd.stream_id);
    if (!stream) return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && !stream->answered)
      self.answered(*stream, end);
    else if ((frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS) && end)
      self.download_ended(*stream);
    return 0;
  }

  static int data(nghttp2_session* session, uint8_t, int32_t id, const uint8_t* at, size_t size, void* user) {
    auto& self = relay(user);
    std::string_view bytes(reinterpret_cast<const char*>(at), size);
    Stream* stream = is_client(self, session) ? self.find(id) : self.of_server(id);
    if (!stream)
      nghttp2_session_consume(session, id, size);
    else if (is_client(self, session))
      self.uploaded(*stream, bytes);
    else
      self.downloaded(*stream, bytes);
    return 0;
  }

  static int closed(nghttp2_session* session, int32_t id, uint32_t error, void* user) {
    auto& self = relay(user);
    is_client(self, session) ? self.client_closed(id, error) : self.server_closed(id, error);
    return 0;
  }

  static int sent(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
    auto& self = relay(user);
    self.gone(session, *frame);
    if (!is_client(self, session) || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) return 0;
    if (frame->hd.type != NGHTTP2_DATA && frame->hd.type != NGHTTP2_HEADERS) return 0;
    Stream* stream = self.find(frame->hd.stream_id);
    if (!stream) return 0;
    stream->told = true;
    self.stop_upload(*stream);
    return 0;
  }

  // A request that the server does not take any more.
  static int not_sent(nghttp2_session* session, const nghttp2_frame* frame, int, void* user) {
    auto& self = relay(user);
    self.gone(session, *frame);
    if (is_client(self, session) || frame->hd.type != NGHTTP2_HEADERS) return 0;
    self.server_closed(frame->hd.stream_id, NGHTTP2_REFUSED_STREAM);
    return 0;
  }

  static ssize_t upload(nghttp2_session*, int32_t id, uint8_t* to, size_t room, uint32_t* flags, nghttp2_data_source*,
                        void* user) {
    auto& self = relay(user);
    Stream* stream = self.of_server(id);
    if (!stream) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    return self.provide_upload(*stream, to, room, flags);
  }
  static ssize_t download(nghttp2_session*, int32_t id, uint8_t* to, size_t room, uint32_t* flags, nghttp2_data_source*,
                          void* user) {
    auto& self = relay(user);
    Stream* stream = self.find(id);
    if (!stream) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    return self.provide_download(*stream, to, room, flags);
  }
};

Http2Relay::Http2Relay(Inspector& inspector, Leg& client, Leg& server, const Budget* budget)
    : inspector_(inspector), budget_(budget), client_leg_(client), server_leg_(server) {}

Http2Relay::~Http2Relay() = default;

Result<std::unique_ptr<Http2Relay>> Http2Relay::make(Inspector& inspector, Leg& client, Leg& server,
                                                     const Budget* budget) {
  std::unique_ptr<Http2Relay> out(new Http2Relay(inspector, client, server, budget));
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_option* options = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&options) != 0)
    return fail(Code::exhausted, "no memory for HTTP/2");
  std::unique_ptr<nghttp2_session_callbacks, void (*)(nghttp2_session_callbacks*)> held(callbacks,
                                                                                        nghttp2_session_callbacks_del);
  std::unique_ptr<nghttp2_option, void (*)(nghttp2_option*)> held_options(options, nghttp2_option_del);
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, Http2Callbacks::begin_headers);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, Http2Callbacks::header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Http2Callbacks::frame_received);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Http2Callbacks::data);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Http2Callbacks::closed);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, Http2Callbacks::sent);
  nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, Http2Callbacks::not_sent);
  nghttp2_option_set_no_auto_window_update(options, 1);
  nghttp2_option_set_peer_max_concurrent_streams(options, kStreams);
  nghttp2_session *to_client = nullptr, *to_server = nullptr;
  if (nghttp2_session_server_new2(&to_client, callbacks, out.get(), options) != 0)
    return fail(Code::exhausted, "no memory for HTTP/2");
  out->client_.reset(to_client);
  if (nghttp2_session_client_new2(&to_server, callbacks, out.get(), options) != 0)
    return fail(Code::exhausted, "no memory for HTTP/2");
  out->server_.reset(to_server);
  const nghttp2_settings_entry ours[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, kStreams},
                                         {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindow},
                                         {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMaxHead}};
  const nghttp2_settings_entry theirs[] = {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
                                           {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindow},
                                           {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMaxHead}};
  if (nghttp2_submit_settings(to_client, NGHTTP2_FLAG_NONE, ours, std::size(ours)) != 0 ||
      nghttp2_submit_settings(to_server, NGHTTP2_FLAG_NONE, theirs, std::size(theirs)) != 0 ||
      nghttp2_session_set_local_window_size(to_client, NGHTTP2_FLAG_NONE, 0, kWindow) != 0 ||
      nghttp2_session_set_local_window_size(to_server, NGHTTP2_FLAG_NONE, 0, kWindow) != 0)
    return fail(Code::internal, "cannot begin HTTP/2");
  return out;
}

// ---- bytes ----------------------------------------------------------------------------------------------------------

Relay::State Http2Relay::pump() {
  for (int round = 0; round < kRounds; ++round) {
    bool moved = take(client_.get(), client_leg_, client_ended_, to_client_);
    moved |= take(server_.get(), server_leg_, server_ended_, to_server_);
    if (broken_ || client_ended_) return State::broken;
    if (server_ended_ && !leaving_) server_leaves();
    if (server_ended_)
      while (!by_server_.empty()) server_closed(by_server_.begin()->first, NGHTTP2_INTERNAL_ERROR);
    if (waiting_ > 0)
      for (auto& [id, stream] : streams_)
        if (stream->waits) decide(*stream);
    if (!server_ended_) moved |= give(server_.get(), server_leg_, to_server_);
    moved |= give(client_.get(), client_leg_, to_client_);
    if (broken_) return State::broken;
    const bool said = to_client_.empty() && !nghttp2_session_want_write(client_.get());
    if (said && (!nghttp2_session_want_read(client_.get()) || (leaving_ && streams_.empty()))) return State::done;
    if (!moved) return State::going;
  }
  return State::again;
}

bool Http2Relay::begin_to_wait() {
  bool any = false;
  for (auto& [id, stream] : streams_) {
    if (!stream->holds() || stream->pause != Pause::none) continue;
    stream->pause = Pause::watched;
    any = true;
  }
  return any;
}

void Http2Relay::let_go() {
  for (auto& [id, stream] : streams_) {
    if (!stream->holds() || stream->pause != Pause::watched) continue;
    stream->pause = Pause::over;
    stream->screen.idle(stream->down);
    if (stream->down.size() == stream->down_at) continue;
    stream->down_waits = false;
    nghttp2_session_resume_data(client_.get(), id);
  }
}

// What a side says goes into its session, while the answers to it find room.
bool Http2Relay::take(nghttp2_session* session, Leg& leg, bool& ended, const Outbox& back) {
  if (ended || back.size() >= kHigh || broken_) return false;
  // Frames that no window bounds (resets, answers to pings, heads) wait in the sessions. A server is heard while what
  // goes to it waits: it may have to end a stream before it takes another.
  if (nghttp2_session_get_outbound_queue_size(client_.get()) > kMostQueued) return false;
  if (session == client_.get() && nghttp2_session_get_outbound_queue_size(server_.get()) > kMostQueued) return false;
  uint8_t piece[kPiece];
  auto moved = leg.read(reinterpret_cast<char*>(piece), sizeof piece);
  if (moved.how == Io::blocked) return false;
  if (moved.how != Io::moved) return ended = true;
  ssize_t used = nghttp2_session_mem_recv(session, piece, moved.bytes);
  if (used >= 0) return true;
  if (session == client_.get())
    inspector_.refuse(0, Reason::bad_request, nghttp2_strerror(static_cast<int>(used)));
  else
    inspector_.refuse(0, Reason::bad_answer, nghttp2_strerror(static_cast<int>(used)));
  broken_ = true;
  return false;
}

bool Http2Relay::give(nghttp2_session* session, Leg& leg, Outbox& outbox) {
  bool any = false;
  for (;;) {
    while (outbox.size() < kHigh) {
      const uint8_t* bytes = nullptr;
      ssize_t size = nghttp2_session_mem_send(session, &bytes);
      if (size < 0) return broken_ = true, false;
      if (size == 0) break;
      outbox.add({reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)});
    }
    auto moved = outbox.flush(leg);
    if (moved.how == Io::failed || moved.how == Io::ended) {
      (session == client_.get() ? client_ended_ : server_ended_) = true;
      outbox = {};
      return true;
    }
    if (moved.how != Io::moved) return any;
    any = true;
  }
}

Http2Relay::Stream* Http2Relay::find(int32_t client_id) {
  auto it = streams_.find(client_id);
  return it == streams_.end() ? nullptr : it->second.get();
}

Http2Relay::Stream* Http2Relay::of_server(int32_t server_id) {
  auto it = by_server_.find(server_id);
  return it == by_server_.end() ? nullptr : it->second;
}

// ---- requests -------------------------------------------------------------------------------------------------------

void Http2Relay::asked(Stream& stream, bool end) {
  stream.asked = true;
  stream.up_end = end;
  auto& request = stream.request;
  request.has_body = !end;
  if (stream.no_room)
    return refuse(stream, inspector_.refuse(503, Reason::too_many_connections, "too many requests at once", &request));
  if (stream.too_large)
    return refuse(stream, inspector_.refuse(431, Reason::bad_request, "the head is too large", &request));
  if (request.method != "CONNECT" && stream.scheme != "https")
    return refuse(stream, inspector_.refuse(400, Reason::bad_request, "another scheme than https", &request));
  decide(stream);
}

// When its head is there, and again while it waits for a value.
void Http2Relay::decide(Stream& stream) {
  auto& request = stream.request;
  stream.decision = inspector_.judge(request);
  if (stream.waits) stream.waits = false, --waiting_;
  if (stream.decision.waits) {
    stream.waits = true, ++waiting_;
    return;
  }
  if (stream.decision.status) return refuse(stream, stream.decision);
  if (leaving_ || server_ended_) {
    nghttp2_submit_rst_stream(client_.get(), NGHTTP2_FLAG_NONE, stream.client_id, NGHTTP2_REFUSED_STREAM);
    return;
  }
  if (!stream.decision.wants_body) return pass(stream, std::nullopt);
  if (collecting_ >= kMostCollecting)
    return refuse(stream, inspector_.refuse(503, Reason::request, "too many bodies to sign at once", &request));
  stream.collects = true;
  ++collecting_;
  if (stream.up.empty() && !stream.up_end) return;
  // What came while it waited.
  const std::string bytes = std::exchange(stream.up, {});
  if (!bytes.empty()) uploaded(stream, bytes);
  if (stream.up_end && stream.collects) upload_ended(stream);
}

void Http2Relay::pass(Stream& stream, std::optional<std::string_view> body) {
  auto& request = stream.request;
  if (auto odd = inspector_.inject(request, stream.decision, body); odd.status) return refuse(stream, odd);
  stream.screen = inspector_.screen();
  const std::string scheme = "https";
  std::vector<nghttp2_nv> pairs = {pair_of(":method", request.method), pair_of(":scheme", scheme),
                                   pair_of(":authority", request.authority),
                                   pair_of(":path", request.target, !stream.decision.bound.empty())};
  for (auto& field : request.fields) {
    field.name = lowered(field.name);
    // What is set here must not stay in a table that later requests of others could point into.
    pairs.push_back(pair_of(field.name, field.value, !stream.decision.bound.empty()));
  }
  nghttp2_data_provider provider{.source = {}, .read_callback = Http2Callbacks::upload};
  const bool bare = stream.up_end && stream.up.empty();
  int32_t id =
      nghttp2_submit_request(server_.get(), nullptr, pairs.data(), pairs.size(), bare ? nullptr : &provider, nullptr);
  if (!stream.decision.bound.empty())
    for (auto& field : request.fields) vault::wipe(field.value);
  request.fields.clear();
  if (id < 0) {
    stream.head_charge.clear();
    nghttp2_submit_rst_stream(client_.get(), NGHTTP2_FLAG_NONE, stream.client_id, NGHTTP2_REFUSED_STREAM);
    return;
  }
  queued(for_server_, id, stream.head_charge);
  stream.server_id = id;
  by_server_[id] = &stream;
}

void Http2Relay::queued(std::map<int32_t, Queued>& heads, int32_t id, Charge& charge) {
  auto& head = heads.try_emplace(id, budget_).first->second;
  head.bytes.take_over(charge);
  ++head.frames;
}

// Sent, or never to be.
void Http2Relay::gone(nghttp2_session* session, const nghttp2_frame& frame) {
  if (frame.hd.type != NGHTTP2_HEADERS) return;
  auto& heads = session == client_.get() ? for_client_ : for_server_;
  auto at = heads.find(frame.hd.stream_id);
  if (at != heads.end() && --at->second.frames == 0) heads.erase(at);
}

void Http2Relay::refuse(Stream& stream, const Decision& decision) {
  if (stream.collects) stream.collects = false, --collecting_;
  stream.refused = true;
  stream.request.fields.clear();
  stream.whole = std::string();
  stream.head_charge.clear();
  stream.body_charge.clear();
  stream.down = refusal_body(decision);
  stream.down_at = 0;
  stream.down_end = true;
  std::string status = std::to_string(decision.status), size = std::to_string(stream.down.size());
  nghttp2_nv pairs[] = {pair_of(":status", status), pair_of("content-type", "application/json"),
                        pair_of("content-length", size)};
  nghttp2_data_provider provider{.source = {}, .read_callback = Http2Callbacks::download};
  const bool head = stream.request.method == "HEAD";
  nghttp2_submit_response(client_.get(), stream.client_id, pairs, std::size(pairs), head ? nullptr : &provider);
}

void Http2Relay::uploaded(Stream& stream, std::string_view bytes) {
  if (stream.refused || stream.up_dead) {
    nghttp2_session_consume(client_.get(), stream.client_id, bytes.size());
    return;
  }
  if (stream.collects) {
    nghttp2_session_consume(client_.get(), stream.client_id, bytes.size());
    if (!stream.body_charge.add(bytes.size()))
      return refuse(stream,
                    inspector_.refuse(503, Reason::request, "too many bodies to sign at once", &stream.request));
    stream.whole += bytes;
    if (stream.whole.size() > Inspector::kMaxSignedBody)
      refuse(stream, inspector_.refuse(413, Reason::request, "a body of more than 1 MiB cannot be signed anew",
                                       &stream.request));
    return;
  }
  stream.up += bytes;
  if (std::exchange(stream.up_waits, false)) nghttp2_session_resume_data(server_.get(), stream.server_id);
}

void Http2Relay::upload_ended(Stream& stream) {
  stream.up_end = true;
  if (stream.collects) {
    stream.collects = false, --collecting_;
    stream.up = std::move(stream.whole);
    return pass(stream, std::string_view(stream.up));
  }
  if (std::exchange(stream.up_waits, false)) nghttp2_session_resume_data(server_.get(), stream.server_id);
}

ssize_t Http2Relay::provide_upload(Stream& stream, uint8_t* to, size_t room, uint32_t* flags) {
  size_t size = std::min(room, stream.up.size());
  if (size == 0 && !stream.up_end) {
    stream.up_waits = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  std::memcpy(to, stream.up.data(), size);
  stream.up.erase(0, size);
  if (!stream.decision.wants_body) nghttp2_session_consume(client_.get(), stream.client_id, size);
  if (stream.up.empty()) stream.body_charge.clear();
  if (stream.up_end && stream.up.empty()) *flags |= NGHTTP2_DATA_FLAG_EOF;
  return static_cast<ssize_t>(size);
}

// ---- answers --------------------------------------------------------------------------------------------------------

void Http2Relay::answered(Stream& stream, bool end) {
  auto fail_with = [&](Reason reason, const std::string& why) {
    auto decision = inspector_.refuse(502, reason, why, &stream.request);
    by_server_.erase(stream.server_id);
    nghttp2_submit_rst_stream(server_.get(), NGHTTP2_FLAG_NONE, stream.server_id, NGHTTP2_CANCEL);
    stream.server_id = -1;
    stream.answered = true;
    refuse(stream, decision);
  };
  const bool interim = stream.status < 200;
  if (stream.status == 101 || stream.status < 100) return fail_with(Reason::bad_answer, "a status that cannot be here");
  if (interim && ++stream.interim > kMostInterim)
    return fail_with(Reason::bad_answer, "too many answers before the answer");
  if (!interim && !end && stream.request.method != "HEAD" && stream.decision.searched && encoding_of(stream.answer))
    return fail_with(Reason::encoded, kEncodedAnswer);
  remove_field(stream.answer, "alt-svc");
  for (auto& field : stream.answer) stream.screen.whole(field.name), stream.screen.whole(field.value);
  if (stream.screen.blocked())
    return fail_with(Reason::bad_answer, "the answer has the value of a credential in it that is not to come back");
  std::string status = std::to_string(stream.status);
  std::vector<nghttp2_nv> pairs = {pair_of(":status", status)};
  for (const auto& field : stream.answer) pairs.push_back(pair_of(field.name, field.value));
  if (interim) {
    nghttp2_submit_headers(client_.get(), NGHTTP2_FLAG_NONE, stream.client_id, nullptr, pairs.data(), pairs.size(),
                           nullptr);
  } else {
    stream.answered = true;
    stream.down_end = end;
    nghttp2_data_provider provider{.source = {}, .read_callback = Http2Callbacks::download};
    nghttp2_submit_response(client_.get(), stream.client_id, pairs.data(), pairs.size(), end ? nullptr : &provider);
  }
  stream.answer.clear();
  queued(for_client_, stream.client_id, stream.answer_charge);
  if (!interim) stream.answer_bytes = 0;
}

// What it was to be told ends there, as something that was cut off.
bool Http2Relay::end_if_blocked(Stream& stream) {
  if (!stream.screen.blocked()) return false;
  nghttp2_submit_rst_stream(client_.get(), NGHTTP2_FLAG_NONE, stream.client_id, NGHTTP2_CANCEL);
  return true;
}

void Http2Relay::downloaded(Stream& stream, std::string_view bytes) {
  stream.down_owed += bytes.size();
  stream.pause = Pause::none;
  stream.screen.feed(bytes, stream.down);
  if (end_if_blocked(stream)) return;
  if (stream.down.size() > stream.down_at && std::exchange(stream.down_waits, false))
    nghttp2_session_resume_data(client_.get(), stream.client_id);
}

void Http2Relay::download_ended(Stream& stream) {
  stream.screen.end(stream.down);
  for (auto& field : stream.down_trailers) stream.screen.whole(field.name), stream.screen.whole(field.value);
  if (end_if_blocked(stream)) return;
  stream.down_end = true;
  if (std::exchange(stream.down_waits, false)) nghttp2_session_resume_data(client_.get(), stream.client_id);
}

ssize_t Http2Relay::provide_download(Stream& stream, uint8_t* to, size_t room, uint32_t* flags) {
  size_t size = std::min(room, stream.down.size() - stream.down_at);
  if (size == 0 && !stream.down_end) {
    stream.down_waits = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  std::memcpy(to, stream.down.data() + stream.down_at, size);
  stream.down_at += size;
  if (stream.down_at == stream.down.size()) stream.down.clear(), stream.down_at = 0;
  if (stream.down_at > static_cast<size_t>(kStreamWindow)) stream.down.erase(0, stream.down_at), stream.down_at = 0;
  size_t paid = std::min(size, stream.down_owed);
  stream.down_owed -= paid;
  if (paid > 0 && stream.server_id >= 0)
    nghttp2_session_consume(server_.get(), stream.server_id, paid);
  else if (paid > 0)
    nghttp2_session_consume_connection(server_.get(), paid);
  if (stream.down_end && stream.down.empty()) {
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (!stream.down_trailers.empty()) {
      *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
      auto pairs = pairs_of(stream.down_trailers);
      nghttp2_submit_trailer(client_.get(), stream.client_id, pairs.data(), pairs.size());
    }
  }
  return static_cast<ssize_t>(size);
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void Http2Relay::client_closed(int32_t id, uint32_t error) {
  Stream* stream = find(id);
  if (!stream) return;
  if (stream->collects) --collecting_;
  if (stream->waits) --waiting_;
  // What nobody will take any more is given back to the windows that all streams share.
  if (stream->down_owed > 0) nghttp2_session_consume_connection(server_.get(), stream->down_owed);
  if (!stream->up.empty() && !stream->decision.wants_body)
    nghttp2_session_consume_connection(client_.get(), stream->up.size());
  if (stream->server_id >= 0) {
    by_server_.erase(stream->server_id);
    nghttp2_submit_rst_stream(server_.get(), NGHTTP2_FLAG_NONE, stream->server_id,
                              error == NGHTTP2_NO_ERROR ? static_cast<uint32_t>(NGHTTP2_CANCEL) : error);
  }
  streams_.erase(id);
}

void Http2Relay::server_closed(int32_t id, uint32_t error) {
  Stream* stream = of_server(id);
  if (!stream) return;
  by_server_.erase(id);
  stream->server_id = -1;
  // An answer may be over before its request is: the rest of that goes nowhere.
  stream->up_dead = true;
  if (!stream->up.empty() && !stream->decision.wants_body)
    nghttp2_session_consume(client_.get(), stream->client_id, stream->up.size());
  stream->up.clear();
  if (error == NGHTTP2_NO_ERROR && stream->down_end) return stop_upload(*stream);
  nghttp2_submit_rst_stream(client_.get(), NGHTTP2_FLAG_NONE, stream->client_id,
                            error == NGHTTP2_NO_ERROR ? static_cast<uint32_t>(NGHTTP2_INTERNAL_ERROR) : error);
}

// A server that has said everything and wants to hear no more says so: then the client must not go on either, or it
// might wait for the end of its own request. Not before it has the whole answer, which a reset would cut off.
void Http2Relay::stop_upload(Stream& stream) {
  if (!stream.told || !stream.up_dead || stream.up_end) return;
  nghttp2_submit_rst_stream(client_.get(), NGHTTP2_FLAG_NONE, stream.client_id, NGHTTP2_NO_ERROR);
}

void Http2Relay::server_leaves() {
  if (std::exchange(leaving_, true)) return;
  nghttp2_submit_goaway(client_.get(), NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(client_.get()),
                        NGHTTP2_NO_ERROR, nullptr, 0);
}

}  // namespace isola::gate
