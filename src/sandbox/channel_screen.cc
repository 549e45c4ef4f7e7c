#include "sandbox/channel_screen.h"

#include <algorithm>
#include <cstring>

namespace isola::sandbox {

namespace net = boost::asio;

namespace {

// Nothing came for so long: somebody at a terminal may be waiting.
constexpr auto kIdle = std::chrono::milliseconds(20);
constexpr uint8_t kOnly = 0;  // the lane of what has no streams

std::string lane_name(guest::Op op, uint8_t number) {
  if (guest::gives_output(op)) {
    switch (static_cast<guest::Stream>(number)) {
      case guest::Stream::out: return "stdout";
      case guest::Stream::err: return "stderr";
      default: return "terminal";
    }
  }
  switch (op) {
    case guest::Op::read: return "file";
    case guest::Op::dial: return "port";
    case guest::Op::list:
    case guest::Op::watch:
    case guest::Op::watch_local: return "list";
    default: return "answer";
  }
}

}  // namespace

std::shared_ptr<ChannelScreen> ChannelScreen::make(guest::Op op, std::shared_ptr<const Screening> screening,
                                                   net::io_context& home, Out out) {
  std::shared_ptr<ChannelScreen> screen(new ChannelScreen(op, std::move(screening), home, std::move(out)));
  const auto first = screen->shape_ == Shape::pieces ? static_cast<uint8_t>(guest::Stream::out) : kOnly;
  return screen->lane(first) || screen->refused_ ? screen : nullptr;
}

ChannelScreen::ChannelScreen(guest::Op op, std::shared_ptr<const Screening> screening, net::io_context& home, Out out)
    : op_(op),
      shape_(guest::gives_output(op)                                                           ? Shape::pieces
             : op == guest::Op::list || op == guest::Op::watch || op == guest::Op::watch_local ? Shape::records
                                                                                               : Shape::bytes),
      screening_(std::move(screening)),
      home_(home),
      out_(std::move(out)),
      timer_(home) {}

ChannelScreen::~ChannelScreen() {
  for (auto& [number, lane] : lanes_)
    for (auto& [binding, count] : lane.found) {
      if (count.untold == 0) continue;
      auto place = out_.place();
      place.stream = lane.name;
      count.first.count = count.untold;
      screening_->report(count.first, place);
    }
}

ChannelScreen::Lane* ChannelScreen::lane(uint8_t number) {
  auto [it, fresh] = lanes_.try_emplace(number);
  if (!fresh) return &it->second;
  auto& lane = it->second;
  lane.name = lane_name(op_, number);
  auto opened = screening_->open(home_, [weak = weak_from_this(), number](ScanStream::Progress& progress) {
    if (auto self = weak.lock()) self->progress(number, progress);
  });
  if (!opened) refused_ = opened.error();
  if (!opened || !*opened) {
    lanes_.erase(it);
    return nullptr;
  }
  lane.stream = std::move(*opened);
  return &lane;
}

void ChannelScreen::take(std::string_view frame) {
  if (failed_ || frame.empty()) return;
  if (refused_) return fail(*refused_);
  if (shape_ == Shape::pieces) return take_piece(frame);
  auto& only = *lane(kOnly);
  only.fed += frame.size();
  only.stream->feed(std::string(frame), 0, shape_ == Shape::records ? ScanStream::kEnd : 0);
}

void ChannelScreen::take_piece(std::string_view frame) {
  if (frame.size() < guest::kPieceHeader) return fail({Code::corrupt, "the sandbox sent half a piece of output"});
  Piece piece{.stream = static_cast<uint8_t>(frame[0]),
              .left = static_cast<uint32_t>(frame.size() - guest::kPieceHeader),
              .cost = static_cast<uint32_t>(frame.size())};
  std::memcpy(&piece.seq, frame.data() + 1, sizeof piece.seq);
  const auto stream = static_cast<guest::Stream>(piece.stream);
  const bool gap = stream == guest::Stream::gap && piece.left == sizeof(uint64_t);
  const bool output = stream == guest::Stream::out || stream == guest::Stream::err || stream == guest::Stream::pty;
  if (!gap && !output) return fail({Code::corrupt, "the sandbox sent output of no stream"});
  if (gap || piece.left == 0) {
    piece.whole = frame;
    pieces_.push_back(std::move(piece));
    return deliver();
  }
  Lane* lane = this->lane(piece.stream);
  // Whoever it belonged to is gone from the list of those that are searched for: then nothing can be said of it.
  if (!lane) return fail({Code::unavailable, "this output cannot be searched for secrets, and is withheld"});
  lane->fed += piece.left;
  pieces_.push_back(std::move(piece));
  lane->stream->feed(std::string(frame), guest::kPieceHeader);
}

void ChannelScreen::progress(uint8_t number, ScanStream::Progress& progress) {
  if (failed_) return;
  auto keep = shared_from_this();  // whoever is told may let go of us
  auto& lane = lanes_.at(number);
  for (const auto& found : progress.found) tell(lane, found);
  if (progress.failed) return fail(*progress.failed);
  lane.seen = progress.seen;
  lane.decided = progress.decided;
  for (auto& passed : progress.passed) lane.passed.push_back(std::move(passed));
  deliver();
  if (!failed_) nudge_soon();
}

// What comes in crowds is counted, and told when the stream is over.
void ChannelScreen::tell(Lane& lane, const gate::ScanFound& found) {
  auto [it, first] = lane.found.try_emplace(found.binding);
  if (!first) {
    it->second.untold += found.count;
    return;
  }
  it->second.first = found;
  auto place = out_.place();
  place.stream = lane.name;
  screening_->report(found, place);
}

void ChannelScreen::deliver() {
  if (shape_ != Shape::pieces) {
    auto& passed = lane(kOnly)->passed;
    for (; !passed.empty(); passed.pop_front()) {
      const auto cost = static_cast<uint32_t>(passed.front().bytes.size());
      out_.deliver(std::move(passed.front().bytes), cost);
    }
  }
  while (!pieces_.empty()) {
    auto& piece = pieces_.front();
    if (!piece.whole.empty()) {
      out_.deliver(std::move(piece.whole), piece.cost);
      pieces_.pop_front();
      continue;
    }
    auto& passed = lanes_.at(piece.stream).passed;
    if (passed.empty()) break;
    // What passes is whole pieces and parts of them, never of two.
    auto [bytes, head] = std::move(passed.front());
    passed.pop_front();
    const auto n = static_cast<uint32_t>(bytes.size() - head);
    if (head == 0) {
      std::string start(guest::kPieceHeader, '\0');
      start[0] = static_cast<char>(piece.stream);
      std::memcpy(start.data() + 1, &piece.seq, sizeof piece.seq);
      bytes.insert(0, start);
    }
    piece.seq += n;
    piece.left -= n;
    const uint32_t cost = piece.left == 0 ? piece.cost : n;
    piece.cost -= cost;
    if (piece.left == 0) pieces_.pop_front();
    out_.deliver(std::move(bytes), cost);
  }
  if (ending_ && all_delivered())
    for (auto& then : std::exchange(then_, {})) then();
}

bool ChannelScreen::all_delivered() const {
  return pieces_.empty() &&
         std::ranges::all_of(lanes_, [](const auto& one) { return one.second.decided == one.second.fed; });
}

void ChannelScreen::finish(std::function<void()> then) {
  if (failed_) return;
  if (all_delivered()) return then();
  then_.push_back(std::move(then));
  if (std::exchange(ending_, true)) return;
  for (auto& [number, lane] : lanes_)
    if (lane.decided < lane.fed) lane.stream->nudge(ScanStream::kEnd);
}

void ChannelScreen::drop() {
  if (std::exchange(failed_, true)) return;
  auto keep = shared_from_this();
  pieces_.clear();
  for (auto& [number, lane] : lanes_) lane.stream.reset(), lane.passed.clear();
  for (auto& then : std::exchange(then_, {})) then();
}

// A file is read to its end, and nobody sits before it: what may be the beginning of a value waits for what follows,
// however long the gate or the machine takes.
void ChannelScreen::nudge_soon() {
  if (timing_ || ending_ || op_ == guest::Op::read) return;
  const bool held = std::ranges::any_of(
      lanes_, [](const auto& one) { return one.second.holds() && one.second.nudged < one.second.fed; });
  const bool stuck = !pieces_.empty() && lanes_.at(pieces_.front().stream).holds() &&
                     std::ranges::any_of(lanes_, [](const auto& one) { return !one.second.passed.empty(); });
  if (!held && !stuck) return;
  timing_ = true;
  timer_.expires_after(kIdle);
  timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    if (auto self = weak.lock(); self && !error) self->nudge();
  });
}

void ChannelScreen::nudge() {
  timing_ = false;
  if (failed_ || ending_) return;
  bool moved = false;  // more came meanwhile
  for (auto& [number, lane] : lanes_) {
    if (!lane.holds()) {
      moved = moved || lane.seen < lane.fed;
      continue;
    }
    const bool first = !pieces_.empty() && pieces_.front().stream == number;
    const bool others = std::ranges::any_of(lanes_, [](const auto& one) { return !one.second.passed.empty(); });
    if (first && others) {
      lane.nudged = lane.fed;
      lane.stream->nudge(ScanStream::kPress);
    } else if (lane.nudged < lane.fed) {
      lane.nudged = lane.fed;
      lane.stream->nudge(ScanStream::kIdle);
    }
  }
  if (moved) nudge_soon();
}

void ChannelScreen::fail(const Error& why) {
  if (std::exchange(failed_, true)) return;
  auto keep = shared_from_this();
  pieces_.clear();
  then_.clear();
  for (auto& [number, lane] : lanes_) lane.stream.reset(), lane.passed.clear();
  out_.failed(why);
}

}  // namespace isola::sandbox
