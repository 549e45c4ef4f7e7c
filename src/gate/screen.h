// What comes back from a server, searched for the values that a sandbox must not see, and blotted out where one is.
// Some are not to be blotted out: there everything ends.
//
//   Screen screen(source, [](const std::string& binding) { …; return ends; });   // without an automaton: all passes
//   screen.feed(piece, out);       // appended to `out`, in sum as many bytes as went in
//   if (screen.blocked()) …        // not one more byte: `out` has none of the piece that it was in
//   screen.idle(out);              // nothing more for the moment
//   screen.end(out);
//
// `source` is asked before each piece: a value that is bound while an answer comes is found in the rest of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scan/stream.h"

namespace isola::gate {

class Screen {
 public:
  using Found = std::function<bool(const std::string& binding)>;  // true: it ends here
  using Source = std::function<std::shared_ptr<const scan::Automaton>()>;
  Screen() = default;
  Screen(std::shared_ptr<const scan::Automaton> automaton, Found found)
      : automaton_(std::move(automaton)), found_(std::move(found)) {
    if (automaton_) stream_.emplace(automaton_);
  }
  Screen(Source source, Found found) : Screen(source(), std::move(found)) { source_ = std::move(source); }

  void feed(std::string_view piece, std::string& out) {
    if (blocked_) return;
    hits_.clear();
    const size_t before = out.size();
    renew(out);
    if (!stream_) return void(out.append(piece));
    stream_->feed(piece, out, hits_);
    // A value is found in several spellings at once: told once.
    const std::string* last = nullptr;
    for (const auto& hit : hits_) {
      const auto& id = automaton_->id_of(hit.value);
      if (!last || *last != id) blocked_ |= found_(id);
      last = &id;
    }
    if (blocked_) out.resize(before);
  }
  void idle(std::string& out) {
    if (stream_ && !blocked_) stream_->idle(out);
  }
  void end(std::string& out) {
    if (!stream_ || blocked_) return;
    stream_->end(out);
    stream_.emplace(automaton_);
  }
  // A short text by itself.
  void whole(std::string& text) {
    auto automaton = source_ ? source_() : automaton_;
    if (!automaton) return;
    Screen one(automaton, found_);
    std::string out;
    one.feed(text, out);
    one.end(out);
    blocked_ |= one.blocked_;
    text = std::move(out);
  }
  bool searches() const { return automaton_ != nullptr; }
  bool blocked() const { return blocked_; }
  bool holds() const { return stream_ && stream_->held() > 0; }

 private:
  // A value may have begun already, and a few bytes of it may be out: the new automaton looks at all of that.
  void renew(std::string& out) {
    if (!source_) return;
    auto now = source_();
    if (now == automaton_) return;
    automaton_ = std::move(now);
    if (stream_ && automaton_) return stream_->renew(automaton_, out, hits_);
    if (stream_) stream_->end(out);
    stream_.reset();
    if (automaton_) stream_.emplace(automaton_);
  }

  Source source_;
  std::shared_ptr<const scan::Automaton> automaton_;
  Found found_;
  std::optional<scan::Stream> stream_;
  std::vector<scan::Hit> hits_;
  bool blocked_ = false;
};

}  // namespace isola::gate
