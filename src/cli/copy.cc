// isola cp: files and folders into a sandbox and out of it.
#include "cli/copy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/progress_bar.h"
#include "cli/register.h"
#include "cli/table.h"
#include "cli/tar_pipe.h"
#include "cli/terminal.h"

namespace isola::cli {

using nlohmann::json;

std::string Copy::target(const std::string& kind, const std::string& path, http::Pairs more) const {
  more.insert(more.begin(), {"path", path});
  if (!options_.user.empty()) more.emplace_back("user", options_.user);
  return base_ + "/files" + kind + "?" + http::to_query(more);
}

Result<bool> Copy::is_folder_inside(const std::string& path) {
  auto stat = api_.get(target("/stat", path, {{"follow", "true"}}));
  if (stat) return text_of(*stat, "type") == "dir";
  if (stat.error().code == Code::not_found) {
    // Nothing is there; or the whole sandbox is not, and the copy itself will say so.
    return false;
  }
  return std::unexpected(stat.error());
}

Result<void> Copy::send(int fd, const std::string& target, const std::string& name, std::optional<uint64_t> size) {
  ProgressBar bar(name, size);
  uint64_t sent = 0;
  http::ClientRequest request{.method = "PUT", .target = target, .type = "application/octet-stream", .length = size};
  request.io_time = std::chrono::minutes(10);  // the sandbox's disk may be slow
  request.source = [&](std::span<char> into) -> Result<size_t> {
    // A file that grows meanwhile is sent as long as it was.
    size_t most = size ? static_cast<size_t>(std::min<uint64_t>(into.size(), *size - sent)) : into.size();
    if (most == 0) return size_t(0);
    ssize_t n = 0;
    while ((n = ::read(fd, into.data(), most)) < 0 && errno == EINTR) {
    }
    if (n < 0) return sys_error("cannot read " + name);
    sent += static_cast<uint64_t>(n);
    bar.add(static_cast<uint64_t>(n));
    return static_cast<size_t>(n);
  };
  ISOLA_TRY(auto reply, api_.request(std::move(request)));
  done["bytes"] = sent;
  return {};
}

Result<void> Copy::in(const Place& from, const Place& to) {
  if (from.stream()) return send(STDIN_FILENO, target("", to.path), "standard input", std::nullopt);
  struct stat about{};
  if (::stat(from.path.c_str(), &about) < 0) return sys_error(from.path);
  bool folder = S_ISDIR(about.st_mode);
  ISOLA_TRY(bool into, is_folder_inside(to.path));
  std::string path = target_of(to.path, into, last_part(from.path));
  done["path"] = path;
  if (!folder) {
    Fd file(::open(from.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return sys_error(from.path);
    auto size = S_ISREG(about.st_mode) ? std::optional<uint64_t>(static_cast<uint64_t>(about.st_size)) : std::nullopt;
    return send(file.get(), target("", path, {{"mode", fmt::format("{:04o}", about.st_mode & 0777)}}), from.path, size);
  }
  if (!packs_) return in_each(from.path, path);
  ISOLA_TRY(TarPipe tar, TarPipe::pack(from.path));
  ISOLA_CHECK(send(tar.fd(), target("/tar", path), from.path, std::nullopt));
  return tar.finish();
}

Result<void> Copy::fetch(int fd, const std::string& target, const std::string& name) {
  ProgressBar bar(name, std::nullopt);
  uint64_t got = 0;
  http::ClientRequest request{.target = target};
  request.on_head = [&](const http::ClientReply& reply) {
    auto size = reply.header("X-Isola-File-Size");
    if (!size.empty()) bar.total(std::strtoull(std::string(size).c_str(), nullptr, 10));
  };
  request.sink = [&](std::string_view piece) -> Result<void> {
    ISOLA_CHECK(put_out(fd, piece));
    got += piece.size();
    bar.add(piece.size());
    return {};
  };
  ISOLA_TRY(auto reply, api_.request(std::move(request)));
  done["bytes"] = got;
  return {};
}

// Beside it first: a copy that breaks off leaves what was there.
Result<void> Copy::fetch_file(const std::string& path, const std::string& to, mode_t mode) {
  struct stat about{};
  if (::stat(to.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
    Fd file(::open(to.c_str(), O_WRONLY | O_CLOEXEC));  // a device, a pipe
    if (!file) return sys_error(to);
    return fetch(file.get(), target("", path), path);
  }
  std::string beside = to + ".isola-" + new_token().substr(0, 8);
  Fd file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode & 0777));
  if (!file) return sys_error(to);
  auto fetched = fetch(file.get(), target("", path), path);
  if (fetched && ::rename(beside.c_str(), to.c_str()) < 0) fetched = sys_error(to);
  if (!fetched) ::unlink(beside.c_str());
  return fetched;
}

Result<void> Copy::out(const Place& from, const Place& to) {
  ISOLA_TRY(json about, api_.get(target("/stat", from.path, {{"follow", "true"}})));
  bool folder = text_of(about, "type") == "dir";
  if (to.stream() && folder && !packs_) return fail(Code::invalid, from.path + " is a folder");
  if (to.stream()) return fetch(STDOUT_FILENO, target(folder ? "/tar" : "", from.path), from.path);
  std::error_code ignored;
  bool into = std::filesystem::is_directory(to.path, ignored);
  std::string path = target_of(to.path, into, last_part(from.path));
  done["path"] = path;
  if (!folder) {
    auto mode = static_cast<mode_t>(std::strtoul(text_of(about, "mode", "0644").c_str(), nullptr, 8));
    return fetch_file(from.path, path, mode);
  }
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (failed) return fail(Code::invalid, path + ": " + failed.message());
  if (!packs_) return out_each(from.path, path);
  ISOLA_TRY(TarPipe tar, TarPipe::unpack(path));
  auto fetched = fetch(tar.fd(), target("/tar", from.path), from.path);
  auto unpacked = tar.finish();
  ISOLA_CHECK(fetched);
  return unpacked;
}

namespace {

// What a listing names is somebody else's word: only plain paths below the folder are taken.
bool is_below(const std::string& path) {
  for (const auto& part : std::filesystem::path(path))
    if (part.empty() || part == "." || part == ".." || part.is_absolute()) return false;
  return !path.empty();
}

void skipped(const std::string& path) {
  std::fprintf(stderr, "isola: %s is neither a file nor a folder: left out\n", path.c_str());
}

}  // namespace

// File by file, where nobody packs on the other side.
Result<void> Copy::in_each(const std::string& from, const std::string& to) {
  auto make = [&](const std::string& folder) -> Result<void> {
    json body = {{"path", folder}};
    if (!options_.user.empty()) body["user"] = options_.user;
    ISOLA_CHECK(api_.send("POST", base_ + "/files/mkdir", body));
    return {};
  };
  ISOLA_CHECK(make(to));
  uint64_t bytes = 0;
  std::error_code failed;
  for (std::filesystem::recursive_directory_iterator at(from, failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string path = at->path().string();
    const std::string inside = to + "/" + std::filesystem::relative(path, from).string();
    struct stat about{};
    if (::lstat(path.c_str(), &about) < 0) return sys_error(path);
    if (S_ISDIR(about.st_mode)) {
      ISOLA_CHECK(make(inside));
    } else if (S_ISREG(about.st_mode)) {
      Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      if (!file) return sys_error(path);
      auto mode = fmt::format("{:04o}", about.st_mode & 0777);
      ISOLA_CHECK(send(file.get(), target("", inside, {{"mode", mode}}), path, static_cast<uint64_t>(about.st_size)));
      bytes += done.value("bytes", uint64_t{0});
    } else {
      skipped(path);
    }
  }
  if (failed) return fail(Code::invalid, from + ": " + failed.message());
  done["bytes"] = bytes;
  return {};
}

Result<void> Copy::out_each(const std::string& from, const std::string& to) {
  ISOLA_TRY(json all, api_.get(target("/list", from, {{"depth", "64"}, {"limit", "100000"}})));
  if (all.value("truncated", false)) return fail(Code::exhausted, from + " holds too much to be copied at once");
  uint64_t bytes = 0;
  for (const auto& entry : all["entries"]) {
    std::string path = text_of(entry, "path", ""), type = text_of(entry, "type", "");
    if (!is_below(path)) return fail(Code::corrupt, "the server named a path that is not below " + from);
    std::error_code failed;
    if (type == "dir") {
      std::filesystem::create_directories(to + "/" + path, failed);
      if (failed) return fail(Code::invalid, path + ": " + failed.message());
    } else if (type == "file") {
      std::filesystem::create_directories(std::filesystem::path(to + "/" + path).parent_path(), failed);
      auto mode = static_cast<mode_t>(std::strtoul(text_of(entry, "mode", "0644").c_str(), nullptr, 8));
      ISOLA_CHECK(fetch_file(from + "/" + path, to + "/" + path, mode));
      bytes += done.value("bytes", uint64_t{0});
    } else {
      skipped(path);
    }
  }
  done["bytes"] = bytes;
  return {};
}

namespace {

Result<void> copy(const Common& common, const CopyOptions& options) {
  ISOLA_TRY(Place from, parse_place(options.from));
  ISOLA_TRY(Place to, parse_place(options.to));
  if (from.here() == to.here())
    return fail(Code::invalid, from.here() ? "one side must be in a sandbox: write it as ID:PATH"
                                           : "from one sandbox to another: isola cp A:PATH - | isola cp - B:PATH");
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(std::string id, api.sandbox_id(from.here() ? to.sandbox : from.sandbox));
  Copy copy(std::move(api), "/v1/sandboxes/" + id, true, options);
  ISOLA_CHECK(from.here() ? copy.in(from, to) : copy.out(from, to));
  if (common.json && !to.stream()) print_json(copy.done);
  return {};
}

}  // namespace

void add_copy(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<CopyOptions>();
  auto* command = app.add_subcommand("cp", "Copy files and folders: isola cp LOCAL ID:PATH, isola cp ID:PATH LOCAL");
  command->add_option("from", options->from, "A path here, ID:PATH, or - for standard input")->required();
  command->add_option("to", options->to, "A path here, ID:PATH, or - for standard output (a folder comes as tar)")
      ->required();
  command->add_option("--user,-u", options->user, "The user inside who reads or writes (default root)");
  command->add_flag("-r,--recursive", options->recursive, "Folders are copied whole in any case");
  add_server_options(*command, common);
  command->callback([=, &common, &code] {
    auto copied = copy(common, *options);
    code = copied ? 0 : complain(copied.error().message);
  });
}

}  // namespace isola::cli
