// The automaton against the slow search: the same hits and the same stream, whatever the values, the text and the
// borders of the pieces.
//
// Input: how many values, then for each its length and bytes, then lengths of pieces, then the text. In the text a byte
// 1 is followed by which value and which spelling to put there: a fuzzer would not find base64 by itself.
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 2000) return 0;
  Input in(data, size);
  std::vector<std::string> texts;
  for (size_t n = 1 + in.byte() % 4; texts.size() < n;) texts.push_back(in.text(in.byte() % 48));
  std::vector<Value> values;
  for (const auto& text : texts) values.push_back({"v", text});
  size_t pieces[4] = {in.byte(), in.byte(), in.byte(), in.byte()};
  std::string stream;
  while (!in.empty() && stream.size() < 4000) {
    size_t c = in.byte();
    if (c != 1) {
      stream.push_back(static_cast<char>(c));
      continue;
    }
    auto all = spellings(texts[in.byte() % texts.size()]);
    stream += all[in.byte() % all.size()].bytes;
  }
  auto automaton = Automaton::make(values);
  if (!automaton) std::abort();
  auto wanted = find_slowly(values, stream);
  Stream pass(*automaton), keeps(*automaton);  // one hands on, the other only says how much may go on
  std::string out;
  std::vector<Hit> hits, same;
  size_t turn = 0;
  for (size_t at = 0; at < stream.size();) {
    size_t n = std::min(stream.size() - at, 1 + pieces[turn++ % 4]);
    pass.feed(std::string_view(stream).substr(at, n), out, hits);
    at += n;
    if (out.size() + pass.held() != at) std::abort();
    keeps.feed(std::string_view(stream).substr(at - n, n), same);
    if (keeps.decided() != out.size()) std::abort();
  }
  pass.end(out);
  keeps.end();
  if (same != hits || keeps.decided() != stream.size()) std::abort();
  std::sort(hits.begin(), hits.end(), order_of_hits);
  if (hits != wanted || out != blotted(stream, wanted)) std::abort();
  return 0;
}
