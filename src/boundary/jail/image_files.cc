#include "boundary/jail/image_files.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <vector>

#include "base/fd.h"
#include "base/file.h"
#include "boundary/jail/protobuf.h"
#include "kernel/seccomp_program.h"

namespace isola::criu {

namespace {

constexpr size_t kMagic = 8;  // two words; then the size of the one entry, and the entry
constexpr char kHostName[] = "isola";

// userns_entry {repeated extent uid_map = 1, gid_map = 2}; extent {first = 1, lower_first = 2, count = 3}
std::string user_namespace(const NewIdentity& identity) {
  ProtoWriter extent, entry;
  extent.number(1, 0);
  extent.number(2, identity.id_base);
  extent.number(3, identity.id_count);
  std::string map = extent.take();
  entry.text(1, map);
  entry.text(2, map);
  return entry.take();
}

// utsns_entry {nodename = 1, domainname = 2}
std::string names(const NewIdentity& identity) {
  ProtoWriter entry;
  entry.text(1, kHostName);
  entry.text(2, identity.id);
  return entry.take();
}

Result<void> write_anew(const std::string& from, const std::string& to, const std::string& entry) {
  ISOLA_TRY(std::string image, read_file(from));
  if (image.size() < kMagic + 4) return fail(Code::corrupt, from + " is too short");
  auto size = static_cast<uint32_t>(entry.size());
  image.resize(kMagic + sizeof size);
  std::memcpy(image.data() + kMagic, &size, sizeof size);
  Fd fd(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return sys_error("cannot create " + to);
  return write_all(fd.get(), image + entry);
}

}  // namespace

Result<void> link_image(const std::string& from, const std::string& to, const NewIdentity& identity) {
  ISOLA_CHECK(make_dirs(to, 0755));
  std::error_code error;
  int maps = 0, hosts = 0;
  for (const auto& file : std::filesystem::directory_iterator(from, error)) {
    std::string name = file.path().filename();
    if (!name.ends_with(".img")) continue;
    std::string target = to + "/" + name;
    if (name.starts_with("userns-")) {
      ISOLA_CHECK(write_anew(file.path(), target, user_namespace(identity)));
      ++maps;
    } else if (name.starts_with("utsns-")) {
      ISOLA_CHECK(write_anew(file.path(), target, names(identity)));
      ++hosts;
    } else if (::link(file.path().c_str(), target.c_str()) < 0) {
      return sys_error("cannot link " + name);
    }
  }
  if (error) return fail(Code::not_found, "cannot list " + from);
  if (maps != 1 || hosts != 1) return fail(Code::corrupt, "a checkpoint of a jail has one user namespace and one name");
  return {};
}

Result<bool> has_connections(const std::string& folder) {
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error))
    if (file.path().filename().string().starts_with("tcp-stream-")) return true;
  if (error) return fail(Code::not_found, "cannot list " + folder);
  return false;
}

Result<std::string> filter_hash(const std::string& folder) {
  auto bad = [&](const char* why) { return fail(Code::corrupt, std::string("its system-call filters: ") + why); };
  auto image = read_file(folder + "/seccomp.img");
  if (!image) return bad("there are none");
  uint32_t size = 0;
  if (image->size() < kMagic + sizeof size) return bad("the file is too short");
  std::memcpy(&size, image->data() + kMagic, sizeof size);
  if (image->size() != kMagic + sizeof size + size) return bad("the file has another size than it says");
  // seccomp_entry {repeated seccomp_filter = 1}; seccomp_filter {filter = 1, prev = 2, flags = 3}. A chain begins with
  // the oldest filter of a process, which is ours; `prev` is the number of the one that is installed after it, a
  // program's own.
  std::vector<std::string> hashes;
  std::set<uint64_t> further;
  ProtoReader entries(std::string_view(*image).substr(kMagic + sizeof size));
  while (entries.next()) {
    if (entries.field() != 1) continue;
    ProtoReader entry(entries.text());
    std::vector<sock_filter> code;
    while (entry.next()) {
      if (entry.field() == 2) further.insert(entry.number());
      if (entry.field() != 1) continue;
      if (entry.text().size() % sizeof(sock_filter) != 0) return bad("one is cut off");
      code.resize(entry.text().size() / sizeof(sock_filter));
      std::memcpy(code.data(), entry.text().data(), entry.text().size());
    }
    if (entry.bad() || code.empty()) return bad("one is unreadable");
    hashes.push_back(kernel::hash_of(code));
  }
  std::string hash;
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (further.contains(i)) continue;
    if (!hash.empty() && hashes[i] != hash) return bad("they differ");
    hash = hashes[i];
  }
  if (entries.bad() || hash.empty()) return bad("they are unreadable");
  return hash;
}

}  // namespace isola::criu
