// The timers of a Box (apart from box.h, which half the server includes: Asio's timers are heavy).
#pragma once

#include <boost/asio/steady_timer.hpp>

#include "sandbox/box.h"

namespace isola::sandbox {

struct Box::Timers {
  explicit Timers(boost::asio::io_context& home) : deadline(home), idle(home), sample(home), ending(home) {}
  boost::asio::steady_timer deadline, idle, sample;
  boost::asio::steady_timer ending;  // to try again what could not be done
};

}  // namespace isola::sandbox
