#include "cli/image_files.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>

#include "cli/finder.h"
#include "image/image_store.h"
#include "image/mount_blob.h"
#include "image/template_cache.h"
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

// Whoever keeps a repository in an image keeps what is in its configuration, too.
bool nothing_left_out(const std::string&) { return false; }

bool is_of_packages(const std::string& below) {
  static const std::set<std::string> kFolders = {"bin",           "lib",
                                                 "lib32",         "lib64",
                                                 "libx32",        "sbin",
                                                 "usr/bin",       "usr/games",
                                                 "usr/include",   "usr/lib",
                                                 "usr/lib32",     "usr/lib64",
                                                 "usr/libexec",   "usr/libx32",
                                                 "usr/sbin",      "usr/share",
                                                 "usr/local/bin", "usr/local/include",
                                                 "usr/local/lib", "usr/local/share"};
  return kFolders.contains(below);
}

Looked look_into(const std::string& folder, size_t& texts, const LeavesOut& leaves_out = nothing_left_out,
                 const std::vector<std::string>& env = {}) {
  Looked out;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) return out;
  auto nothing = scan::Automaton::make({});
  if (!nothing) return out;
  Finder finder(*nothing);
  out.whole = scan_path(finder, folder, leaves_out).has_value();
  for (const auto& line : env) finder.begin("environment"), finder.feed(line), finder.end();
  texts += finder.texts();
  if (!finder.findings().empty()) out.what = finder.findings().front().what;
  return out;
}

// All of its files are in one.
Looked look_into_blob(const image::TemplateCache& cache, const std::string& digest, size_t& texts,
                      const std::vector<std::string>& env = {}) {
  if (!is_digest(digest)) return {};  // what the server says is no path for root
  auto mounted = image::mount_blob(cache.blob_path(digest));
  if (!mounted) return {};
  return look_into("/proc/self/fd/" + std::to_string(mounted->get()) + "/.", texts, is_of_packages, env);
}

void look_into_templates(const std::string& cache_dir, const std::vector<std::string>& digests, ImageFiles& out) {
  image::TemplateCache cache(cache_dir);
  auto note = [&](const std::string& what, const Looked& looked) {
    if (!looked.what.empty()) out.found.push_back(what + " (" + looked.what + ")");
    if (!looked.whole) out.missed.push_back(what);
  };
  std::set<std::string> seen;
  auto templates = cache.list();
  if (!templates) out.missed.emplace_back("the templates of this machine");
  for (const auto& one : templates.value_or(std::vector<image::Template>())) {
    seen.insert(one.digest);
    note("template " + one.name, look_into_blob(cache, one.digest, out.texts, one.env));
  }
  for (const auto& digest : digests)
    if (seen.insert(digest).second) note("build " + digest.substr(0, 12), look_into_blob(cache, digest, out.texts));
}

}  // namespace

ImageFiles look_into_images(const std::string& data_dir, const std::string& cache_dir, const ImageNames& names) {
  ImageFiles out;
  look_into_templates(cache_dir, names.digests, out);
  const std::string root = ::geteuid() == 0 ? launchers_root(data_dir) : "";
  image::ImageStore images(data_dir + "/images");
  std::map<std::string, Looked> layers;  // many images stand on the same ones
  for (const auto& id : names.ids) {
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
