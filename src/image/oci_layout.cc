#include "image/oci_layout.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hash/sha256.h"
#include "base/ids.h"
#include "base/json_bound.h"

namespace isola::image {

namespace {

constexpr size_t kLargestJson = 4 << 20;
constexpr size_t kMostLayers = 200, kDeepestIndex = 4;

Result<nlohmann::json> parse(std::string_view text, const std::string& what) {
  ISOLA_CHECK(check_json_bound(text));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) return fail(Code::corrupt, what + " is not JSON");
  return json;
}

std::string text_at(const nlohmann::json& json, const char* name) {
  auto found = json.is_object() ? json.find(name) : json.end();
  return json.is_object() && found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

const nlohmann::json& at(const nlohmann::json& json, const char* name) {
  static const nlohmann::json none;
  if (!json.is_object()) return none;
  auto found = json.find(name);
  return found == json.end() ? none : *found;
}

Result<OciDescriptor> descriptor(const nlohmann::json& json) {
  std::string digest = text_at(json, "digest");
  const nlohmann::json& size = at(json, "size");
  if (!digest.starts_with("sha256:") || !is_digest(digest.substr(7)) || !size.is_number_unsigned())
    return fail(Code::corrupt, "a manifest of the image names something without a SHA-256 and a size");
  return OciDescriptor{digest.substr(7), size.get<uint64_t>()};
}

// A folder that somebody else filled: links in it stay inside.
class LayoutFolder {
 public:
  static Result<LayoutFolder> open(const std::string& path) {
    Fd fd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return sys_error("cannot open " + path);
    return LayoutFolder(std::move(fd));
  }
  Result<Fd> file(const std::string& name) const {
    open_how how{
        .flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK, .mode = 0, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    Fd fd(static_cast<int>(::syscall(SYS_openat2, fd_.get(), name.c_str(), &how, sizeof how)));
    if (!fd) return sys_error("the image has no " + name);
    struct stat st;
    if (::fstat(fd.get(), &st) < 0 || !S_ISREG(st.st_mode)) return fail(Code::corrupt, name + " is not a file");
    return fd;
  }
  Result<std::string> text(const std::string& name) const {
    ISOLA_TRY(Fd fd, file(name));
    return read_file("/proc/self/fd/" + std::to_string(fd.get()), kLargestJson);
  }
  bool has(const std::string& name) const { return file(name).has_value(); }

 private:
  explicit LayoutFolder(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

std::string blob(const std::string& digest) { return "blobs/sha256/" + digest; }

Result<std::string> checked_text(const LayoutFolder& folder, const std::string& digest) {
  ISOLA_TRY(std::string text, folder.text(blob(digest)));
  ISOLA_TRY(std::string sum, sha256(text));
  if (sum != digest) return fail(Code::corrupt, "the image is damaged: " + blob(digest) + " is not what its name says");
  return text;
}

Result<OciLayer> layer_in(const LayoutFolder& folder, const std::string& name, const std::string& digest) {
  OciLayer layer{.name = name, .digest = digest};
  ISOLA_TRY(layer.file, folder.file(name));
  struct stat st;
  if (::fstat(layer.file.get(), &st) < 0) return sys_error("cannot look at " + name);
  layer.size = static_cast<uint64_t>(st.st_size);
  return layer;
}

Result<void> take_config(OciImage& image, const std::string& text, nlohmann::json& whole) {
  ISOLA_TRY(whole, parse(text, "the configuration of the image"));
  std::string system = text_at(whole, "os"), machine = text_at(whole, "architecture");
  if ((!system.empty() && system != "linux") || (!machine.empty() && machine != "amd64"))
    return fail(Code::unsupported, "the image is for " + system + "/" + machine + ", this machine is linux/amd64");
  const nlohmann::json& config = at(whole, "config");
  image.user = text_at(config, "User");
  image.cwd = text_at(config, "WorkingDir");
  if (const nlohmann::json& env = at(config, "Env"); env.is_array())
    for (const auto& one : env) {
      std::string pair = one.is_string() ? one.get<std::string>() : "";
      size_t equals = pair.find('=');
      if (equals == std::string::npos || equals == 0 || pair.find('\0') != std::string::npos) continue;
      image.env.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    }
  return {};
}

Result<OciImage> read_layout(const LayoutFolder& folder) {
  ISOLA_TRY(std::string text, folder.text("index.json"));
  OciImage image;
  OciManifest manifest;
  for (size_t depth = 0;; ++depth) {
    ISOLA_TRY(manifest, read_manifest(text));
    if (manifest.next.empty()) break;
    if (depth == kDeepestIndex) return fail(Code::corrupt, "the index of the image leads nowhere");
    image.digest = manifest.next;
    ISOLA_TRY(text, checked_text(folder, manifest.next));
  }
  if (image.digest.empty()) {
    ISOLA_TRY(image.digest, sha256(text));
  }
  ISOLA_TRY(std::string config, checked_text(folder, manifest.config.digest));
  nlohmann::json whole;
  ISOLA_CHECK(take_config(image, config, whole));
  for (const auto& one : manifest.layers) {
    ISOLA_TRY(OciLayer layer, layer_in(folder, blob(one.digest), one.digest));
    if (layer.size != one.size) return fail(Code::corrupt, "the image is damaged: " + layer.name + " has another size");
    image.layers.push_back(std::move(layer));
  }
  return image;
}

// `docker save`: a list of images with the names of their files. Layers are plain tars, whose digests the configuration
// has.
Result<OciImage> read_docker_archive(const LayoutFolder& folder) {
  ISOLA_TRY(std::string text, folder.text("manifest.json"));
  ISOLA_TRY(nlohmann::json all, parse(text, "manifest.json"));
  if (!all.is_array() || all.empty()) return fail(Code::corrupt, "manifest.json names no image");
  if (all.size() > 1) return fail(Code::unsupported, "the archive holds several images: save one of them alone");
  OciImage image;
  ISOLA_TRY(std::string config, folder.text(text_at(all[0], "Config")));
  nlohmann::json whole;
  ISOLA_CHECK(take_config(image, config, whole));
  ISOLA_TRY(image.digest, sha256(config));
  const nlohmann::json &layers = at(all[0], "Layers"), &digests = at(at(whole, "rootfs"), "diff_ids");
  if (!layers.is_array() || layers.size() > kMostLayers || !digests.is_array() || digests.size() != layers.size())
    return fail(Code::corrupt, "manifest.json and the configuration of the image disagree about its layers");
  for (size_t i = 0; i < layers.size(); ++i) {
    std::string digest = digests[i].is_string() ? digests[i].get<std::string>() : "";
    if (!layers[i].is_string() || !digest.starts_with("sha256:") || !is_digest(digest.substr(7)))
      return fail(Code::corrupt, "the layers of the image have no names");
    ISOLA_TRY(OciLayer layer, layer_in(folder, layers[i].get<std::string>(), digest.substr(7)));
    char magic[4] = {};
    bool packed = ::pread(layer.file.get(), magic, 4, 0) == 4 &&
                  (std::string_view(magic, 2) == "\x1f\x8b" || std::string_view(magic, 4) == "\x28\xb5\x2f\xfd");
    if (packed) layer.digest.clear();  // the digest is that of the plain tar
    image.layers.push_back(std::move(layer));
  }
  return image;
}

}  // namespace

Result<OciManifest> read_manifest(std::string_view text) {
  ISOLA_TRY(nlohmann::json json, parse(text, "the manifest of the image"));
  OciManifest out;
  if (const nlohmann::json& list = at(json, "manifests"); list.is_array()) {
    // Of several, the one for this machine; attestations and the like are for no machine at all.
    for (const auto& one : list) {
      const nlohmann::json& platform = at(one, "platform");
      std::string system = text_at(platform, "os"), machine = text_at(platform, "architecture");
      bool fits = platform.is_null() ? list.size() == 1 : system == "linux" && machine == "amd64";
      if (!fits) continue;
      ISOLA_TRY(OciDescriptor found, descriptor(one));
      out.next = found.digest;
      return out;
    }
    return fail(Code::unsupported, "the image is not there for linux/amd64");
  }
  const nlohmann::json& layers = at(json, "layers");
  if (!layers.is_array() || layers.size() > kMostLayers)
    return fail(Code::corrupt, "the image has no manifest that is understood here");
  ISOLA_TRY(out.config, descriptor(at(json, "config")));
  for (const auto& one : layers) {
    ISOLA_TRY(OciDescriptor layer, descriptor(one));
    out.layers.push_back(std::move(layer));
  }
  return out;
}

Result<OciImage> read_image_folder(const std::string& path) {
  ISOLA_TRY(LayoutFolder folder, LayoutFolder::open(path));
  if (folder.has("oci-layout")) return read_layout(folder);
  if (folder.has("manifest.json")) return read_docker_archive(folder);
  return fail(Code::corrupt, path + " is neither an OCI layout nor what `docker save` writes");
}

Result<void> check_layer(const OciLayer& layer) {
  if (layer.digest.empty()) return {};
  ISOLA_TRY(std::string sum, sha256_file("/proc/self/fd/" + std::to_string(layer.file.get())));
  if (sum != layer.digest)
    return fail(Code::corrupt, "the image is damaged: " + layer.name + " is not what was packed");
  return {};
}

}  // namespace isola::image
