#include "cli/scan_git.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <sstream>

#include "base/fd.h"
#include "base/file.h"

namespace isola::cli {

namespace {

// git with `input`; `sink` hears what it prints. A hook's environment says which repository and index: it stays.
Result<void> run_git(std::vector<std::string> words, const std::string& input,
                     const std::function<Result<void>(std::string_view)>& sink) {
  words.insert(words.begin(), "git");
  Fd in(::memfd_create("isola-git", MFD_CLOEXEC));
  if (!in) return sys_error("cannot make a file in memory");
  ISOLA_CHECK(write_all(in.get(), input));
  if (::lseek(in.get(), 0, SEEK_SET) < 0) return sys_error("cannot wind a file back");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return sys_error("cannot make a pipe");
  Fd out(ends[0]), theirs(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.get(), 0);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), 1);
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  int error = ::posix_spawnp(&pid, "git", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return sys_error("cannot start git", error);
  theirs.reset();
  Result<void> heard;
  char buffer[64 << 10];
  for (ssize_t n; heard && (n = ::read(out.get(), buffer, sizeof buffer)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      heard = sys_error("cannot read from git");
    else
      heard = sink(std::string_view(buffer, static_cast<size_t>(n)));
  }
  out.reset();
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  ISOLA_CHECK(heard);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fail(Code::unavailable, fmt::format("git {} did not succeed", words[1]));
  return {};
}

Result<std::string> git_output(std::vector<std::string> words, const std::string& input = {}) {
  std::string all;
  ISOLA_CHECK(run_git(std::move(words), input, [&](std::string_view piece) -> Result<void> {
    all.append(piece);
    return {};
  }));
  return all;
}

bool is_id(std::string_view word) {
  return (word.size() == 40 || word.size() == 64) &&
         word.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}
bool is_zero(std::string_view id) { return id.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

Result<std::vector<GitObject>> staged_objects() {
  ISOLA_TRY(std::string raw, git_output({"diff", "--cached", "--raw", "-z", "--no-renames", "--no-abbrev",
                                         "--no-ext-diff", "--diff-filter=ACMT"}));
  std::vector<GitObject> objects;
  std::string_view rest = raw;
  auto field = [&] {
    size_t end = std::min(rest.find('\0'), rest.size());
    std::string_view text = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + 1));
    return std::string(text);
  };
  while (!rest.empty()) {
    // :OLDMODE NEWMODE OLDID NEWID STATUS, then the path.
    std::istringstream head(field());
    std::string path = field(), old_mode, new_mode, old_id, id;
    head >> old_mode >> new_mode >> old_id >> id;
    if (!is_id(id) || path.empty()) return fail(Code::corrupt, "git diff said something unexpected");
    if (new_mode != "160000") objects.push_back({id, path});  // another repository's commit
  }
  return objects;
}

Result<std::vector<GitObject>> pushed_objects(const std::string& lines, const std::string& remote) {
  std::istringstream in(lines);
  std::string wanted;
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    std::istringstream words(line);
    std::string local_ref, local, remote_ref, there;
    words >> local_ref >> local >> remote_ref >> there;
    if (!is_id(local) || !is_id(there)) return fail(Code::invalid, "this is not what git tells a pre-push hook");
    if (is_zero(local)) continue;  // a branch is removed
    wanted += local + "\n";
    // What is there already, if we know it.
    if (!is_zero(there) && git_output({"cat-file", "-e", there})) wanted += "^" + there + "\n";
  }
  std::vector<GitObject> objects;
  if (wanted.empty()) return objects;
  ISOLA_TRY(std::string list, git_output({"rev-list", "--objects", "--stdin", "--not",
                                          remote.empty() ? std::string("--remotes") : "--remotes=" + remote},
                                         wanted));
  std::istringstream all(list);
  for (std::string line; std::getline(all, line);) {
    size_t space = line.find(' ');
    std::string id = line.substr(0, space);
    if (!is_id(id)) return fail(Code::corrupt, "git rev-list said something unexpected");
    objects.push_back({id, space == std::string::npos ? "" : line.substr(space + 1)});
  }
  return objects;
}

Result<void> read_objects(const std::vector<GitObject>& objects, const GitSink& piece) {
  if (objects.empty()) return {};
  std::string input;
  for (const auto& object : objects) input += object.id + "\n";
  size_t at = 0, left = 0;  // which object, and how much of it is to come
  std::string head;
  bool inside = false, wanted = false, ending = false;
  GitObject now;
  auto take = [&](std::string_view bytes) -> Result<void> {
    while (!bytes.empty()) {
      if (ending) {  // the newline behind an object
        bytes.remove_prefix(1);
        ending = false;
        continue;
      }
      if (!inside) {
        size_t end = bytes.find('\n');
        head.append(bytes.substr(0, end));
        if (end == std::string_view::npos) return {};
        bytes.remove_prefix(end + 1);
        // ID TYPE SIZE
        std::istringstream words(head);
        std::string id, type;
        size_t size = 0;
        if (at >= objects.size() || !(words >> id >> type >> size))
          return fail(Code::corrupt, "git cat-file said something unexpected: " + head);
        head.clear();
        now = objects[at++];
        if (type != "blob" || now.where.empty())
          now.where = (now.where.empty() ? "" : now.where + " ") + type + " " + id.substr(0, 12);
        wanted = type != "tree";
        left = size;
        inside = true;
      }
      std::string_view part = bytes.substr(0, left);
      if (wanted && !part.empty()) piece(now, part);
      left -= part.size();
      bytes.remove_prefix(part.size());
      if (left == 0) {
        if (wanted) piece(now, {});
        inside = false;
        ending = true;
      }
    }
    return {};
  };
  ISOLA_CHECK(run_git({"cat-file", "--batch"}, input, take));
  if (inside || at != objects.size()) return fail(Code::corrupt, "git cat-file did not give every object");
  return {};
}

}  // namespace isola::cli
