#include "image/unpack/layer.h"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "image/tree.h"

namespace isola::image {

namespace {

constexpr std::string_view kWhiteout = ".wh.", kOpaque = ".wh..wh..opq";
// Unlinked first: a file that was there may have other names.
constexpr int kHow = ARCHIVE_EXTRACT_OWNER | ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_XATTR |
                     ARCHIVE_EXTRACT_UNLINK;

using Reader = std::unique_ptr<archive, int (*)(archive*)>;

std::unexpected<Error> archive_error(archive* a, const std::string& what) {
  const char* why = ::archive_error_string(a);
  int number = ::archive_errno(a);
  return fail(number == ENOSPC || number == EDQUOT || number == EFBIG ? Code::exhausted : Code::corrupt,
              what + ": " + (why ? why : "unreadable"));
}

// "/" and the parts, without "." and empty ones. invalid: one that is "..".
Result<std::string> clean(std::string_view raw) {
  std::string out;
  while (!raw.empty()) {
    auto part = raw.substr(0, raw.find('/'));
    raw.remove_prefix(std::min(part.size() + 1, raw.size()));
    if (part.empty() || part == ".") continue;
    if (part == "..") return fail(Code::corrupt, "a name in the layer leads upwards");
    out += "/" + std::string(part);
  }
  return out.empty() ? "/" : out;
}

bool is_folder(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

class Layer {
 public:
  Layer(archive* in, const Amount& most)
      : in_(in), most_(most), out_(::archive_write_disk_new(), ::archive_write_free) {}

  Result<Amount> apply() {
    if (!out_ || ::archive_write_disk_set_options(out_.get(), kHow) != ARCHIVE_OK)
      return fail(Code::internal, "cannot write what an archive holds");
    for (;;) {
      archive_entry* entry = nullptr;
      int got = ::archive_read_next_header(in_, &entry);
      if (got == ARCHIVE_EOF) break;
      if (got != ARCHIVE_OK && got != ARCHIVE_WARN) return archive_error(in_, "the layer cannot be read");
      ISOLA_CHECK(count_entry());
      ISOLA_CHECK(take(entry));
    }
    if (::archive_write_close(out_.get()) != ARCHIVE_OK) return archive_error(out_.get(), "cannot finish the layer");
    return done_;
  }

 private:
  Result<void> count_entry() {
    if (++done_.entries > most_.entries)
      return fail(Code::exhausted, fmt::format("the image has more than {} files", most_.entries));
    return {};
  }

  Result<void> count_bytes(uint64_t bytes) {
    if (bytes > most_.bytes - std::min(done_.bytes, most_.bytes))
      return fail(Code::exhausted, fmt::format("the image is larger than {} bytes", most_.bytes));
    done_.bytes += bytes;
    return {};
  }

  Result<void> take(archive_entry* entry) {
    const char* raw = ::archive_entry_pathname(entry);
    if (!raw) return fail(Code::corrupt, "a name in the layer is no text");
    ISOLA_TRY(std::string path, clean(raw));
    size_t slash = path.rfind('/');
    std::string folder = path.substr(0, slash), name = path.substr(slash + 1);
    if (name == kOpaque) return empty_but_ours(folder.empty() ? "/" : folder);
    if (name.starts_with(".wh..wh.")) return {};  // another tool's own bookkeeping
    if (name.starts_with(kWhiteout)) return remove_tree(folder + "/" + name.substr(kWhiteout.size()));
    return put(entry, path);
  }

  // What this very layer brought stays.
  Result<void> empty_but_ours(const std::string& folder) {
    if (!is_folder(folder)) return {};
    ISOLA_TRY(auto names, list_dir(folder));
    for (const auto& name : names) {
      std::string path = (folder == "/" ? "" : folder) + "/" + name;
      if (!ours_.contains(path))
        ISOLA_CHECK(remove_tree(path));
      else
        ISOLA_CHECK(empty_but_ours(path));
    }
    return {};
  }

  Result<void> put(archive_entry* entry, const std::string& path) {
    const auto type = ::archive_entry_filetype(entry);
    const char* linked = ::archive_entry_hardlink(entry);
    // Devices are the sandbox's own, and sockets without whoever listens are nothing.
    if (!linked && (type == AE_IFCHR || type == AE_IFBLK || type == AE_IFSOCK)) return {};
    if (path == "/" && type != AE_IFDIR) return fail(Code::corrupt, "the layer replaces the root itself");
    for (int64_t id : {::archive_entry_uid(entry), ::archive_entry_gid(entry)})
      if (id < 0 || id > kLargestId)
        return fail(Code::unsupported,
                    fmt::format("{} belongs to the id {}: sandboxes have those up to {}", path, id, kLargestId));
    if (linked) {
      ISOLA_TRY(std::string target, clean(linked));
      ::archive_entry_set_hardlink(entry, target.c_str());
      ::archive_entry_unset_size(entry);  // with one, the file that it names would be emptied and stretched
    }
    const bool has_bytes = !linked && type == AE_IFREG;
    const int64_t declared = has_bytes ? ::archive_entry_size(entry) : 0;
    if (declared < 0) return fail(Code::corrupt, path + " has no size");
    // As it says that it is, holes too: whoever reads it later reads all of that.
    ISOLA_CHECK(count_bytes(static_cast<uint64_t>(declared)));
    ISOLA_CHECK(count_bytes(keep_plain_attributes(entry)));
    if ((linked || type != AE_IFDIR) && is_folder(path)) ISOLA_CHECK(remove_tree(path));
    make_way(path);
    ::archive_entry_set_pathname(entry, path.c_str());
    // With its parents: those that a layer takes for granted are there by now.
    if (int made = ::archive_write_header(out_.get(), entry); made != ARCHIVE_OK && made != ARCHIVE_WARN)
      return archive_error(out_.get(), "cannot write " + path);
    for (size_t at = path.size(); at != 0 && at != std::string::npos; at = path.rfind('/', at - 1)) {
      if (!ours_.insert(path.substr(0, at)).second) break;
      if (at != path.size()) ISOLA_CHECK(count_entry());  // a parent is a folder like any other
    }
    if (has_bytes) ISOLA_CHECK(copy(path, static_cast<uint64_t>(declared)));
    if (int ended = ::archive_write_finish_entry(out_.get()); ended != ARCHIVE_OK && ended != ARCHIVE_WARN)
      return archive_error(out_.get(), "cannot write " + path);
    return {};
  }

  // A file of a lower layer where this one has a folder.
  void make_way(const std::string& path) {
    for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
      std::string parent = path.substr(0, at);
      if (ours_.contains(parent)) continue;
      struct stat st;
      if (::lstat(parent.c_str(), &st) < 0) return;
      if (!S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode)) ::unlink(parent.c_str());
    }
  }

