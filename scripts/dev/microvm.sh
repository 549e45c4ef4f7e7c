# What the boundary microvm needs: QEMU with the libraries that it is linked with, the distribution's kernel for virtual
# machines with the few modules that a sandbox starts with, and an empty disk. Nothing of it is installed for this machine
# itself but QEMU's package; the rest is kept in the machine's cache, under the hash of what it is made of:
#
#   /var/cache/isola/tools/microvm                  the one to use, a link
#   /var/cache/isola/tools/microvm-0123456789ab/    kernel, modules/, engine/ (qemu, lib/, share/), disk.ext4, versions
#
# ISOLA_QEMU names another QEMU than the distribution's, ISOLA_MICROVM_KERNEL another kernel (a bzImage or vmlinux; its
# modules are looked for in lib/modules beside the folder that it is in, as a package has them).

MICROVM_TOOLS=/var/cache/isola/tools
# In the order in which they are loaded; what they depend on comes before them. Those that a kernel has built in, or has
# not, are left out: the guest says what it misses.
MICROVM_MODULES="virtio_mmio virtio_console virtio_blk virtio_net virtio_balloon erofs overlay tun fuse"

microvm_qemu() {
  local named=${ISOLA_QEMU:-}
  if [[ -n $named ]]; then echo "$named"; else command -v qemu-system-x86_64; fi
}

# The kernel's package, unpacked into a folder; its own name is behind the one that always means the newest.
microvm_fetch_kernel() {  # microvm_fetch_kernel FOLDER
  local name
  mkdir -p "$1/fetch" "$1/files"
  chmod 755 "$1" "$1/fetch"
  chown _apt "$1/fetch" 2>/dev/null || true
  name=$(microvm_kernel_package) || return 1
  (cd "$1/fetch" && apt_get download "$name") || return 1
  dpkg-deb -x "$1"/fetch/*.deb "$1/files"
}
microvm_kernel_package() {
  local always
  for always in linux-image-cloud-amd64 linux-image-kvm linux-image-virtual linux-image-amd64; do
    candidate "$always" || continue
    apt-cache depends "$always" | sed -nE 's/^ *Depends: (linux-image-[^ ]+)$/\1/p' | head -n 1
    return
  done
  echo "this machine's package sources have no kernel for virtual machines" >&2
  return 1
}

# A program with everything that the loader takes for it, so that it runs where nothing else is.
microvm_copy_engine() {  # microvm_copy_engine QEMU FOLDER
  local library module share
  mkdir -p "$2/lib" "$2/share"
  install -m 755 "$1" "$2/qemu"
  # Some builds have their emulation of the processor in a file of its own.
  for module in "$(dirname "$1")"/../lib/*/qemu/accel-tcg-x86_64.so; do
    [[ ! -f $module ]] || install -m 644 "$module" "$2/lib/"
  done
  for library in $( (ldd "$1"; for module in "$2"/lib/accel-*.so; do [[ ! -f $module ]] || ldd "$module"; done) |
    sed -nE 's/^.*(=> |\t)(\/[^ ]+) \(0x.*/\2/p' | sort -u); do
    install -m 755 "$library" "$2/lib/${library##*/}"
  done
  for share in "$(dirname "$1")/../share/qemu" "$(dirname "$1")/../share/seabios" /usr/share/qemu; do
    [[ ! -f $share/bios-microvm.bin || -f $2/share/bios-microvm.bin ]] || install -m 644 "$share/bios-microvm.bin" "$2/share/"
  done
  [[ -f $2/share/bios-microvm.bin ]] || { echo "found no bios-microvm.bin beside $1"; return 1; }
  "$2/lib/ld-linux-x86-64.so.2" --library-path "$2/lib" "$2/qemu" -version
}

microvm_disk() { uml_disk "$1"; }

microvm_fill() {  # microvm_fill QEMU WORK
  local qemu=$1 work=$2 image
  if [[ -n ${ISOLA_MICROVM_KERNEL:-} ]]; then
    image=$ISOLA_MICROVM_KERNEL
  else
    step "fetch the kernel's package" microvm_fetch_kernel "$work"
    image=$(find "$work/files/boot" -name 'vmlinuz-*' | sort -V | tail -n 1)
  fi
  [[ -f $image ]] || die "microvm: found no kernel"
  step "unpack the kernel" python3 scripts/dev/microvm_kernel.py "$image" "$(dirname "$(dirname "$image")")/lib/modules" "$work/done" $MICROVM_MODULES
  step "copy QEMU" microvm_copy_engine "$qemu" "$work/done/engine"
  step "make an empty disk" microvm_disk "$work/done/disk.ext4"
  printf 'qemu %s\n' "$("$qemu" -version | sed -nE '1s/^QEMU emulator version ([^ ]+).*/\1/p')" >>"$work/done/versions"
  stat -L -c 'from %n %s %Y' "$qemu" >>"$work/done/versions"
}

microvm_provide() {
  need microvm
  local qemu kernel hash folder lock work
  [[ $(uname -m) == x86_64 ]] || die "microvm: only x86-64 in this version"
  qemu=$(microvm_qemu) || die "microvm: there is no qemu-system-x86_64"
  kernel=${ISOLA_MICROVM_KERNEL:-$(microvm_kernel_package)} || die "microvm: found no kernel"
  hash=$({ cat scripts/dev/microvm.sh scripts/dev/microvm_kernel.py; stat -L -c '%n %s %Y' "$qemu"; echo "$kernel"; [[ ! -f $kernel ]] || stat -L -c '%s %Y' "$kernel"; } | sha256sum | cut -c1-12)
  folder=$MICROVM_TOOLS/microvm-$hash
  mkdir -p "$MICROVM_TOOLS"
  exec {lock}>"$MICROVM_TOOLS/.microvm.lock"
  flock "$lock"  # another ./dev may be at it just now
  if [[ ! -f $folder/versions ]]; then
    rm -rf "$MICROVM_TOOLS"/microvm-build.*
    work=$(mktemp -d "$MICROVM_TOOLS/microvm-build.XXXXXX")
    mkdir "$work/done"
    microvm_fill "$qemu" "$work"
    rm -rf "$folder"
    chmod 755 "$work/done"
    mv -T "$work/done" "$folder"
    rm -rf "$work"
  fi
  ln -sfn "${folder##*/}" "$MICROVM_TOOLS/.microvm.new"
  mv -T "$MICROVM_TOOLS/.microvm.new" "$MICROVM_TOOLS/microvm"
  exec {lock}>&-
  say "microvm: $(sed -n 's/^kernel /Linux /p' "$folder/versions"), $(sed -n 's/^qemu /QEMU /p' "$folder/versions") at $folder"
}
