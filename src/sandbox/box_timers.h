// The timers of a Box (apart from box.h, which half the server includes: Asio's timers are heavy).
#pragma once

#include <boost/asio/steady_timer.hpp>

#include "sandbox/box.h"

namespace isola::sandbox {

struct Box::Timers {
  explicit Timers(boost::asio::io_context& home) : deadline(home), idle(home), sample(home) {}
  boost::asio::steady_timer deadline, idle, sample;
};

}  // namespace isola::sandbox
