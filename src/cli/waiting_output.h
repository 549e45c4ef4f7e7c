// What is still to be written for the caller, whose reader may take its time: nothing here waits for it.
//
//   WaitingOutput output;
//   output.add(STDOUT_FILENO, bytes);
//   auto taken = output.write_some();         // as much as goes without waiting
//   if (!output.empty()) …                    // poll(output.fd(), POLLOUT), then write_some() again
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/fd.h"

namespace isola::cli {

class WaitingOutput {
 public:
  // In one row over all descriptors: two that lead to the same place keep their order.
  void add(int fd, std::string_view bytes);
  bool empty() const { return row_.empty(); }
  int fd() const { return row_.front().fd; }  // that is waited for
  Result<bool> write_some();                  // true: some of it was taken

 private:
  struct Piece {
    int fd;
    std::string bytes;
    size_t at = 0;
  };
  int door(int fd);
  std::deque<Piece> row_;
  std::map<int, Fd> doors_;  // by descriptor; none where it is no terminal
};

}  // namespace isola::cli
