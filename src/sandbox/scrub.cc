// Images that nobody uses are read now and then: a disk tells what it has lost only to those who ask. One at a time,
// the one that was not read for the longest first; the launcher's helper reads at low priority.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

void Service::scrub_next() {
  const auto every = settings().scrub;
  const auto now = std::chrono::steady_clock::now();
  if (every.count() == 0 || scrub_.busy) return;
  if (scrub_.begun == decltype(now)()) scrub_.begun = now;  // a server that starts has other things to do
  if (now - scrub_.begun < every) return;
  auto all = parts_.store.all_images();
  if (!all) return;
  std::map<std::string, uint64_t> turns;
  const store::ImageRecord* next = nullptr;
  for (const auto& image : *all) {
    using Kind = store::ImageKind;
    if (image.kind == Kind::spent || image.kind == Kind::warm) continue;  // on their way out, or soon made again
    auto known = scrub_.turns.find(image.id);
    turns[image.id] = known == scrub_.turns.end() ? 0 : known->second;
    if (!next || turns[image.id] < turns[next->id]) next = &image;
  }
  scrub_.turns = std::move(turns);
  if (!next) return;
  scrub_.begun = now;
  scrub_.turns[next->id] = ++scrub_.turn;
  scrub_.busy = true;
  net::co_spawn(parts_.next_worker(), scrub(*next), net::detached);
}

Task<void> Service::scrub(store::ImageRecord image) {
  auto self = shared_from_this();
  auto damage = co_await find_damage(image);
  // Gone meanwhile, just being packed, or the launcher is away: at its next turn.
  if (!damage) log::info("sandbox", "image {} was not read through: {}", image.id, damage.error().message);
  scrub_.busy = false;
}

Task<Result<std::string>> Service::find_damage(store::ImageRecord image) {
  auto self = shared_from_this();
  // An image may be large, and whoever resumes an archive or rolls back waits in the same line.
  struct Reading {
    Service& service;
    std::string project;
    bool mine = false;
    ~Reading() {
      if (!mine) return;
      std::lock_guard lock(service.scrub_.mutex);
      service.scrub_.reading.erase(project);
    }
  } reading{*this, image.project};
  {
    std::lock_guard lock(scrub_.mutex);
    reading.mine = scrub_.reading.insert(image.project).second;
  }
  if (!reading.mine) co_return fail(Code::exhausted, "an image of this project is being read through already");
  auto whole = co_await parts_.launcher->verify_image(image.id, true);
  bool fresh = false;
  {
    std::lock_guard lock(scrub_.mutex);
    if (whole) scrub_.damaged.erase(image.id);
    if (!whole && whole.error().code == Code::corrupt) fresh = scrub_.damaged.insert(image.id).second;
  }
  if (whole) co_return std::string();
  if (whole.error().code != Code::corrupt) co_return std::unexpected(whole.error());
  const std::string damage = whole.error().message;
  if (!fresh) co_return damage;
  log::error("sandbox", "{}", damage);
  ledger::Event event;
  event.time = now_millis();
  event.project = image.project;
  event.sandbox = image.sandbox;
  event.kind = ledger::Kind::image_damaged;
  json data = {{"image", image.id}, {"damage", damage}};
  if (!image.name.empty()) data["name"] = image.name;
  event.data = data.dump(-1, ' ', false, json::error_handler_t::replace);
  record(std::move(event));
  co_return damage;
}

}  // namespace isola::sandbox
