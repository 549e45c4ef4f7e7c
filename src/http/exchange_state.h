// What an Exchange knows, for the files of this room that fill it in and send it.
#pragma once

#include <atomic>
#include <chrono>

#include "base/shares.h"
#include "http/exchange.h"
#include "http/gzip.h"
#include "http/router.h"

namespace isola::http {

struct Exchange::State {
  explicit State(Connection& c) : connection(c) {
    static std::atomic<uint64_t> last = 0;
    number = ++last;
  }
  uint64_t number = 0;
  Connection& connection;
  std::chrono::steady_clock::time_point began;

  // The request.
  std::string_view target, path, query_text;
  std::string host, request_id;
  Pairs queries;
  const Route* route = nullptr;
  const RouteGroup* group = nullptr;
  std::vector<std::string> values;
  Pairs notes;

  // Its body.
  bool expects_continue = false;  // and has not been told to go on yet
  uint64_t body_limit = 0, body_raw = 0, body_decoded = 0;
  std::optional<std::chrono::milliseconds> body_time;  // instead of the server's
  size_t held = 0;  // bytes at the front of the connection's buffer that the last piece is made of
  std::unique_ptr<Inflater> inflater;
  std::string_view to_inflate;
  bool body_failed = false;
  int body_status = 0;  // the status that fits the failure of the body

  // The reply.
  std::string headers;  // "Name: value\r\n"… that the handler set
  std::string type, body;
  std::optional<Shares::Share> body_share;  // of a large body, until it is sent
  int status = 0;
  bool pending = false;  // a whole reply waits in body
  bool begun = false, head_sent = false, finished = false, chunks = false, taken = false, aborted = false;
  bool broken = false;   // the stream lost its framing or the peer
  std::string raw_head;  // of begin_raw()
  std::optional<uint64_t> length;
  std::unique_ptr<Deflater> packer;  // of a stream that goes out compressed
  uint64_t sent = 0;                 // of the body, as it went out
};

}  // namespace isola::http
