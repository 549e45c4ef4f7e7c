// GET and POST /files: whole files, streamed. With the access token, or with a signed URL.
#include <fmt/format.h>

#include <charconv>
#include <deque>

#include "base/hash/sha256.h"
#include "dialect/e2b/body.h"
#include "dialect/e2b/entries.h"
#include "dialect/e2b/envd.h"
#include "dialect/e2b/tokens.h"
#include "dialect/shared/text.h"
#include "http/gzip.h"
#include "http/multipart.h"
#include "http/text.h"
#include "http/validators.h"

namespace isola::e2b {

using nlohmann::json;
using sandbox::ChannelPtr;

namespace {

constexpr size_t kMostFileMetadata = 4096;

struct Refusal {
  int status = 500;
  std::string message;
};

void refuse(http::Exchange& ex, const Refusal& refusal) {
  ex.reply(refusal.status, dialect::dump({{"code", refusal.status}, {"message", refusal.message}}));
}

Refusal refusal_of(const Error& error, const std::string& path) {
  if (error.sys_errno == ENOSPC || error.sys_errno == EDQUOT)
    return {507, "not enough disk space available: " + error.message};
  if (error.code == Code::not_found) return {404, "path '" + path + "' does not exist"};
  if (error.code == Code::invalid)
    return {400, error.sys_errno == EISDIR ? "path '" + path + "' is a directory" : error.message};
  return {http::status_of(error.code), error.message};
}

// Nothing: welcome. The order is E2B's: token, missing, mismatch, expired.
std::optional<std::string> unwelcome(const http::Exchange& ex, const std::string& token) {
  if (auto given = ex.header("x-access-token"); !given.empty()) {
    if (!token.empty() && equal_secrets(given, token)) return std::nullopt;
    return "access token present in header but does not match";
  }
  auto signature = ex.query("signature");
  if (!signature) return "missing signature query parameter";
  std::optional<int64_t> expires;
  if (auto text = ex.query("signature_expiration")) {
    int64_t value = 0;
    auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size()) return "invalid signature";
    expires = value;
  }
  auto wanted = sign_path(token, ex.method() == "POST" ? "write" : "read", ex.query("path").value_or(""),
                          ex.query("username").value_or(""), expires);
  if (token.empty() || !wanted || !equal_secrets(*signature, *wanted)) return "invalid signature";
  if (expires && *expires < sandbox::now_millis() / 1000) return "signature is already expired";
  return std::nullopt;
}

// bytes=a-b, bytes=a-, bytes=-n. Nothing: no range, or one that is not understood and so left out of account.
std::optional<std::pair<uint64_t, uint64_t>> range_of(std::string_view header, uint64_t size) {
  if (!header.starts_with("bytes=") || header.find(',') != header.npos) return std::nullopt;
  header.remove_prefix(6);
  auto dash = header.find('-');
  if (dash == header.npos) return std::nullopt;
  auto number = [](std::string_view text) -> std::optional<uint64_t> {
    uint64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  };
  auto first = number(header.substr(0, dash)), last = number(header.substr(dash + 1));
  if (!first && last) return std::pair(size - std::min(size, *last), size);
  if (!first) return std::nullopt;
  return std::pair(*first, last && *last < size ? *last + 1 : size);
}

// gzip alone: that is what a client writes whose user wants it. In a longer list it is some library's habit, and
// packing a file takes longer than sending it.
bool wants_gzip(const http::Exchange& ex) {
  return http::equal_nocase(http::trim(ex.header("accept-encoding")), "gzip");
}

// None of what says that it is empty: files of /proc say so, and change.
std::optional<http::Validators> validators_of(const guest::Stat& stat) {
  if (stat.type != guest::FileType::file || stat.size == 0) return std::nullopt;
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t seconds = stat.mtime_ns / kSecond - (stat.mtime_ns % kSecond < 0 ? 1 : 0);
  return http::Validators{.tag = fmt::format("W/\"{:x}-{:x}\"", stat.size, static_cast<uint64_t>(stat.mtime_ns)),
                          .modified = seconds};
}

// One URL is the same file of every sandbox, and whose it is stands in the headers: what keeps copies must ask each
// time, and for each of them.
void not_for_caches(http::Exchange& ex) {
  ex.set_header("Cache-Control", "private, no-cache");
  ex.set_header("Vary", "Accept-Encoding, E2b-Sandbox-Id, E2b-Sandbox-Port, X-Access-Token");
}

void tell(http::Exchange& ex, const http::Validators& validators) {
  ex.set_header("ETag", validators.tag);
  ex.set_header("Last-Modified", http::to_date(validators.modified));
}

Task<void> download(Call& call) {
  http::Exchange& ex = call.ex;
  not_for_caches(ex);
  std::string asked(ex.query("path").value_or(""));
  auto path = co_await call.absolute(asked);
  if (!path) co_return refuse(ex, {400, path.error().message});
  guest::Read args{.path = *path};
  std::pair<uint64_t, uint64_t> range{0, 0};
  bool part = false;
  const auto header = ex.header("range"), none_match = ex.header("if-none-match"),
             since = ex.header("if-modified-since");
  if (!header.empty() || !none_match.empty() || !since.empty()) {
    auto place = co_await place_at(call, *path);
    if (!place) co_return refuse(ex, refusal_of(place.error(), *path));
    auto now = validators_of(place->stat);
    if (now && now->match(none_match, since)) {
      tell(ex, *now);
      co_return ex.reply(304);
    }
    const auto meant = ex.header("if-range");
    const bool whole = now ? !now->range_meant(meant) : !meant.empty();
    if (auto wanted = whole ? std::nullopt : range_of(header, place->stat.size)) {
      if (wanted->first >= wanted->second) {
        ex.set_header("Content-Range", fmt::format("bytes */{}", place->stat.size));
        co_return refuse(ex, {416, "the file has no such range"});
      }
      range = *wanted;
      part = true;
      args.offset = range.first;
      args.length = range.second - range.first;
    }
  }
  auto channel = call.link->open(guest::Op::read, guest::encode(args), 1 << 20);
  auto reply = co_await channel->reply();
  if (!reply) co_return refuse(ex, refusal_of(reply.error(), *path));
  auto stat = guest::decode<guest::Stat>(*reply);
  if (!stat) co_return refuse(ex, {500, stat.error().message});
  uint64_t length = part ? args.length : stat->size;
  // Nobody's browser must take what a sandbox wrote for a page of this server.
  ex.set_header("X-Content-Type-Options", "nosniff");
  ex.set_header("Content-Disposition", "attachment");
  ex.set_header("Accept-Ranges", "bytes");
  if (auto now = validators_of(*stat)) tell(ex, *now);
  if (part) ex.set_header("Content-Range", fmt::format("bytes {}-{}/{}", range.first, range.second - 1, stat->size));
  std::optional<std::string> first;
  // Files of /proc say that they are empty and are not: what comes decides.
  if (length == 0) {
    first = co_await channel->read();
    if (!first) {
      auto end = co_await channel->end();
      if (!end) co_return refuse(ex, refusal_of(end.error(), *path));
      co_return ex.reply(200, "", "application/octet-stream");
    }
  }
  std::optional<uint64_t> promised;
  if (!first) promised = length;
  std::optional<http::Deflater> pack;
  if (!part && wants_gzip(ex)) pack.emplace();
  if (pack) ex.set_header("Content-Encoding", "gzip");
  ex.begin(part ? 206 : 200, "application/octet-stream", pack ? std::optional<uint64_t>() : promised);
  uint64_t left = promised.value_or(UINT64_MAX);
  while (left > 0) {
    std::optional<std::string> piece = std::exchange(first, std::nullopt);
    if (!piece) piece = co_await channel->read_frame();  // as it came: what is joined is copied once more
    if (!piece) break;
    std::string_view bytes = std::string_view(*piece).substr(0, left);
    left -= bytes.size();
    if (pack) {
      auto packed = pack->feed(bytes);
      if (!packed) co_return ex.abort();
      piece = std::move(*packed);
      bytes = *piece;
    }
    if (bytes.empty()) continue;
    if (auto sent = co_await ex.write(bytes); !sent) co_return;
  }
  // It shrank, or the sandbox ended: nobody must take a part for the whole.
  if (promised && left > 0) co_return ex.abort();
  if (!promised) {
    auto end = co_await channel->end();
    if (!end) co_return ex.abort();
  }
  if (pack) {
    auto last = pack->finish();
    if (!last) co_return ex.abort();
    if (auto sent = co_await ex.write(*last); !sent) co_return;
  }
  (void)co_await ex.finish();
}

// One file on its way in.
class Upload {
 public:
  Upload(Call& call, std::string path) : call_(call), path_(std::move(path)) {}
  const std::string& path() const { return path_; }

