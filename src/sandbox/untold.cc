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

void Untold::add(launcher::PolicyRequest request) {
  std::lock_guard lock(mutex_);
  std::string id = request.id;
  waiting_.insert_or_assign(std::move(id), std::move(request));
}

bool Untold::has(const std::string& sandbox) {
  std::lock_guard lock(mutex_);
  return waiting_.contains(sandbox);
}

std::optional<launcher::PolicyRequest> Untold::take(const std::string& sandbox) {
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
  auto request = untold().take(sandbox);
  if (!request) co_return;
  auto told = co_await launcher->set_policy(std::move(*request));
  if (!told && told.error().code != Code::not_found)
    log::warn("sandbox", "what {} tries is not recorded: {}", sandbox, told.error().message);
}

void tell_gate_later(net::io_context& home, std::shared_ptr<LauncherLink> launcher, launcher::PolicyRequest request) {
  std::string id = request.id;
  untold().add(std::move(request));
  auto timer = std::make_shared<net::steady_timer>(home, kLater);
  timer->async_wait([&home, timer, launcher, id](boost::system::error_code) {
    net::co_spawn(home, tell_gate(launcher, id), net::detached);
  });
}

}  // namespace isola::sandbox
