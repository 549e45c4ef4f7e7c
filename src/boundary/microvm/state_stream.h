// What QEMU writes when it saves a machine: a stream of sections, the guest's memory first, page by page, then the
// devices. The memory goes into a file of its own, where what was empty stays a hole and where others can map it; the
// rest is kept as it is.
//
//   StateStream stream(memory_bytes, [&](uint64_t at, std::string_view page) { … }, [&](std::string_view rest) { … });
//   while (more) ISOLA_CHECK(stream.feed(bytes));
//   ISOLA_CHECK(stream.finish());
//
// A machine that was never restored maps its memory shared, and QEMU leaves it out of the stream; of one that was
// restored, and maps an image's memory privately, it is all in there. Either way what is left over is the same.
//
// The stream comes from a program that its guest may have taken over: every length in it is bounded, every place is
// checked against the size of the memory, and what does not read as expected is an error.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::boundary::microvm {

class StateStream {
 public:
  static constexpr size_t kPage = 4096;
  using Page = std::function<Result<void>(uint64_t at, std::string_view page)>;
  using Rest = std::function<Result<void>(std::string_view bytes)>;

  StateStream(uint64_t memory, Page page, Rest rest)
      : memory_(memory), page_(std::move(page)), rest_(std::move(rest)) {}

  Result<void> feed(std::string_view bytes);
  // The stream has ended: was it whole?
  Result<void> finish();

 private:
  enum class Where { header, section, memory, devices };
  Result<bool> step();  // false: more bytes are needed
  Result<bool> header();
  Result<bool> section();
  Result<bool> memory_word();
  Result<bool> blocks(uint64_t total, size_t at);
  std::string_view pending() const { return std::string_view(fed_).substr(taken_); }
  Result<void> keep(size_t bytes);  // hands on what is next, as it is
  Result<bool> name_at(size_t& at, bool same);

  uint64_t memory_;
  Page page_;
  Rest rest_;
  std::string fed_;   // not yet handed on,
  size_t taken_ = 0;  // but for so much
  Where where_ = Where::header;
  uint32_t memory_section_ = 0;
  bool seen_memory_ = false, last_ = false;
  std::string block_;      // that pages are of just now
  std::string ram_block_;  // the guest's memory
};

}  // namespace isola::boundary::microvm
