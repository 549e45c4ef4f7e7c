// Warm images: what sandboxes of some templates begin with beyond their files, such as a started kernel, is brought up
// once, in a sandbox that is nobody's, and kept as an image with memory. Creates are made of it, from its pool if they
// can be; until it is there, and whatever goes wrong with it, they are made of the template as ever.
//
// The store knows it before the launcher makes it. A server that starts finds it, or removes what there is of it.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "sandbox/launching.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

namespace {

constexpr uint64_t kWarmMemory = uint64_t{512}
                                 << 20;  // it is made with so much; whoever asks for less gets a plain one
constexpr Millis kNotBefore = 60'000;    // after a failure
constexpr uint32_t kMostFailures = 3;    // in a row, of launches from it

}  // namespace

std::string Service::warm_for(const CreateRequest& request, const std::string& digest, bool volumes) {
  auto settings = this->settings();
  if (!parts_.warming.has || settings.pool == 0 || request.cold || volumes) return {};
  if (request.limits.memory < kWarmMemory || request.limits.open_files != settings.default_limits.open_files) return {};
  if (!parts_.warming.has(request.template_name)) return {};
  {
    std::lock_guard lock(pool_mutex_);
    Warm& warm = warm_[digest];
    if (!warm.image.empty()) return warm.image;
    if (warm.making || now_millis() < warm.not_before) return {};
    warm.making = true;
  }
  net::co_spawn(parts_.next_worker(), make_warm(request.template_name, digest), net::detached);
  return {};
}

Task<void> Service::make_warm(std::string template_name, std::string digest) {
  auto self = shared_from_this();
  auto begun = std::chrono::steady_clock::now();
  auto made = co_await bring_up(template_name, digest);
  if (made)
    log::info("sandbox", "{}: new sandboxes begin with what it starts (image {}, {} MiB of memory, made in {} ms)",
              template_name, made->image, made->memory_bytes >> 20,
              std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begun).count());
  else
    log::warn("sandbox", "{}: what it starts could not be brought up ahead: {}", template_name, made.error().message);
  {
    std::lock_guard lock(pool_mutex_);
    Warm& warm = warm_[digest];
    warm.making = false;
    if (made)
      keep_warm(digest, made->image, made->memory_bytes);
    else
      warm.not_before = now_millis() + kNotBefore;
  }
  co_await fit_pools();
}

// Under pool_mutex_.
void Service::keep_warm(const std::string& digest, const std::string& image, uint64_t memory) {
  warm_[digest] = {.image = image};
  pools_[image].each = memory;
}

Task<Result<launcher::CheckpointReply>> Service::bring_up(std::string template_name, std::string digest) {
  Launching under_way(*this);
  Settings settings = this->settings();
  store::SandboxRecord record;
  record.template_name = template_name;
  record.digest = digest;
  record.limits = settings.default_limits;
  record.limits.memory = kWarmMemory;
  record.state = State::running;
  record.created = record.last_active = now_millis();
  launcher::LaunchRequest ask{
      .digest = digest, .limits = record.limits, .ephemeral = false, .allow_unquotaed = settings.allow_unquotaed_disk};
  auto launched = co_await parts_.launcher->launch(std::move(ask));
  if (!launched) co_return std::unexpected(std::move(launched).error());
  record.id = launched->reply.id;
  auto box = new_box(parts_.next_worker(), record);
  box->set_patience(settings.patience);
  box->set_link(GuestLink::start(box->home(), std::move(launched->link), settings.patience, box->screening()));
  json data = {{"template", template_name}, {"reason", "to bring up what the template starts"}};
  this->record(ledger::Kind::sandbox_created, box, data.dump());
  auto image = co_await keep_what_it_starts(box);
  box->close_link({Code::unavailable, "its image is made"});
  if (!image) (void)co_await parts_.launcher->kill(box->id());
  this->record(ledger::Kind::sandbox_ended, box, image ? json{{"image", image->image}}.dump() : "{}");
  co_return image;
}

Task<Result<launcher::CheckpointReply>> Service::keep_what_it_starts(BoxPtr box) {
  ISOLA_CO_CHECK(co_await parts_.warming.bring_up(*this, box));
  store::ImageRecord image;
  auto record = box->record();
  image.id = new_image_id();
  image.project = "default";  // what it takes is nobody's
  image.kind = store::ImageKind::warm;
  image.sandbox = record.id;
  image.template_name = record.template_name;
  image.digest = record.digest;
  image.memory = true;
  image.limits = record.limits;
  image.created = image.last_used = now_millis();
  ISOLA_CO_CHECK(parts_.store.insert_warm(image));
  launcher::CheckpointRequest ask{.id = box->id(), .memory = true, .keep_running = false, .image = image.id};
  auto saved = co_await save(box, std::move(ask));
  if (!saved) {
    Error why = saved.error();
    (void)parts_.store.spend_warm(image.id);
    co_await drop_spent(image.id);
    co_return std::unexpected(why);
  }
  co_return saved;
}

// A launch from it failed. One that is not there, or that fails again and again, is made anew.
Task<void> Service::warm_failed(std::string digest, std::string image, Error error) {
  log::warn("sandbox", "image {} cannot be used ahead: {}", image, error.message);
  {
    std::lock_guard lock(pool_mutex_);
    auto at = warm_.find(digest);
    if (at == warm_.end() || at->second.image != image) co_return;
    if (++at->second.failures < kMostFailures && error.code != Code::not_found) co_return;
    at->second = {.not_before = error.code == Code::not_found ? 0 : now_millis() + kNotBefore};
    pools_.erase(image);
  }
  (void)parts_.store.spend_warm(image);
  co_await drop_spent(image);
}

void Service::warm_served(const std::string& digest) {
  std::lock_guard lock(pool_mutex_);
  if (auto at = warm_.find(digest); at != warm_.end()) at->second.failures = 0;
}

// At the start: those that are there, of templates that are there.
Task<void> Service::find_warm() {
  auto known = parts_.store.all_images();
  auto there = co_await parts_.launcher->images();
  if (!known || !there) co_return;  // their launches tell
  std::map<std::string, uint64_t> memory;
  for (const auto& image : *there) memory[image.id] = image.memory_bytes;
  for (const auto& image : *known) {
    if (image.kind != store::ImageKind::warm) continue;
    if (memory.contains(image.id) && is_template(image.digest)) {
      std::lock_guard lock(pool_mutex_);
      keep_warm(image.digest, image.id, memory[image.id]);
    } else {
      (void)parts_.store.spend_warm(image.id);  // the sweep drops it
    }
  }
}

// Of templates that were made anew, or are gone.
Task<void> Service::sweep_warm() {
  std::vector<std::string> old;
  {
    std::lock_guard lock(pool_mutex_);
    for (auto at = warm_.begin(); at != warm_.end();) {
      if (at->second.making || is_template(at->first)) {
        ++at;
        continue;
      }
      if (!at->second.image.empty()) old.push_back(at->second.image);
      pools_.erase(at->second.image);
      at = warm_.erase(at);
    }
  }
  for (const auto& image : old) {
    (void)parts_.store.spend_warm(image);
    co_await drop_spent(image);
  }
}

bool Service::is_template(const std::string& digest) {
  auto all = templates();
  if (!all) return true;  // nobody knows
  return std::ranges::any_of(*all, [&](const auto& one) { return one.digest == digest; });
}

}  // namespace isola::sandbox
