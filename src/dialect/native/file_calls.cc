#include "dialect/native/file_calls.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dialect/native/api.h"
#include "dialect/native/query.h"
#include "dialect/native/views.h"
#include "dialect/shared/file_stream.h"

namespace isola::native {

using nlohmann::json;

Result<std::string> path_of(const http::Exchange& ex) {
  std::string path(ex.query("path").value_or(""));
  if (path.empty()) return fail(Code::invalid, "the query parameter path is missing");
  if (path.find('\0') != std::string::npos) return fail(Code::invalid, "path: holds a NUL byte");
  return path;
}

std::string needed(Fields& fields, const char* name) {
  auto text = fields.text(name);
  if (text.empty() || text.find('\0') != std::string::npos) fields.wrong(name, "is missing");
  return text;
}

uint32_t octal(Fields& fields, const char* name, uint32_t otherwise) {
  auto text = fields.maybe_text(name);
  if (!text && otherwise > 07777) fields.wrong(name, "is missing");
  if (!text) return otherwise;
  char* end = nullptr;
  auto value = static_cast<uint32_t>(std::strtoul(text->c_str(), &end, 8));
  if (text->empty() || *end || value > 07777) fields.wrong(name, "must be octal, such as \"0755\"");
  return value;
}

Task<Result<void>> send_file(http::Exchange& ex, sandbox::GuestLink& link, const guest::Read& args,
                             std::string_view type) {
  auto channel = link.open(guest::Op::read, guest::encode(args), 1 << 20);
  ISOLA_CO_TRY(std::string reply, co_await channel->reply());
  ISOLA_CO_TRY(guest::Stat stat, guest::decode<guest::Stat>(reply));
  mark_untrusted(ex, "body");
  // The length is the guest's word, and a file may grow or shrink while it is read: chunks, not a promise.
  ex.set_header("X-Isola-File-Size", std::to_string(stat.size));
  co_await dialect::stream_file(ex, channel, type);
  co_return Result<void>();
}

Task<Result<void>> read_file(http::Exchange& ex, sandbox::GuestLink& link, std::string path, std::string user) {
  ISOLA_CO_CHECK(only_queries(ex, {"path", "user", "offset", "length"}));
  guest::Read args{.path = path, .user = user};
  ISOLA_CO_TRY(args.offset, query_number(ex, "offset", 0));
  ISOLA_CO_TRY(args.length, query_number(ex, "length", UINT64_MAX));
  co_return co_await send_file(ex, link, args, "application/octet-stream");
}

Task<Result<uint64_t>> write_file(http::Exchange& ex, sandbox::GuestLink& link, std::string path, std::string user) {
  ISOLA_CO_CHECK(only_queries(ex, {"path", "user", "append", "create_new", "mode", "owner"}));
  guest::Write args{.path = path, .user = user, .how = guest::WriteMode::replace, .parents = true};
  ISOLA_CO_TRY(bool append, query_flag(ex, "append"));
  ISOLA_CO_TRY(bool create_new, query_flag(ex, "create_new"));
  if (append) args.how = guest::WriteMode::append;
  if (create_new) args.how = guest::WriteMode::create_new;
  if (auto mode = ex.query("mode")) {
    char* end = nullptr;
    std::string text(*mode);
    args.mode = static_cast<uint32_t>(std::strtoul(text.c_str(), &end, 8));
    if (text.empty() || *end || args.mode > 07777) co_return fail(Code::invalid, "mode: must be octal, such as 0644");
  }
  args.owner = std::string(ex.query("owner").value_or(""));
  auto channel = link.open(guest::Op::write, guest::encode(args));
  ISOLA_CO_TRY(std::string ready, co_await channel->reply());
  for (;;) {
    // A body that breaks off leaves the old file: dropping the channel cancels the write.
    ISOLA_CO_TRY(std::string_view piece, co_await ex.read_some());
    if (piece.empty()) break;
    ISOLA_CO_CHECK(co_await channel->write(piece));
  }
  channel->close_write();
  ISOLA_CO_TRY(std::string end, co_await channel->end());
  ISOLA_CO_TRY(guest::Done done, guest::decode<guest::Done>(end));
  co_return done.bytes;
}

Task<Result<void>> stat_file(http::Exchange& ex, sandbox::GuestLink& link, std::string path, std::string user) {
  ISOLA_CO_CHECK(only_queries(ex, {"path", "user", "follow"}));
  ISOLA_CO_TRY(bool follow, query_flag(ex, "follow"));
  guest::StatArgs args{path, user, follow};
  ISOLA_CO_TRY(auto stat, co_await sandbox::call_for<guest::Stat>(link, guest::Op::stat, args));
  json out = view(stat);
  out["path"] = path;
  mark_untrusted(ex);
  ex.reply(200, dump(out));
  co_return Result<void>();
}

Task<Result<void>> list_folder(http::Exchange& ex, sandbox::GuestLink& link, std::string path, std::string user) {
  Shares::Share room = room_for_answer(project_of(ex));
  ISOLA_CO_CHECK(only_queries(ex, {"path", "user", "depth", "limit"}));
  guest::List args{.path = path, .user = user};
  ISOLA_CO_TRY(uint64_t depth, query_number(ex, "depth", 1, 1, guest::kMaxListDepth));
  args.depth = static_cast<uint32_t>(depth);
  ISOLA_CO_TRY(args.limit, query_number(ex, "limit", 10000, 0, 100000));
  auto channel = link.open(guest::Op::list, guest::encode(args));
  // As text at once: as values a long list would be many times as large.
  std::string entries;
  size_t bytes = 0, count = 0, held = 0;
  bool cut = false;
  for (;;) {
    auto frame = co_await channel->read_frame();
    if (!frame) break;
    bytes += frame->size();
    if (bytes > kMaxListing) {
      cut = true;
      channel->cancel();
      break;
    }
    bool good = guest::each_record<guest::Entry>(*frame, [&](const guest::Entry& entry) {
      json item = view(entry.stat);
      item["path"] = entry.path;
      if (count++ > 0) entries += ',';
      entries += dump(item);
    });
    // What is held is the text, and a guest may be slow to say the rest.
    if (entries.size() > held) ISOLA_CO_CHECK(room.take_all(entries.size() - held, "listings"));
    held = entries.size();
    if (!good || count > args.limit) co_return fail(Code::corrupt, "the sandbox sent a malformed listing");
  }
  guest::Listed listed{.truncated = true};
  if (!cut) {
    ISOLA_CO_TRY(std::string end, co_await channel->end());
    ISOLA_CO_TRY(listed, guest::decode<guest::Listed>(end));
  }
  mark_untrusted(ex);
  std::string rest = dump({{"path", path}, {"truncated", listed.truncated}});
  ex.reply(200, "{\"entries\":[" + std::move(entries) + "]," + rest.substr(1));
  co_return Result<void>();
}

Task<Result<bool>> remove_file(http::Exchange& ex, sandbox::GuestLink& link, std::string path, std::string user) {
  ISOLA_CO_CHECK(only_queries(ex, {"path", "user", "recursive"}));
  ISOLA_CO_TRY(bool recursive, query_flag(ex, "recursive"));
  guest::Remove args{path, user, recursive};
  ISOLA_CO_TRY(std::string done, co_await link.call(guest::Op::remove, guest::encode(args)));
  co_return args.recursive;
}

}  // namespace isola::native