  Result<void> copy(const std::string& path, uint64_t counted) {
    for (;;) {
      const void* bytes = nullptr;
      size_t size = 0;
      int64_t offset = 0;
      int got = ::archive_read_data_block(in_, &bytes, &size, &offset);
      if (got == ARCHIVE_EOF) return {};
      if (got != ARCHIVE_OK) return archive_error(in_, "the layer cannot be read at " + path);
      if (offset < 0 || static_cast<uint64_t>(offset) + size > counted)
        return fail(Code::corrupt, path + " has more bytes than it says");
      if (::archive_write_data_block(out_.get(), bytes, size, offset) < ARCHIVE_OK)
        return archive_error(out_.get(), "cannot write " + path);
    }
  }

  // The overlay's own attributes would change what lies below, and others mean nothing here. Gives the bytes of the
  // rest.
  static uint64_t keep_plain_attributes(archive_entry* entry) {
    uint64_t kept_bytes = 0;
    std::vector<std::pair<std::string, std::string>> kept;
    ::archive_entry_xattr_reset(entry);
    const char* name = nullptr;
    const void* value = nullptr;
    size_t size = 0;
    while (::archive_entry_xattr_next(entry, &name, &value, &size) == ARCHIVE_OK && name) {
      std::string_view word = name;
      if (word == "security.capability" || word.starts_with("user."))
        kept.emplace_back(word, std::string(static_cast<const char*>(value), size));
      name = nullptr;
    }
    ::archive_entry_xattr_clear(entry);
    for (const auto& [word, bytes] : kept) {
      ::archive_entry_xattr_add_entry(entry, word.c_str(), bytes.data(), bytes.size());
      kept_bytes += word.size() + bytes.size();
    }
    return kept_bytes;
  }

  archive* in_;
  const Amount most_;
  Reader out_;
  Amount done_;
  std::set<std::string> ours_;  // paths of this layer, with their parents
};

}  // namespace

Result<Amount> apply_layer(int file, const Amount& most) {
  Reader in(::archive_read_new(), ::archive_read_free);
  if (!in) return fail(Code::internal, "cannot read an archive");
  ::archive_read_support_filter_gzip(in.get());
  ::archive_read_support_filter_zstd(in.get());
  ::archive_read_support_format_tar(in.get());
  ::archive_read_support_format_empty(in.get());
  if (::archive_read_open_fd(in.get(), file, 128 << 10) != ARCHIVE_OK)
    return archive_error(in.get(), "the layer cannot be read");
  return Layer(in.get(), most).apply();
}

}  // namespace isola::image
