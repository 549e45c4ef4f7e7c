// The server's end of the channel over which streams of sandboxes with bindings are searched by the gate
// (gate/scan_frames.h, docs/design-notes/scanner.md): one for each worker, made anew when the gate was.
//
//   auto stream = scanner->open({box->id()}, home, [](ScanStream::Progress& progress) { … });   // on `home`
//   stream->feed(std::move(bytes));                  // later: progress.passed, with what was found blotted out
//   stream->nudge(ScanStream::kEnd);                 // nothing more comes: everything is decided
//
// Nothing passes that the gate has not looked at. The bytes stay here until it has said so; a gate that dies is given
// them again when it is back, so nobody notices but by a pause. After `patience` without an answer the stream fails.
// What is under way is bounded by whoever feeds; streams take turns on the channel, 64 KiB each. Every method may be
// called on any worker.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/task.h"
#include "gate/scan_frames.h"

namespace isola::sandbox {

class ScanStream {
 public:
  static constexpr uint8_t kIdle = gate::ScanData::kIdle;    // a few bytes that wait may go
  static constexpr uint8_t kPress = gate::ScanData::kPress;  // all that waits goes, blotted out
  static constexpr uint8_t kEnd = gate::ScanData::kEnd;      // what follows is something else

  struct Passed {
    std::string bytes;
    size_t head = 0;  // bytes in front that are not of the stream, as they were fed; 0 also where a piece was cut
  };
  struct Progress {
    std::vector<Passed> passed;
    std::vector<gate::ScanFound> found;
    uint64_t fed = 0, seen = 0, decided = 0;
    std::optional<Error> failed;  // the last thing that is told
  };
  using Handler = std::function<void(Progress&)>;

  ~ScanStream();  // nothing is told any more
  ScanStream(const ScanStream&) = delete;
  ScanStream& operator=(const ScanStream&) = delete;

  // At most 64 KiB, behind `head` bytes that are handed back as they are. `flags`: after it.
  void feed(std::string bytes, size_t head = 0, uint8_t flags = 0);
  void nudge(uint8_t flags) { feed({}, 0, flags); }

 private:
  friend class ScanLink;
  ScanStream() = default;
  struct State;
  std::shared_ptr<State> state_;
};

class ScanLink : public std::enable_shared_from_this<ScanLink> {
 public:
  // A socket whose other end the gate has; fails while there is none.
  using Connect = std::function<Task<Result<Fd>>()>;
  static std::shared_ptr<ScanLink> make(boost::asio::io_context& home, Connect connect,
                                        std::chrono::milliseconds patience);
  ~ScanLink();
  void stop();

  // `handler` is called on `home`, one call after the other.
  std::unique_ptr<ScanStream> open(std::vector<std::string> sandboxes, boost::asio::io_context& home,
                                   ScanStream::Handler handler);
  void set_patience(std::chrono::milliseconds patience);

 private:
  friend class ScanStream;
  struct Inner;
  ScanLink() = default;
  std::shared_ptr<Inner> inner_;
};

}  // namespace isola::sandbox
