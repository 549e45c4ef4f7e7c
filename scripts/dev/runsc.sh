# The gVisor engine. Of what the machine's package sources have the newest is taken, backports too, which apt does not take
# by itself. The one of Debian 12 proper cannot keep the memory of a sandbox (docs/boundaries.md): then the one of the
# distribution's backports, from the machine's own mirror, is unpacked into the cache beside it, where Isola looks first:
#
#   /var/cache/isola/tools/runsc                   the one to use, a link
#   /var/cache/isola/tools/runsc-0.0~20240729.0-4~bpo12+2/runsc

RUNSC_TOOLS=/var/cache/isola/tools
RUNSC_PATH=$RUNSC_TOOLS/runsc
RUNSC_DAY=20240729  # the oldest that keeps memory (src/boundary/gvisor/runsc.cc)

runsc_day() { "$1" --version 2>/dev/null </dev/null | sed -nE 's/^runsc version .*(20[0-9]{6}).*/\1/p'; }
runsc_good() { local day; [[ -x $1 ]] && day=$(runsc_day "$1") && [[ -n $day ]] && ((day >= RUNSC_DAY)); }
runsc_found() { if [[ -x $RUNSC_PATH ]]; then echo "$RUNSC_PATH"; else command -v runsc; fi; }

# runsc_provide: a runsc, and a good one if that is to be had; fails if there is none at all.
runsc_provide() {
  local lock found
  if found=$(runsc_found) && runsc_good "$found"; then return; fi
  [[ $EUID -eq 0 ]] || die "runsc is missing or old, and only root can install one"
  mkdir -p "$RUNSC_TOOLS"
  exec {lock}>"$RUNSC_TOOLS/.runsc-lock"
  flock "$lock"
  runsc_from_distribution || true
  if ! { found=$(runsc_found) && runsc_good "$found"; }; then runsc_from_backports || true; fi
  exec {lock}>&-
  found=$(runsc_found) || return 1
  say "runsc of $(runsc_day "$found") at $found"
}

runsc_from_distribution() {
  local newest
  ! installed runsc || return 0
  candidate runsc || apt_update
  newest=$(apt-cache madison runsc 2>/dev/null | awk '{print $3}' | sort -V | tail -n 1)
  [[ -n $newest ]] || { say "this machine's package sources have no runsc"; return 1; }
  if [[ $newest == *~bpo* ]]; then
    try_step "install runsc $newest" install_quietly "runsc=$newest"
  else
    try_step "install runsc" install_quietly runsc
  fi
}

# Through a private apt configuration, as criu's source is: the mirror is the machine's own, signatures are checked with the
# distribution's keyring, and nothing of the system changes.
runsc_from_backports() {
  local codename uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg apt work options deb version
  [[ $(. /etc/os-release && echo "$ID") == debian && -f $keyring ]] || return 1
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  uri=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Identifier: Packages' | sed -n "s/^$codename //p" | sort -u | head -n 1)
  [[ -n $uri ]] || return 1
  work=$(mktemp -d "$RUNSC_TOOLS/.runsc.XXXXXX")
  apt=$work/apt
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$work/fetch" "$work/files"
  echo "deb [signed-by=$keyring] $uri $codename-backports main" >"$apt/sources.list"
  options=(-o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$apt/lists"
    -o Dir::Cache="$apt/cache")
  chmod 755 "$work"
  chown _apt "$work/fetch"
  if try_step "look for runsc in $codename-backports" apt_get "${options[@]}" -o APT::Update::Error-Mode=any update &&
    (cd "$work/fetch" && try_step "fetch runsc from $codename-backports" apt_get "${options[@]}" download runsc) &&
    deb=$(compgen -G "$work/fetch/runsc_*.deb" | head -n 1) && dpkg-deb -x "$deb" "$work/files" &&
    runsc_good "$work/files/usr/bin/runsc"; then
    version=$(dpkg-deb -f "$deb" Version)
    rm -rf "${RUNSC_TOOLS:?}/runsc-$version"
    mkdir "$RUNSC_TOOLS/runsc-$version"
    install -m 755 "$work/files/usr/bin/runsc" "$RUNSC_TOOLS/runsc-$version/runsc"
    ln -sfn "runsc-$version/runsc" "$work/link"
    mv -T "$work/link" "$RUNSC_PATH"
  else
    say "no runsc of $RUNSC_DAY or newer could be fetched: sandboxes with the boundary gvisor keep files, not memory"
  fi
  rm -rf "$work"
  runsc_good "$RUNSC_PATH"
}
