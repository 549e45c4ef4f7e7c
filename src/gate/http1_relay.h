// HTTP/1 on both legs: one request at a time (those that come ahead of their turn wait), each read strictly, judged,
// and written anew, so that both ends can only read it as it was judged. The same for answers.
#pragma once

#include <memory>
#include <string>

#include "gate/http1_body.h"
#include "gate/http1_head.h"
#include "gate/relay.h"

namespace isola::gate {

class Http1Relay : public Relay {
 public:
  Http1Relay(Inspector& inspector, Leg& client, Leg& server, const Budget* budget = nullptr)
      : inspector_(inspector), client_(client), server_(server), whole_charge_(budget) {}

  State pump() override;
  bool is_waiting_for_head() const override { return asks_ == Asks::head && !from_client_.empty(); }
  bool begin_to_wait() override;
  void let_go() override;
  bool waits_for_value() const override { return asks_ == Asks::value; }

 private:
  // Where the client is, and where the server.
  enum class Asks : uint8_t { head, value, whole_body, body, drain, wait, tunnel, over };
  enum class Answers : uint8_t { nothing, head, body, tunnel, over };

  bool holds() const {
    return (answers_ == Answers::body || answers_ == Answers::tunnel) && screen_.holds() && to_client_.empty();
  }
  bool read(Leg& leg, std::string& into, bool& ended, bool wanted);
  bool step_request();
  bool take_head();
  bool decide();
  bool take_body();
  bool pass_request(std::optional<std::string_view> body);
  bool step_answer();
  bool take_answer_head();
  bool take_answer_body();
  void write_answer(const ResponseHead& head);
  void say(std::string_view piece);
  void answer_done();
  void refuse(const Decision& decision, bool close);
  bool bad_answer(Reason reason, const std::string& why);
  bool tunnel();
  Result<void> to_origin_form(RequestHead& head) const;

  Inspector& inspector_;
  Leg& client_;
  Leg& server_;
  std::string from_client_, from_server_;
  Outbox to_client_, to_server_;
  bool client_ended_ = false, server_ended_ = false, broken_ = false;

  Asks asks_ = Asks::head;
  HeadEnd head_end_;
  Request request_;
  Decision decision_;
  BodyReader body_ = BodyReader::none();
  bool chunked_ = false, keeps_ = false, websocket_ = false, expects_ = false;
  uint64_t length_ = 0;
  int minor_ = 1;
  std::string whole_;    // a body that must be seen before it is signed
  Charge whole_charge_;  // for it, until the server has it
  size_t drained_ = 0;

  Answers answers_ = Answers::nothing;
  HeadEnd answer_end_;
  BodyReader answer_ = BodyReader::none();
  Screen screen_;
  Pause pause_ = Pause::none;  // since the screen was fed
  bool answer_chunked_ = false;
  int interim_ = 0;     // answers before the answer
  bool close_ = false;  // when what is to be said is said
};

}  // namespace isola::gate
