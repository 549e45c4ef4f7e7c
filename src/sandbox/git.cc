// A repository that is checked out when a sandbox is made: by git inside, as whoever its commands run as, under its own
// policy. Nothing of it is read out here.
#include <algorithm>

#include "base/log.h"
#include "sandbox/quiet_run.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace {

constexpr auto kLongestCheckout = std::chrono::minutes(10);
constexpr size_t kMaxUrl = 2048, kMaxRef = 255, kMaxPath = 4096;

bool is_plain(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '\x7f'; });
}

bool is_commit(std::string_view ref) {
  return (ref.size() == 40 || ref.size() == 64) &&
         ref.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

}  // namespace

Result<void> check_git(const GitCheckout& git) {
  if (git.url.empty()) {
    if (git.ref.empty() && git.path.empty()) return {};
    return fail(Code::invalid, "git.url: is missing");
  }
  constexpr std::string_view kSchemes[] = {"https://", "http://", "git://", "file://"};
  auto scheme = std::ranges::find_if(kSchemes, [&](auto one) { return git.url.starts_with(one); });
  if (scheme == std::end(kSchemes) || git.url.size() == scheme->size())
    return fail(Code::invalid, "git.url: must begin with https://, http://, git:// or (inside the sandbox) file://");
  if (git.url.size() > kMaxUrl || !is_plain(git.url)) return fail(Code::invalid, "git.url: is no address");
  std::string_view host = std::string_view(git.url).substr(scheme->size());
  host = host.substr(0, host.find('/'));
  // It would stand in the ledger, in lists of commands and in the repository's own configuration.
  if (host.find('@') != host.npos) return fail(Code::invalid, "git.url: a name or password has no place in it");
  if (git.ref.size() > kMaxRef || git.ref.starts_with('-') || !is_plain(git.ref))
    return fail(Code::invalid, "git.ref: must be a branch, a tag or a commit");
  if (git.path.size() > kMaxPath || git.path.find('\0') != std::string::npos)
    return fail(Code::invalid, "git.path: is no path");
  return {};
}

Task<Result<void>> Service::check_out(BoxPtr box, GitCheckout git) {
  std::string folder = git.path;
  if (folder.empty()) {
    std::string_view name = git.url;
    while (name.ends_with('/')) name.remove_suffix(1);
    name = name.substr(name.rfind('/') + 1);
    if (name.ends_with(".git")) name.remove_suffix(4);
    folder = name.empty() || name == "." || name == ".." ? "repository" : std::string(name);
  }
  if (!folder.starts_with('/')) folder.insert(0, "./");  // never an option
  auto run = [&](std::vector<std::string> words) -> Task<Result<void>> {
    CommandSpec spec;
    spec.argv = std::move(words);
    spec.env = {{"GIT_TERMINAL_PROMPT", "0"}, {"GIT_CONFIG_NOSYSTEM", "1"}};
    spec.timeout = kLongestCheckout;
    spec.counted = false;
    auto ran = co_await run_quietly(*this, box, std::move(spec));
    if (!ran && ran.error().code == Code::not_found && ran.error().sys_errno == ENOENT)
      co_return fail(Code::invalid, "git: this template has no git");
    if (!ran) co_return std::unexpected(ran.error().in("git"));
    if (ran->exit.timed_out)
      co_return fail(Code::timeout, "git: " + log::quoted(git.url) + " took longer than 10 minutes");
    if (ran->exit.code != 0 || ran->exit.signal != 0)
      co_return fail(Code::invalid, "git: " + log::quoted(git.url) +
                                        (git.ref.empty() ? "" : " at " + log::quoted(git.ref)) +
                                        " cannot be checked out" + and_said(*ran));
    co_return Result<void>();
  };
  std::vector<std::string> clone = {"git", "clone", "--quiet"};
  const bool commit = is_commit(git.ref);
  if (commit)
    clone.push_back("--no-checkout");
  else if (!git.ref.empty())
    clone.insert(clone.end(), {"--branch", git.ref});
  clone.insert(clone.end(), {"--", git.url, folder});
  ISOLA_CO_CHECK(co_await run(std::move(clone)));
  if (!commit) co_return Result<void>();
  std::vector<std::string> checkout = {"git", "-C", folder, "checkout", "--quiet", "--detach", git.ref};
  co_return co_await run(std::move(checkout));
}

}  // namespace isola::sandbox
