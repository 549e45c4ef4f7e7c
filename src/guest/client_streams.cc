// The calls of PipeClient that move streams: files, listings, watches, connections.
#include <cstring>
#include <utility>

#include "guest/client.h"

namespace isola::guest {

namespace {

// How a streaming channel went; shared with its callbacks, which may outlive the call when the link breaks.
struct Stream_ {
  bool replied = false, ended = false;
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
  auto state = std::make_shared<Stream_>();
  bool bad = false;
  auto on = state->callbacks(state);
  on.data = [&](std::string_view bytes) { bad |= !each_record<Entry>(bytes, entry); };
  uint32_t channel = session_.open(Op::list, encode(args), std::move(on));
  if (auto pumped = pump_until([&] { return state->ended; }); !pumped) {
    session_.reset(pumped.error());  // the callbacks hold our locals: they must not come again
    return std::unexpected(pumped.error());
  }
  (void)channel;
  if (state->failed()) return std::unexpected(state->error);
  if (bad) return fail(Code::corrupt, "the guest sent a malformed listing");
  return decode<Listed>(state->result);
}

Result<Done> PipeClient::read_file(const Read& args, const Sink& sink) {
  auto state = std::make_shared<Stream_>();
  Result<void> sunk;
  uint32_t channel = 0;
  auto on = state->callbacks(state);
  on.data = [&](std::string_view bytes) {
    if (!sunk) return;
    sunk = sink(bytes);
    if (!sunk) session_.cancel(channel);
  };
  channel = session_.open(Op::read, encode(args), std::move(on));
  if (auto pumped = pump_until([&] { return state->ended; }); !pumped) {
    session_.reset(pumped.error());
    return std::unexpected(pumped.error());
  }
  ISOLA_CHECK(sunk);
  if (state->failed()) return std::unexpected(state->error);
  return decode<Done>(state->result);
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
  auto state = std::make_shared<Stream_>();
  uint32_t channel = session_.open(Op::write, encode(args), state->callbacks(state));
  auto over = [state] { return state->ended; };
  char buffer[64 << 10];
  while (!state->ended) {
    auto n = feed(buffer, sizeof buffer);
    if (!n) {
      session_.cancel(channel);
      ISOLA_CHECK(pump_until(over));
      return std::unexpected(n.error());
    }
    if (*n == 0) break;
    ISOLA_CHECK(send_all(channel, {buffer, *n}, over));
  }
  session_.send_eof(channel);
  ISOLA_CHECK(pump_until(over));
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
  auto state = std::make_shared<Stream_>();
  auto on = state->callbacks(state);
  on.data = [event = std::move(event)](std::string_view bytes) { each_record<WatchEvent>(bytes, event); };
  on.end = [end = on.end, state, ended = std::move(ended)](Result<std::string_view> result) {
    end(std::move(result));
    if (ended && state->replied) ended(state->error);
  };
  uint32_t channel = session_.open(Op::watch, encode(args), std::move(on));
  ISOLA_CHECK(pump_until([&] { return state->replied || state->ended; }));
  if (state->failed()) return std::unexpected(state->error);
  return channel;
}

Result<std::shared_ptr<Connection>> PipeClient::dial(uint16_t port) {
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
  connection->channel = session_.open(Op::dial, encode(Dial{port}), std::move(on));
  ISOLA_CHECK(pump_until([&] { return connection->open || connection->ended; }));
  if (!connection->open) {
    if (!connection->result) return std::unexpected(connection->result.error());
    return fail(Code::corrupt, "the guest ended a connection that it did not open");
  }
  return connection;
}

Result<void> PipeClient::write(const std::shared_ptr<Connection>& connection, std::string_view bytes) {
  return send_all(connection->channel, bytes, [&] { return connection->ended; });
}

}  // namespace isola::guest
