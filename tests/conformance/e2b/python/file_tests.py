import io

import e2b
from flavour import ASYNC, VERSION, box, fresh, named
from harness import Skip, eventually, raises, test

Missing = named("FileNotFoundException", "NotFoundException")


@test("files.write", "and read give the same back, in every form")
def _():
    files, path = box().files, fresh() + "/deep/text.txt"
    info = files.write(path, "grüße\n")
    assert (info.name, info.path) == ("text.txt", path)
    assert files.read(path) == "grüße\n"
    assert bytes(files.read(path, format="bytes")) == "grüße\n".encode()
    if not ASYNC:
        assert b"".join(files.read(path, format="stream")) == "grüße\n".encode()


@test("files.write", "takes bytes and file objects")
def _():
    files, path = box().files, fresh()
    files.write(path, bytes([0, 255, 128]))
    assert bytes(files.read(path, format="bytes")) == bytes([0, 255, 128])
    files.write(path, io.BytesIO(b"object"))
    assert files.read(path) == "object"


@test("files.write", "replaces, also with nothing")
def _():
    files, path = box().files, fresh()
    files.write(path, "long content")
    files.write(path, "short")
    assert files.read(path) == "short"
    files.write(path, "")
    assert files.read(path) == ""


@test("files.write", "belongs to the user, and so do folders that it makes")
def _():
    files, folder = box().files, fresh()
    files.write(f"{folder}/a/b", "x")
    info = files.get_info(f"{folder}/a/b")
    assert (info.owner, info.group, info.mode) == ("user", "user", 0o644)
    assert files.get_info(f"{folder}/a").owner == "user"


@test("files.write", "onto a folder is an InvalidArgumentException")
def _():
    with raises(e2b.InvalidArgumentException):
        box().files.write("/tmp", "x")


@test("files.write", "for an unknown user is an AuthenticationException")
def _():
    with raises(e2b.AuthenticationException):
        box().files.write("x", "x", user="nobody-here")


@test("files.write", "keeps metadata, compressed and as plain bytes")
def _():
    if VERSION < (2, 45):
        raise Skip("this line cannot ask for it")
    files, path = box().files, fresh()
    text = "again and " * 100_000
    files.write(path, text, gzip=True, metadata={"author": "ada"})
    assert files.read(path, gzip=True) == text
    assert files.get_info(path).metadata == {"author": "ada"}


@test("files.write_files", "many at once")
def _():
    files, folder = box().files, fresh()
    infos = files.write_files([{"path": f"{folder}/{i}", "data": f"n{i}"} for i in range(10)])
    assert [one.path for one in infos] == [f"{folder}/{i}" for i in range(10)]
    assert files.read(f"{folder}/7") == "n7"


@test(["files.read", "FileNotFoundException"], "what is not there is a not-found exception, a folder an InvalidArgumentException")
def _():
    with raises(Missing):
        box().files.read("/no/such")
    with raises(e2b.InvalidArgumentException):
        box().files.read("/tmp")


@test("files.list", "has everything in a folder, by name")
def _():
    files, folder = box().files, fresh()
    files.make_dir(folder)
    assert files.list(folder) == []
    files.write(f"{folder}/b.txt", "bb")
    files.write(f"{folder}/a/inner", "")
    flat = files.list(folder)
    assert [(one.name, one.type.value, one.path) for one in flat] == [
        ("a", "dir", f"{folder}/a"), ("b.txt", "file", f"{folder}/b.txt")]
    assert [one.name for one in files.list(folder, depth=2)] == ["a", "inner", "b.txt"]
    with raises(Missing):
        files.list("/no/such")


@test("files.make_dir", "makes what is missing above, and says whether it was there")
def _():
    files, folder = box().files, fresh()
    assert files.make_dir(f"{folder}/a/b") is True
    assert files.make_dir(f"{folder}/a/b") is False


@test("files.rename", "moves, also into a new folder")
def _():
    files, folder = box().files, fresh()
    files.write(f"{folder}/a", "x")
    assert files.rename(f"{folder}/a", f"{folder}/new/b").path == f"{folder}/new/b"
    with raises(Missing):
        files.rename(f"{folder}/a", f"{folder}/c")


@test("files.remove", "takes trees")
def _():
    files, folder = box().files, fresh()
    files.write(f"{folder}/a/b/c", "x")
    files.remove(folder)
    assert files.exists(folder) is False


@test("files.exists", "says whether")
def _():
    assert box().files.exists("/etc/passwd") is True
    assert box().files.exists("/etc/passwd-not") is False


@test("files.get_info", "says what it is, and where links lead")
def _():
    files, folder = box().files, fresh()
    files.write(f"{folder}/file", "12345")
    box().commands.run(f"cd {folder} && chmod 750 file && ln -s file link")
    info = files.get_info(f"{folder}/file")
    assert (info.type.value, info.size, info.mode, info.permissions) == ("file", 5, 0o750, "-rwxr-x---")
    assert files.get_info(f"{folder}/link").symlink_target == f"{folder}/file"
    with raises(Missing):
        files.get_info("/no/such")


@test(["files.watch_dir", "WatchHandle.get_new_events", "WatchHandle.stop"], "tells of writes and renames")
def _():
    files, folder = box().files, fresh()
    files.make_dir(folder)
    seen = []
    note = lambda event: seen.append(f"{event.type.value} {event.name}")  # noqa: E731
    if ASYNC:
        handle = files.watch_dir(folder, on_event=note)
        look = lambda: None  # noqa: E731
    else:
        handle = files.watch_dir(folder)
        look = lambda: [note(event) for event in handle.get_new_events()]  # noqa: E731
    files.write(f"{folder}/a", "x")
    eventually(lambda: look() is not None and len(seen) >= 3 or len(seen) >= 3, "three events")
    assert seen == ["create a", "chmod a", "write a"], seen
    files.rename(f"{folder}/a", f"{folder}/b")
    eventually(lambda: (look(), "rename a" in seen and "create b" in seen)[1], "the rename")
    handle.stop()
    if not ASYNC:
        with raises(e2b.SandboxException):
            handle.get_new_events()


@test("files.get_info", "a folder takes a block at least")
def _():
    folder = fresh()
    box().files.make_dir(folder)
    assert box().files.get_info(folder).size >= 4096


@test("files.watch_dir", "what is not there is a not-found exception, a file an InvalidArgumentException")
def _():
    more = {"on_event": lambda event: None} if ASYNC else {}
    with raises(Missing):
        box().files.watch_dir("/no/such", **more)
    with raises(e2b.InvalidArgumentException):
        box().files.watch_dir("/etc/passwd", **more)
