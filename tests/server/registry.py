"""Images of other tools, made here: a small root of this machine's own programs as an OCI layout, as `docker save` writes
it, and in a registry on loopback."""
import base64
import gzip
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading

PROGRAMS = ["sh", "cat", "tar", "mkdir", "chown", "chmod", "cp", "rm", "ls", "stat", "true", "dirname", "head", "id", "whoami",
            "env", "touch", "pwd", "sleep"]


def small_root():
    """Files of a root that can run a shell, and nothing besides: no bash, no Python."""
    files = {}
    for name in PROGRAMS:
        path = os.path.realpath(shutil.which(name))
        files["bin/" + name] = path
        linked = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        for library in re.findall(r"(/\S+)", linked):
            files[library.lstrip("/")] = os.path.realpath(library)
    return files


def layer(files=(), whiteouts=(), texts=()):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, source in dict(files).items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = os.path.getsize(source), 0o755
            with open(source, "rb") as file:
                tar.addfile(info, file)
        for name, text in dict(texts).items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
        for name in whiteouts:
            tar.addfile(tarfile.TarInfo(os.path.join(os.path.dirname(name), ".wh." + os.path.basename(name))))
    return raw.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Image:
    """Two layers: the second takes a file of the first away."""

    def __init__(self, mark="one"):
        self.set_layers([layer(small_root(), texts={"etc/passwd": "root:x:0:0:root:/root:/bin/sh\napp:x:500:500::/srv:/bin/sh\n",
                                                  "etc/group": "root:x:0:\napp:x:500:\n", "gone": "x", "usr/share/mark": "below"}),
                       layer(texts={"usr/share/mark": mark, "srv/hello": "hello from the image\n"}, whiteouts=["gone"])])

    def set_layers(self, layers):
        self.layers = layers
        self.config = json.dumps({"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": [digest(l) for l in self.layers]},
                                  "config": {"Env": ["PATH=/opt/tool:/bin", "FLAVOUR=sweet"], "WorkingDir": "/srv"}}).encode()
        self.packed = [gzip.compress(l, mtime=0) for l in self.layers]
        self.manifest = json.dumps({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(self.config), "size": len(self.config)},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest(p), "size": len(p)} for p in self.packed]}).encode()

    def blobs(self):
        return {digest(data): data for data in [self.config, self.manifest, *self.packed]}

    def write_layout(self, folder):
        os.makedirs(folder + "/blobs/sha256")
        for name, data in self.blobs().items():
            with open(folder + "/blobs/sha256/" + name[7:], "wb") as file:
                file.write(data)
        with open(folder + "/oci-layout", "w") as file:
            file.write('{"imageLayoutVersion": "1.0.0"}')
        with open(folder + "/index.json", "w") as file:
            json.dump({"schemaVersion": 2, "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json",
                                                          "digest": digest(self.manifest), "size": len(self.manifest)}]}, file)

    def write_docker_archive(self, path):
        with tarfile.open(path, "w") as tar:
            def put(name, data):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            put("config.json", self.config)
            for i, data in enumerate(self.layers):
                put(f"{i}/layer.tar", data)
            put("manifest.json", json.dumps([{"Config": "config.json", "RepoTags": ["x:y"],
                                              "Layers": [f"{i}/layer.tar" for i in range(len(self.layers))]}]).encode())


class Registry:
    """What clients ask a registry for, of images that never change. Those below private/ are for whoever has the password."""

    user, password = "operator", "only-for-the-operator"

    def __init__(self):
        self.manifests, self.blobs, self.asked = {}, {}, []
        self.hold = threading.Event()  # cleared: nobody gets an answer
        self.hold.set()
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, status, data=b"", kind="application/json"):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                if status == 401 or self.path == "/v2/":
                    self.send_header("WWW-Authenticate", 'Basic realm="images"')
                if status == 200 and data:
                    self.send_header("Docker-Content-Digest", digest(data))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def do_GET(self):
                registry.asked.append(self.path)
                registry.hold.wait()
                if self.path == "/v2/":
                    return self.answer(200, b"{}")
                if self.path.startswith("/v2/private/") and self.headers.get("Authorization") != "Basic " + registry.token():
                    return self.answer(401, b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}')
                wanted = re.match(r"/v2/(.+)/(manifests|blobs)/(.+)$", self.path)
                kind = "application/vnd.oci.image.manifest.v1+json"
                if wanted and wanted[2] == "manifests":
                    data = registry.manifests.get((wanted[1], wanted[3]))
                    if data:
                        return self.answer(200, data, kind)
                elif wanted and wanted[3] in registry.blobs:
                    return self.answer(200, registry.blobs[wanted[3]], "application/octet-stream")
                self.answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}')

            do_HEAD = do_GET

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.name = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def push(self, name, tag, image):
        for reference in (tag, digest(image.manifest)):
            self.manifests[name, reference] = image.manifest
        self.blobs.update(image.blobs())

    def token(self):
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    def write_credentials(self, path):
        with open(path, "w") as file:
            json.dump({"auths": {self.name: {"auth": self.token()}}}, file)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def own_cache(folder, templates=("minimal",), source=os.environ.get("ISOLA_CACHE", "/var/cache/isola")):
    """A cache of the test's own that has some of this machine's templates: what is imported goes with it."""
    for part in ("blobs", "templates", "build"):
        os.makedirs(os.path.join(folder, part))
    os.chmod(folder, 0o755)
    for name in templates:
        with open(f"{source}/templates/{name}.json") as file:
            blob = json.load(file)["digest"] + ".erofs"
        shutil.copy(f"{source}/templates/{name}.json", f"{folder}/templates/{name}.json")
        try:
            os.link(f"{source}/blobs/{blob}", f"{folder}/blobs/{blob}")
        except OSError:
            shutil.copy(f"{source}/blobs/{blob}", f"{folder}/blobs/{blob}")
    return folder
