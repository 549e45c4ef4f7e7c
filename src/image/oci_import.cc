#include "image/oci_import.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/hash/sha256.h"
#include "base/ids.h"
#include "base/units.h"
#include "image/build_folder.h"
#include "image/file_lock.h"
#include "image/guest_user.h"
#include "image/oci_layout.h"
#include "image/recipes.h"
#include "image/root_tree.h"
#include "image/skopeo.h"
#include "image/spawn.h"
#include "image/tree.h"

namespace isola::image {

namespace {

constexpr uint64_t kMostBytes = uint64_t{64} << 30, kMostMembers = 4'000'000;
constexpr const char* kLayerPatience = "1800";  // seconds, for a layer
// Of its digest in a name: so many that nobody finds a second image for them. Older names have fewer.
constexpr size_t kPulledDigits = 40, kFewestDigits = 16;
constexpr std::string_view kPulled = "oci-", kImported = "disk-";

Result<std::string> unpack_program() {
  std::error_code error;
  auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "isola-unpack";
  if (error || ::access(program.c_str(), X_OK) < 0)
    return fail(Code::not_found, "the program isola-unpack is not beside this one");
  return program.string();
}

// What isola-unpack ends with, in words for whoever asked for the image.
Error unpack_error(const Error& error) {
  auto ended_with = [&](const char* code) {
    return error.message.find(std::string("exit code ") + code) != std::string::npos;
  };
  const size_t line = error.message.rfind('\n');
  const std::string last = line == std::string::npos ? error.message : error.message.substr(line + 1);
  if (ended_with("3:")) return {Code::exhausted, "the image is too large: " + last};
  if (ended_with("4:")) return {Code::invalid, "a layer of the image cannot be unpacked: " + last};
  if (ended_with("124") || ended_with("137"))
    return {Code::timeout, fmt::format("a layer of the image was not unpacked within {} seconds", kLayerPatience)};
  return error;
}

// What is left of the bound afterwards is for the next layer.
Result<void> apply(const std::string& root, int layer, uint64_t& bytes, uint64_t& entries, const std::string& log) {
  ISOLA_TRY(std::string program, unpack_program());
  if (::lseek(layer, 0, SEEK_SET) < 0) return sys_error("cannot read a layer");
  auto said = run_output({.argv = {"timeout", "--kill-after=5", kLayerPatience, program, root, std::to_string(bytes),
                                   std::to_string(entries)},
                          .what = "cannot unpack a layer of the image",
                          .log = log,
                          .contained = true,
                          .input = layer});
  if (!said) return std::unexpected(unpack_error(said.error()));
  unsigned long done = 0, files = 0;
  if (std::sscanf(said->c_str(), "%lu %lu", &done, &files) != 2)
    return fail(Code::internal, "isola-unpack does not say what it did");
  bytes -= std::min<uint64_t>(bytes, done);
  entries -= std::min<uint64_t>(entries, files);
  return {};
}

// What every sandbox relies on, whoever packed the image.
Result<void> furnish(const RootTree& root) {
  for (const char* folder : {"/etc", "/root", "/usr", "/var"})
    if (!root.exists(folder)) ISOLA_CHECK(root.folder_at(folder, 0755));
  for (const char* folder : {"/proc", "/sys", "/dev", "/run"}) {
    ISOLA_CHECK(root.folder_at(folder, 0755));
    ISOLA_CHECK(root.empty_folder(folder));
  }
  ISOLA_CHECK(root.folder_at("/tmp", 01777));
  const std::string name(kGuestHostname);
  ISOLA_CHECK(root.write("/etc/hostname", name + "\n"));
  ISOLA_CHECK(root.write("/etc/hosts", "127.0.0.1 localhost " + name + "\n::1 localhost ip6-localhost ip6-loopback\n"));
  ISOLA_CHECK(root.write("/etc/resolv.conf", "nameserver " + std::string(kGuestResolver) + "\n"));
  return add_guest_user(root);
}

Result<void> make_tree(const BuildPlace& place, const OciImage& image, uint64_t most, const Reporter& report) {
  if (::mkdir(place.root().c_str(), 0755) < 0 || ::chmod(place.root().c_str(), 0755) < 0)
    return sys_error("cannot make the root of the template");
  uint64_t bytes = most, entries = kMostMembers;
  for (size_t i = 0; i < image.layers.size(); ++i) {
    report("unpack", fmt::format("layer {} of {}", i + 1, image.layers.size()));
    ISOLA_CHECK(check_layer(image.layers[i]));
    ISOLA_CHECK(apply(place.root(), image.layers[i].file.get(), bytes, entries, place.log()));
  }
  ISOLA_TRY(RootTree root, RootTree::open(place.root()));
  return furnish(root);
}

void describe(Template& wanted, const OciImage& image, const std::string& origin) {
  wanted.origin = origin;
  for (const auto& [name, value] : image.env) wanted.env.push_back(name + "=" + value);
  wanted.user = image.user.empty() ? "root" : image.user;
  wanted.cwd = image.cwd.empty() ? "/" : image.cwd;
}

// For skopeo, which is nobody: others may pass through, to the folder that is given to it.
Result<BuildFolder> passable_folder(const TemplateCache& cache) {
  const std::string parent = cache.root() + "/pull";
  ISOLA_CHECK(make_dirs(parent, 0711));
  ISOLA_CHECK(sweep_folders(parent));
  ISOLA_TRY(BuildFolder folder, BuildFolder::make(parent, "pull"));
  if (::chmod(folder.path().c_str(), 0711) < 0) return sys_error("cannot open " + folder.path());
  return folder;
}

// `digest`: of the image where it came from; empty: as it is here.
Result<Template> import_folder(TemplateCache& cache, const std::string& folder, const std::string& origin,
                               std::string name, std::string digest, uint64_t most, const Progress& progress) {
  ISOLA_TRY(OciImage image, read_image_folder(folder));
  if (digest.empty()) digest = image.digest;
  if (name.empty()) name = std::string(kImported) + digest.substr(0, kPulledDigits);
  Template wanted{.name = name, .key = "oci " + digest, .distribution = "OCI image"};
  describe(wanted, image, origin);
  auto make = [&](const BuildPlace& place, const Reporter& report) -> Result<std::vector<std::string>> {
    ISOLA_CHECK(make_tree(place, image, most, report));
    return std::vector<std::string>();
  };
  // Beside the bytes of its files a blob has names, owners and the ends of blocks.
  return cache.build_from(wanted, make, progress, false, 2 * most);
}

bool is_digest_behind(std::string_view prefix, const std::string& name) {
  return name.starts_with(prefix) && name.size() >= prefix.size() + kFewestDigits &&
         name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string::npos;
}

Result<void> has_room(const TemplateCache& cache, const PullOptions& options, uint64_t bytes) {
  ISOLA_TRY(auto all, cache.list());
  uint64_t used = 0;
  for (const auto& one : all)
    if (is_pulled_name(one.name)) used += one.size;
  if (bytes > options.most_bytes)
    return fail(Code::exhausted, fmt::format("the image has {} packed, and {} is the most that is fetched",
                                             format_size(bytes), format_size(options.most_bytes)));
  if (used + bytes > options.most_of_all)
    return fail(Code::exhausted,
                fmt::format("the images that were fetched take {} of {}: `isola template rm` makes room",
                            format_size(used), format_size(options.most_of_all)));
  return {};
}

}  // namespace

bool is_pulled_name(const std::string& name) { return is_digest_behind(kPulled, name); }
bool is_imported_name(const std::string& name) { return is_digest_behind(kImported, name); }

Result<void> sweep_pulls(const std::string& cache_dir) {
  const std::string parent = cache_dir + "/pull";
  if (::access(parent.c_str(), F_OK) < 0) return {};
  return sweep_folders(parent);
}

Result<Template> import_image(TemplateCache& cache, const std::string& source, const std::string& name,
                              const Progress& progress) {
  struct stat st;
  if (::stat(source.c_str(), &st) < 0) return sys_error("cannot find " + source);
  const std::string origin = std::filesystem::absolute(source).string();
  if (S_ISDIR(st.st_mode)) return import_folder(cache, source, origin, name, "", kMostBytes, progress);
  // An archive of an image is an archive: unpacked by the same program, as confined.
  Fd file(::open(source.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return sys_error("cannot read " + source);
  // It brings owners, modes and setuid programs along, also for the folder itself.
  ISOLA_TRY(BuildFolder scratch, cache.closed_folder("import"));
  const std::string folder = scratch.path() + "/image";
  ISOLA_CHECK(make_dirs(folder, 0700));
  uint64_t bytes = kMostBytes, entries = 100'000;
  ISOLA_CHECK(apply(folder, file.get(), bytes, entries, ""));
  return import_folder(cache, folder, origin, name, "", kMostBytes, progress);
}

Result<Template> pull_image(TemplateCache& cache, const std::string& text, const PullOptions& options,
                            const Progress& progress) {
  ISOLA_TRY(ImageReference reference, parse_reference(text));
  Reporter report(progress);
  report("registry", to_text(reference));
  ISOLA_TRY(BuildFolder scratch, passable_folder(cache));
  ISOLA_TRY(Skopeo skopeo, Skopeo::open(scratch.path() + "/skopeo", "", options.anonymous, options.credentials));
  // A tag becomes a digest first: what is here already is not fetched again, and how large it is is known before.
  ImageReference exact = reference;
  OciManifest manifest;
  for (int depth = 0;; ++depth) {
    ISOLA_TRY(std::string raw, skopeo.manifest(exact));
    ISOLA_TRY(std::string digest, sha256(raw));
    if (!exact.digest.empty() && digest != exact.digest)
      return fail(Code::corrupt, "the registry " + reference.registry + " gave something else than " + to_text(exact));
    exact.digest = digest;
    exact.tag.clear();
    auto read = read_manifest(raw);
    if (!read) return std::unexpected(read.error().in(to_text(reference)));
    manifest = std::move(*read);
    if (manifest.next.empty()) break;
    if (depth == 3) return fail(Code::corrupt, "the index of " + to_text(reference) + " leads nowhere");
    exact.digest = manifest.next;
  }
  std::string name = options.name.empty() ? std::string(kPulled) + exact.digest.substr(0, kPulledDigits) : options.name;
  if (auto here = cache.find(name); here && here->key == "oci " + exact.digest) return here;
  uint64_t bytes = 0, largest = 64 << 20;
  for (const auto& layer : manifest.layers) {
    bytes += std::min(layer.size, kMostBytes);
    largest = std::max(largest, layer.size);
  }
  ISOLA_CHECK(has_room(cache, options, bytes));
  report("fetch", fmt::format("{} ({})", to_text(reference), format_size(bytes)));
  ISOLA_TRY(std::string layout, skopeo.copy(exact, std::min(largest, options.most_bytes) + (1 << 20)));
  // One after the other, so that each sees what those before it took.
  ISOLA_TRY(FileLock one_at_a_time, FileLock::take(cache.root() + "/pull/import.lock"));
  ISOLA_CHECK(has_room(cache, options, bytes));
  return import_folder(cache, layout, to_text(reference), name, exact.digest, options.most_bytes, progress);
}

}  // namespace isola::image
