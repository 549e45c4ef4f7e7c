#include "http/access_log.h"

#include <utility>

namespace isola::http {

void AccessLog::add(AccessEntry entry) {
  waiting_.push_back(std::move(entry));
  if (!timer_ || waiting_.size() >= kMost) return flush();
  if (waiting_.size() > 1) return;
  timer_->expires_after(kLater);
  timer_->async_wait([this](boost::system::error_code ec) {
    if (!ec) flush();  // else it may be gone; each lane's listener keeps it until then
  });
}

void AccessLog::flush() {
  auto entries = std::exchange(waiting_, {});
  if (!entries.empty()) sink_(entries);
}

void AccessLog::stop() {
  timer_.reset();
  flush();
}

}  // namespace isola::http
