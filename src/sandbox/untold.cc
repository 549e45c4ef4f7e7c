#include "sandbox/untold.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/log.h"

namespace isola::sandbox {

namespace net = boost::asio;

namespace {
constexpr auto kLater = std::chrono::milliseconds(10);
}  // namespace

void Untold::add(One one) {
  std::lock_guard lock(mutex_);
  std::string id = one.request.id;
  waiting_.insert_or_assign(std::move(id), std::move(one));
}

bool Untold::has(const std::string& sandbox) {
  std::lock_guard lock(mutex_);
  return waiting_.contains(sandbox);
}

std::optional<Untold::One> Untold::take(const std::string& sandbox) {
  std::lock_guard lock(mutex_);
  auto found = waiting_.extract(sandbox);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

Untold& untold() {
  static Untold all;
  return all;
}

Task<void> tell_gate(std::shared_ptr<LauncherLink> launcher, std::string sandbox) {
  auto one = untold().take(sandbox);
  if (!one) co_return;
  auto told = co_await launcher->set_policy(std::move(one->request));
  if (told || told.error().code == Code::not_found) co_return;
  log::warn("sandbox", "the gate does not know {}, which reaches nothing until it does: {}", sandbox,
            told.error().message);
  if (one->failed) one->failed(told.error());
}

void tell_gate_later(net::io_context& home, std::shared_ptr<LauncherLink> launcher, Untold::One one) {
  std::string id = one.request.id;
  untold().add(std::move(one));
  auto timer = std::make_shared<net::steady_timer>(home, kLater);
  timer->async_wait([&home, timer, launcher, id](boost::system::error_code) {
    net::co_spawn(home, tell_gate(launcher, id), net::detached);
  });
}

}  // namespace isola::sandbox
