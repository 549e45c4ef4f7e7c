# What Isola needs from the distribution, one list per purpose, and how it gets there: looked up first, so that a machine
# that has everything pays a few milliseconds and needs no network.

CLANG_VERSIONS="19 20 21"  # the first that the package sources know; before 19, clang cannot compile libstdc++'s <expected>

packages_of() {
  case $1 in
    build) echo g++ cmake ninja-build ccache pkg-config libfmt-dev libnftnl-dev libmnl-dev libssl-dev libxxhash-dev libsqlite3-dev libtomlplusplus-dev nlohmann-json3-dev libcli11-dev \
      zlib1g-dev "$(boost_package)" libgtest-dev libbenchmark-dev libc-ares-dev libnghttp2-dev libzmq3-dev libedit-dev libsodium-dev libarchive-dev ;;
    run) echo mmdebstrap erofs-utils btrfs-progs e2fsprogs ca-certificates python3 skopeo zstd s3fs ;;
    test) echo libseccomp-dev nftables iproute2 stress-ng strace xz-utils openssl curl systemd \
      nginx-light openssh-server openssh-client postgresql dnsmasq-base git nodejs python3-pip python3-jwt python3-cryptography nghttp2-client ;;  # second line: real servers and clients
    selftests) echo linux-source libcap-dev gcc libc6-dev ;;
    conformance) echo python3-venv ;;
    bench) echo crun runc bubblewrap nginx-light libnginx-mod-stream wrk ;;
    uml) echo linux-source make gcc libc6-dev flex bison bc xz-utils bzip2 e2fsprogs ;;
    microvm) echo qemu-system-x86 python3 xz-utils zstd lz4 e2fsprogs ;;
    criu-build) echo make gcc libc6-dev pkg-config python3 libprotobuf-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler \
      libnl-3-dev libnet1-dev libcap-dev libbsd-dev uuid-dev libnftables-dev libgnutls28-dev libaio-dev xz-utils ;;
    fmt) clang_package clang-format ;;
    lint) clang_package clang-tidy && clang_package clang ;;
    fuzz) clang_package clang && clang_package libclang-rt ;;
  esac
}

# Coroutines and Beast as we use them need Boost 1.81; Debian 12 has it beside its older default.
boost_package() {
  if installed libboost1.81-dev || candidate libboost1.81-dev; then echo libboost1.81-dev; else echo libboost-dev; fi
}

# clang_package TOOL: the package of the newest-but-fitting clang that this machine has or could install.
clang_package() {
  local version name
  for version in $CLANG_VERSIONS; do
    name=$1-$version
    [[ $1 != libclang-rt ]] || name=libclang-rt-$version-dev
    if installed "$name" || candidate "$name"; then echo "$name"; return; fi
  done
  return 1
}
# clang_tool NAME: the program of that clang (clang++-19, clang-tidy-19 …).
clang_tool() {
  local version
  for version in $CLANG_VERSIONS; do
    if command -v "$1-$version"; then return; fi
  done
  die "no $1 of version $CLANG_VERSIONS is installed"
}

installed() { [[ $(dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | head -n 1) == installed ]]; }
candidate() {
  local version
  version=$(apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p')
  [[ -n $version && $version != "(none)" ]]
}

# need PURPOSE…: installs what is missing of these lists.
need() {
  local purpose wanted=() missing=() have name
  command -v dpkg-query >/dev/null || die "this needs Debian 12 or Ubuntu 24.04 (there is no dpkg here)"
  for purpose in "$@"; do
    local list
    if ! list=$(packages_of "$purpose"); then
      # The lists of a machine that was never updated know nothing: once more with fresh ones.
      apt_update
      list=$(packages_of "$purpose") || die "this machine's package sources have no clang of version $CLANG_VERSIONS (needed for: $purpose)"
    fi
    # shellcheck disable=SC2206
    wanted+=($list)
  done
  # Provided names count too (a library renamed for 64-bit time provides its old name).
  have=$(dpkg-query -W -f '${db:Status-Status} ${Package}, ${Provides}\n' | sed -n 's/^installed //p' | sed 's/([^)]*)//g' | tr -d ' ' | tr ',' '\n' | sort -u)
  for name in $(printf '%s\n' "${wanted[@]}" | sort -u); do
    grep -qxF -- "$name" <<<"$have" || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  [[ $EUID -eq 0 ]] || die "these packages are missing and only root can install them: ${missing[*]}"
  apt_update
  say "missing packages: ${missing[*]}"
  step "install them" install_quietly "${missing[@]}"
}

# Some packages bring services (nginx, sshd, PostgreSQL), of which we want the programs alone: what is installed here is
# neither started nor switched on for the next boot. Services that were there before are left as they are.
install_quietly() {
  local policy=/usr/sbin/policy-rc.d ours=0 rc=0 before unit
  before=$(enabled_units)
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    ours=1
  fi
  apt_get install -y --no-install-recommends "$@" || rc=$?
  ((ours == 0)) || rm -f "$policy"
  for unit in $(comm -13 <(echo "$before") <(enabled_units)); do
    systemctl disable "$unit" || true
  done
  return "$rc"
}
enabled_units() {
  command -v systemctl >/dev/null || return 0
  { systemctl --root=/ --type=service,socket --state=enabled --no-legend --no-pager list-unit-files 2>/dev/null || true; } |
    awk '{print $1}' | grep -E '^(nginx|ssh|postgresql|dnsmasq)' | sort -u || true
}

APT_UPDATED=0
apt_update() {
  ((APT_UPDATED)) && return
  [[ $EUID -eq 0 ]] || die "package lists are missing and only root can fetch them"
  step "refresh the package lists" apt_get update
  APT_UPDATED=1
}
apt_get() {
  DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 \
    -o Dpkg::Options::=--force-confold "$@"
}

# need_boundary KIND: what a boundary needs besides.
need_boundary() {
  case $1 in
    jail) ;;
    gvisor) runsc_provide || die "up: no runsc could be installed (the reason is above)" ;;
    uml) uml_provide ;;
    microvm) microvm_provide ;;
    *) die "up: no boundary '$1' in this version (jail, gvisor, uml, microvm)" ;;
  esac
}
