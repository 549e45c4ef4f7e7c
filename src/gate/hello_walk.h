// A TLS server may answer a hello by asking for another one (HelloRetryRequest), and it is the second that counts. So
// after the first one was judged, both sides are followed for a moment longer: until the server has said that it takes
// the first, or the client's second one was read and names the same server.
//
//   HelloWalk walk("a.example");
//   walk.client(bytes);                 // what the client sends behind its first hello
//   walk.server(first_bytes);           // the beginning of what the server says, as much as there is of it yet
//   if (walk.problem()) …               // refuse
//   if (walk.over()) …                  // nothing more to look at
//
// A client need not wait for the server: whatever handshake record it sends meanwhile has to be a hello for that name.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "gate/client_hello.h"

namespace isola::gate {

class HelloWalk {
 public:
  // Of the server's answer: a record's head, a message's head, a version and the random bytes that say it.
  static constexpr size_t kServerBytes = 5 + 4 + 2 + 32;
  enum class Problem : uint8_t { none, bad, differs, hidden };

  explicit HelloWalk(std::string name) : name_(std::move(name)) {}

  void client(std::string_view bytes);
  void server(std::string_view beginning, bool all = false);  // `all`: no more will come
  bool server_known() const { return answer_ != Answer::unknown; }
  Problem problem() const { return problem_; }
  const std::string& detail() const { return detail_; }
  bool over() const {
    return problem_ == Problem::none && (answer_ == Answer::taken || (retried() && again_ && !hello_));
  }
  size_t memory() const { return hello_ ? hello_->memory() : 0; }

 private:
  enum class Answer : uint8_t { unknown, taken, retry };
  bool retried() const { return answer_ == Answer::retry; }
  void judge();
  void wrong(Problem problem, std::string detail);

  std::string name_;
  Answer answer_ = Answer::unknown;
  bool again_ = false;                        // another hello was read
  std::unique_ptr<ClientHelloReader> hello_;  // while one is coming
  std::string head_;                          // of a record of another kind
  size_t skip_ = 0;                           // of its body
  Problem problem_ = Problem::none;
  std::string detail_;
};

}  // namespace isola::gate
