// Checksums of files while they are being written, by a thread of its own: of what is appended to and never written
// over (the pages of a process's memory), most sums are there when the last byte is, and most bytes are on their way to
// the disk.
//
//   SumsAhead ahead(folder, "pages-");
//   ahead.start();
//   … somebody writes folder/pages-1.img …
//   ISOLA_TRY(auto files, store.sum_up(id, ahead.finish()));  // the rest
//
// For a process with nothing else to do: who starts threads cannot fork any more until finish().
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "base/fd.h"
#include "image/chunk_sums.h"

namespace isola::image {

class SumsAhead {
 public:
  // Of those files in `folder` (which is there) whose names begin so.
  SumsAhead(std::string folder, std::string prefix) : folder_(std::move(folder)), prefix_(std::move(prefix)) {}
  ~SumsAhead() { (void)finish(); }
  SumsAhead(const SumsAhead&) = delete;
  SumsAhead& operator=(const SumsAhead&) = delete;

  void start();  // where that is not possible, finish() knows nothing, and nobody is worse off
  KnownSums finish();
  size_t chunks() const { return chunks_; }  // that are known by now
  size_t lists() const { return lists_; }    // how often the folder was read

 private:
  struct Followed {
    Fd file;
    uint64_t sent = 0;  // bytes that are on their way to the disk
  };
  void follow();
  bool files_came();  // what was said until now; whether the folder has other files than before
  void list();
  bool look();  // false: there was nothing new

  std::string folder_, prefix_;
  Fd changes_, stop_;
  KnownSums known_;
  std::map<std::string, Followed> open_;
  std::atomic<size_t> chunks_ = 0, lists_ = 0;
  std::thread thread_;
};

}  // namespace isola::image
