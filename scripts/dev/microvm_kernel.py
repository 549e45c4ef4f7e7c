"""Takes a kernel as distributions package it apart: the uncompressed kernel, which a virtual machine starts at once, and
the modules that were asked for, with those that they depend on, numbered in the order in which they can be loaded.

    microvm_kernel.py BZIMAGE-OR-VMLINUX MODULES-FOLDER TO MODULE...
"""
import lzma
import os
import re
import struct
import subprocess
import sys
import zlib

ELF = b"\x7fELF"


def by_program(*words):
    """The length of the plain kernel follows the compressed one, which these programs complain about behind it."""
    def unpack(data):
        return subprocess.run(words, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return unpack


FORMS = [
    (b"\x1f\x8b\x08", lambda data: zlib.decompressobj(31).decompress(data)),
    (b"\xfd7zXZ\0", lambda data: lzma.LZMADecompressor().decompress(data)),
    (b"\x28\xb5\x2f\xfd", by_program("zstd", "-dc")),
    (b"\x02\x21\x4c\x18", by_program("lz4", "-dc")),
]


def unpacked(data):
    for magic, unpack in FORMS:
        if data.startswith(magic):
            return unpack(data)
    return data


def plain_kernel(image):
    if image.startswith(ELF):
        return image
    if image[0x202:0x206] != b"HdrS":
        sys.exit("that is no Linux kernel")
    # As the boot protocol has it: sectors of setup code, and where behind it the compressed kernel lies.
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    kernel = unpacked(image[start:start + length])
    if not kernel.startswith(ELF):
        sys.exit("the kernel is packed in a form that is not known here")
    return kernel


def release_of(kernel):
    found = re.search(rb"Linux version (\S+) \(", kernel)
    if not found:
        sys.exit("the kernel does not tell its version")
    return found.group(1).decode()


def build_of(kernel):
    """How its distribution numbers it, which is not in its name: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.76-1 (2024-02-01)"."""
    found = re.search(rb"Linux version \S+ \([^\n\0]*\) (#\d[^\n\0]*)", kernel)
    return found.group(1).decode("ascii", "replace") if found else ""


def modules_of(folder):
    names = {}
    for place, _, files in os.walk(folder):
        for name in files:
            if re.search(r"\.ko(\.(xz|zst|gz))?$", name):
                names[name.split(".ko")[0].replace("-", "_")] = os.path.join(place, name)
    return names


def in_order(wanted, known):
    """(name, contents), what others need before them."""
    loaded, order = set(), []

    def add(name):
        if name in loaded or name not in known:
            return
        loaded.add(name)
        with open(known[name], "rb") as file:
            contents = unpacked(file.read())
        depends = re.search(rb"\0depends=([^\0]*)\0", contents)
        for other in (depends.group(1).decode() if depends else "").split(","):
            add(other.replace("-", "_"))
        order.append((name, contents))

    for name in wanted:
        add(name)
    return order


def main(image, modules, to, *wanted):
    with open(image, "rb") as file:
        kernel = plain_kernel(file.read())
    release = release_of(kernel)
    os.makedirs(to + "/modules")
    with open(to + "/kernel", "wb") as file:
        file.write(kernel)
    for number, (name, contents) in enumerate(in_order(wanted, modules_of(os.path.join(modules, release)))):
        with open(f"{to}/modules/{number:02}-{name}.ko", "wb") as file:
            file.write(contents)
    with open(to + "/versions", "w", encoding="ascii") as file:
        file.write(f"kernel {release}\n")
        if build := build_of(kernel):
            file.write(f"build {build}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
