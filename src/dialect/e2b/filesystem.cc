// filesystem.Filesystem, but for watching. As with E2B, the work is done with root's rights and what is made belongs to
// the acting user: whoever holds the sandbox's token is its owner, and the user inside can become root anyway.
#include <algorithm>

#include "dialect/e2b/entries.h"
#include "dialect/e2b/envd.h"
#include "dialect/shared/door.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

constexpr uint64_t kMostListed = 100000;

Task<Result<json>> stat(Call& call) {
  ISOLA_CO_TRY(std::string path, co_await call.path("path"));
  ISOLA_CO_TRY(json entry, co_await entry_at(call, path));
  co_return json{{"entry", entry}};
}

Task<Result<json>> make_dir(Call& call) {
  ISOLA_CO_TRY(std::string path, co_await call.path("path"));
  auto there = co_await place_at(call, path);
  if (there && there->stat.type == guest::FileType::dir)
    co_return fail(Code::exists, "directory already exists: " + path);
  if (there) co_return fail(Code::invalid, "path already exists but it is not a directory: " + path);
  ISOLA_CO_CHECK(co_await make_folder(call, path, call.user));
  ISOLA_CO_TRY(json entry, co_await entry_at(call, path));
  co_return json{{"entry", entry}};
}

Task<Result<json>> move(Call& call) {
  ISOLA_CO_TRY(std::string from, co_await call.path("source"));
  ISOLA_CO_TRY(std::string to, co_await call.path("destination"));
  std::string parent = folder_of(to);
  ISOLA_CO_CHECK(co_await make_folder(call, parent, call.user));
  guest::Rename args{.from = from, .to = to};
  std::string bytes = guest::encode(args);
  auto done = co_await call.link->call(guest::Op::rename, bytes);
  if (!done && done.error().code == Code::not_found)
    co_return fail(Code::not_found, "source file not found: " + done.error().message);
  if (!done) co_return fail(Code::internal, "error renaming: " + done.error().message);
  json moved = {{"from", from}, {"to", to}};
  call.service.record(ledger::Kind::file_moved, call.box, dialect::dump(moved), call.caller());
  ISOLA_CO_TRY(json entry, co_await entry_at(call, to));
  co_return json{{"entry", entry}};
}

Task<Result<json>> remove(Call& call) {
  ISOLA_CO_TRY(std::string path, co_await call.path("path"));
  guest::Remove args{.path = path, .recursive = true};
  std::string bytes = guest::encode(args);
  auto done = co_await call.link->call(guest::Op::remove, bytes);
  // What is not there is as removed as it can be.
  if (!done && done.error().code != Code::not_found)
    co_return fail(Code::internal, "error removing file or directory: " + done.error().message);
  json removed = {{"path", path}, {"recursive", true}};
  if (done) call.service.record(ledger::Kind::file_removed, call.box, dialect::dump(removed), call.caller());
  co_return json::object();
}

Task<Result<json>> list_folder(Call& call) {
  ISOLA_CO_TRY(std::string path, co_await call.path("path"));
  auto place = co_await place_at(call, path);
  if (!place && place.error().code == Code::not_found)
    co_return fail(Code::not_found, "path not found: lstat " + path + ": no such file or directory");
  if (!place) co_return std::unexpected(std::move(place).error());
  if (place->stat.type != guest::FileType::dir) co_return fail(Code::invalid, "path is not a directory: " + path);
  guest::List args{.path = place->path, .limit = kMostListed};
  auto depth = call.body.find("depth");
  if (depth != call.body.end() && depth->is_number_unsigned() && depth->get<uint64_t>() > 0)
    args.depth = static_cast<uint32_t>(std::min<uint64_t>(depth->get<uint64_t>(), guest::kMaxListDepth));
  auto channel = call.link->open(guest::Op::list, guest::encode(args));
  std::vector<Found> found;
  std::string root = path;
  while (root.size() > 1 && root.ends_with('/')) root.pop_back();
  for (size_t bytes = 0;;) {
    auto frame = co_await channel->read_frame();
    if (!frame) break;
    bytes += frame->size();
    if (bytes > dialect::kMaxListing) co_return fail(Code::exhausted, "the listing is too large: " + path);
    bool good = guest::each_record<guest::Entry>(*frame, [&](const guest::Entry& entry) {
      found.push_back({(root == "/" ? "" : root) + "/" + entry.path, entry.stat});
    });
    if (!good || found.size() > kMostListed) co_return fail(Code::internal, "the sandbox sent a malformed listing");
  }
  ISOLA_CO_TRY(std::string end, co_await channel->end());
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return before(a.path, b.path); });
  if (found.empty()) co_return json::object();
  ISOLA_CO_TRY(json entries, co_await entries_view(call, found));
  co_return json{{"entries", entries}};
}

}  // namespace

void Envd::add_filesystem() {
  call("/filesystem.Filesystem/Stat", stat);
  call("/filesystem.Filesystem/MakeDir", make_dir);
  call("/filesystem.Filesystem/Move", move);
  call("/filesystem.Filesystem/ListDir", list_folder);
  call("/filesystem.Filesystem/Remove", remove);
}

}  // namespace isola::e2b
