# The kernel of the boundary uml: the distribution's kernel source, built as a program (ARCH=um) with our own small
# configuration (uml.config), and an empty disk beside it. Both are kept in the machine's cache, under the hash of what
# they are made of:
#
#   /var/cache/isola/tools/uml                       the one to use, a link
#   /var/cache/isola/tools/uml-0123456789ab/linux    with disk.ext4

UML_TOOLS=/var/cache/isola/tools
UML_CONFIG=scripts/dev/uml.config

# The newest source package that is installed (Debian's is .tar.xz, Ubuntu's .tar.bz2, behind a link).
uml_source() { find -L /usr/src -maxdepth 1 -type f -name 'linux-source-*.tar.*' | sort -V | tail -n 1; }

# Three changes of the source, which is otherwise the distribution's: a static program may have the network driver that
# it needs (what would not work is looking up names, of which it has none); /proc/cpuinfo tells of one core, which
# ps and others look for, instead of which kernel the host has; and a signal that arrives leaves errno as it was, or a
# tick of the clock in the wrong moment makes the network driver take its descriptor for a number that cannot be read
# ("fd open: bad or missing fd argument", once in some hundred starts).
uml_adjust() {  # uml_adjust SOURCE
  sed -i '/select MAY_HAVE_RUNTIME_DEPS/d' "$1/arch/um/drivers/Kconfig"
  sed -i 's/seq_printf(m, "host\\t.*/seq_puts(m, "physical id\\t: 0\\nsiblings\\t: 1\\ncore id\\t\\t: 0\\ncpu cores\\t: 1\\n");/' \
    "$1/arch/um/kernel/um_arch.c"
  sed -i '/^static void hard_handler(/,/^}/{s/^\tunsigned long pending = .*/&\n\tint errno_before = errno;/;s/^\t} while (pending);/&\n\terrno = errno_before;/}' \
    "$1/arch/um/os-Linux/signal.c"
  ! grep -q 'MAY_HAVE_RUNTIME_DEPS' "$1/arch/um/drivers/Kconfig" && grep -q 'core id' "$1/arch/um/kernel/um_arch.c" &&
    [[ $(grep -c 'errno_before' "$1/arch/um/os-Linux/signal.c") == 2 ]]
}

# Every line of our configuration must have been taken: one that was not is a kernel without something.
uml_configure() {  # uml_configure SOURCE
  local line
  make -C "$1" ARCH=um KCONFIG_ALLCONFIG="$PWD/$UML_CONFIG" allnoconfig
  while read -r line; do
    grep -qxF -- "$line" "$1/.config" || { echo "this kernel source does not take $line"; return 1; }
  done < <(grep '^CONFIG_' "$UML_CONFIG")
}

# An ext4 that grows to whatever disk it is on (src/guest/agent/birth.cc); without a journal, since nobody counts on it
# after a crash, and with enough inodes for the many small files of package managers.
uml_disk() { truncate -s 16M "$1" && mkfs.ext4 -q -F -b 4096 -N 8192 -m 0 -O ^has_journal -E lazy_itable_init=1,root_owner=0:0 "$1"; }

uml_provide() {
  need uml
  local source hash folder lock work
  source=$(uml_source)
  [[ -n $source ]] || die "uml: found no kernel source in /usr/src"
  hash=$({ cat "$UML_CONFIG" scripts/dev/uml.sh; stat -L -c '%n %s %Y' "$source"; } | sha256sum | cut -c1-12)
  folder=$UML_TOOLS/uml-$hash
  mkdir -p "$UML_TOOLS"
  exec {lock}>"$UML_TOOLS/.uml.lock"
  flock "$lock"  # another ./dev may be building it just now
  if [[ ! -x $folder/linux || ! -f $folder/disk.ext4 ]]; then
    rm -rf "$UML_TOOLS"/uml-build.*
    work=$(mktemp -d "$UML_TOOLS/uml-build.XXXXXX")
    mkdir "$work/source" "$work/done"
    step "unpack ${source##*/}" tar -xf "$source" -C "$work/source" --strip-components=1
    step "adjust it" uml_adjust "$work/source"
    step "configure the kernel" uml_configure "$work/source"
    # (The guest can read who built it, where and when.)
    step "build the kernel (some minutes)" make -C "$work/source" ARCH=um -j"$(nproc)" \
      KBUILD_BUILD_USER=isola KBUILD_BUILD_HOST=isola KBUILD_BUILD_TIMESTAMP=1970-01-01 linux
    install -s "$work/source/linux" "$work/done/linux"
    step "make an empty disk" uml_disk "$work/done/disk.ext4"
    "$work/done/linux" --version >/dev/null || die "uml: the kernel that was built does not run"
    rm -rf "$folder"
    mv -T "$work/done" "$folder"
    rm -rf "$work"
  fi
  ln -sfn "${folder##*/}" "$UML_TOOLS/.uml.new"
  mv -T "$UML_TOOLS/.uml.new" "$UML_TOOLS/uml"
  exec {lock}>&-
  say "user-mode Linux $("$UML_TOOLS/uml/linux" --version | head -n 1) at $folder"
}
