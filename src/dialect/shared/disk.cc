#include "dialect/shared/disk.h"

namespace isola::dialect {

boost::asio::thread_pool& disk_threads() {
  static boost::asio::thread_pool threads(4);
  return threads;
}

}  // namespace isola::dialect
