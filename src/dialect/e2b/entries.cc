#include "dialect/e2b/entries.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dialect/shared/door.h"

namespace isola::e2b {

using nlohmann::json;
using sandbox::ChannelPtr;

namespace {

constexpr size_t kAtOnce = 64;
constexpr uint64_t kBlock = 4096;
constexpr size_t kMaxAttribute = 64 << 10;  // Linux has no longer ones, nor longer lists of their names

const char* type_word(guest::FileType type) {
  switch (type) {
    case guest::FileType::file: return "FILE_TYPE_FILE";
    case guest::FileType::dir: return "FILE_TYPE_DIRECTORY";
    case guest::FileType::link: return "FILE_TYPE_SYMLINK";
    default: return "FILE_TYPE_UNSPECIFIED";
  }
}

std::string moment(int64_t nanos) {
  auto seconds = static_cast<std::time_t>(nanos / 1'000'000'000);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:09}Z", fmt::gmtime(seconds), nanos % 1'000'000'000);
}

Task<Result<std::string>> collected(ChannelPtr channel) {
  std::string bytes;
  for (;;) {
    auto piece = co_await channel->read();
    if (!piece) break;
    bytes += *piece;
    if (bytes.size() > kMaxAttribute + 4096) co_return fail(Code::corrupt, "the sandbox sent malformed attributes");
  }
  auto end = co_await channel->end();
  if (!end) co_return std::unexpected(std::move(end).error());
  co_return bytes;
}

ChannelPtr ask_names(sandbox::GuestLink& link, const std::string& path) {
  guest::PathArgs args{.path = path};
  return link.open(guest::Op::xattr_list, guest::encode(args));
}

Task<Result<Metadata>> metadata_from(sandbox::GuestLink& link, const std::string& path, ChannelPtr asked) {
  Metadata out;
  auto bytes = co_await collected(std::move(asked));
  if (!bytes) co_return std::unexpected(std::move(bytes).error());
  ISOLA_CO_TRY(guest::Names names, guest::decode<guest::Names>(*bytes));
  size_t total = 0;
  for (const auto& name : names.names) {
    if (!name.starts_with(kMetadataPrefix)) continue;
    if (total > kMaxAttribute) co_return fail(Code::corrupt, "the sandbox sent malformed attributes");
    guest::Xattr args{.path = path, .name = name};
    auto channel = link.open(guest::Op::xattr_get, guest::encode(args));
    auto value = co_await collected(channel);
    if (!value) continue;
    total += name.size() + value->size();
    out[name.substr(kMetadataPrefix.size())] = *value;
  }
  co_return out;
}

}  // namespace

std::string permissions(const guest::Stat& stat) {
  std::string out;
  switch (stat.type) {
    case guest::FileType::dir: out = "d"; break;
    case guest::FileType::link: out = "L"; break;
    case guest::FileType::fifo: out = "p"; break;
    case guest::FileType::socket: out = "S"; break;
    case guest::FileType::chardev: out = "Dc"; break;
    case guest::FileType::blockdev: out = "D"; break;
    default: break;
  }
  if (stat.mode & 04000) out += 'u';
  if (stat.mode & 02000) out += 'g';
  if (stat.mode & 01000) out += 't';
  if (out.empty()) out = "-";
  for (int bit = 8; bit >= 0; --bit) out += stat.mode >> bit & 1 ? "xwr"[bit % 3] : '-';
  return out;
}

bool before(std::string_view a, std::string_view b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    auto rank = [](char c) { return c == '/' ? 0 : static_cast<unsigned char>(c) + 1; };
    return rank(x) < rank(y);
  });
}

Task<Result<Metadata>> read_metadata(sandbox::GuestLink& link, const std::string& path) {
  co_return co_await metadata_from(link, path, ask_names(link, path));
}

Task<Result<void>> write_metadata(sandbox::GuestLink& link, const std::string& path, const Metadata& metadata) {
  auto old = co_await read_metadata(link, path);
  if (old) {
    for (const auto& [key, value] : *old) {
      if (metadata.contains(key)) continue;
      guest::Xattr args{.path = path, .name = std::string(kMetadataPrefix) + key};
      std::string bytes = guest::encode(args);
      (void)co_await link.call(guest::Op::xattr_remove, bytes);
    }
  }
  for (const auto& [key, value] : metadata) {
    guest::Xattr args{.path = path, .name = std::string(kMetadataPrefix) + key, .value = value};
    std::string bytes = guest::encode(args);
    auto done = co_await link.call(guest::Op::xattr_set, bytes);
    if (!done) co_return std::unexpected(std::move(done).error());
  }
  co_return Result<void>();
}

