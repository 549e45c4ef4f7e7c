// The one binary form of messages between our own processes (launcher requests, link frames): little-endian integers
// of fixed width, and byte strings with a u32 length in front. No field names, no optional parts: both ends are built
// from the same tree and the hello carries a version.
//
// Writer appends; Reader never reads past its input and turns *sticky* bad on the first short or over-long field, so a
// parser reads all its fields and checks `ok()` once:
//
//   Reader in(bytes);
//   Start s{.cwd = in.str(), .pty = in.u8() != 0};
//   if (!in.done()) return fail(Code::corrupt, "bad start request");
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isola {

class Writer {
 public:
  void u8(uint8_t v) { out_.push_back(static_cast<char>(v)); }
  void u16(uint16_t v) { raw(&v, sizeof v); }
  void u32(uint32_t v) { raw(&v, sizeof v); }
  void u64(uint64_t v) { raw(&v, sizeof v); }
  void i32(int32_t v) { raw(&v, sizeof v); }
  void i64(int64_t v) { raw(&v, sizeof v); }
  void str(std::string_view s) {
    u32(static_cast<uint32_t>(s.size()));
    out_.append(s);
  }
  void strs(const std::vector<std::string>& list) {
    u32(static_cast<uint32_t>(list.size()));
    for (const auto& s : list) str(s);
  }
  void bytes(std::string_view s) { out_.append(s); }

  const std::string& data() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  void raw(const void* p, size_t n) { out_.append(static_cast<const char*>(p), n); }
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}

  uint8_t u8() { return num<uint8_t>(); }
  uint16_t u16() { return num<uint16_t>(); }
  uint32_t u32() { return num<uint32_t>(); }
  uint64_t u64() { return num<uint64_t>(); }
  int32_t i32() { return num<int32_t>(); }
  int64_t i64() { return num<int64_t>(); }
  std::string_view view() {
    uint32_t n = u32();
    if (!ok_ || n > in_.size()) return ok_ = false, std::string_view();
    auto s = in_.substr(0, n);
    in_.remove_prefix(n);
    return s;
  }
  std::string str() { return std::string(view()); }
  std::vector<std::string> strs() {
    std::vector<std::string> list;
    uint32_t n = u32();
    // Each element costs at least its length field: a count that cannot fit is refused before anything is allocated.
    if (!ok_ || n > in_.size() / sizeof(uint32_t)) return ok_ = false, list;
    list.reserve(n);
    for (uint32_t i = 0; i < n && ok_; ++i) list.push_back(str());
    return list;
  }
  std::string_view rest() { return std::exchange(in_, std::string_view()); }

  bool ok() const { return ok_; }
  bool done() const { return ok_ && in_.empty(); }  // everything was there, and nothing more

 private:
  template <typename T>
  T num() {
    T v{};
    if (!ok_ || in_.size() < sizeof v) return ok_ = false, T{};
    std::memcpy(&v, in_.data(), sizeof v);
    in_.remove_prefix(sizeof v);
    return v;
  }
  std::string_view in_;
  bool ok_ = true;
};

}  // namespace isola
