# A criu that works with the running kernel. Kernels change under criu (a new vDSO layout was enough to stop the one of
# Debian 12), so `criu check` decides, in this order: the one found before, the installed one, the distribution's, and last
# one built from the newest source package that the machine's own mirror serves. What was found stays in the cache:
#
#   /var/cache/isola/tools/criu                    the one to use, a link
#   /var/cache/isola/tools/criu-4.2.1/criu         one that was built here

CRIU_TOOLS=/var/cache/isola/tools
CRIU_PATH=$CRIU_TOOLS/criu

criu_good() { [[ -x $1 ]] && "$1" check >/dev/null 2>&1 </dev/null; }
criu_version() { "$1" --version | sed -n "s/^Version: //p"; }

criu_provide() {
  criu_good "$CRIU_PATH" && return
  mkdir -p "$CRIU_TOOLS"
  local lock found
  exec {lock}>"$CRIU_TOOLS/.lock"
  flock "$lock"  # another ./dev may be building it just now
  if ! criu_good "$CRIU_PATH"; then
    if found=$(command -v criu) && criu_good "$found"; then
      criu_use "$found"
    elif [[ -z $found ]] && criu_from_distribution; then
      criu_use "$(command -v criu)"
    else
      criu_from_source
    fi
  fi
  exec {lock}>&-
  say "criu $(criu_version "$CRIU_PATH") at $CRIU_PATH"
}

criu_use() {
  ln -sfn "$1" "$CRIU_TOOLS/.criu.new"
  mv -T "$CRIU_TOOLS/.criu.new" "$CRIU_PATH"
}

criu_from_distribution() {
  apt_update
  candidate criu || return 1
  step "install criu" apt_get install -y --no-install-recommends criu
  criu_good "$(command -v criu)" && return
  say "the distribution's criu $(criu_version criu) does not pass 'criu check' on this kernel"
  step "remove it again" apt_get purge -y criu
  return 1
}

# The source package comes through a private apt configuration: the mirror is the machine's own, the newer suite is known
# to nothing but that directory, and signatures are checked with the distribution's keyring.
criu_fetch() {  # criu_fetch SUITE URI KEYRING INTO
  local apt=$CRIU_TOOLS/apt options ok=0
  options=(-o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$apt/lists"
    -o Dir::Cache="$apt/cache")
  rm -rf "$apt"
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  echo "deb-src [signed-by=$3] $2 $1 main $([[ $3 != *ubuntu* ]] || echo universe)" >"$apt/sources.list"
  chown _apt "$4"
  try_step "look for criu's source in $1" apt_get "${options[@]}" -o APT::Update::Error-Mode=any update &&
    (cd "$4" && try_step "fetch criu's source from $1" apt_get "${options[@]}" source --download-only --tar-only criu) || ok=$?
  rm -rf "$apt"
  return "$ok"
}

criu_from_source() {
  local id codename uri keyring suites suite work tarball version
  id=$(. /etc/os-release && echo "$ID")
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  case $id in
    debian) keyring=/usr/share/keyrings/debian-archive-keyring.gpg suites="sid testing" ;;
    ubuntu) keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg suites="devel questing" ;;
    *) die "criu: no source package known for the distribution '$id'; put a criu that passes 'criu check' at $CRIU_PATH" ;;
  esac
  need criu-build
  apt_update
  uri=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Identifier: Packages' | sed -n "s/^$codename //p" | sort -u | head -n 1)
  [[ -n $uri ]] || die "criu: found no package source for $codename in this machine's apt configuration"
  [[ -f $keyring ]] || die "criu: $keyring is missing, so the source package could not be checked: install the archive keyring package"

  rm -rf "$CRIU_TOOLS/apt" "$CRIU_TOOLS"/build.*
  work=$(mktemp -d "$CRIU_TOOLS/build.XXXXXX")
  mkdir "$work/fetch" "$work/src"
  for suite in $suites; do
    if criu_fetch "$suite" "$uri" "$keyring" "$work/fetch"; then break; fi
    echo "dev: criu: '$suite' did not work (NO_PUBKEY above would mean that the archive keyring package is older than that suite)" >&2
  done
  # The tarball of the authors, without the packaging: apt has checked its hash against the signed index of the suite.
  tarball=$(compgen -G "$work/fetch/criu_*.orig.tar.*" | head -n 1) ||
    die "criu: no source package could be fetched; put a criu that passes 'criu check' at $CRIU_PATH"
  version=${tarball##*/criu_}
  version=${version%.orig.tar.*}
  step "unpack criu $version" tar -xf "$tarball" -C "$work/src" --strip-components=1
  # Without TLS, which nobody here uses: criu is started for each pause and resume, and would load GnuTLS each time.
  step "build criu $version (about a minute)" make -C "$work/src" -j"$(nproc)" NO_GNUTLS=1 criu
  criu_good "$work/src/criu/criu" || die "criu: $version does not pass 'criu check' on this kernel either: $("$work/src/criu/criu" check 2>&1 | tail -n 1)"
  rm -rf "${CRIU_TOOLS:?}/criu-$version"
  mkdir "$work/done"
  install -s "$work/src/criu/criu" "$work/done/criu"
  mv -T "$work/done" "$CRIU_TOOLS/criu-$version"
  rm -rf "$work"
  criu_use "criu-$version/criu"
}
