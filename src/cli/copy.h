// Copies between here and a sandbox or a volume.
//
//   Copy copy(std::move(api), "/v1/volumes/data", false, options);
//   ISOLA_CHECK(copy.in(from, to));
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/api.h"
#include "cli/place.h"

namespace isola::cli {

struct CopyOptions {
  std::string from, to, user;
  bool recursive = false;
};

class Copy {
 public:
  // `base`: whose /files it is about. `packs`: there is a /files/tar, so that a folder goes in one stream; else file by
  // file, links left out.
  Copy(Api api, std::string base, bool packs, const CopyOptions& options)
      : api_(std::move(api)), base_(std::move(base)), packs_(packs), options_(options) {}
  Result<void> in(const Place& from, const Place& to);
  Result<void> out(const Place& from, const Place& to);
  nlohmann::json done = nlohmann::json::object();  // for --json

 private:
  // BASE/files<kind>?path=…
  std::string target(const std::string& kind, const std::string& path, http::Pairs more = {}) const;
  Result<bool> is_folder_inside(const std::string& path);
  Result<void> send(int fd, const std::string& target, const std::string& name, std::optional<uint64_t> size);
  Result<void> fetch(int fd, const std::string& target, const std::string& name);
  Result<void> fetch_file(const std::string& path, const std::string& to, mode_t mode);
  Result<void> in_each(const std::string& from, const std::string& to);
  Result<void> out_each(const std::string& from, const std::string& to);

  Api api_;
  std::string base_;
  bool packs_;
  const CopyOptions& options_;
};

}  // namespace isola::cli
