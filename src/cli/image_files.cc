#include "cli/image_files.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>

#include "cli/finder.h"
#include "image/image_store.h"
#include "launcher/client.h"

namespace isola::cli {

namespace {

// Where the layers can be seen: the launcher mounts them for itself.
std::string launchers_root(const std::string& data_dir) {
  auto client = launcher::Client::connect(data_dir);
  if (!client) return "";
  auto info = client->info();
  return info ? "/proc/" + std::to_string(info->pid) + "/root" : "";
}

struct Looked {
  bool whole = false;
  std::string what;  // the first that was found
};

Looked look_into(const std::string& folder, size_t& texts) {
  Looked out;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) return out;
  auto nothing = scan::Automaton::make({});
  if (!nothing) return out;
  Finder finder(*nothing);
  out.whole = scan_path(finder, folder).has_value();
  texts += finder.texts();
  if (!finder.findings().empty()) out.what = finder.findings().front().what;
  return out;
}

}  // namespace

ImageFiles look_into_images(const std::string& data_dir, const std::vector<std::string>& ids) {
  ImageFiles out;
  if (ids.empty()) return out;
  const std::string root = ::geteuid() == 0 ? launchers_root(data_dir) : "";
  image::ImageStore images(data_dir + "/images");
  std::map<std::string, Looked> layers;  // many images stand on the same ones
  for (const auto& id : ids) {
    auto image = is_image_id(id) ? images.find(id) : Result<image::Image>(fail(Code::not_found, ""));
    bool whole = image.has_value() && !root.empty();
    std::set<std::string> found;
    if (whole)
      for (const auto& layer : image->layers) {
        auto [at, fresh] = layers.try_emplace(layer);
        if (fresh) at->second = look_into(root + data_dir + "/storage/layers/" + layer + "/upper", out.texts);
        whole = whole && at->second.whole;
        if (!at->second.what.empty()) found.insert(at->second.what);
      }
    for (const auto& what : found) out.found.push_back("image " + id + " (" + what + ")");
    if (!whole) out.missed.push_back(id);
  }
  return out;
}

}  // namespace isola::cli
