// HTTP/2 on both legs (nghttp2): streams one to one, each request judged by itself. A request for another host is
// answered 421 on its stream, and the others go on.
//
// Memory is bounded by the windows that are given: a side may send more only when the other side has taken what was
// there.
#pragma once

#include <nghttp2/nghttp2.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "gate/relay.h"

namespace isola::gate {

class Http2Relay : public Relay {
 public:
  static constexpr uint32_t kStreams = 100;
  static constexpr int32_t kStreamWindow = 128 << 10, kWindow = 512 << 10;  // of one stream and of all, each way

  static Result<std::unique_ptr<Http2Relay>> make(Inspector& inspector, Leg& client, Leg& server,
                                                  const Budget* budget = nullptr);
  ~Http2Relay() override;

  State pump() override;
  bool is_waiting_for_head() const override { return false; }
  bool begin_to_wait() override;
  void let_go() override;
  bool waits_for_value() const override { return waiting_ > 0; }

 private:
  friend struct Http2Callbacks;
  struct Stream;
  struct Free {
    void operator()(nghttp2_session* session) const { nghttp2_session_del(session); }
  };

  Http2Relay(Inspector& inspector, Leg& client, Leg& server, const Budget* budget);

  // Heads that nghttp2 has and the other side has not taken, by stream: it may have forgotten the stream by then.
  struct Queued {
    explicit Queued(const Budget* budget) : bytes(budget) {}
    Charge bytes;
    size_t frames = 0;
  };

  bool take(nghttp2_session* session, Leg& leg, bool& ended, const Outbox& back);
  bool give(nghttp2_session* session, Leg& leg, Outbox& outbox);
  Stream* find(int32_t client_id);
  Stream* of_server(int32_t server_id);

  void asked(Stream& stream, bool end);
  void decide(Stream& stream);
  void pass(Stream& stream, std::optional<std::string_view> body);
  void refuse(Stream& stream, const Decision& decision);
  void uploaded(Stream& stream, std::string_view bytes);
  void upload_ended(Stream& stream);
  void answered(Stream& stream, bool end);
  void downloaded(Stream& stream, std::string_view bytes);
  void download_ended(Stream& stream);
  void client_closed(int32_t id, uint32_t error);
  void server_closed(int32_t id, uint32_t error);
  void stop_upload(Stream& stream);
  bool end_if_blocked(Stream& stream);
  void server_leaves();
  void queued(std::map<int32_t, Queued>& heads, int32_t id, Charge& charge);
  void gone(nghttp2_session* session, const nghttp2_frame& frame);
  ssize_t provide_upload(Stream& stream, uint8_t* to, size_t room, uint32_t* flags);
  ssize_t provide_download(Stream& stream, uint8_t* to, size_t room, uint32_t* flags);

  Inspector& inspector_;
  const Budget* budget_;
  Leg& client_leg_;
  Leg& server_leg_;
  std::unique_ptr<nghttp2_session, Free> client_, server_;  // towards them
  Outbox to_client_, to_server_;
  bool client_ended_ = false, server_ended_ = false, leaving_ = false, broken_ = false;
  std::map<int32_t, std::unique_ptr<Stream>> streams_;  // by the client's number
  std::map<int32_t, Stream*> by_server_;
  std::map<int32_t, Queued> for_client_, for_server_;
  size_t opened_ = 0, reset_ = 0, collecting_ = 0, waiting_ = 0;
};

}  // namespace isola::gate
