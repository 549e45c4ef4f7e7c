// Files on their way into a build: those that were uploaded, and those of another stage. Nothing of them is looked at
// out here: the sandboxes' own tar packs and unpacks them.
#include <unistd.h>

#include "base/ids.h"
#include "builder/build_run.h"

namespace isola::builder {

namespace {

// As Docker copies: a folder's contents into the target, a file to it or into it; patterns are the shell's. What is an
// archive is unpacked if that is wanted (ADD).
constexpr const char* kCopy = R"sh(
set -e
from=$1 to=$2 owner=$3 usual=$4 mode=$5 unpack=$6; shift 6
shopt -s dotglob 2>/dev/null || :
if [ -n "$owner$usual" ]; then chown -R -- "${owner:-$usual}" "$from"; fi
if [ -n "$mode" ]; then chmod -R -- "$mode" "$from"; fi
several=; if [ $# -gt 1 ]; then several=1; fi
left=$#
while [ "$left" -gt 0 ]; do
  pattern=$1; shift; left=$((left - 1)); any=
  IFS=
  for one in "$from"/$pattern; do
    if [ ! -e "$one" ] && [ ! -L "$one" ]; then continue; fi
    case $one in */.|*/..) if [ "$pattern" != . ]; then continue; fi;; esac
    if [ -n "$any" ]; then several=1; fi
    set -- "$@" "$one"; any=1
  done
  unset IFS
  if [ -z "$any" ]; then echo "there is nothing like '$pattern' among the files" >&2; exit 1; fi
done
archive() {
  [ -n "$unpack" ] && [ -f "$1" ] && [ ! -L "$1" ] || return 1
  if [ -n "$(tar -tf "$1" 2>/dev/null | head -n 1)" ]; then return 0; fi
  case $1 in *.tar|*.tar.*|*.tgz|*.tbz|*.tbz2|*.txz|*.tzst) ;; *) return 1;; esac
  echo "'${1##*/}' cannot be unpacked: it is damaged, or what it is packed with is not installed here" >&2
  exit 1
}
for one; do
  if archive "$one"; then
    mkdir -p -- "$from/.unpacked"; tar -C "$from/.unpacked" -xf "$one"
    if [ -n "$owner" ]; then chown -R -- "$owner" "$from/.unpacked"; fi
    mkdir -p -- "$to"; cp -a -- "$from/.unpacked/." "$to/"; rm -rf -- "$from/.unpacked"
  elif [ -d "$one" ] && [ ! -L "$one" ]; then
    mkdir -p -- "$to"; cp -a -- "$one/." "$to/"
  elif [ -n "$several" ] || [ "${to%/}" != "$to" ] || [ -d "$to" ]; then
    mkdir -p -- "$to"; cp -a -- "$one" "$to/"
  else
    mkdir -p -- "$(dirname -- "$to")"; cp -a -- "$one" "$to"
  fi
done
rm -rf -- "$from"
)sh";

// Into one file first: the output of a command waits for nobody, a file does.
constexpr const char* kPack = R"sh(
cd / || exit 1
into=$1; shift
shopt -s dotglob 2>/dev/null || :
left=$# only=
while [ "$left" -gt 0 ]; do
  pattern=$1; shift; left=$((left - 1)); any=
  IFS=
  for one in $pattern; do
    if [ ! -e "$one" ] && [ ! -L "$one" ]; then continue; fi
    case $one in .|..) if [ "$pattern" != . ]; then continue; fi; only=--one-file-system;; esac
    set -- "$@" "./$one"; any=1
  done
  unset IFS
  if [ -z "$any" ]; then echo "there is nothing like '/$pattern' in that stage" >&2; exit 1; fi
done
exec tar $only --exclude="./${into#/}" -cf "$into" "$@"
)sh";

constexpr const char* kUnpack = "mkdir -m 700 -- \"$1\" && exec tar -C \"$1\" $2 -xf -";

}  // namespace