  Task<Result<void>> begin() {
    std::string parent = folder_of(path_);
    ISOLA_CO_CHECK(co_await make_folder(call_, parent, call_.user));
    // In place, as E2B does it: whoever watches sees exactly a create, a change of owner and a write.
    guest::Write args{.path = path_, .how = guest::WriteMode::truncate, .owner = call_.user};
    channel_ = call_.link->open(guest::Op::write, guest::encode(args));
    auto ready = co_await channel_->reply();
    if (!ready) co_return std::unexpected(std::move(ready).error());
    co_return Result<void>();
  }
  Task<Result<void>> write(std::string_view bytes) { return channel_->write(bytes); }
  Task<Result<json>> finish(const Metadata& metadata) {
    channel_->close_write();
    ISOLA_CO_TRY(std::string end, co_await channel_->end());
    ISOLA_CO_TRY(guest::Done done, guest::decode<guest::Done>(end));
    ISOLA_CO_CHECK(co_await write_metadata(*call_.link, path_, metadata));
    json told = {{"path", path_}, {"bytes", done.bytes}};
    call_.service.record(ledger::Kind::file_written, call_.box, dialect::dump(told), call_.caller());
    json entry = {{"name", base_name(path_)}, {"path", path_}, {"type", "file"}};
    if (!metadata.empty()) entry["metadata"] = metadata;
    co_return entry;
  }

