// One running kernel: its process, and the sockets on which it is spoken to.
//
// The sockets are ipc ones in a folder of the kernel's own (or loopback TCP for a kernel that knows no other), and
// every message is signed with a key of the kernel's own. Nothing blocks: receive() gives what is there.
#pragma once

#include <sys/types.h>
#include <zmq.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/text_feed.h"
#include "interpreter/agent/message.h"
#include "interpreter/agent/specs.h"

namespace isola::interpreter {

class Kernel {
 public:
  struct Options {
    std::string folder;  // for sockets; made, and removed with the kernel
    std::string cwd;
    std::map<std::string, std::string> env;  // beside ours and the spec's
  };
  static Result<std::unique_ptr<Kernel>> start(void* zmq, const KernelSpec& spec, Options options);
  ~Kernel();  // ends it and whatever it started
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  enum class Channel { shell, iopub, control, input };
  static constexpr Channel kChannels[] = {Channel::shell, Channel::iopub, Channel::control, Channel::input};
  void* socket(Channel channel) const { return sockets_[static_cast<int>(channel)]; }
  // Returns the request's id.
  std::string send(Channel channel, const std::string& type, const Json& content, const Json& metadata = {});
  std::optional<Message> receive(Channel channel);  // nothing: no more is there; what is malformed is left out

  void interrupt();
  // Whether it ended by itself, and how (as of waitpid). What it had started is ended, too.
  std::optional<int> reap();

  // What it writes on its own standard output and error, outside the protocol: only the end of it is kept. Returns what
  // is new, not more than a turn's worth.
  int words_fd() const { return words_.get(); }
  std::string read_words();
  const std::string& last_words() const { return last_words_; }

 private:
  Kernel() = default;
  Result<void> connect(void* zmq, const KernelSpec& spec);
  Result<void> spawn(const KernelSpec& spec);

  std::unique_ptr<Signer> signer_;
  Options options_;
  std::string connection_file_, session_;
  bool interrupt_by_message_ = false;
  void* sockets_[std::size(kChannels)] = {};
  pid_t pid_ = 0;
  Fd words_;
  std::string last_words_;
  TextFeed words_feed_;
  uint64_t sent_ = 0;
};

}  // namespace isola::interpreter
