// Volumes: made, found, resized, removed. What is on disk when: the record comes first, as `making`, then the
// launcher's volume, then the record says that it is there; a removal marks the record, then the launcher's volume
// goes, then the record. So whoever is killed at whatever moment: what was acknowledged is there, and start() removes
// the rest.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "sandbox/folders.h"
#include "sandbox/launching.h"
#include "sandbox/service.h"

namespace isola::sandbox {

using nlohmann::json;

namespace {

constexpr uint64_t kSmallest = 16 << 20;
constexpr auto kLetGo = std::chrono::seconds(5);

}  // namespace

std::vector<launcher::VolumeMount> mounts_of(const std::vector<store::VolumeUse>& volumes) {
  std::vector<launcher::VolumeMount> mounts;
  for (const auto& use : volumes)
    if (!use.bucket)
      mounts.push_back({.id = use.volume, .target = use.path, .read_only = use.read_only, .part = use.subpath});
  return mounts;
}

// Names become ids; another project's volume is answered exactly like none at all.
Result<std::vector<store::VolumeUse>> Service::find_volumes(const std::string& project,
                                                            std::vector<store::VolumeUse> asked,
                                                            const std::string& filling) {
  if (asked.size() > boundary::kMostShown)
    return fail(Code::invalid, fmt::format("volumes: at most {}", boundary::kMostShown));
  for (auto& use : asked) {
    while (use.path.size() > 1 && use.path.ends_with('/')) use.path.pop_back();
    if (use.bucket || (!filling.empty() && use.volume == filling)) continue;
    ISOLA_TRY(auto volume, parts_.store.find_volume(project, use.volume));
    if (is_kept_folder(volume) && !use.read_only)
      return fail(Code::invalid,
                  "volumes: '" + volume.name + "' is kept as it was: it is mounted with read_only, or copied from");
    use.volume = volume.id;
    use.name = volume.name;
  }
  return asked;
}

void Service::record_volume(ledger::Kind kind, const store::VolumeRecord& volume, const store::Labels& data,
                            const Caller& by) {
  json all = data;
  all["volume"] = volume.id;
  all["name"] = volume.name;
  ledger::Event event;
  event.time = now_millis();
  event.project = volume.project;
  event.key = by.key;
  event.actor = by.actor.empty() ? by.key : by.actor;
  event.kind = kind;
  event.data = all.dump(-1, ' ', false, json::error_handler_t::replace);
  events_.publish(event);
  (void)append(event);
}

Task<Result<VolumeLook>> Service::create_volume(VolumeRequest request) {
  auto self = shared_from_this();
  if (!is_plain_name(request.name) || is_volume_id(request.name))
    co_return fail(Code::invalid,
                   "name: use 1 to 63 of letters, digits, '-', '_' and '.', starting with a letter or digit, and "
                   "nothing that looks like an id");
  if (request.size < kSmallest) co_return fail(Code::invalid, "size: at least 16 MiB");
  ISOLA_CO_CHECK(check_metadata(request.labels));
  store::VolumeRecord volume{.id = new_volume_id(), .project = request.project, .name = request.name};
  volume.size = request.size;
  volume.created = now_millis();
  volume.labels = request.labels;
  for (int attempt = 0;; ++attempt) {
    if (request.or_get && parts_.store.find_volume(request.project, request.name)) {
      ISOLA_CO_TRY(VolumeLook found, co_await look_at_volume(request.project, request.name));
      found.existed = true;
      co_return found;
    }
    auto inserted = parts_.store.insert_volume(volume);
    if (inserted) break;
    if (!request.or_get || inserted.error().code != Code::exists || attempt >= 50)
      co_return std::unexpected(inserted.error());
    Bell never;  // somebody else is just making it
    (void)co_await never.wait_for(never.ticket(), std::chrono::milliseconds(100));
  }
  auto made = co_await parts_.launcher->make_volume(volume.id, volume.size);
  if (made && !request.fill) made = volume_is_there(volume, request.by);
  if (!made) {
    Error why = made.error();
    if (parts_.store.retire_volume(volume.id)) (void)co_await drop_volume(volume.id);
    co_return std::unexpected(why);
  }
  VolumeLook look{.volume = volume};
  co_return look;
}

Result<void> Service::volume_is_there(store::VolumeRecord& volume, const Caller& by) {
  ISOLA_CHECK(parts_.store.set_volume_there(volume.id));
  volume.state = store::VolumeState::there;
  store::Labels data = {{"size", std::to_string(volume.size)}};
  record_volume(ledger::Kind::volume_created, volume, data, by);
  return {};
}

Task<Result<VolumeLook>> Service::look_at_volume(std::string project, std::string id_or_name) {
  VolumeLook look;
  ISOLA_CO_TRY(look.volume, parts_.store.find_volume(project, id_or_name));
  ISOLA_CO_TRY(look.sandboxes, parts_.store.users_of_volume(look.volume.id));
  auto there = co_await parts_.launcher->volume(look.volume.id);
  if (!there && there.error().code != Code::not_found) co_return std::unexpected(there.error());
  if (there) look.used = there->used;
  co_return look;
}

Task<Result<Service::VolumePage>> Service::list_volumes(std::string project, std::string cursor, size_t limit) {
  ISOLA_CO_TRY(auto records, parts_.store.list_volumes(project, cursor, limit));
  VolumePage page;
  page.next = records.next;
  if (records.volumes.empty()) co_return page;
  ISOLA_CO_TRY(auto there, co_await parts_.launcher->volumes());
  std::map<std::string, uint64_t> used;
  for (const auto& one : there) used[one.id] = one.used;
  for (auto& volume : records.volumes) {
    VolumeLook look;
    ISOLA_CO_TRY(look.sandboxes, parts_.store.users_of_volume(volume.id));
    look.used = used[volume.id];
    look.volume = std::move(volume);
    page.volumes.push_back(std::move(look));
  }
  co_return page;
}

Task<Result<VolumeLook>> Service::resize_volume(std::string project, std::string id_or_name, uint64_t size, Caller by) {
  auto self = shared_from_this();
  if (size < kSmallest) co_return fail(Code::invalid, "size: at least 16 MiB");
  ISOLA_CO_TRY(VolumeLook look, co_await look_at_volume(project, id_or_name));
  auto volume = look.volume;
  if (size == volume.size) co_return look;
  if (size < look.used)
    co_return conflict(
        fmt::format("volume {} holds {} bytes: it cannot become smaller than that", volume.id, look.used));
  ISOLA_CO_CHECK(parts_.store.set_volume_size(volume.id, size));
  auto resized = co_await parts_.launcher->resize_volume(volume.id, size);
  if (!resized) {
    Error why = resized.error();
    (void)parts_.store.set_volume_size(volume.id, volume.size);
    co_return std::unexpected(why);
  }
  look.volume.size = size;
  store::Labels data = {{"size", std::to_string(size)}, {"size_before", std::to_string(volume.size)}};
  record_volume(ledger::Kind::volume_updated, volume, data, by);
  co_return look;
}

// Those who are just leaving are as good as gone.
Task<Result<void>> Service::retire_volume(std::string id) {
  auto until = std::chrono::steady_clock::now() + kLetGo;
  for (;;) {
    uint64_t ticket = key_bell_.ticket();
    auto retired = parts_.store.retire_volume(id);
    if (retired || retired.error().sys_errno != EBUSY) co_return retired;
    ISOLA_CO_TRY(auto users, parts_.store.users_of_volume(id));
    for (const auto& user : users)
      if (auto box = find_any(user); box && (*box)->state() != State::ending && (*box)->state() != State::ended)
        co_return retired;
    auto left = until - std::chrono::steady_clock::now();
    if (left.count() <= 0) co_return retired;
    (void)co_await key_bell_.wait_for(ticket, left);
  }
}

Task<Result<void>> Service::remove_volume(std::string project, std::string id_or_name, Caller by) {
  auto self = shared_from_this();
  ISOLA_CO_TRY(auto volume, parts_.store.find_volume(project, id_or_name));
  ISOLA_CO_CHECK(co_await retire_volume(volume.id));
  store::Labels data;
  record_volume(ledger::Kind::volume_removed, volume, data, by);
  co_await desk_->close(volume.id);
  (void)co_await drop_volume(volume.id);
  co_return Result<void>();
}

// What fails here is tried again by the sweep.
Task<Result<void>> Service::drop_volume(std::string id) {
  auto dropped = co_await parts_.launcher->drop_volume(id);
  if (!dropped && dropped.error().code != Code::not_found) co_return dropped;
  co_return parts_.store.forget_volume(id);
}

Task<Result<Service::VolumeFiles>> Service::volume_files(store::VolumeRecord volume) {
  VolumeFiles files;
  files.volume = std::move(volume);
  auto digest = digest_of(settings().default_template);
  if (!digest) {
    ISOLA_CO_TRY(auto any, templates());
    if (any.empty()) co_return std::unexpected(digest.error());
    digest = any.front().digest;
  }
  std::string project = files.volume.project, id = files.volume.id, of = *digest;
  auto screening = volume_screening(files.volume);
  const bool kept = is_kept_folder(files.volume);
  ISOLA_CO_TRY(files.use,
               co_await desk_->open(std::move(project), std::move(id), std::move(of), kept, std::move(screening)));
  co_return files;
}

// At the start: nobody was told of one that was being made, nor of what folders were kept by. Who was filling one is
// perhaps still on its way out: the sweep comes back to it.
Task<void> Service::undo_volumes() {
  auto all = parts_.store.all_volumes();
  if (!all) co_return;
  for (const auto& volume : *all)
    if (is_left(volume) && parts_.store.retire_volume(volume.id)) (void)co_await drop_volume(volume.id);
  auto images = parts_.store.all_images();
  if (!images) co_return;
  for (const auto& image : *images)
    if (image.kind == store::ImageKind::step && image.name == kFolderLabel && parts_.store.spend_step(image.id))
      co_await drop_spent(image.id);
}

bool Service::is_left(const store::VolumeRecord& volume) const {
  return volume.state == store::VolumeState::making && volume.created < started_;
}

Task<void> Service::sweep_volumes() {
  auto all = parts_.store.all_volumes();
  if (!all || all->empty()) co_return;
  for (const auto& volume : *all)
    if (volume.state == store::VolumeState::gone || (is_left(volume) && parts_.store.retire_volume(volume.id)))
      (void)co_await drop_volume(volume.id);
  auto there = co_await parts_.launcher->volumes();
  if (!there) co_return;
  std::map<std::string, uint64_t> used;
  for (const auto& one : *there) used[one.id] = one.used;
  Millis now = now_millis(), every = settings().sample.count();
  std::map<std::string, Millis> until;
  for (const auto& volume : *all) {
    if (volume.state != store::VolumeState::there) continue;
    auto known = volumes_until_.find(volume.id);
    Millis from = known == volumes_until_.end() ? std::max(volume.created, started_) : known->second;
    if (now - from >= every) {
      accounts_.charge_storage(volume.project, volume.id, used[volume.id], from, now);
      from = now;
    }
    until[volume.id] = from;
    // Nobody tells us of a write that failed for want of room: it is seen by what is there.
    uint64_t left = volume.size - std::min(volume.size, used[volume.id]);
    if (left > volume.size / 8)
      full_volumes_.erase(volume.id);
    else if (left <= volume.size / 32 && full_volumes_.insert(volume.id).second)
      record_volume(ledger::Kind::volume_full, volume, {{"used", std::to_string(used[volume.id])}}, Caller());
  }
  volumes_until_ = std::move(until);
}

}  // namespace isola::sandbox