Task<Result<void>> BuildRun::unpack(Stage& stage, std::string staging, Source source, bool packed) {
  auto spec = script(kUnpack, {"unpack", staging, packed ? "-z" : ""});
  spec.stdin_mode = guest::Stdin::pipe;
  ISOLA_CO_TRY(sandbox::Running running, co_await parts_.service.run(stage.box, std::move(spec)));
  for (;;) {
    ISOLA_CO_TRY(std::string bytes, co_await source());
    if (bytes.empty()) break;
    if (auto sent = co_await running.channel->write(bytes); !sent) break;  // tar has ended: see why below
  }
  running.channel->close_write();
  ISOLA_CO_TRY(guest::Exit exit, co_await follow(stage.box, std::move(running)));
  if (exit.code != 0) co_return fail(Code::invalid, "the files of the step cannot be unpacked: see the log");
  co_return Result<void>();
}

Task<Result<void>> BuildRun::copy(Stage& stage, const Step& step) {
  const std::string staging = "/.isola-" + new_command_id();
  if (!step.stage.empty()) {
    ISOLA_CO_CHECK(co_await copy_from_part(stage, step, staging));
  } else {
    ISOLA_CO_TRY(Fd file, parts_.contexts.open(build_.project, step.context));
    char magic[2] = {};
    const bool packed = ::pread(file.get(), magic, 2, 0) == 2 && magic[0] == '\x1f' && magic[1] == '\x8b';
    Source source = [&file]() -> Task<Result<std::string>> {
      std::string piece(256 << 10, '\0');
      ssize_t n = ::read(file.get(), piece.data(), piece.size());
      if (n < 0) co_return sys_error("cannot read the uploaded files");
      piece.resize(static_cast<size_t>(n));
      co_return piece;
    };
    ISOLA_CO_CHECK(co_await unpack(stage, staging, source, packed));
  }
  std::string target = step.target;
  if (!target.starts_with('/')) {
    const std::string begin = folder(stage.cwd, stage.user);
    target = (begin.ends_with('/') ? begin : begin + "/") + target;
  }
  // What was uploaded is root's unless it is said otherwise; files of a stage stay whose they are.
  const std::string usual = !step.stage.empty() ? "" : spec_.at_home ? stage.user : "root:root";
  std::vector<std::string> words = {"copy", staging, target, step.owner, usual, step.mode, step.unpack ? "1" : ""};
  words.insert(words.end(), step.sources.begin(), step.sources.end());
  auto spec = script(kCopy, std::move(words));
  co_return co_await run(stage.box, std::move(spec), step.line);
}

// Two sandboxes: tar packs in the one, and unpacks in the other.
Task<Result<void>> BuildRun::copy_from_part(Stage& stage, const Step& step, std::string staging) {
  Stage& part = *stages_.at(std::stoul(step.stage));
  const std::string number = step_;
  ISOLA_CO_CHECK(co_await build(part));
  step_ = number;
  if (!part.box) ISOLA_CO_CHECK(co_await make_box(part));
  const std::string packed = "/.isola-" + new_command_id() + ".tar";
  std::vector<std::string> words = {"pack", packed};
  words.insert(words.end(), step.sources.begin(), step.sources.end());
  auto pack = script(kPack, std::move(words));
  ISOLA_CO_CHECK(co_await run(part.box, std::move(pack), step.line));
  ISOLA_CO_TRY(auto link, co_await parts_.service.link(part.box));
  guest::Read args{.path = packed, .user = "root"};
  auto channel = link->open(guest::Op::read, guest::encode(args), 1 << 20);
  ISOLA_CO_TRY(std::string stat, co_await channel->reply());
  Source source = [channel]() -> Task<Result<std::string>> {
    auto bytes = co_await channel->read();
    if (bytes && !bytes->empty()) co_return std::move(*bytes);
    auto end = co_await channel->end();
    if (!end) co_return std::unexpected(end.error());
    co_return std::string();
  };
  ISOLA_CO_CHECK(co_await unpack(stage, std::move(staging), source, false));
  co_await end_box(part);
  co_return Result<void>();
}

}  // namespace isola::builder