Task<Result<json>> entries_view(Inside& inside, const std::vector<Found>& found) {
  json out = json::array();
  ISOLA_CO_TRY(const Accounts* names, co_await inside.accounts());
  size_t extra = 0;  // what the guest adds to the names
  for (size_t from = 0; from < found.size(); from += kAtOnce) {
    size_t to = std::min(found.size(), from + kAtOnce);
    std::vector<ChannelPtr> attributes(to - from), targets(to - from);
    for (size_t i = from; i < to; ++i) {
      const auto& one = found[i];
      attributes[i - from] = ask_names(*inside.link, one.path);
      if (one.stat.type != guest::FileType::link) continue;
      guest::StatArgs args{.path = one.path, .follow = true};
      targets[i - from] = inside.link->open(guest::Op::stat, guest::encode(args));
    }
    for (size_t i = from; i < to; ++i) {
      const auto& one = found[i];
      // A folder has no size of its own here; on E2B's disk it has a block at least.
      const bool folder = one.stat.type == guest::FileType::dir;
      json entry = {{"name", base_name(one.path)},
                    {"path", one.path},
                    {"type", type_word(one.stat.type)},
                    {"size", std::to_string(folder ? std::max<uint64_t>(one.stat.size, kBlock) : one.stat.size)},
                    {"mode", one.stat.mode & 0777},
                    {"permissions", permissions(one.stat)},
                    {"owner", names->user(one.stat.uid)},
                    {"group", names->group(one.stat.gid)},
                    {"modifiedTime", moment(one.stat.mtime_ns)}};
      if (ChannelPtr target = targets[i - from]) {
        auto bytes = co_await target->end();
        auto stat = bytes ? guest::decode<guest::Stat>(*bytes) : Result<guest::Stat>(std::unexpected(bytes.error()));
        // A link into nowhere is its own target, and of no type.
        entry["symlinkTarget"] = stat && !stat->target.empty() ? stat->target : one.path;
        entry["type"] = stat ? type_word(stat->type) : "FILE_TYPE_UNSPECIFIED";
        entry["mode"] = stat ? stat->mode & 0777 : 0;
        if (stat) extra += stat->target.size();
      }
      auto metadata = co_await metadata_from(*inside.link, one.path, attributes[i - from]);
      if (metadata && !metadata->empty()) entry["metadata"] = *metadata;
      if (metadata)
        for (const auto& [name, value] : *metadata) extra += name.size() + value.size();
      if (extra > dialect::kMaxListing) co_return fail(Code::exhausted, "the listing is too large");
      out.push_back(std::move(entry));
    }
  }
  co_return out;
}

Task<Result<json>> entry_at(Inside& inside, const std::string& path) {
  guest::StatArgs args{.path = path};
  auto stat = co_await sandbox::call_for<guest::Stat>(*inside.link, guest::Op::stat, args);
  if (!stat && stat.error().code == Code::not_found)
    co_return fail(Code::not_found, "file not found: lstat " + path + ": no such file or directory");
  if (!stat) co_return std::unexpected(std::move(stat).error());
  std::vector<Found> one = {{path, *stat}};
  ISOLA_CO_TRY(json all, co_await entries_view(inside, one));
  co_return all[0];
}

Task<Result<void>> make_folder(Inside& inside, const std::string& path, const std::string& owner) {
  // The deepest that is there, and so what has to be made: mostly nothing.
  std::vector<std::string> missing;
  for (std::string at = path; at != "/" && at != "."; at = folder_of(at)) {
    auto there = co_await place_at(inside, at);
    if (there && there->stat.type != guest::FileType::dir)
      co_return fail(Code::invalid, "path is a file: " + at, ENOTDIR);
    if (there) break;
    if (there.error().code != Code::not_found) co_return std::unexpected(std::move(there).error());
    missing.push_back(at);
  }
  for (auto at = missing.rbegin(); at != missing.rend(); ++at) {
    guest::Mkdir make{.path = *at};
    std::string bytes = guest::encode(make);
    auto done = co_await inside.link->call(guest::Op::mkdir, bytes);
    if (!done) co_return std::unexpected(std::move(done).error());
    guest::Chown give{.path = *at, .owner = owner};
    bytes = guest::encode(give);
    done = co_await inside.link->call(guest::Op::chown, bytes);
    if (!done) co_return std::unexpected(std::move(done).error());
  }
  co_return Result<void>();
}

Task<Result<Place>> place_at(Inside& inside, const std::string& path) {
  guest::StatArgs args{.path = path, .follow = true};
  ISOLA_CO_TRY(guest::Stat stat, co_await sandbox::call_for<guest::Stat>(*inside.link, guest::Op::stat, args));
  std::string real = stat.target.empty() ? path : stat.target;
  co_return Place{real, stat};
}

}  // namespace isola::e2b
