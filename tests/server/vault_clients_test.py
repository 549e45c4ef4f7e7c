"""Programs that people use, inside, at servers outside that demand a key: curl, requests, fetch, git, npm, Java, gRPC. The key
is nowhere inside: no environment, no memory, no file, no core, no image of the sandbox's memory."""
import base64
import hashlib
import http.server
import io
import json
import os
import secrets
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest

from island import FULL, Server, built
from tls_world import Authority, Names

TEMPLATE = next((name for name in ("base", "code-interpreter") if built(name)), None)  # with Python inside
API, GIT, NPM, RPC = (f"{name}.clients.example" for name in ("api", "git", "npm", "rpc"))
VALUE = "clients-" + secrets.token_hex(16)
BASIC = "Basic " + base64.b64encode(f"me:{VALUE}".encode()).decode()
LIBRARIES = "/opt/clients"

# Inside, as root: how often the value is in the memory of any process. Its halves are never joined.
HUNT = """
import os, sys
first, second = (part.encode() for part in sys.argv[1:3])
found = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid(): continue
    try:
        with open(f"/proc/{pid}/environ", "rb") as file: pieces = [file.read()]
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                place, rights = line.split()[:2]
                if not rights.startswith("r") or line.rstrip().endswith(("[vvar]", "[vsyscall]")): continue
                start, end = (int(x, 16) for x in place.split("-"))
                try:
                    memory.seek(start)
                    pieces.append(memory.read(end - start))
                except (OSError, OverflowError, ValueError):
                    pass
    except OSError:
        continue
    for piece in pieces:
        at = piece.find(first)
        while at >= 0:
            found += piece.startswith(second, at + len(first))
            at = piece.find(first, at + 1)
print(found)
"""
GRPC_SERVER = """
import sys
from concurrent import futures
import grpc
value, key, leaf = sys.argv[1:4]

class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        def check(context):
            if dict(context.invocation_metadata()).get("authorization") != "Bearer " + value:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
            context.set_trailing_metadata((("x-last", "goodbye"),))
        def one(request, context):
            check(context)
            return b"welcome " + request
        def many(requests, context):
            check(context)
            for request in requests: yield request[::-1]
        if details.method == "/clients.Test/One": return grpc.unary_unary_rpc_method_handler(one)
        if details.method == "/clients.Test/Many": return grpc.stream_stream_rpc_method_handler(many)

server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((Handlers(),))
with open(key, "rb") as k, open(leaf, "rb") as c:
    credentials = grpc.ssl_server_credentials([(k.read(), c.read())])
print(server.add_secure_port("127.0.0.1:0", credentials), flush=True)
server.start()
server.wait_for_termination()
"""
GRPC_CLIENT = """
import sys
import grpc
channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials())
one, many = channel.unary_unary("/clients.Test/One"), channel.stream_stream("/clients.Test/Many")
try:
    answer, call = one.with_call(b"x" * 100000, timeout=30)
    print(answer[:9].decode(), len(answer), dict(call.trailing_metadata()).get("x-last"))
    print([piece.decode() for piece in many(iter([b"abc", b"de"]), timeout=30)])
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        good = self.headers.get("Authorization") == "Bearer " + VALUE
        self.answer(200 if good else 401, b"welcome" if good else b"who are you?")

    def do_POST(self):
        size = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        good = self.headers.get("Authorization") == "Bearer " + VALUE
        self.answer(200 if good else 401, f"took {size}".encode() if good else b"who are you?")

    def answer(self, status, text, kind="text/plain"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class Git(Api):
    """git's own server program, for who comes with the key."""
    root = ""

    def do_GET(self):
        self.pass_on(b"")

    def do_POST(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.pass_on(body)

    def pass_on(self, body):
        if self.headers.get("Authorization") != BASIC:
            return self.answer(401, b"who are you?")
        path, _, query = self.path.partition("?")
        env = {"GIT_PROJECT_ROOT": self.root, "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
               "REQUEST_METHOD": self.command, "CONTENT_TYPE": self.headers.get("Content-Type", ""),
               "CONTENT_LENGTH": str(len(body)), "REMOTE_USER": "me", "PATH": os.environ["PATH"],
               "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
               "GIT_PROTOCOL": self.headers.get("Git-Protocol", "")}
        done = subprocess.run(["git", "-c", "safe.directory=*", "http-backend"], input=body, capture_output=True, env=env)
        head, _, text = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.answer(int(fields.get("Status", "200").split()[0]), text, fields.get("Content-Type", "text/plain"))


class Npm(Api):
    """A registry with one package."""
    port = 0
    tarball = b""

    def do_GET(self):
        if self.headers.get("Authorization") != "Bearer " + VALUE:
            return self.answer(401, b"who are you?")
        if self.path == "/islet/-/islet-1.0.0.tgz":
            return self.answer(200, self.tarball, "application/octet-stream")
        if self.path != "/islet":
            return self.answer(404, b"{}", "application/json")
        dist = {"tarball": f"https://{NPM}:{self.port}/islet/-/islet-1.0.0.tgz",
                "integrity": "sha512-" + base64.b64encode(hashlib.sha512(self.tarball).digest()).decode()}
        version = {"name": "islet", "version": "1.0.0", "main": "index.js", "dist": dist}
        self.answer(200, json.dumps({"name": "islet", "dist-tags": {"latest": "1.0.0"},
                                     "versions": {"1.0.0": version}}).encode(), "application/json")

    @staticmethod
    def pack():
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            for name, text in (("package.json", json.dumps({"name": "islet", "version": "1.0.0", "main": "index.js"})),
                               ("index.js", "module.exports = 'islet is here';\n")):
                info = tarfile.TarInfo("package/" + name)
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
        return out.getvalue()


def libraries(version):
    """requests and grpcio for that Python, from the machine's package index; kept for the next time. Or why not."""
    folder = f"/var/cache/isola/tests/clients-{version}"
    if os.path.isdir(folder):
        return folder, ""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    place = tempfile.mkdtemp(prefix="clients-", dir=os.path.dirname(folder))
    done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", place, "--python-version", version,
                           "--only-binary=:all:", "--retries", "1", "requests", "grpcio"],
                          capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        os.chmod(place, 0o755)
        try:
            os.rename(place, folder)
        except OSError:
            pass  # another test was quicker
        return folder, ""
    subprocess.run(["rm", "-rf", place])
    return None, "the machine's package index has no requests and grpcio: " + done.stderr[-200:]


