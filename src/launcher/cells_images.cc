// Cells: images. A checkpoint is made by a helper (the boundary's), which writes the manifest while every process of
// the sandbox stands still: from that moment the image exists, and before it there was none. A launch from an image is
// a launch like any other, on more layers and with memory.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <system_error>

#include "base/file.h"
#include "base/ids.h"
#include "base/log.h"
#include "boundary/box/box.h"
#include "boundary/box/disk.h"
#include "image/packed_image.h"
#include "image/sums_ahead.h"
#include "image/tree.h"
#include "kernel/fault.h"
#include "launcher/cells.h"

namespace isola::launcher {

namespace {

constexpr auto kDraftsAgain = std::chrono::milliseconds(500);
constexpr auto kReapFirst = std::chrono::milliseconds(20);
constexpr auto kReapLast = std::chrono::milliseconds(1000);

ImageSummary summary_of(const image::Image& image) {
  return {.id = image.id,
          .sandbox = image.sandbox,
          .verb = image.verb,
          .parent = image.parent,
          .digest = image.digest,
          .created = image.created,
          .memory = image.memory,
          .layers = static_cast<uint32_t>(image.layers.size()),
          .memory_bytes = image.memory_bytes,
          .layer_bytes = image.layer_bytes};
}

bool is_machine(const image::Image& image) {
  return image.memory && image.boundary == to_string(BoundaryKind::microvm);
}

bool sealed(const image::Image& image) {
  return std::ranges::none_of(image.files, [](const auto& file) { return file.sha256.empty(); });
}

// As process 1 has it: a launcher that adopted it was not told.
Result<uint32_t> open_files_of(pid_t pid) {
  ISOLA_TRY(std::string text, read_file(fmt::format("/proc/{}/limits", pid)));
  constexpr std::string_view kLabel = "Max open files";
  size_t at = text.find(kLabel);
  uint32_t soft = 0;
  if (at == std::string::npos || std::sscanf(text.c_str() + at + kLabel.size(), "%u", &soft) != 1)
    return fail(Code::corrupt, "cannot read the limits of the sandbox");
  return soft;
}

// What the helper that makes an image tells of it.
struct Made {
  uint64_t memory_bytes = 0, layer_bytes = 0;
  int64_t files = 0, sums = 0, commit = 0;  // nanoseconds
};

std::string encode_made(const Made& made) {
  Writer out;
  out.u64(made.memory_bytes);
  out.u64(made.layer_bytes);
  for (int64_t time : {made.files, made.sums, made.commit}) out.i64(time);
  return out.take();
}

bool decode_made(std::string_view bytes, Made& made) {
  Reader in(bytes);
  made.memory_bytes = in.u64();
  made.layer_bytes = in.u64();
  for (int64_t* time : {&made.files, &made.sums, &made.commit}) *time = in.i64();
  return in.done();
}

// Without their holes, of which the memory of a virtual machine has many.
Result<uint64_t> bytes_on_disk(const std::string& folder, const std::vector<image::ImageFile>& files) {
  uint64_t bytes = 0;
  for (const auto& file : files) {
    struct stat st{};
    if (::stat((folder + "/" + file.name).c_str(), &st) < 0) return sys_error("cannot look at a file of the image");
    bytes += std::min<uint64_t>(file.size, static_cast<uint64_t>(st.st_blocks) * 512);
  }
  return bytes;
}

// In the helper, while nothing in the sandbox moves.
Result<std::string> keep_files(image::Image image, const image::ImageStore& store, image::LayerStore& layers,
                               const std::string& layer, image::SumsAhead& ahead) {
  auto last = std::chrono::steady_clock::now();
  auto lap = [&] {
    auto now = std::chrono::steady_clock::now();
    return std::chrono::nanoseconds(now - std::exchange(last, now)).count();
  };
  Made made;
  const auto known = ahead.finish();
  if (image.layers.front() != layer)
    ISOLA_CHECK(layers.copy(layer, image.layers.front()));
  else
    ISOLA_CHECK(layers.sync(layer));
  if (auto usage = layers.usage(layer)) image.layer_bytes = made.layer_bytes = usage->bytes;
  made.files = lap();
  if (image.memory) {
    ISOLA_TRY(image.files, store.sum_up(image.id, known));
    ISOLA_TRY(image.memory_bytes, bytes_on_disk(store.memory_folder(image.id), image.files));
    made.memory_bytes = image.memory_bytes;
  }
  made.sums = lap();
  ISOLA_CHECK(store.commit(image));
  if (int signal = kernel::fault::at("image_committed")) ::raise(signal);  // whoever keeps it dies, or criu
  made.commit = lap();
  return encode_made(made);
}

}  // namespace

// ---- which layers are in use ----------------------------------------------------------------------------------------

void Cells::use_layers(One& one, bool use) {
  if (one.uses == use) return;
  one.uses = use;
  auto names = one.entry.lowers;
  names.push_back(layer_of(one.entry));
  for (const auto& volume : one.entry.volumes)
    if (!volume.is_bucket()) names.push_back(volume.id);
  for (const auto& name : names) {
    if (use)
      ++layer_users_[name];
    else if (auto it = layer_users_.find(name); it != layer_users_.end() && --it->second == 0)
      layer_users_.erase(it);
  }
  if (use) writing_.insert(layer_of(one.entry));
}

void Cells::count_image(const image::Image& image, int more) {
  for (const auto& name : image.layers) {
    if (more > 0)
      ++layer_images_[name];
    else if (auto it = layer_images_.find(name); it != layer_images_.end() && --it->second == 0)
      layer_images_.erase(it);
  }
  if (more > 0)
    kept_[image.id] = {summary_of(image), image.layers, image.limits.disk, image.roots_own, is_machine(image)};
  else
    kept_.erase(image.id);
}

void Cells::drop_unused(const std::vector<std::string>& layers) {
  for (const auto& layer : layers) {
    if (layer_images_.contains(layer) || layer_users_.contains(layer) || is_doubtful(layer)) continue;
    (void)janitor_.take(Janitor::group_and_layer("", layer));
  }
}

Result<void> Cells::start_images(std::set<std::string>& known) {
  if (parts_.kept.empty()) return {};
  ISOLA_CHECK(make_dirs(parts_.kept, 0700));
  ISOLA_CHECK(image::remove_tree(parts_.scratch));
  ISOLA_CHECK(make_dirs(parts_.scratch, 0700));
  ISOLA_TRY(auto names, image::list_dir(parts_.kept));
  known.insert(names.begin(), names.end());  // a copy of a layer has the name of its image
  ISOLA_TRY(auto leftovers, store_.leftovers());
  for (const auto& id : leftovers) {
    known.erase(id);
    ISOLA_CHECK(janitor_.take(Janitor::image_folder(id)));
  }
  ISOLA_TRY(auto images, store_.list([&](const std::string& id, const Error& error) {
    log::error("launcher", "image {} cannot be used: {}", id, error.message);
    broken_.insert(id);
  }));
  if (!broken_.empty()) doubt_layers();
  for (const auto& image : images) {
    count_image(image, 1);
    // A layer that is in an archive is nowhere else: what is there was left by somebody who was killed.
    known.insert(image.layers.begin() + (image::has_packed_layer(image) ? 1 : 0), image.layers.end());
    image::tidy(store_, image);
    if (!sealed(image)) to_seal_.insert(image.id);
  }
  for (const auto& name : names)
    if (is_image_id(name) && !kept_.contains(name) && !broken_.contains(name) &&
        std::ranges::find(leftovers, name) == leftovers.end())
      drafts_.insert(name);
  if (!to_seal_.empty()) seal_later(std::chrono::seconds(1));
  if (!drafts_.empty()) ask_for_drafts();
  return {};
}

// Whoever is at them ends soon, and nobody may ask for images then.
void Cells::ask_for_drafts() {
  parts_.loop.after(kDraftsAgain, [this] {
    adopt_drafts();
    if (!drafts_.empty()) ask_for_drafts();
  });
}

// What an image that cannot be read is made of nobody can say: whatever is there now may be a part of it.
void Cells::doubt_layers() {
  if (doubtful_.empty() && !doubts_all_)
    log::error("launcher",
               "there is an image that cannot be read: no layer that is there now is removed by this launcher");
  auto layers = parts_.layers.list();
  if (layers)
    doubtful_.insert(layers->begin(), layers->end());
  else
    doubts_all_ = true;
}

// A launcher that was killed left somebody behind who finishes its checkpoint.
void Cells::adopt_drafts() {
  for (auto it = drafts_.begin(); it != drafts_.end();) {
    auto image = store_.find(*it);
    // Be it written already or not: whoever asked is about to give a layer away.
    const bool unreadable = !image && image.error().code != Code::not_found;
    if (unreadable) doubt_layers();
    if (!image && store_.busy(*it)) {
      ++it;
      continue;
    }
    if (image)
      count_image(*image, 1);
    else if (unreadable)
      log::error("launcher", "image {} cannot be used: {}", *it, image.error().message), broken_.insert(*it);
    else
      (void)janitor_.take(Janitor::image_folder(*it));
    it = drafts_.erase(it);
  }
}

// Whoever asks for it may have mended it.
void Cells::look_again(const std::string& id) {
  if (!broken_.contains(id)) return;
  auto image = store_.find(id);
  if (!image) return;
  broken_.erase(id);
  count_image(*image, 1);
  if (!sealed(*image)) to_seal_.insert(id), seal_next();
}

// A pause that was cut off after its image was written, or a resume before that was used up: the sandbox may be on its
// way out, and then the image is all that is left. If its guest answers it lives, and the image is not of what it says.
void Cells::doubt_undone() {
  for (const auto& [image, kept] : kept_) {
    if (kept.layers.empty()) continue;
    bool lives = false;
    for (auto& [id, one] : cells_)
      if (one->cell && kept.layers.front() == layer_of(one->entry)) one->spending = image, lives = true;
    if (lives || !kept.machine) continue;  // with some stores to look for its layer is to mount it
    // Whoever began to use it up is gone, and with it what would have brought its disk back.
    auto path = parts_.layers.path(kept.layers.front());
    auto back = path ? boundary::box::bring_disk_back(*path, image) : Result<void>();
    if (!back) log::error("launcher", "image {}: {}", image, back.error().message);
  }
}

// ---- launching from an image ----------------------------------------------------------------------------------------

// Whether its memory can be restored on this machine, as far as its manifest tells.
Result<void> Cells::fits_here(const image::Image& image) const {
  if (!image.memory) return {};
  auto made_by = parse_boundary(image.boundary);
  auto* kind = made_by ? find_boundary(*made_by) : nullptr;
  if (!kind)
    return fail(Code::unsupported, fmt::format("image {} was made of a sandbox with the boundary {}, which is not here",
                                               image.id, image.boundary));
  ISOLA_TRY(auto here, kind->memory_host());
  return image::check_host(image, {here.checkpointer, here.kernel, here.cpu, here.guest}, image.boundary);
}

Result<void> Cells::resolve_image(LaunchRequest& request) const {
  if (parts_.kept.empty()) return fail(Code::unsupported, "this launcher keeps no images");
  if (!request.digest.empty())
    return fail(Code::invalid, "a sandbox is made of a template or of an image, not of both");
  if (is_image_id(request.image) && !kept_.contains(request.image) && !broken_.contains(request.image))
    return fail(Code::not_found, "there is no image " + request.image);
  ISOLA_TRY(auto image, store_.find(request.image));
  if (outrun_.contains(image.id)) image.outrun = true;
  if (request.by_user && image.roots_own) return fail(Code::not_found, "there is no image " + request.image);
  // Readable since a moment ago, and so its layers are not counted yet.
  if (!kept_.contains(image.id)) return fail(Code::unavailable, "image " + image.id + " was just mended: try again");
  for (const auto& layer : image.layers)
    if (writing_.contains(layer))
      return fail(Code::unavailable, "the sandbox that image " + image.id + " was made of has not ended yet");
  if (image.packed() || packing_.contains(image.id))
    return fail(Code::unavailable, "image " + image.id + " is packed: it has to be unpacked first");
  request.digest = image.digest;
  // Memory belongs to the boundary that made it, and files go with it unless another one is asked for.
  if (auto made_by = parse_boundary(image.boundary); made_by && request.boundary.wish == BoundaryWish::automatic)
    request.boundary.wish = wish_for(*made_by);
  ISOLA_CHECK(choose_boundary(request));
  auto& kind = *find_boundary(chosen(request));
  std::string_view boundary = to_string(kind.kind());
  // The files of a virtual machine are one disk; of the others they are a tree, in which a file of that name is
  // anybody's.
  if ((kind.kind() == BoundaryKind::microvm) != (image.boundary == to_string(BoundaryKind::microvm)))
    return fail(Code::unsupported,
                fmt::format("the files of image {} were made by the boundary {}, and {} cannot read them", image.id,
                            image.boundary, boundary));
  if (!image.memory || request.files_only) return {};
  ISOLA_TRY(auto here, kind.memory_host());
  ISOLA_CHECK(image::check_host(image, {here.checkpointer, here.kernel, here.cpu, here.guest}, boundary));
  request.limits.open_files = image.limits.open_files;
  // What it had room for once, it has room for again, whatever its files add up to.
  if (const uint64_t most = request.limits.memory;
      most != 0 && most < image.memory_bytes && (image.limits.memory == 0 || most < image.limits.memory))
    return fail(Code::invalid,
                fmt::format("the memory of image {} has {} bytes, and the sandbox's limit is {}: it needs a higher one",
                            image.id, image.memory_bytes, most));
  // Its processes may have files of theirs open.
  std::vector<std::string> targets;
  for (const auto& volume : request.volumes) targets.push_back(volume.target);
  for (const auto& bucket : request.buckets) targets.push_back(bucket.target);
  std::ranges::sort(targets);
  if (targets != image.volumes)
    return fail(
        Code::invalid,
        fmt::format("a sandbox with the memory of image {} needs volumes and buckets at the same places: {}", image.id,
                    image.volumes.empty() ? "none" : fmt::format("{}", fmt::join(image.volumes, ", "))));
  return {};
}

bool Cells::may_spend(const image::Image& image, const LaunchRequest& request) const {
  if (!request.spend || image.verb != "pause" || image.sandbox != request.id || image.layers.empty()) return false;
  auto images = layer_images_.find(image.layers.front());
  return images != layer_images_.end() && images->second == 1 && !layer_users_.contains(image.layers.front());
}

// A layer that was put away is written to again. The overlay above it was volatile, and left a mark that says so; the
// pause has put everything on disk.
Result<std::string> Cells::take_back(const std::string& layer, uint64_t bytes) {
  ISOLA_TRY(std::string path, parts_.layers.path(layer));
  ISOLA_CHECK(image::remove_tree(path + "/work/work"));
  if (!image::verify_limit(parts_.layers, layer, bytes)) ISOLA_CHECK(parts_.layers.resize(layer, {.bytes = bytes}));
  return path;
}

// The kernel of a virtual machine has its disk's bookkeeping in its memory: with an older memory than the disk it would
// destroy it. So until the guest has answered there is the disk as it was, for whoever resumes the image again.
Result<bool> Cells::keep_disk_of(const image::Image& image) {
  if (!is_machine(image)) return true;
  ISOLA_TRY(std::string path, parts_.layers.path(image.layers.front()));
  return boundary::box::keep_disk(path, image.id);
}

// It did not come so far: the image is what it was.
void Cells::bring_disk_back(const One& one) {
  if (one.spending.empty() || one.entry.kind != BoundaryKind::microvm) return;
  auto path = parts_.layers.path(layer_of(one.entry));
  auto back = path ? boundary::box::bring_disk_back(*path, one.spending) : std::unexpected(path.error());
  if (!back) log::error("launcher", "image {}: {}", one.spending, back.error().message);
}

// A jail's files are nobody's copy: what was let go and then failed may have written to them, and may not be resumed
// again from the moment before.
void Cells::note_outrun(const One& one) {
  const auto& entry = one.entry;
  const bool let_go = entry.process.pid != 0 && entry.birth == Birth::resumed && entry.kind == BoundaryKind::jail;
  if (one.spending.empty() || one.spending != entry.image || !let_go) return;
  auto noted = [&]() -> Result<void> {
    ISOLA_TRY(auto image, store_.find(one.spending));
    if (image.outrun) return {};
    image.outrun = true;
    return store_.change(image);
  }();
  if (noted) return log::warn("launcher", "image {}: its files are newer than its memory from now on", one.spending);
  log::error("launcher", "image {}: its files are newer than its memory: {}", one.spending, noted.error().message);
  outrun_.insert(one.spending);
}

// Its guest answers, so it runs: what it was made of is no longer what it was.
void Cells::spent(One& one) {
  if (one.spending.empty()) return;
  std::string image = std::exchange(one.spending, {});
  if (auto dropped = drop_image(image); !dropped)
    return log::error("launcher", "image {} is spent and cannot be dropped: {}", image, dropped.error().message);
  if (one.entry.kind != BoundaryKind::microvm) return;
  // After the image: without that nobody asks for the disk as it was. One that stays only takes room.
  if (auto path = parts_.layers.path(layer_of(one.entry))) (void)boundary::box::forget_kept_disk(*path, image);
}

Result<boundary::LaunchSpec> Cells::spec_for(One& one, const LaunchRequest& request) {
  boundary::LaunchSpec spec{.id = one.entry.id, .cgroup = one.entry.id, .limits = request.limits};
  // Another name than the sandbox's: a layer of it, from before it was paused, may be part of an image.
  if (!request.image.empty() || !request.id.empty())
    one.entry.layer = one.entry.id + "-" + new_command_id().substr(1, 6);
  if (!request.image.empty()) {
    ISOLA_TRY(auto image, store_.find(request.image));
    one.entry.lowers = image.layers;
    // All of its files are in that one.
    if (one.entry.kind == BoundaryKind::microvm && one.entry.lowers.size() > 1) one.entry.lowers.resize(1);
    bool spends = may_spend(image, request);
    if (spends) {
      ISOLA_TRY(spends, keep_disk_of(image));
    }
    if (spends) {
      one.spending = image.id;
      one.entry.layer = image.layers.front();
      one.entry.lowers.erase(one.entry.lowers.begin());
    }
    if (image.memory && !request.files_only) {
      one.restored = true;
      stop_sealing(image.id);
      one.entry.birth = request.forked ? Birth::forked : Birth::resumed;
      spec.memory = boundary::MemoryImage{.folder = store_.memory_folder(image.id),
                                          .scratch = parts_.scratch + "/" + one.entry.id,
                                          .check = [store = store_, image] { return store.verify(image, false); }};
    }
  }
  ISOLA_TRY(std::string mounted, mount_image(request.digest));
  spec.lowers.push_back(std::move(mounted));
  spec.blob = parts_.blobs + "/" + request.digest + ".erofs";
  return spec;
}

// ---- making an image ------------------------------------------------------------------------------------------------

void Cells::checkpoint(const CheckpointRequest& request, OwnerId owner, Checkpointed done) {
  One* one = find_living(request.id);
  if (!one) return done(fail(Code::not_found, "there is no sandbox " + request.id));
  auto refuse = [&](Code code, const std::string& why) { done(fail(code, why)); };
  if (parts_.kept.empty()) return refuse(Code::unsupported, "this launcher keeps no images");
  if (one->imaging) return refuse(Code::unavailable, "an image of the sandbox is being made already");
  if (one->linking || one->link_fd >= 0) return refuse(Code::unavailable, "somebody is just attaching to the sandbox");
  if (one->freezing) return refuse(Code::unavailable, "the sandbox is just being frozen");
  if (!request.image.empty() && !is_image_id(request.image)) return refuse(Code::invalid, "that is no id of an image");
  if (one->entry.lowers.size() >= kMostLowers)
    return refuse(Code::exhausted, fmt::format("the sandbox went through {} images: no more fit", kMostLowers));
  if (request.memory) {
    if (one->entry.shown)
      return refuse(Code::unsupported,
                    "folders of the host are shown to the sandbox, so only its files can be kept, not its memory");
    auto host = boundary_of(*one).memory_host();
    if (!host) return done(std::unexpected(host.error()));
    auto quiet = one->cell->quiesced();
    if (!quiet) return done(std::unexpected(quiet.error()));
    if (!*quiet) return refuse(Code::invalid, "the link of the sandbox must be quiesced first");
  }
  if (auto begun = begin_image(*one, request); !begun) return done(std::unexpected(begun.error()));
  one->imaging->owner = owner;
  one->imaging->done = std::move(done);
  if (request.memory) {
    // criu and runsc stop the processes by themselves; those that v1's freezer holds they could not.
    Result<void> ready;
    if (one->state == State::frozen) ready = let_go_on(*one);
    if (ready) ready = start_work(*one);
    if (!ready) image_failed(*one, ready.error());
    return;
  }
  one->imaging->froze = one->state != State::frozen;
  begin_freezing(*one, [this, id = request.id](const Result<void>& frozen) {
    One* it = find(id);
    if (!it || !it->imaging) return;
    auto ready = frozen ? start_work(*it) : frozen;
    if (!ready) image_failed(*it, ready.error());
  });
}

Result<void> Cells::begin_image(One& one, const CheckpointRequest& request) {
  auto imaging = std::make_unique<Imaging>();
  image::Image& image = imaging->image;
  imaging->keep_running = request.keep_running;
  image.created = static_cast<int64_t>(::time(nullptr));
  image.sandbox = one.entry.id;
  image.verb = request.keep_running ? "snapshot" : "pause";
  image.parent = one.entry.image;
  image.boundary = to_string(one.entry.kind);
  image.version = ISOLA_VERSION;
  image.digest = one.entry.digest;
  image.roots_own = one.entry.roots_own;
  image.protections = boundary_of(one).describe_protections();
  image.memory = request.memory;
  if (request.memory) {
    ISOLA_TRY(auto host, boundary_of(one).memory_host());
    image.host = {host.checkpointer, host.kernel, host.cpu, host.guest};
    for (const auto& volume : one.entry.volumes) image.volumes.push_back(volume.target);
    std::ranges::sort(image.volumes);
  }
  ISOLA_TRY(auto group, parts_.cgroups.adopt(one.entry.id));
  auto limits = group.limits();
  group.release();
  if (!limits) return std::unexpected(limits.error());
  // Process 1 of a box is the relay, whose limit is the engine's.
  const auto name = one.cell->name();
  ISOLA_TRY(uint32_t open_files, one.entry.kind == BoundaryKind::jail ? open_files_of(name.process.pid)
                                                                      : boundary::box::open_files_of(name));
  // As it is in force: a launcher that adopted the sandbox was never told.
  ISOLA_TRY(uint64_t disk, parts_.layers.limit(layer_of(one.entry)));
  image.limits = {.milli_cpus = static_cast<uint64_t>(limits->cpus * 1000 + 0.5),
                  .memory = limits->memory,
                  .disk = disk ? disk : one.limits.disk,
                  .io_bytes_per_second = limits->io_bytes_per_second,
                  .pids = limits->pids,
                  .open_files = open_files};
  image.id = request.image.empty() ? new_image_id() : request.image;
  // Of an image that was dropped there may still be the layer, below sandboxes that were made from it.
  if (layer_images_.contains(image.id) || layer_users_.contains(image.id) || parts_.layers.path(image.id))
    return fail(Code::exists, "there is a layer of an image " + image.id + " still");
  ISOLA_TRY(imaging->draft, store_.begin(image.id));
  // A paused sandbox leaves its layer to its image, as it is.
  std::string layer = layer_of(one.entry);
  bool copy = request.keep_running;
  // The disk of a virtual machine is whole in its own layer: below that there is what it was copied from.
  if (one.entry.kind != BoundaryKind::microvm) image.layers = one.entry.lowers;
  image.layers.insert(image.layers.begin(), copy ? image.id : layer);
  one.imaging = std::move(imaging);
  return {};
}

Result<void> Cells::start_work(One& one) {
  Imaging& imaging = *one.imaging;
  boundary::CheckpointSpec spec{.memory = imaging.image.memory,
                                .folder = imaging.draft.memory,
                                .memory_limit = imaging.image.limits.memory,
                                .keep_running = imaging.keep_running,
                                .largest_deleted_file = one.limits.disk,
                                .keep = parts_.layers.descriptors()};
  spec.keep.push_back(imaging.draft.lock.get());
  // Only checksums are made ahead. The layer goes to the disk when the memory is there: on a full disk a sync before
  // that fails below the store's filesystem, which is read-only from then on, for everybody.
  auto ahead =
      std::make_shared<image::SumsAhead>(imaging.draft.memory, "pages-");  // criu appends to these, and only that
  spec.begun = [ahead] { ahead->start(); };
  spec.at_rest = [this, &imaging, ahead, layer = layer_of(one.entry)] {
    return keep_files(imaging.image, store_, parts_.layers, layer, *ahead);
  };
  ISOLA_TRY(imaging.work, boundary_of(one).checkpoint(*one.cell, std::move(spec)));
  return parts_.loop.watch(imaging.work->fd(), EPOLLIN, [this, id = one.entry.id](uint32_t) { advance_image(id); });
}

void Cells::advance_image(const std::string& id) {
  One* one = find(id);
  if (!one || !one->imaging || !one->imaging->work) return;
  auto done = one->imaging->work->advance();
  if (done && !*done) return;
  parts_.loop.unwatch(one->imaging->work->fd());
  reap_soon();
  if (done)
    image_made(*one);
  else
    image_failed(*one, done.error());
}

void Cells::image_made(One& one) {
  Imaging& imaging = *one.imaging;
  Made made;
  if (!decode_made(imaging.work->result(), made))
    return image_failed(one, Error{Code::unavailable, "unreadable word of a checkpoint"});
  imaging.image.memory_bytes = made.memory_bytes;
  imaging.image.layer_bytes = made.layer_bytes;
  imaging.latency = imaging.work->latency();
  imaging.latency.add(Step::files, std::chrono::nanoseconds(made.files));
  imaging.latency.add(Step::sums, std::chrono::nanoseconds(made.sums));
  imaging.latency.add(Step::commit, std::chrono::nanoseconds(made.commit));
  image_there(one, imaging.keep_running || !imaging.image.memory);
}

// `lives`: who made the image has not ended it.
void Cells::image_there(One& one, bool lives) {
  Imaging& imaging = *one.imaging;
  imaging.work.reset();
  imaging.draft.lock.reset();
  count_image(imaging.image, 1);
  if (imaging.image.memory) {
    to_seal_.insert(imaging.image.id);
    seal_later(std::chrono::milliseconds(200));
  }
  const bool exited = imaging.exited;
  const std::string id = one.entry.id;
  if (imaging.keep_running) {
    if (imaging.froze && !exited) (void)let_go_on(one);
    auto owned = std::move(one.imaging);
    report_image(*owned);
  } else {
    imaging.cleared_from = std::chrono::steady_clock::now();
    if (!one.reason) one.reason = EndReason::killed;
    end_servers_later(one);
    if (!exited && lives) end(one, EndReason::killed);
  }
  if (exited) this->exited(id);
}

void Cells::image_failed(One& one, const Error& error) {
  // Killed in the middle, it may have left processes half changed: nobody may go on with them.
  const bool broken = error.code == Code::unavailable && one.imaging->image.memory;
  bool unknown = false;  // whether there is an image
  if (broken && !one.imaging->keep_running) {
    // Unless it was so far that the image is there: then that is what the sandbox is from now on.
    auto kept = store_.find(one.imaging->image.id);
    unknown = !kept && kept.error().code != Code::not_found;
    if (kept) {
      log::warn("launcher", "{}: whoever paused it died ({}), after its image {} was made", one.entry.id, error.message,
                kept->id);
      one.imaging->image = std::move(*kept);
      return image_there(one, true);
    }
  }
  auto imaging = std::move(one.imaging);
  const std::string id = one.entry.id;
  imaging->draft.lock.reset();
  if (unknown) {
    // It may be all that is left of the sandbox, and be readable in a moment: nothing of it is removed.
    log::error("launcher", "{}: its image {} cannot be looked at, and is kept", id, imaging->image.id);
    broken_.insert(imaging->image.id);
    doubt_layers();
  } else {
    (void)store_.drop(imaging->image.id);  // it may have come so far
    (void)janitor_.take(Janitor::image_folder(imaging->image.id));
    if (imaging->image.layers.front() == imaging->image.id) drop_unused({imaging->image.id});
  }
  if (imaging->froze && one.state == State::frozen) (void)let_go_on(one);
  if (broken) end(one, EndReason::boundary_failure);
  imaging->done(std::unexpected(error));
  if (imaging->exited) {
    if (!one.reason) one.reason = EndReason::boundary_failure;
    exited(id);
  }
}

void Cells::report_image(Imaging& imaging) {
  if (!imaging.keep_running) imaging.latency.add(Step::clear, std::chrono::steady_clock::now() - imaging.cleared_from);
  imaging.done(CheckpointReply{.image = imaging.image.id,
                               .parent = imaging.image.parent,
                               .memory_bytes = imaging.image.memory_bytes,
                               .layer_bytes = imaging.image.layer_bytes,
                               .latency = imaging.latency});
}

// ---- what there is --------------------------------------------------------------------------------------------------

std::vector<ImageSummary> Cells::images(const std::string& after, size_t max, bool for_root) {
  adopt_drafts();
  std::vector<ImageSummary> all;
  for (auto it = kept_.upper_bound(after); it != kept_.end() && all.size() < max; ++it)
    if (for_root || !it->second.roots_own) all.push_back(it->second.summary);
  return all;
}

Result<void> Cells::image_open_to_user(const std::string& id) {
  look_again(id);
  auto it = kept_.find(id);
  if (it != kept_.end() && !it->second.roots_own) return {};
  // Whose it is stands in the manifest, too: of one that cannot be read the user hears why, and changes nothing of it.
  if (broken_.contains(id)) {
    ISOLA_CHECK(store_.find(id));
    return fail(Code::unavailable, "image " + id + " was just mended: try again");
  }
  return fail(Code::not_found, "there is no image " + id);
}

Result<void> Cells::drop_image(const std::string& id) {
  look_again(id);
  if (broken_.contains(id)) {
    ISOLA_CHECK(store_.drop(id));
    broken_.erase(id);  // its layers go with the next start, if nobody else has them then
    return janitor_.take(Janitor::image_folder(id));
  }
  auto it = kept_.find(id);
  if (it == kept_.end() && drafts_.contains(id)) return fail(Code::unavailable, "image " + id + " is still being made");
  if (it == kept_.end()) return fail(Code::not_found, "there is no image " + id);
  if (packing_.contains(id)) return fail(Code::unavailable, "image " + id + " is just being packed or unpacked");
  ISOLA_CHECK(store_.drop(id));
  stop_sealing(id);
  auto layers = it->second.layers;
  image::Image gone;
  gone.id = id;
  gone.layers = layers;
  count_image(gone, -1);
  to_seal_.erase(id);
  outrun_.erase(id);
  empty_pool(id);
  ISOLA_CHECK(janitor_.take(Janitor::image_folder(id)));
  drop_unused(layers);
  return {};
}

// ---- children that nobody waits for ---------------------------------------------------------------------------------

void Cells::reap_soon() {
  reap_pause_ = kReapFirst;
  if (!reap_) reap_ = parts_.loop.after(reap_pause_, [this] { reap_.reset(), reap_strays(); });
}

// Helpers that are done, and what a helper that was killed left: processes of its own are given to us (launcher.cc).
void Cells::reap_strays() {
  auto hands = janitor_.pids();
  std::set<pid_t> known(hands.begin(), hands.end());
  for (const auto& [id, one] : cells_) {
    if (one->cell || one->launching) known.insert(one->entry.process.pid);  // of others nobody else waits for it
    for (const auto& server : one->servers) known.insert(server.pid);
  }
  std::ifstream children(fmt::format("/proc/self/task/{}/children", ::getpid()));
  bool some_left = false;
  for (pid_t pid; children >> pid;) {
    if (known.contains(pid) || (is_known_child && is_known_child(pid))) continue;
    // One that was reaped may have left us children that this list does not have.
    if (::waitpid(pid, nullptr, WNOHANG) >= 0) some_left = true;
  }
  if (!some_left) return;
  reap_pause_ = std::min(reap_pause_ * 2, kReapLast);
  if (!reap_) reap_ = parts_.loop.after(reap_pause_, [this] { reap_.reset(), reap_strays(); });
}

}  // namespace isola::launcher
