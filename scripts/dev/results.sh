# What a full run and the benchmarks leave behind: dated files in docs/results/, named after the commit that was measured.

# The clone may belong to another user than root (a CI checkout): reading it is fine all the same.
git_here() { git -c safe.directory='*' "$@"; }

commit_name() {
  local name
  name=$(git_here rev-parse --short=10 HEAD 2>/dev/null) || { echo unknown; return; }
  # Documents do not count: a benchmark before this one has written its numbers there.
  [[ -z $(git_here status --porcelain --untracked-files=no -- . ':!docs' 2>/dev/null) ]] || name+=-modified
  echo "$name"
}
results_stem() { echo "docs/results/$(date -u +%F)-$(commit_name)"; }

machine_lines() {
  local cgroup=v2
  [[ -f /sys/fs/cgroup/cgroup.controllers ]] || cgroup="v1 or hybrid"
  echo "- machine: $(nproc) cores, $(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -n 1), $(awk '/^MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo)"
  echo "- kernel: $(uname -sr), cgroup $cgroup"
  echo "- system: $(. /etc/os-release && echo "$PRETTY_NAME"), $(g++ --version | head -n 1)"
  echo "- commit: $(commit_name)"
}

results_begin() {
  RESULTS=$(results_stem).md
  FULL_FAILED=0
  SUITES_RUN=() SKIPPED_EARLIER=
  mkdir -p docs/results
  if [[ -f $RESULTS ]]; then  # an earlier part of the same commit on the same day: its rows stay, its closing list gets longer
    SKIPPED_EARLIER=$(sed -n '/^Cases that this machine/,$ { /^- none$/d; /^- /p }' "$RESULTS")
    sed -i '/^Cases that this machine/,$d' "$RESULTS"
    sed -i '${/^$/d}' "$RESULTS"
    return
  fi
  {
    echo "# Full run of $(date -u +%F)"
    echo
    machine_lines
    echo "- boundaries: the jail"
    echo
    echo "| ended (UTC) | part | result |"
    echo "| --- | --- | --- |"
  } >"$RESULTS"
}
results_add() { echo "| $(date -u +%H:%M) | $1 | ${2//|/\\|} |" >>"$RESULTS"; }
# full_part NAME COMMAND…: one more part of the full run; a failure is written down and the run goes on. The part runs in
# a shell of its own, so that a `die` in it ends the part alone.
full_part() {
  local name=$1 start=$SECONDS
  shift
  if ("$@"); then
    results_add "$name" "passed in $(elapsed "$start")"
  else
    results_add "$name" "**failed**"
    FULL_FAILED=$((FULL_FAILED + 1))
  fi
}
# The sentence of each case that was skipped: GoogleTest's message begins with the line in the source, which says nothing.
skip_reasons() {  # skip_reasons XML…
  sed -nE 's/.*<skipped message="[^"&]*&#x0A;([^"]*)".*/\1/p' "$@" 2>/dev/null |
    sed -E 's/&#x0A;.*//; s/i[a-z0-9]{20}/…/g; s/&apos;|&quot;/"/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g'
}
# What this machine could not run stands beside what passed: a suite that skipped is not one that passed.
results_end() {
  local skipped dir engines
  # What `isola doctor` finds here is what the tests found: "works  boundary gvisor              runsc 0.0, platform …"
  for dir in "${SUITES_RUN[@]}"; do
    engines=$("$dir/bin/isola" doctor 2>/dev/null | sed -nE 's/^works +boundary ([a-z]+) +(.*)/\1 (\2)/p; ' | sed -E 's, \((.*) \(/[^)]*\)\), (\1),' | paste -sd'|' | sed 's/|/; /g' || true)
    [[ -z $engines ]] || sed -i "s~^- boundaries: .*~- boundaries: ${engines//[~&]/ }~" "$RESULTS"
  done
  skipped=$({
    echo "$SKIPPED_EARLIER"
    # Of this run alone: other presets may hold what was built and skipped weeks ago.
    for dir in "${SUITES_RUN[@]}"; do
      skip_reasons "$dir"/Testing/gtest/*.xml | sed 's/^/- /'
      sed -nE 's/^skipped: /- /p' "$dir/Testing/Temporary/LastTest.log" 2>/dev/null
    done
  } | sed '/^$/d' | sort -u || true)
  printf '\nCases that this machine could not run:\n\n%s\n' "${skipped:-- none}" >>"$RESULTS"
}

# A benchmark program measures and writes the numbers as JSON and as a table; the table also goes into
# docs/performance.md, between its two marks. bench_run [--quick|--full], the others likewise.
bench_run() {
  build release isola-bench
  template release minimal
  template release base  # for the compile job
  bench_program isola-bench bench results "$@"
}
bench_api_run() {
  build release isola isola-guest isola-api-bench
  template release minimal
  bench_program isola-api-bench api-bench "api results" "$@"
}
bench_gate() {
  build release isola-gate-bench
  bench_program isola-gate-bench gate-bench "gate results" "$@"
  bench_scan "$@"
}
bench_scan() {
  build release isola isola-guest
  template release minimal
  PYTHONDONTWRITEBYTECODE=1 bench_program bench/scan/stream.py scan-bench "scan results" "$@"
}
bench_interpreter() {
  build release isola isola-guest
  template release minimal
  template release code-interpreter
  PYTHONDONTWRITEBYTECODE=1 bench_program bench/interpreter/bench.py interpreter-bench "interpreter results" "$@"
}
bench_e2b() {
  build release isola isola-guest
  template release minimal
  PYTHONDONTWRITEBYTECODE=1 bench_program bench/e2b/bench.py e2b-bench "e2b results" "$@"
}
bench_boundaries() {
  build release isola-bench
  template release minimal
  template release base  # for the compile job
  bench_program isola-bench boundary-bench "boundary results" "$@" --only boundaries
}
bench_program() {  # bench_program PROGRAM SUFFIX MARK [option…]
  local program=build/bin/$1 stem table mark=$3
  [[ $1 != */* ]] || program=$1  # not one that was built
  stem=$(results_stem)-$2
  shift 3
  [[ -x $program ]] || die "there is no $program"
  table=$(mktemp "$LOGS/table.XXXXXX")
  mkdir -p docs/results
  # One group that fails does not take the others' numbers with it: the table says which.
  local failed=0
  live "bench" "$program" "$@" --json "$stem.json" --table "$table" || failed=1
  [[ -s $table ]] || die "the benchmarks failed"
  {
    echo "# Benchmarks of $(date -u '+%F %H:%M') UTC"
    echo
    machine_lines
    case "${1:-}" in --quick | --full) echo "- counts: $1" ;; *) echo "- counts: normal" ;; esac
    cat "$table"
  } >"$stem.md"
  bench_table_into docs/performance.md "$stem.md" "$mark"
  say "written to $stem.md and $stem.json"
  ((failed == 0)) || die "some measurements failed: see the notes at the end of $stem.md"
}
bench_table_into() {  # bench_table_into DOCUMENT RESULT MARK: replaces what stands between the marks
  local new
  new=$(mktemp "$LOGS/performance.XXXXXX")
  awk -v result="$2" -v mark="<!-- $3: " '
    index($0, mark "end") == 1 { inside = 0 }
    !inside { print }
    index($0, mark "begin") == 1 {
      inside = 1
      print "\nFrom [" result "](" substr(result, 6) "):\n"
      while ((getline line < result) > 0) if (line !~ /^# /) print line
      print ""
    }' "$1" >"$new"
  cat "$new" >"$1"
}