 private:
  Call& call_;
  std::string path_;
  ChannelPtr channel_;
};

Result<Metadata> metadata_of(const http::Exchange& ex) {
  constexpr std::string_view kPrefix = "x-metadata-";
  Metadata out;
  size_t bytes = 0;
  for (const auto& field : ex.headers()) {
    std::string name;
    for (char c : field.name) name += http::lower(c);
    if (!name.starts_with(kPrefix) || name.size() == kPrefix.size()) continue;
    name.erase(0, kPrefix.size());
    bytes += name.size() + field.value.size();
    out.emplace(name, field.value);
  }
  if (bytes > kMostFileMetadata) return fail(Code::invalid, "invalid metadata: more than 4096 bytes");
  return out;
}

Task<void> upload_raw(Call& call, const Metadata& metadata) {
  http::Exchange& ex = call.ex;
  auto asked = ex.query("path");
  if (!asked) co_return refuse(ex, {400, "path query parameter is required for raw body upload"});
  auto path = co_await call.absolute(*asked);
  if (!path) co_return refuse(ex, {400, path.error().message});
  Upload upload(call, *path);
  auto done = co_await upload.begin();
  while (done) {
    auto piece = co_await ex.read_some();
    if (!piece) co_return ex.fail(piece.error());
    if (piece->empty()) break;
    done = co_await upload.write(*piece);
  }
  if (!done) co_await swallow(ex);
  Result<json> entry = std::unexpected(Error{});
  if (done) {
    entry = co_await upload.finish(metadata);
  } else {
    entry = std::unexpected(done.error());
  }
  if (!entry) co_return refuse(ex, refusal_of(entry.error(), *path));
  ex.reply(200, dialect::dump(json::array({*entry})));
}

// What a parser found in a piece, to be acted upon one after the other: its callbacks cannot wait.
struct Seen {
  enum class Kind { part, data, end } kind;
  std::string text;
};

Task<void> upload_form(Call& call, const Metadata& metadata) {
  http::Exchange& ex = call.ex;
  auto boundary = http::multipart_boundary(ex.header("content-type"));
  if (!boundary) co_return refuse(ex, {400, boundary.error().message});
  std::deque<Seen> seen;
  bool ours = false;
  http::MultipartCallbacks callbacks;
  callbacks.part = [&](const http::Part& part) -> Result<void> {
    ours = part.name == "file";
    if (ours) seen.push_back({Seen::Kind::part, part.filename});
    return {};
  };
  callbacks.data = [&](std::string_view bytes) -> Result<void> {
    if (ours) seen.push_back({Seen::Kind::data, std::string(bytes)});
    return {};
  };
  callbacks.end = [&]() -> Result<void> {
    if (ours) seen.push_back({Seen::Kind::end, {}});
    return {};
  };
  http::MultipartParser parser(*boundary, std::move(callbacks));
  std::optional<Upload> upload;
  json entries = json::array();
  for (bool more = true; more;) {
    auto piece = co_await ex.read_some();
    if (!piece) co_return ex.fail(piece.error());
    more = !piece->empty();
    auto fed = more ? parser.feed(*piece) : parser.finish();
    if (!fed) co_return refuse(ex, {400, "error reading form: " + fed.error().message});
    while (!seen.empty()) {
      Seen one = std::move(seen.front());
      seen.pop_front();
      if (one.kind == Seen::Kind::part) {
        std::string asked(ex.query("path").value_or(one.text));
        auto path = co_await call.absolute(asked);
        if (!path) co_return refuse(ex, {400, path.error().message});
        for (const auto& entry : entries)
          if (entry["path"] == *path)
            co_return refuse(ex, {400, "you cannot upload multiple files to the same path '" + *path +
                                           "' in one upload request, only the first specified file was uploaded"});
        upload.emplace(call, *path);
        auto begun = co_await upload->begin();
        if (!begun) {
          co_await swallow(ex);
          co_return refuse(ex, refusal_of(begun.error(), *path));
        }
      } else if (one.kind == Seen::Kind::data) {
        auto written = co_await upload->write(one.text);
        if (!written) {
          co_await swallow(ex);
          co_return refuse(ex, refusal_of(written.error(), upload->path()));
        }
      } else {
        auto entry = co_await upload->finish(metadata);
        if (!entry) {
          co_await swallow(ex);
          co_return refuse(ex, refusal_of(entry.error(), upload->path()));
        }
        entries.push_back(std::move(*entry));
        upload.reset();
      }
    }
  }
  ex.reply(200, dialect::dump(entries));
}

Task<void> upload(Call& call) {
  auto metadata = metadata_of(call.ex);
  if (!metadata) co_return refuse(call.ex, {400, metadata.error().message});
  std::string type;
  for (char c : call.ex.header("content-type")) type += http::lower(c);
  if (type.starts_with("application/octet-stream")) co_return co_await upload_raw(call, *metadata);
  if (type.starts_with("multipart/")) co_return co_await upload_form(call, *metadata);
  refuse(call.ex,
         {400, "unsupported content type: " + type + ", expected multipart/form-data or application/octet-stream"});
}

}  // namespace

