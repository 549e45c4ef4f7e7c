// Snapshots of folders. The files of a sandbox are kept as they are at one instant, a sandbox of the service's own is
// made of them with an empty volume, and its cp fills that: nothing of the files is read out here.
#include "sandbox/folders.h"

#include <fmt/format.h>

#include "sandbox/quiet_run.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace {

constexpr const char* kTarget = "/mnt/.isola-target";
constexpr const char* kSource = "/mnt/.isola-source";
constexpr uint64_t kLeast = 16 << 20;
constexpr Millis kLongest = 3'600'000;

// What it takes as files of its own, with room for what a filesystem needs besides.
uint64_t size_for(uint64_t bytes) { return bytes + bytes / 8 + kLeast; }

Task<Result<std::string>> run_script(Service& service, BoxPtr box, std::string text, std::vector<std::string> words) {
  CommandSpec spec;
  spec.argv = {"/bin/sh", "-c", std::move(text), "folder"};
  spec.argv.insert(spec.argv.end(), words.begin(), words.end());
  spec.user = "root";
  spec.cwd = "/";
  spec.counted = false;
  ISOLA_CO_TRY(QuietEnd end, co_await run_quietly(service, std::move(box), std::move(spec)));
  if (end.exit.code != 0 || end.exit.signal != 0)
    co_return fail(Code::invalid, "the folder cannot be kept" + and_said(end));
  co_return end.output;
}

bool is_at_or_below(std::string_view path, std::string_view folder) {
  while (folder.ends_with('/')) folder.remove_suffix(1);
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

}  // namespace

Task<Result<VolumeLook>> Service::keep_folder(FolderRequest request) {
  auto self = shared_from_this();
  if (!request.path.starts_with('/') || request.path.find('\0') != std::string::npos || request.path.size() > 4096)
    co_return fail(Code::invalid, "path: must be an absolute path of a folder");
  CreateRequest helper;
  helper.project = request.project;
  helper.by = request.by.key;
  helper.actor = request.by.actor;
  helper.limits = settings().default_limits;
  helper.timeout = kLongest;
  helper.metadata[kFolderLabel] = request.name;
  helper.files_only = helper.cold = helper.one_shot = true;
  helper.may_mount_buckets = true;  // that the sandbox has already, and whoever asks sees through it
  helper.auto_resume = false;
  std::vector<store::VolumeUse> volumes, buckets;
  std::string from = request.path, told, image;
  uint64_t bytes = 0;
  if (request.box) {
    helper.project = request.box->project();
    auto record = request.box->record();
    // And where it really is, by whatever links; a name that is too long to be told is taken as it was given.
    std::string measure =
        "[ -d \"$1\" ] || { echo \"there is no folder $1\"; exit 1; }; "
        "used=$(du -s -B1 -- \"$1/.\") || exit 1; cd -- \"$1\" || exit 1; echo \"${used%%[!0-9]*}\"; "
        "place=$(pwd -P; echo .); [ ${#place} -gt 400 ] || printf %s \"${place%??}\"";
    std::vector<std::string> words = {request.path};
    ISOLA_CO_TRY(std::string used, co_await run_script(*this, request.box, std::move(measure), std::move(words)));
    bytes = std::strtoull(used.c_str(), nullptr, 10);
    // Volumes that the sandbox has are part of what it sees. There is one more in the helper: those that have nothing
    // to do with the folder are left out.
    const std::string place = used.substr(used.find('\n') + 1);
    if (!place.empty()) from = place;
    for (auto& use : record.volumes) {
      if (!place.empty() && !is_at_or_below(use.path, from) && !is_at_or_below(from, use.path)) continue;
      use.read_only = true;
      (use.bucket ? buckets : volumes).push_back(std::move(use));
    }
    if (volumes.size() + buckets.size() >= boundary::kMostShown)
      co_return fail(Code::invalid,
                     fmt::format("the folder cannot be kept: there are {} volumes and buckets in it, and at most {} "
                                 "can be kept with it",
                                 volumes.size() + buckets.size(), boundary::kMostShown - 1));
    told = request.box->id() + ":" + request.path;
    SnapshotRequest keep;
    keep.memory = false;
    keep.by = request.by;
    keep.kind = store::ImageKind::step;  // nobody's snapshot
    keep.name = kFolderLabel;
    ISOLA_CO_TRY(auto kept, co_await snapshot(request.box, std::move(keep)));
    image = helper.step = kept.id;
  } else {
    ISOLA_CO_TRY(auto look, co_await look_at_volume(request.project, request.volume));
    bytes = look.used;
    store::VolumeUse use;
    use.volume = look.volume.id;
    use.path = kSource;
    use.read_only = true;
    volumes.push_back(use);
    from = kSource + request.path;
    told = look.volume.id + ":" + request.path;
  }
  VolumeRequest make;
  make.project = helper.project;
  make.name = request.name;
  make.size = size_for(bytes);
  make.labels[kFolderLabel] = told.substr(0, kMaxWord);
  make.by = request.by;
  make.fill = true;
  auto volume = co_await create_volume(std::move(make));
  Result<void> filled;
  if (volume) {
    store::VolumeUse use;
    use.volume = volume->volume.id;
    use.path = kTarget;
    volumes.push_back(use);
    helper.volumes = volumes;
    helper.buckets = buckets;
    helper.filling = use.volume;
    auto made = co_await create(std::move(helper));
    if (made) {
      std::string copy = "[ -d \"$1\" ] || { echo \"there is no folder $3\"; exit 1; }; cp -a -- \"$1/.\" \"$2/\"";
      std::vector<std::string> words = {from, kTarget, request.path};
      auto copied = co_await run_script(*this, made->box, std::move(copy), std::move(words));
      if (!copied) filled = std::unexpected(copied.error());
      (void)co_await kill(made->box, EndReason::killed, "the folder is kept");
    } else {
      filled = std::unexpected(made.error());
    }
  }
  if (!image.empty() && parts_.store.spend_step(image)) co_await drop_spent(image);
  if (!volume) co_return std::unexpected(volume.error());
  // Whoever hears that it is kept may lose the machine the moment after.
  if (filled) filled = co_await parts_.launcher->sync_volume(volume->volume.id);
  if (filled) filled = volume_is_there(volume->volume, request.by);
  if (!filled) {
    Error why = filled.error();
    // What cannot be taken away now is when the server starts the next time.
    if (co_await retire_volume(volume->volume.id)) (void)co_await drop_volume(volume->volume.id);
    co_return std::unexpected(why);
  }
  co_return co_await look_at_volume(volume->volume.project, volume->volume.id);
}

}  // namespace isola::sandbox
