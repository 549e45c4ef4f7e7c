#include "builder/context_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/file.h"
#include "base/ids.h"

namespace isola::builder {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kLookEvery = 64 << 20;

uint64_t used_in(const fs::path& folder) {
  uint64_t used = 0;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    std::error_code ignored;
    if (auto size = entry.file_size(ignored); !ignored) used += size;
  }
  return used;
}

}  // namespace

bool is_context_hash(const std::string& hash) { return is_digest(hash); }

namespace {

bool is_name(const std::string& name) {
  const std::string prefix = claimed("");
  return is_digest(name.starts_with(prefix) ? name.substr(prefix.size()) : name);
}

}  // namespace

ContextStore::Draft::~Draft() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Result<void> ContextStore::Draft::write(std::string_view bytes) {
  if (bytes.size() > until_look_) {
    uint64_t used = used_in(fs::path(path_).parent_path());  // with what we wrote
    uint64_t room = std::min(kLargest - std::min(kLargest, written_), kMost - std::min(kMost, used));
    if (bytes.size() > room)
      return fail(Code::exhausted, "the files of a build are at most 4 GiB, and 16 GiB all those of a project");
    until_look_ = std::min(room, kLookEvery);
  }
  ISOLA_CHECK(write_all(file_.get(), bytes));
  if (!wanted_.empty()) hash_.add(bytes);
  written_ += bytes.size();
  until_look_ -= std::min<uint64_t>(until_look_, bytes.size());
  return {};
}

// Both parts are checked by whoever asks: a project's id, and 64 hex digits.
std::string ContextStore::path_of(const std::string& project, const std::string& hash) const {
  return folder_ + "/" + project + "/" + hash;
}

bool ContextStore::has(const std::string& project, const std::string& hash) const {
  return is_name(hash) && ::access(path_of(project, hash).c_str(), F_OK) == 0;
}

Result<ContextStore::Draft> ContextStore::begin(const std::string& project, const std::string& hash) const {
  if (!is_name(hash)) return fail(Code::invalid, "the hash of the files must be 64 hex digits");
  ISOLA_CHECK(make_dirs(folder_ + "/" + project, 0700));
  std::string path = folder_ + "/" + project + "/." + new_command_id();
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return sys_error("cannot keep the files of a build");
  return Draft(std::move(file), std::move(path), path_of(project, hash), is_digest(hash) ? hash : "");
}

Result<void> ContextStore::keep(Draft draft) const {
  if (!draft.wanted_.empty()) {
    ISOLA_TRY(std::string hash, draft.hash_.hex());
    if (hash != draft.wanted_)
      return fail(Code::invalid, "the files have the SHA-256 " + hash + ", not the one that they were sent under");
  }
  if (::fsync(draft.file_.get()) < 0 || ::rename(draft.path_.c_str(), draft.place_.c_str()) < 0)
    return sys_error("cannot keep the files of a build");
  draft.path_.clear();
  return {};
}

Result<Fd> ContextStore::open(const std::string& project, const std::string& hash) const {
  if (!is_name(hash)) return fail(Code::invalid, "the hash of the files must be 64 hex digits");
  Fd file(::open(path_of(project, hash).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file)
    return fail(Code::not_found,
                "the files " + hash.substr(hash.rfind('-') + 1, 12) + "… of the step were not uploaded");
  (void)::futimens(file.get(), nullptr);
  return file;
}

void ContextStore::sweep(std::chrono::hours unused) const {
  std::error_code failed;
  auto oldest = fs::file_time_type::clock::now() - unused;
  for (const auto& entry : fs::recursive_directory_iterator(folder_, failed)) {
    std::error_code ignored;
    if (entry.is_regular_file(ignored) && entry.last_write_time(ignored) < oldest) fs::remove(entry.path(), ignored);
  }
}

}  // namespace isola::builder
