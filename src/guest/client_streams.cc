// The calls of PipeClient that move streams: files, listings, watches, connections.
#include <cstring>
#include <utility>

#include "guest/client.h"

namespace isola::guest {

namespace {

// How a streaming channel went; shared with its callbacks, which may outlive the call when the link breaks.
struct Stream_ {
  bool replied = false, ended = false;
  uint64_t progress = 0;  // counts what came
  std::string reply, result;
  Error error;

  ChannelCallbacks callbacks(std::shared_ptr<Stream_> self) {
    ChannelCallbacks on;
    on.reply = [self](std::string_view bytes) {
      self->replied = true;
      self->reply = bytes;
    };
    on.end = [self](Result<std::string_view> end) {
      self->ended = true;
      if (end)
        self->result = *end;
      else
        self->error = std::move(end).error();
    };
    return on;
  }
  bool failed() const { return !error.message.empty(); }
};

}  // namespace

Result<Listed> PipeClient::list(const List& args, const std::function<void(const Entry&)>& entry) {
  ISOLA_CHECK(not_inside());
  auto state = std::make_shared<Stream_>();
  bool bad = false;
  auto on = state->callbacks(state);
  on.data = [&, state = state.get()](std::string_view bytes) {
    ++state->progress;
    bad |= !each_record<Entry>(bytes, entry);
  };
  uint32_t channel = session_.open(Op::list, encode(args), std::move(on));
  ISOLA_CHECK(await_stream(channel, state->ended, state->progress));
  if (state->failed()) return std::unexpected(state->error);
  if (bad) return fail(Code::corrupt, "the guest sent a malformed listing");
  return decode<Listed>(state->result);
}

Result<Done> PipeClient::read_file(const Read& args, const Sink& sink) {
  ISOLA_CHECK(not_inside());
  auto state = std::make_shared<Stream_>();
  Result<void> sunk;
  uint32_t channel = 0;
  auto on = state->callbacks(state);
  on.data = [&, state = state.get()](std::string_view bytes) {
    ++state->progress;
    sunk = sink(bytes);
    if (!sunk) session_.cancel(channel);  // nothing more comes after that
  };
  channel = session_.open(Op::read, encode(args), std::move(on));
  ISOLA_CHECK(await_stream(channel, state->ended, state->progress));
  ISOLA_CHECK(sunk);
  if (state->failed()) return std::unexpected(state->error);
  return decode<Done>(state->result);
}

// For calls whose callbacks hold their locals: when they return early, those must not come again. A cancelled channel
// sees to that; with a broken link, all channels are ended.
Result<void> PipeClient::await_stream(uint32_t channel, const bool& ended, const uint64_t& progress) {
  auto done = await(channel, [&] { return ended; }, progress);
  if (!done && done.error().code != Code::timeout) session_.reset(done.error());
  return done;
}

Result<std::string> PipeClient::read_file(const Read& args, size_t max) {
  std::string out;
  ISOLA_CHECK(read_file(args, [&](std::string_view bytes) -> Result<void> {
    if (out.size() + bytes.size() > max) return fail(Code::exhausted, "the file is too large to be read at once");
    out.append(bytes);
    return {};
  }));
  return out;
}

Result<Done> PipeClient::write_file(const Write& args, const Feed& feed) {
  ISOLA_CHECK(not_inside());
  auto state = std::make_shared<Stream_>();
  uint32_t channel = session_.open(Op::write, encode(args), state->callbacks(state));
  auto over = [state] { return state->ended; };
  // The guest takes what it is given as fast as its disk does, and then says that it is done.
  auto finished = [&] { return await(channel, over, state->progress); };
  char buffer[64 << 10];
  while (!state->ended) {
    auto n = feed(buffer, sizeof buffer);
    if (!n) {
      session_.cancel(channel);
      ISOLA_CHECK(finished());
      return std::unexpected(n.error());
    }
    if (*n == 0) break;
    if (auto sent = send_all(channel, {buffer, *n}, over, patience_); !sent) {
      session_.cancel(channel);
      (void)flush();
      return std::unexpected(sent.error());
    }
  }
  session_.send_eof(channel);
  ISOLA_CHECK(finished());
  if (state->failed()) return std::unexpected(state->error);
  return decode<Done>(state->result);
}

Result<Done> PipeClient::write_file(const Write& args, std::string_view bytes) {
  return write_file(args, [&](char* buffer, size_t size) -> Result<size_t> {
    auto part = bytes.substr(0, size);
    std::memcpy(buffer, part.data(), part.size());
    bytes.remove_prefix(part.size());
    return part.size();
  });
}

Result<uint32_t> PipeClient::watch(const Watch& args, std::function<void(const WatchEvent&)> event,
                                   std::function<void(const Error&)> ended) {
  ISOLA_CHECK(not_inside());
  auto state = std::make_shared<Stream_>();
  auto on = state->callbacks(state);
  on.data = [event = std::move(event)](std::string_view bytes) { each_record<WatchEvent>(bytes, event); };
  on.end = [end = on.end, state, ended = std::move(ended)](Result<std::string_view> result) {
    end(std::move(result));
    if (ended && state->replied) ended(state->error);
  };
  uint32_t channel = session_.open(Op::watch, encode(args), std::move(on));
  ISOLA_CHECK(await(channel, [&] { return state->replied || state->ended; }, state->progress));
  if (state->failed()) return std::unexpected(state->error);
  return channel;
}

// ---- connections ----------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Connection>> PipeClient::dial(uint16_t port, Milliseconds timeout) {
  ISOLA_CHECK(not_inside());
  auto connection = std::make_shared<Connection>();
  ChannelCallbacks on;
  on.reply = [connection](std::string_view) { connection->open = true; };
  on.data = [connection](std::string_view bytes) { connection->received.append(bytes); };
  on.eof = [connection] { connection->eof = true; };
  on.end = [connection](Result<std::string_view> end) {
    connection->ended = connection->eof = true;
    if (end)
      connection->result = decode<Done>(*end);
    else
      connection->result = std::unexpected(std::move(end).error());
  };
  // Credit goes back as the bytes are taken out: a peer that sends for ever fills no memory of ours.
  connection->channel = session_.open(Op::dial, encode(Dial{port}), std::move(on), kHostWindow, true);
  if (auto pumped = pump_until([&] { return connection->open || connection->ended; }, timeout); !pumped) {
    hang_up(connection);
    return std::unexpected(pumped.error());
  }
  if (!connection->open) {
    if (!connection->result) return std::unexpected(connection->result.error());
    return fail(Code::corrupt, "the guest ended a connection that it did not open");
  }
  return connection;
}

Result<std::string> PipeClient::read(const std::shared_ptr<Connection>& connection, size_t max, Milliseconds timeout) {
  ISOLA_CHECK(not_inside());
  auto& received = connection->received;
  ISOLA_CHECK(pump_until([&] { return !received.empty() || connection->eof; }, timeout));
  if (received.empty() && connection->ended && !connection->result) return std::unexpected(connection->result.error());
  std::string taken = received.substr(0, max);
  received.erase(0, taken.size());
  session_.grant(connection->channel, static_cast<uint32_t>(taken.size()));
  ISOLA_CHECK(flush());
  return taken;
}

Result<void> PipeClient::write(const std::shared_ptr<Connection>& connection, std::string_view bytes,
                               Milliseconds timeout) {
  ISOLA_CHECK(not_inside());
  ISOLA_CHECK(send_all(connection->channel, bytes, [&] { return connection->ended; }, timeout));
  if (connection->ended) return fail(Code::unavailable, "the connection has ended");
  return {};
}

void PipeClient::hang_up(const std::shared_ptr<Connection>& connection) {
  session_.cancel(connection->channel);
  connection->received.clear();
  connection->eof = true;
  (void)flush();
}

}  // namespace isola::guest
