// A file or folder as clients see it: names beside ids, links followed, permissions as ls would show them, and the
// metadata that was uploaded with it (extended attributes user.e2b.*).
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dialect/e2b/call.h"
#include "guest/messages.h"

namespace isola::e2b {

using Metadata = std::map<std::string, std::string>;
inline constexpr std::string_view kMetadataPrefix = "user.e2b.";

struct Found {
  std::string path;
  guest::Stat stat;  // of itself, a link not followed
};

// In the order given. Links and attributes are looked up all at once, not one after the other.
Task<Result<nlohmann::json>> entries_view(Inside& inside, const std::vector<Found>& found);
Task<Result<nlohmann::json>> entry_at(Inside& inside, const std::string& path);

// Where a path leads when links are followed, and what is there.
struct Place {
  std::string path;
  guest::Stat stat;
};
Task<Result<Place>> place_at(Inside& inside, const std::string& path);

// mkdir -p; every folder that is made on the way belongs to `owner`.
Task<Result<void>> make_folder(Inside& inside, const std::string& path, const std::string& owner);

Task<Result<Metadata>> read_metadata(sandbox::GuestLink& link, const std::string& path);
// Replaces all that was there.
Task<Result<void>> write_metadata(sandbox::GuestLink& link, const std::string& path, const Metadata& metadata);

// "-rw-r--r--", "drwxr-xr-x", "Lrwxrwxrwx", "dtrwxrwxrwx".
std::string permissions(const guest::Stat& stat);
// Before everything below it comes a folder; names in the order of their bytes.
bool before(std::string_view a, std::string_view b);

}  // namespace isola::e2b
