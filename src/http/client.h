// An HTTP/1.1 client that waits, for the command line and for tests. Keeps one connection and uses it again.
//
//   Client client(*parse_url("http://127.0.0.1:8080"));
//   auto reply = client.send({.method = "POST", .target = "/v1/sandboxes", .headers = {{"X-API-Key", key}}, .body =
//   "{}"}); if (!reply) …                                   // no answer if (reply->status != 201) … // reply->body
//   says why
//
//   client.send({.target = "/v1/…/files/big", .sink = [&](std::string_view piece) { return write_all(fd, piece); }});
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "http/blocking_stream.h"
#include "http/url.h"

namespace isola::http {

struct ClientReply {
  int status = 0;
  Pairs headers;
  std::string body;  // where it did not go into a sink
  bool ok() const { return status >= 200 && status < 300; }
  std::string_view header(std::string_view name) const;
};

struct ClientRequest {
  std::string method = "GET";
  std::string target = "/";
  Pairs headers;
  std::string body;
  std::string type = "application/json";  // of the body
  // A body that is made while it is sent: fills the span, says how much, 0 at the end. With a length it is sent so,
  // without one in chunks.
  std::function<Result<size_t>(std::span<char>)> source;
  std::optional<uint64_t> length;
  // Takes a successful reply's body piece by piece. An error ends the transfer and is send()'s result.
  std::function<Result<void>(std::string_view)> sink;
  // Sees status and headers before the body.
  std::function<void(const ClientReply&)> on_head;
  std::optional<std::chrono::milliseconds> io_time;  // instead of the options'; 0: for ever
};

class Client {
 public:
  explicit Client(Url url, ClientOptions options = {});
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  Result<ClientReply> send(const ClientRequest& request);
  void header(std::string name, std::string value);  // goes with every request
  const Url& url() const { return url_; }
  const ClientOptions& options() const { return options_; }
  const Pairs& headers() const { return headers_; }

  static constexpr size_t kMaxBody = 64 << 20;  // of a reply that is kept in memory

 private:
  Result<ClientReply> attempt(const ClientRequest& request, bool& any_reply);
  Url url_;
  ClientOptions options_;
  Pairs headers_;
  std::unique_ptr<BlockingStream> stream_;
  std::string rest_;
};

}  // namespace isola::http
