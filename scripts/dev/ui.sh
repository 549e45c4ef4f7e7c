# How ./dev shows what it does: one line per step, a sign of life while a step runs, the end of the log when it fails.

LOGS=$(mktemp -d "${TMPDIR:-/tmp}/isola-dev.XXXXXX")
HEART=""
finish() {
  local rc=$?
  [[ -z $HEART ]] || kill "$HEART" 2>/dev/null || true
  [[ $BASHPID == "$$" ]] && rm -rf "$LOGS"
  exit "$rc"
}
trap finish EXIT
trap 'interrupted 130' INT
trap 'interrupted 143' TERM
# What was done so far stays: the same command goes on from there.
interrupted() {
  trap - INT TERM
  echo >&2
  echo "dev: interrupted; the same command goes on from here" >&2
  exit "$1"
}

say() { printf '\033[1m==\033[0m %s\n' "$*" | if [[ -t 1 ]]; then cat; else sed 's/\x1b\[[0-9]*m//g'; fi; }
die() {
  echo "dev: $*" >&2
  exit 1
}
no_more_arguments() {
  local command=$1
  shift
  [[ $# -eq 0 ]] || die "$command: unexpected argument '$1'; ./dev help shows what there is"
}
elapsed() {
  local s=$((SECONDS - $1))
  if ((s < 60)); then echo "${s}s"; else echo "$((s / 60))m$((s % 60))s"; fi
}
need_root() {
  [[ $EUID -eq 0 ]] && return
  local why="it installs packages, makes namespaces and mounts"
  [[ $1 != down ]] || why="the server and its sandboxes are root's to end"
  die "$1 must run as root ($why): sudo ./dev $1"
}

# Runs beside a step: on a terminal one line that is written over, elsewhere a line every ten seconds, each with the time
# and the last line of the log. The wait is a read that times out: no sleep process is left holding our output open.
heartbeat() {  # heartbeat TITLE LOG
  local start=$SECONDS every=10 last never parent=$$
  trap - EXIT
  [[ -t 1 ]] && every=1
  exec {never}<> <(:)
  while kill -0 "$parent" 2>/dev/null; do
    read -r -t "$every" -u "$never" || true
    last=$(tail -c 400 "$2" 2>/dev/null | tr '\r' '\n' | grep -av '^ *$' | tail -n 1 | sed -E 's#[a-z]+://[^ ]* ?##g' | cut -c1-90 | tr -d '\000-\037' || true)
    if [[ -t 1 ]]; then
      printf '\r\033[K   %s … %s  %s' "$1" "$(elapsed "$start")" "${last:0:70}"
    else
      printf '   %s … %s  %s\n' "$1" "$(elapsed "$start")" "$last"
    fi
  done
}
heart_start() {
  heartbeat "$@" &
  HEART=$!
}
heart_stop() {
  kill "$HEART" 2>/dev/null || true
  wait "$HEART" 2>/dev/null || true
  HEART=""
  [[ ! -t 1 ]] || printf '\r\033[K'
}

# try_step TITLE COMMAND…: output goes to a log, of which the end is printed when the command fails. The log stays
# readable as STEP_LOG until ./dev ends. Returns the command's status.
try_step() {
  local title=$1 start=$SECONDS rc=0
  shift
  STEP_LOG=$(mktemp "$LOGS/step.XXXXXX")
  heart_start "$title" "$STEP_LOG"
  "$@" </dev/null >"$STEP_LOG" 2>&1 || rc=$?
  heart_stop
  if ((rc == 0)); then
    say "$title ($(elapsed "$start"))"
  elif ((rc == 130)); then
    interrupted 130
  else
    tail -n 80 "$STEP_LOG" >&2
    echo "dev: '$title' failed with status $rc (the end of its output is above)" >&2
  fi
  return "$rc"
}
step() { try_step "$@" || exit 1; }

# live TITLE COMMAND…: like try_step for a command whose output is worth seeing as it comes. Log in LIVE_LOG.
live() {
  local title=$1 rc=0
  shift
  LIVE_LOG=$(mktemp "$LOGS/live.XXXXXX")
  [[ -t 1 ]] || heart_start "$title" "$LIVE_LOG"
  "$@" </dev/null 2>&1 | tee "$LIVE_LOG" || rc=$?
  [[ -z $HEART ]] || heart_stop
  return "$rc"
}
