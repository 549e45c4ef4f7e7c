// The gate's end of a channel of streams (scan_frames.h): looks through what the server passes, with the values that
// are bound to the sandboxes that each stream belongs to, and answers how much of it may go on.
//
// It keeps no bytes but those that may be the beginning of a value, and never waits for one stream: what the server has
// under way is bounded by the server, and nothing is read while the answers are not taken. What changes in the bindings
// of a sandbox counts for the next bytes of its open streams; what an earlier search holds back is not forgotten over
// it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "gate/loop.h"
#include "gate/scan_frames.h"
#include "gate/scan_ring.h"
#include "gate/searches.h"
#include "scan/stream.h"

namespace isola::gate {

// One stream: all searches that it has to pass.
class ScanJob {
 public:
  ScanJob(std::vector<std::shared_ptr<const Searches>> owners, uint64_t offset, std::string_view context);
  // False: it is not the continuation of what was before.
  bool feed(const ScanData& data, ScanReply& reply);
  // What stops it; empty: nothing.
  const ScanFound* blocked() const { return blocked_ ? &*blocked_ : nullptr; }

 private:
  struct Pass {
    size_t owner = 0;
    std::shared_ptr<const scan::Automaton> automaton;
    scan::Stream stream;
    uint64_t base = 0;  // the offset of its first byte
    uint64_t decided() const { return base + stream.decided(); }
  };
  void renew();
  void look(Pass& pass, std::string_view bytes, ScanReply& reply);
  uint64_t decided() const;

  std::vector<std::shared_ptr<const Searches>> owners_;
  std::vector<std::shared_ptr<const scan::Automaton>> current_;  // of each owner
  std::vector<Pass> passes_;
  uint64_t seen_;
  std::optional<ScanFound> blocked_;
  std::vector<scan::Hit> hits_;
};

class ScanChannel : public Handler {
 public:
  static constexpr size_t kMostStreams = 1 << 17;

  using Find = std::function<std::shared_ptr<const Searches>(const std::string& sandbox)>;  // null: there is none
  using Closed = std::function<void(ScanChannel&)>;
  // `closed` is called once, and may destroy it after this turn of the loop.
  static Result<std::unique_ptr<ScanChannel>> make(Loop& loop, Fd socket, Find find, Closed closed);
  ~ScanChannel() override;
  void on_ready(uint32_t events) override;
  size_t streams() const { return jobs_.size(); }

 private:
  ScanChannel(Loop& loop, Fd socket, Find find, Closed closed);
  bool read_some();
  ssize_t receive();
  bool handle(std::string_view message);
  bool open(Reader& in);
  bool data(Reader& in, bool laid);
  void answer(const ScanReply& reply);
  void refuse(uint64_t stream, std::string why);
  void flush();
  void close();

  Loop& loop_;
  Fd socket_;
  Find find_;
  Closed closed_;
  std::unordered_map<uint64_t, ScanJob> jobs_;
  std::unique_ptr<char[]> buffer_;
  std::optional<ScanRingView> ring_;
  uint64_t told_ = 0;                 // of what was taken from it
  bool first_ = true;                 // nothing was received yet; only then a descriptor may come
  Fd brought_;                        // by the first message
  std::vector<std::string> answers_;  // not sent yet, the last of them still being filled
  bool waits_for_room_ = false;
};

}  // namespace isola::gate
