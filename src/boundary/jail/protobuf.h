// As much of the protobuf wire form as criu's messages and image files need: numbers and length-prefixed fields.
//
//   ProtoWriter out;  out.number(1, 7);  out.text(2, "hi");
//   ProtoReader in(out.take());  while (in.next()) if (in.field() == 1) use(in.number());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace isola::criu {

class ProtoWriter {
 public:
  void number(uint32_t field, uint64_t value) { varint(field << 3), varint(value); }
  void text(uint32_t field, std::string_view value) {
    varint(field << 3 | 2), varint(value.size());
    bytes_ += value;
  }
  std::string take() { return std::move(bytes_); }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : rest_(bytes) {}
  // The next field; false at the end, and after something unreadable (then bad() is true).
  bool next() {
    if (rest_.empty() || bad_) return false;
    uint64_t key = varint();
    field_ = static_cast<uint32_t>(key >> 3);
    number_ = 0, text_ = {};
    switch (key & 7) {
      case 0: number_ = varint(); break;
      case 1: text_ = cut(8); break;
      case 2: text_ = cut(varint()); break;
      case 5: text_ = cut(4); break;
      default: bad_ = true;
    }
    return !bad_;
  }
  uint32_t field() const { return field_; }
  uint64_t number() const { return number_; }
  std::string_view text() const { return text_; }
  bool bad() const { return bad_; }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    bad_ = true;
    return 0;
  }
  std::string_view cut(uint64_t size) {
    if (size > rest_.size()) return bad_ = true, std::string_view();
    auto piece = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return piece;
  }

  std::string_view rest_, text_;
  uint32_t field_ = 0;
  uint64_t number_ = 0;
  bool bad_ = false;
};

}  // namespace isola::criu
