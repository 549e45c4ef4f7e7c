// One connection of a sandbox to our resolver over TCP. One question is answered at a time; whoever does not read the
// answers is not read from.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/fd.h"
#include "gate/loop.h"

namespace isola::gate {

class Sandbox;

class DnsStream : public Handler {
 public:
  DnsStream(Sandbox& sandbox, Fd fd) : sandbox_(sandbox), fd_(std::move(fd)) {}

  Result<void> start();
  void on_ready(uint32_t events) override;
  void close();

 private:
  bool receive();  // false: the connection is over
  void ask();
  bool send();
  void arm();
  void end();

  Sandbox& sandbox_;
  Fd fd_;
  std::string in_, out_;
  bool asking_ = false, inside_ = false, silent_ = false, eof_ = false;
  std::optional<Loop::TimerId> timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace isola::gate