void Envd::add_files() {
  auto service = service_;
  auto way = [service, tokens = tokens_](Task<void> (*act)(Call&)) {
    return [service, tokens, act](http::Exchange& ex) -> Task<void> {
      std::string id(ex.noted("e2b-sandbox"));
      auto box = service->find_any(id);
      if (!box) co_return gone(ex, id);
      if (auto why = unwelcome(ex, tokens->of(id, (*box)->made_by()))) co_return refuse(ex, {401, *why});
      std::string name(ex.query("username").value_or(""));
      auto call = co_await enter(*service, ex, *box, name);
      if (!call) {
        if (!is_running(*box)) co_return not_woken(*service, ex, *box, call.error());
        if (ex.method() == "POST") co_await swallow(ex);
        if (call.error().code == Code::denied)
          co_return refuse(ex, {401, "error looking up user '" + name + "': user: unknown user " + name});
        co_return ex.fail(call.error());
      }
      co_await act(*call);
      // Refused before it was read: whoever showed a right to write has the rest taken, too.
      if (ex.replied() && ex.status() >= 400 && ex.method() == "POST") co_await swallow(ex);
      // Ended under it: whatever it wanted to say, this is the reason.
      if (!is_running(*box) && !ex.replied()) gone(ex, id);
    };
  };
  rpc_->add("GET", "/files", way(download));
  rpc_->add("POST", "/files", way(upload)).body_limit = http::Exchange::kNoLimit;
}

}  // namespace isola::e2b
