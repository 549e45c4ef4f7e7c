// The automaton against the slow search: the same hits and the same stream, whatever the values, the text and the
// borders of the pieces.
//
// Input: how many values, then for each its length and bytes, then how the text is cut (lengths of four pieces, which
// of them are 64 times as long, what happens behind each), then the text. In the text a byte 1 is followed by which
// value and which spelling to put there: a fuzzer would not find base64 by itself. A byte 2 is followed by how long the
// same byte comes again and again, and which: 4 to 16 KiB that the filter goes through in strides.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "scan/naive.h"

using namespace isola::scan;

namespace {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  size_t byte() { return size_ ? (--size_, *data_++) : 0; }
  std::string text(size_t n) {
    n = std::min(n, size_);
    std::string out(reinterpret_cast<const char*>(data_), n);
    data_ += n, size_ -= n;
    return out;
  }
  bool empty() const { return size_ == 0; }

 private:
  const uint8_t* data_;
  size_t size_;
};

constexpr size_t kMostCalm = 2;  // stretches of it: the slow search is slow

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 2000) return 0;
  Input in(data, size);
  std::vector<std::string> texts;
  for (size_t n = 1 + in.byte() % 4; texts.size() < n;) texts.push_back(in.text(in.byte() % 48));
  std::vector<Value> values;
  for (const auto& text : texts) values.push_back({"v", text});
  size_t pieces[4] = {in.byte(), in.byte(), in.byte(), in.byte()};
  for (size_t i = 0, longer = in.byte(); i < 4; ++i)
    if (longer >> i & 1) pieces[i] *= 64;
  const size_t between = in.byte();
  std::string stream;
  for (size_t calm = 0, told = 0; !in.empty() && told < 4000;) {
    const size_t c = in.byte(), before = stream.size();
    if (c == 2 && calm++ < kMostCalm) {
      const size_t length = 4000 + in.byte() * 48;
      stream.append(length, static_cast<char>(in.byte()));
      continue;
    }
    if (c == 1) {
      auto all = spellings(texts[in.byte() % texts.size()]);
      stream += all[in.byte() % all.size()].bytes;
    } else {
      stream.push_back(static_cast<char>(c));
    }
    told += stream.size() - before;
  }
  auto automaton = Automaton::make(values);
  if (!automaton) std::abort();
  const auto wanted = find_slowly(values, stream);
  Stream pass(*automaton), keeps(*automaton);  // one hands on, the other only says how much may go on
  std::string out, also;
  std::vector<Hit> hits, same;
  std::vector<bool> given(stream.size());  // by idle(), before anybody knew whether a value begins there
  for (size_t at = 0, turn = 0; at < stream.size(); ++turn) {
    size_t n = std::min(stream.size() - at, 1 + pieces[turn % 4]);
    pass.feed(std::string_view(stream).substr(at, n), out, hits);
    at += n;
    if (out.size() + pass.held() - pass.beginnings() != at) std::abort();
    keeps.feed(std::string_view(stream).substr(at - n, n), same);
    const size_t then = between >> 2 * (turn % 4) & 3;
    if (then & 1) {
      const size_t from = out.size();
      pass.idle(out);
      keeps.idle();
      if (out.size() - from > kIdleMost || pass.beginnings() > kIdleMost) std::abort();
      for (size_t i = from; i < out.size(); ++i) given[i] = true;
    }
    if (then & 2) {
      pass.renew(*automaton, out, hits);
      keeps.renew(*automaton, also, same);
    }
    if (keeps.decided() != out.size()) std::abort();
  }
  pass.end(out);
  keeps.end();
  if (same != hits || keeps.decided() != stream.size()) std::abort();
  std::sort(hits.begin(), hits.end(), order_of_hits);
  hits.erase(std::unique(hits.begin(), hits.end()), hits.end());  // renew() may tell of one again
  const std::string clean = blotted(stream, wanted);
  if (hits != wanted || out.size() != clean.size()) std::abort();
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i] != clean[i] && !(given[i] && out[i] == stream[i])) std::abort();
  for (const Hit& hit : hits) {
    size_t shown = 0;
    for (size_t i = hit.offset; i < hit.offset + hit.length; ++i) shown += out[i] != clean[i];
    if (shown > kIdleMost) std::abort();
  }
  return 0;
}
