// One description of a message serves both directions: a struct lists its members once in `fields`, and encode and
// decode walk that list.
//
//   struct Rename { std::string from, to; template <typename A> void fields(A& a) { a(from, to); } };
//   std::string bytes = encode(Rename{"a", "b"});
//   Result<Rename> back = decode<Rename>(bytes);      // corrupt unless every byte is used
//
// A vector of messages costs at least one byte per element on the wire, so a count that cannot fit is refused before
// anything is allocated.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/codec.h"
#include "base/error.h"

namespace isola::guest {

class Encoder {
 public:
  template <typename... T>
  void operator()(T&... v) {
    (one(v), ...);
  }
  std::string take() { return out_.take(); }

 private:
  template <typename T>
  void one(T& v) {
    if constexpr (std::is_enum_v<T>)
      out_.u8(static_cast<uint8_t>(v));
    else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, uint8_t>)
      out_.u8(v);
    else if constexpr (std::is_same_v<T, uint16_t>)
      out_.u16(v);
    else if constexpr (std::is_same_v<T, uint32_t>)
      out_.u32(v);
    else if constexpr (std::is_same_v<T, uint64_t>)
      out_.u64(v);
    else if constexpr (std::is_same_v<T, int32_t>)
      out_.i32(v);
    else if constexpr (std::is_same_v<T, int64_t>)
      out_.i64(v);
    else if constexpr (std::is_same_v<T, std::string>)
      out_.str(v);
    else if constexpr (std::is_same_v<T, std::vector<std::string>>)
      out_.strs(v);
    else
      v.fields(*this);
  }
  template <typename T>
    requires(!std::is_same_v<T, std::string>)
  void one(std::vector<T>& list) {
    out_.u32(static_cast<uint32_t>(list.size()));
    for (auto& v : list) one(v);
  }
  Writer out_;
};

class Decoder {
 public:
  explicit Decoder(std::string_view in) : in_(in), size_(in.size()) {}
  template <typename... T>
  void operator()(T&... v) {
    (one(v), ...);
  }
  bool ok() const { return in_.ok() && !bad_; }
  bool done() const { return in_.done() && !bad_; }

 private:
  template <typename T>
  void one(T& v) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t b = in_.u8();
      if (b > 1) bad_ = true;
      v = b == 1;
    } else if constexpr (std::is_enum_v<T>) {
      uint8_t b = in_.u8();
      if (b >= static_cast<uint8_t>(T::count_)) bad_ = true, b = 0;
      v = static_cast<T>(b);
    } else if constexpr (std::is_same_v<T, uint8_t>)
      v = in_.u8();
    else if constexpr (std::is_same_v<T, uint16_t>)
      v = in_.u16();
    else if constexpr (std::is_same_v<T, uint32_t>)
      v = in_.u32();
    else if constexpr (std::is_same_v<T, uint64_t>)
      v = in_.u64();
    else if constexpr (std::is_same_v<T, int32_t>)
      v = in_.i32();
    else if constexpr (std::is_same_v<T, int64_t>)
      v = in_.i64();
    else if constexpr (std::is_same_v<T, std::string>)
      v = in_.str();
    else if constexpr (std::is_same_v<T, std::vector<std::string>>)
      v = in_.strs();
    else
      v.fields(*this);
  }
  template <typename T>
    requires(!std::is_same_v<T, std::string>)
  void one(std::vector<T>& list) {
    uint32_t n = in_.u32();
    if (n > size_) bad_ = true;
    for (uint32_t i = 0; i < n && ok(); ++i) one(list.emplace_back());
  }
  Reader in_;
  size_t size_;
  bool bad_ = false;
};

template <typename T>
std::string encode(T message) {
  Encoder out;
  message.fields(out);
  return out.take();
}

template <typename T>
Result<T> decode(std::string_view bytes) {
  Decoder in(bytes);
  T message;
  message.fields(in);
  if (!in.done()) return fail(Code::corrupt, "malformed message on the link");
  return message;
}

// Walks the records of one data frame; the guest never splits one over two frames. false: malformed.
template <typename T, typename F>
bool each_record(std::string_view bytes, F use) {
  Reader in(bytes);
  while (in.ok() && !in.done()) {
    auto record = decode<T>(in.view());
    if (!in.ok() || !record) return false;
    use(*record);
  }
  return in.ok();
}

}  // namespace isola::guest
