// Cells: images that are packed, since nobody needs them soon, and unpacked again. Either is done by a helper at its
// leisure; while it works, nobody gets at the image.
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "image/packed_image.h"
#include "kernel/capability.h"
#include "launcher/cells.h"

namespace isola::launcher {

namespace {

// Files of any owner with all their attributes, whiteouts (which are device nodes), layers and their limits.
constexpr uint64_t kPackingCapabilities =
    kernel::capability(CAP_SYS_ADMIN) | kernel::capability(CAP_DAC_OVERRIDE) | kernel::capability(CAP_DAC_READ_SEARCH) |
    kernel::capability(CAP_FOWNER) | kernel::capability(CAP_CHOWN) | kernel::capability(CAP_FSETID) |
    kernel::capability(CAP_MKNOD) | kernel::capability(CAP_SETFCAP) | kernel::capability(CAP_SYS_RESOURCE);

PackReply sizes_of(const image::Image& image) { return {image::memory_size(image), image::layer_size(image)}; }

}  // namespace

void Cells::pack_image(const std::string& id, bool pack, PackDone done) {
  auto image = store_.find(id);
  if (!image) return done(std::unexpected(image.error()));
  if (image->packed() == pack) return done(sizes_of(*image));
  if (packing_.contains(id)) return done(fail(Code::unavailable, "image " + id + " is just being packed or unpacked"));
  auto used = [&](const std::string& layer) { return layer_users_.contains(layer) || writing_.contains(layer); };
  if (pack && !image->layers.empty() && used(image->layers.front()))
    return done(fail(Code::unavailable, "a sandbox is made of image " + id));
  packing_.insert(id);
  to_seal_.erase(id);
  empty_pool(id);
  // Whoever seals it writes its manifest.
  if (sealing_ == id)
    after_seal_ = [this, image = *image, pack, done] { pack_in_turn(image, pack, done); };
  else
    pack_in_turn(*image, pack, std::move(done));
}

void Cells::pack_in_turn(const image::Image& image, bool pack, PackDone done) {
  auto over = [this, done = std::move(done)](const Result<PackReply>& result) {
    done(result);
    turn_over(images_line_);
  };
  in_turn(images_line_, [this, image, pack, over] { make_room(image, pack, over); });
}

// Where files are unpacked, for good or on trial, there is a layer first.
void Cells::make_room(const image::Image& image, bool pack, PackDone done) {
  auto give_up = [this, id = image.id, done](const Error& error) {
    packing_.erase(id);
    done(std::unexpected(error));
  };
  if (pack && !image.memory) {
    auto trial = image::make_trial(parts_.layers, image);
    return trial ? pack_aside(image, pack, *trial, std::move(done)) : give_up(trial.error());
  }
  if (pack || !image::has_packed_layer(image)) return pack_aside(image, pack, "", std::move(done));
  // Its folder may still be there, from before it was packed or of an unpacking that failed, and the janitor be at it:
  // only when he has done with it the layer is made anew.
  const auto removal = Janitor::group_and_layer("", image.layers.front());
  after_jobs_[removal] = [this, image, give_up, done](const Result<void>& removed) {
    auto made = removed ? image::make_layer(parts_.layers, image) : removed;
    return made ? pack_aside(image, false, "", done) : give_up(made.error());
  };
  if (auto told = janitor_.take(removal); !told) after_jobs_.extract(removal).mapped()(told);
}

void Cells::pack_aside(const image::Image& image, bool pack, const std::string& trial, PackDone done) {
  const std::string id = image.id;
  auto named = image.layers.empty() ? layer_images_.end() : layer_images_.find(image.layers.front());
  const bool own = named != layer_images_.end() && named->second == 1;
  auto work = [this, id, image, pack, own, trial](kernel::Helper::Talk&) -> Result<std::string> {
    // The next launcher looks at what is there, and must not meet one of us.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)::nice(10);
    auto changed =
        pack ? image::pack(store_, parts_.layers, image, own, trial) : image::unpack(store_, parts_.layers, image);
    if (!changed) return std::unexpected(changed.error().in("image " + id));
    return "";
  };
  auto over = [this, id, pack, trial, done = std::move(done)](const Result<void>& result) {
    packing_.erase(id);
    if (!trial.empty()) (void)janitor_.take(Janitor::group_and_layer("", trial));
    auto now = store_.find(id);
    // A layer that is in an archive, by now or still, is nowhere else.
    if (now && image::has_packed_layer(*now) && (result || !pack))
      (void)janitor_.take(Janitor::group_and_layer("", now->layers.front()));
    if (!result) return done(std::unexpected(result.error()));
    if (!now) return done(std::unexpected(now.error()));
    done(sizes_of(*now));
  };
  do_aside({.name = "isola-pack", .capabilities = kPackingCapabilities, .keep = parts_.layers.descriptors()}, work,
           std::move(over));
}

}  // namespace isola::launcher
