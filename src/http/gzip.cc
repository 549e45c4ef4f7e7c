#include "http/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>

namespace isola::http {

namespace {
constexpr uint64_t kFree = 1 << 20;  // a small body may swell as it likes
constexpr uint64_t kSwell = 400;
}  // namespace

struct Inflater::Impl {
  z_stream z{};
  bool ready = false, ended = false;
  int bits = 0;
  uint64_t in = 0, out = 0;
  std::array<char, 64 << 10> buffer;
  ~Impl() {
    if (ready) ::inflateEnd(&z);
  }
};

Inflater::Inflater() : impl_(std::make_unique<Impl>()) {}
Inflater::~Inflater() = default;

Result<Inflater::Piece> Inflater::feed(std::string_view input) {
  Impl& s = *impl_;
  if (!s.ready) {
    if (input.empty()) return Piece{};
    unsigned char first = static_cast<unsigned char>(input[0]);
    // 0x1f opens gzip; a zlib header has method 8 in its low bits and a window of at most 7; the rest is bare.
    s.bits = first == 0x1f ? 31 : (first & 15) == 8 && (first >> 4) <= 7 ? 15 : -15;
    if (::inflateInit2(&s.z, s.bits) != Z_OK) return fail(Code::internal, "zlib has no memory for a stream");
    s.ready = true;
  }
  size_t taken = std::min<size_t>(input.size(), 1 << 20);
  s.z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
  s.z.avail_in = static_cast<uInt>(taken);
  s.z.next_out = reinterpret_cast<Bytef*>(s.buffer.data());
  s.z.avail_out = static_cast<uInt>(s.buffer.size());
  // Also without input: zlib may hold what did not fit into the buffer the last time.
  while (s.z.avail_out > 0) {
    if (s.ended) {
      if (s.z.avail_in == 0) break;
      if (s.bits != 31) return fail(Code::invalid, "bytes follow the end of the compressed body");
      if (::inflateReset(&s.z) != Z_OK) return fail(Code::internal, "zlib cannot start over");
      s.ended = false;
    }
    int r = ::inflate(&s.z, Z_NO_FLUSH);
    if (r == Z_STREAM_END) {
      s.ended = true;
    } else if (r == Z_BUF_ERROR) {
      break;
    } else if (r != Z_OK) {
      return fail(Code::invalid, "the body is not what its Content-Encoding says");
    }
  }
  Piece piece{.used = taken - s.z.avail_in, .data = {s.buffer.data(), s.buffer.size() - s.z.avail_out}};
  s.in += piece.used;
  s.out += piece.data.size();
  if (s.out > kFree && s.out / kSwell > s.in)
    return fail(Code::invalid, "the compressed body swells beyond all bounds");
  return piece;
}

Result<void> Inflater::end() const {
  if (impl_->ready && !impl_->ended) return fail(Code::invalid, "the compressed body stops in its middle");
  return {};
}

struct Deflater::Impl {
  z_stream z{};
  bool ready = false;
  ~Impl() {
    if (ready) ::deflateEnd(&z);
  }
};

Deflater::Deflater(int level, Window window) : impl_(std::make_unique<Impl>()) {
  constexpr int kGzip = 16;  // added to the window's bits: with the head and tail of gzip
  int bits = window == Window::large ? 15 : 12, memory = window == Window::large ? 8 : 5;
  impl_->ready = ::deflateInit2(&impl_->z, level, Z_DEFLATED, kGzip + bits, memory, Z_DEFAULT_STRATEGY) == Z_OK;
}
Deflater::~Deflater() = default;

Result<std::string> Deflater::feed(std::string_view input) { return run(input, Z_NO_FLUSH); }
Result<std::string> Deflater::feed_all(std::string_view input) { return run(input, Z_SYNC_FLUSH); }
Result<std::string> Deflater::finish() { return run({}, Z_FINISH); }

Result<std::string> Deflater::run(std::string_view input, int flush) {
  Impl& s = *impl_;
  if (!s.ready) return fail(Code::exhausted, "zlib has no memory for a stream");
  std::string out;
  size_t size = 0;
  s.z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
  s.z.avail_in = static_cast<uInt>(input.size());
  do {
    out.resize(size + std::max<size_t>(16 << 10, input.size() / 2));
    s.z.next_out = reinterpret_cast<Bytef*>(out.data() + size);
    s.z.avail_out = static_cast<uInt>(out.size() - size);
    int r = ::deflate(&s.z, flush);
    if (r == Z_STREAM_ERROR) return fail(Code::internal, "zlib lost its stream");
    size = out.size() - s.z.avail_out;
  } while (s.z.avail_out == 0);
  out.resize(size);
  return out;
}

Result<std::string> gzip(std::string_view text, int level) {
  z_stream z{};
  if (::deflateInit2(&z, level, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    return fail(Code::exhausted, "zlib has no memory for a stream");
  }
  std::string out;
  out.resize(::deflateBound(&z, text.size()));
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  int r = ::deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  ::deflateEnd(&z);
  if (r != Z_STREAM_END) return fail(Code::internal, "zlib did not finish");
  return out;
}

}  // namespace isola::http
