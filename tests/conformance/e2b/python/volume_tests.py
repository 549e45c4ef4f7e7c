"""Volumes: made, mounted, and their files without a sandbox."""
import contextlib
import itertools
import os

import e2b
from flavour import ASYNC, TEMPLATE, Sandbox, _settle, named
from harness import Skip, raises, test

Volume = getattr(e2b, "AsyncVolume" if ASYNC else "Volume", None)
count = itertools.count()


@contextlib.contextmanager
def volume():
    if Volume is None:
        raise Skip("this line has no volumes")
    made = _settle(Volume.create(f"py{os.getpid()}-{next(count)}"))
    try:
        yield made
    finally:
        assert _settle(Volume.destroy(made.volume_id)) is True


@test(["Volume.create", "Volume.list", "Volume.connect", "Volume.get_info", "Volume.destroy"], "is made, found, listed and ended")
def _():
    with volume() as made:
        assert made.volume_id in [one.volume_id for one in _settle(Volume.list())]
        assert _settle(Volume.connect(made.volume_id)).name == made.name
        assert _settle(Volume.get_info(made.volume_id)).name == made.name
        with raises(e2b.VolumeException, "taken"):
            _settle(Volume.create(made.name))
        assert _settle(Volume.destroy("vnobody")) is False


@test(["Volume.connect", "VolumeNotFoundException"], "raises VolumeNotFoundException for what is not there")
def _():
    if Volume is None:
        raise Skip("this line has no volumes")
    with raises(named("VolumeNotFoundException", "NotFoundException")):
        _settle(Volume.connect("vnobody"))


@test(["volume." + name for name in ("list", "make_dir", "get_info", "exists", "update_metadata", "read_file", "write_file", "remove")],
      "has files without a sandbox")
def _():
    with volume() as made:
        wrote = _settle(made.write_file("/a/text.txt", "gr\u00fc\u00dfe\n"))
        assert (wrote.name, wrote.path) == ("text.txt", "/a/text.txt"), wrote
        assert _settle(made.read_file("/a/text.txt")) == "gr\u00fc\u00dfe\n"
        assert _settle(made.exists("/b")) is False
        assert _settle(made.get_info("/a")).name == "a"
        _settle(made.make_dir("/b"))
        assert sorted(one.name for one in _settle(made.list("/"))) == ["a", "b"]
        assert _settle(made.update_metadata("/a/text.txt", mode=0o600)).mode & 0o777 == 0o600
        _settle(made.remove("/a"))
        assert _settle(made.exists("/a/text.txt")) is False


@test("Sandbox.create with volume_mounts", "shares its files with the volume")
def _():
    with volume() as made:
        _settle(made.write_file("/in", "from outside"))
        box = Sandbox.create(TEMPLATE, timeout=60, volume_mounts={"/mnt/data": made})
        try:
            assert box.files.read("/mnt/data/in") == "from outside"
            box.commands.run("echo inside >/mnt/data/out")
        finally:
            box.kill()
        assert _settle(made.read_file("/out")) == "inside\n"