@unittest.skipUnless(TEMPLATE or FULL, "no template with Python is built")
class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        assert TEMPLATE, "a full run has a template with Python: nothing was tried"
        cls.authority = Authority(API, GIT, NPM, RPC)
        cls.servers = [cls.authority.serve(http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind))
                       for kind in (Api, Git, Npm)]
        cls.api, cls.git, cls.npm = (server.server_port for server in cls.servers)
        Git.root = cls.authority.folder + "/repositories"
        bare = Git.root + "/site.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", bare], check=True)
        subprocess.run(["git", "-C", bare, "config", "http.receivepack", "true"], check=True)
        Npm.tarball, Npm.port = Npm.pack(), cls.npm
        cls.rpc_server, cls.rpc = None, 1
        cls.server = Server(env={"ISOLA_NAME_SERVERS": f"127.0.0.1:{Names().port}",
                                 "ISOLA_AUTHORITIES": cls.authority.ca})

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        for server in cls.servers:
            server.shutdown()
        if cls.rpc_server:
            cls.rpc_server.kill()
            cls.rpc_server.wait()
        cls.authority.close()

    def setUp(self):
        ports = (self.api, self.git, self.npm, self.rpc)
        policy = "".join(f"allow {name}:{port}\nallow 127.0.0.1/32:{port}\n"
                         for name, port in zip((API, GIT, NPM, RPC), ports))
        self.box = self.server.create(template=TEMPLATE, network=policy)["id"]
        self.addCleanup(lambda: self.server.delete(f"/v1/sandboxes/{self.box}"))

    def bind(self, name, port, **more):
        secret = "c" + secrets.token_hex(4)
        self.assertEqual(self.server.post("/v1/secrets", {"name": secret, "value": VALUE}).status, 201)
        reply = self.server.post(f"/v1/sandboxes/{self.box}/bindings",
                                 {"secret": secret, "names": [name], "ports": str(port), **more})
        self.assertEqual(reply.status, 201, reply)

    def lacks(self, why, may=False):
        """A full run shows every one of them, but for what no template brings along (`may`)."""
        if FULL and not may:
            self.fail(why)
        self.skipTest(why)

    def need(self, tool):
        """curl is in every template that this runs in: a run that tried nobody at all has shown nothing."""
        there = self.server.run(self.box, f"command -v {tool} || true")["stdout"]
        if tool == "curl":
            self.assertTrue(there, f"there is no curl in the template {TEMPLATE}")
        if not there:
            self.lacks(f"there is no {tool} in the template {TEMPLATE}", may=tool == "java")

    def run_inside(self, command, **more):
        reply = self.server.post(f"/v1/sandboxes/{self.box}/commands", {"command": command, **more})
        self.assertEqual(reply.status, 200, reply)
        return reply.json["stdout"].strip() + ("\n" + reply.json["stderr"] if reply.json["exit_code"] else "")

    def bring_libraries(self):
        version = self.run_inside("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'")
        folder, why = libraries(version)
        if not folder:
            self.lacks(why)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(folder, arcname=".")
        reply = self.server.request("PUT", f"/v1/sandboxes/{self.box}/files/tar?path={LIBRARIES}", packed.getvalue())
        self.assertEqual(reply.status // 100, 2, reply)
        return folder, version

    def nowhere(self):
        """Neither inside, nor in what is kept of it."""
        half = len(VALUE) // 2
        # A program that dies leaves its core where it stands, if it leaves one.
        self.run_inside("cd /tmp && ulimit -c unlimited; sh -c 'kill -ABRT $$' 2>/dev/null; true")
        self.assertEqual(self.run_inside(f"python3 - {VALUE[:half]} {VALUE[half:]} <<'END'\n{HUNT}\nEND"), "0")
        self.assertEqual(self.run_inside(
            f"word={VALUE[:half]}; word=$word''{VALUE[half:]}; "
            "grep -rlF \"$word\" / --exclude-dir=proc --exclude-dir=sys 2>/dev/null | wc -l"), "0")
        made = self.server.post(f"/v1/sandboxes/{self.box}/snapshot", {})
        if made.status != 501:
            self.assertEqual(made.status, 201, made)
        needles = [VALUE.encode(), VALUE.encode().hex().encode(), base64.b64encode(f"me:{VALUE}".encode())]
        self.assertEqual(self.files_with(needles), [])
        if made.status == 201:
            self.assertEqual(self.server.delete(f"/v1/snapshots/{made.json['id']}").status, 204)

    def files_with(self, needles):
        """Of the server's, which include its logs, and the bytes of images."""
        found, searched = [], 0
        for path, _, names in os.walk(self.server.data):
            for name in names:
                full = os.path.join(path, name)
                try:
                    about = os.lstat(full)
                    # A filesystem in a file is looked at as such, by the sandbox itself.
                    if not stat.S_ISREG(about.st_mode) or about.st_size > 4 << 30:
                        continue
                    searched += 1
                    with open(full, "rb") as file:
                        rest = b""
                        while piece := file.read(8 << 20):
                            if any(needle in rest + piece for needle in needles):
                                found.append(full)
                                break
                            rest = piece[-200:]
                except OSError:
                    continue
        self.assertGreater(searched, 5)
        return found

    # ---- the programs ----

    def test_curl(self):
        self.need("curl")
        url = f"https://{API}:{self.api}/"
        self.assertIn("who are you", self.run_inside(f"curl -sSk -m 20 {url}"))
        self.bind(API, self.api)
        self.assertEqual(self.run_inside(f"curl -sS -m 20 {url}"), "welcome")
        self.assertEqual(self.run_inside(f"head -c 300000 /dev/zero | curl -sS -m 20 --data-binary @- {url}"), "took 300000")
        self.nowhere()

    def test_python_requests(self):
        self.bring_libraries()
        self.bind(API, self.api)
        self.assertEqual(self.run_inside(
            "python3 -c 'import requests; s = requests.Session(); "
            f"print(s.get(\"https://{API}:{self.api}/\", timeout=20).text, "
            f"s.post(\"https://{API}:{self.api}/\", data=b\"x\" * 70000, timeout=20).text)'",
            env={"PYTHONPATH": LIBRARIES}), "welcome took 70000")
        self.nowhere()

    def test_node_fetch(self):
        self.need("node")
        self.bind(API, self.api)
        self.assertEqual(self.run_inside(f"node -e \"fetch('https://{API}:{self.api}/').then(r => r.text()).then(t => "
                                         "console.log(t))\""), "welcome")
        self.nowhere()

    def test_java(self):
        self.bind(API, self.api)
        self.assertIn("isola.jks", self.run_inside("echo $JAVA_TOOL_OPTIONS"))
        self.need("java")
        program = f"""public class Ask {{ public static void main(String[] args) throws Exception {{
            System.out.println(new String(new java.net.URL("https://{API}:{self.api}/").openStream().readAllBytes())); }} }}"""
        self.assertEqual(self.run_inside(f"mkdir -p /tmp/j && cd /tmp/j && cat > Ask.java <<'END'\n{program}\nEND\n"
                                         "java Ask.java"), "welcome")
        self.nowhere()

    def test_git_over_https(self):
        self.need("git")
        url = f"https://{GIT}:{self.git}/site.git"
        quiet = "export GIT_TERMINAL_PROMPT=0 HOME=/root; cd /root; "
        self.assertIn("could not read Username", self.run_inside(
            quiet + f"git -c http.sslVerify=false ls-remote {url}"))
        self.bind(GIT, self.git, place="basic", field="me")
        self.assertEqual(self.run_inside(
            quiet + f"git clone -q {url} site 2>/dev/null && cd site && git config user.email a@example.org && "
            "git config user.name A && head -c 200000 /dev/urandom > big && git add big && git commit -q -m 'from inside' && "
            "git push -q origin HEAD:main && git ls-remote -q | grep -c refs/heads/main"), "1")
        log = subprocess.run(["git", "--git-dir", Git.root + "/site.git", "log", "--format=%s", "main"],
                             capture_output=True, text=True)
        self.assertEqual(log.stdout.strip(), "from inside")
        self.assertEqual(self.run_inside(quiet + f"rm -rf site && git clone -q {url} site && stat -c %s site/big"), "200000")
        self.nowhere()

    def test_npm(self):
        self.need("npm")
        self.bind(NPM, self.npm)
        self.assertEqual(self.run_inside(
            "mkdir -p /root/p && cd /root/p && echo '{}' > package.json && "
            f"npm install --registry https://{NPM}:{self.npm}/ --no-audit --no-fund --no-update-notifier --fetch-retries 0 "
            "--loglevel error islet >&2 && node -p \"require('islet')\"", env={"HOME": "/root"}), "islet is here")
        self.nowhere()

    def test_grpc(self):
        self.bring_libraries()
        folder, why = libraries("%d.%d" % sys.version_info[:2])
        if not folder:
            self.lacks(why)
        cls = type(self)
        cls.rpc_server = subprocess.Popen([sys.executable, "-c", GRPC_SERVER, VALUE, self.authority.key,
                                           self.authority.leaf], stdout=subprocess.PIPE, text=True,
                                          env={**os.environ, "PYTHONPATH": folder})
        cls.rpc = int(cls.rpc_server.stdout.readline())
        policy = f"allow {RPC}:{self.rpc}\nallow 127.0.0.1/32:{self.rpc}\n"
        self.assertEqual(self.server.request("PUT", f"/v1/sandboxes/{self.box}/network", {"policy": policy}).status, 200)
        self.bind(RPC, self.rpc)
        env = {"PYTHONPATH": LIBRARIES, "GRPC_DNS_RESOLVER": "native"}
        call = f"python3 - {RPC}:{self.rpc} <<'END'\n{GRPC_CLIENT}\nEND"
        self.assertEqual(self.run_inside(call, env=env), "welcome x 100008 goodbye\n['cba', 'ed']")
        self.nowhere()


if __name__ == "__main__":
    unittest.main()
