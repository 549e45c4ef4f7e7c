#include "image/blob_users.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/hash/sha256.h"

namespace isola::image {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostText = 4 << 20;  // of a manifest or a journal entry

std::string folder_of(const std::string& blobs, const std::string& digest) { return blobs + "/users/" + digest; }

Result<bool> names(const std::string& file, const std::string& digest) {
  auto text = read_file(file, kMostText);
  if (!text && text.error().code == Code::not_found) return false;  // it has just ended
  if (!text) return std::unexpected(text.error());
  return text->find(digest) != text->npos;
}

// In manifests of images (IMAGES/<id>/manifest.json) or in entries of the journal (RUN/<id>).
Result<bool> named_in(const std::string& folder, const std::string& file, const std::string& digest) {
  std::error_code error;
  fs::directory_iterator all(folder, error), end;
  if (error == std::errc::no_such_file_or_directory) return false;
  while (!error && all != end) {
    ISOLA_TRY(bool found, names(all->path().string() + file, digest));
    if (found) return true;
    all.increment(error);
  }
  if (error) return fail(Code::internal, "cannot look into " + folder + ": " + error.message());
  return false;
}

Result<bool> needs(const std::string& data, const std::string& digest) {
  ISOLA_TRY(bool kept, named_in(data + "/images", "/manifest.json", digest));
  if (kept) return true;
  return named_in(data + "/run", "", digest);
}

}  // namespace

Result<void> note_user(const std::string& blobs, const std::string& digest, const std::string& data) {
  ISOLA_TRY(std::string name, sha256(data));
  std::string folder = folder_of(blobs, digest), note = folder + "/" + name.substr(0, 16);
  if (::access(note.c_str(), F_OK) == 0) return {};
  ISOLA_CHECK(make_dirs(folder));
  return replace_file(note, data);
}

Result<bool> is_used(const std::string& blobs, const std::string& digest) {
  std::error_code error;
  for (const auto& note : fs::directory_iterator(folder_of(blobs, digest), error)) {
    ISOLA_TRY(std::string data, read_file(note.path(), 4096));
    auto needed = needs(data, digest);
    if (!needed || *needed) return true;
  }
  if (error && error != std::errc::no_such_file_or_directory)
    return fail(Code::internal, "cannot look into " + folder_of(blobs, digest) + ": " + error.message());
  return false;
}

}  // namespace isola::image
