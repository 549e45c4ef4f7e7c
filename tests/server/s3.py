"""A store for buckets: moto's S3 on loopback, of the test's own, which checks signatures like a real one."""
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from island import Server

HOME = "/var/cache/isola/tests/moto"
PACKAGE = "moto[server]>=5,<6"
# The store, behind a door that checks signatures (version 4) as a real one does: moto's own check knows one way only to
# write down what is asked for.
STORE = """
import hashlib, hmac, os, re, sys
from urllib.parse import quote, unquote
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
KEY, SECRET = os.environ["STORE_KEY"], os.environ["STORE_SECRET"]
app = DomainDispatcherApplication(create_backend_app)

def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()

def refusal(environ):
    said = re.fullmatch("AWS4-HMAC-SHA256 Credential=([^/]+)/(\\\\d+)/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]+)",
                        environ.get("HTTP_AUTHORIZATION", ""))
    if not said or said[1] != KEY:
        return "InvalidAccessKeyId"
    path, _, query = environ["RAW_URI"].partition("?")
    pairs = sorted(tuple(quote(unquote(part), safe="-_.~") for part in (pair.split("=", 1) + [""])[:2]) for pair in query.split("&") if pair)
    lines = [environ["REQUEST_METHOD"], quote(unquote(path), safe="/-_.~"), "&".join("=".join(pair) for pair in pairs)]
    for name in said[4].split(";"):
        word = name.upper().replace("-", "_")
        value = environ.get("HTTP_" + word, environ.get(word, ""))
        lines.append(name + ":" + " ".join(value.split()))
    lines += ["", said[4], environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")]
    scope = "/".join((said[2], said[3], "s3", "aws4_request"))
    text = "\\n".join(("AWS4-HMAC-SHA256", environ["HTTP_X_AMZ_DATE"], scope, hashlib.sha256("\\n".join(lines).encode()).hexdigest()))
    key = ("AWS4" + SECRET).encode()
    for part in scope.split("/"):
        key = sign(key, part)
    return "" if hmac.compare_digest(sign(key, text).hex(), said[5]) else "SignatureDoesNotMatch"

def door(environ, start):
    why = refusal(environ)
    if not why:
        return app(environ, start)
    start("403 Forbidden", [("Content-Type", "application/xml")])
    return [("<?xml version='1.0'?><Error><Code>%s</Code><Message>no</Message></Error>" % why).encode()]

run_simple("127.0.0.1", int(sys.argv[1]), door, threaded=True)
""".replace("\\\\", "\\")
# Reads requests and speaks with the store: its client library is in the same place as the store.
SPEAKER = """
import boto3, json, os, sys
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id=os.environ["STORE_KEY"],
                  aws_secret_access_key=os.environ["STORE_SECRET"])
for line in sys.stdin:
    ask = json.loads(line)
    bucket = ask["bucket"]
    try:
        if ask["do"] == "make":
            answer = bool(s3.create_bucket(Bucket=bucket))
        elif ask["do"] == "put":
            answer = bool(s3.put_object(Bucket=bucket, Key=ask["name"], Body=ask["text"].encode()))
        elif ask["do"] == "get":
            answer = s3.get_object(Bucket=bucket, Key=ask["name"])["Body"].read().decode("latin-1")
        else:
            answer = sorted(one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", []))
    except s3.exceptions.ClientError as error:
        answer = {"error": error.response["Error"]["Code"]}
    print(json.dumps(answer), flush=True)
"""


def _python():
    """An environment with moto, made once on a machine. Skips where the package cannot be had."""
    os.makedirs(os.path.dirname(HOME), exist_ok=True)
    with open(HOME + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = HOME + "/bin/python"
        if os.path.exists(HOME + "/ready"):
            return python
        shutil.rmtree(HOME, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", HOME], capture_output=True, text=True)
        if made.returncode == 0:
            made = subprocess.run([python, "-m", "pip", "install", "--quiet", PACKAGE], capture_output=True, text=True)
        if made.returncode != 0:
            shutil.rmtree(HOME, ignore_errors=True)
            raise unittest.SkipTest("no S3-compatible store here: moto cannot be installed: " +
                                    (made.stderr or made.stdout).strip()[-200:])
        open(HOME + "/ready", "w").close()
        return python


class Store:
    def __init__(self):
        python = _python()
        self.port = Server.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        public, secret = "AKIA" + secrets.token_hex(8).upper(), secrets.token_hex(20)
        environment = {"PATH": os.environ["PATH"], "STORE_KEY": public, "STORE_SECRET": secret}
        self.key = public + ":" + secret
        self.process = subprocess.Popen([python, "-c", STORE, str(self.port)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        self._wait()
        self.speaker = subprocess.Popen([python, "-c", SPEAKER, self.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=environment)

    def _wait(self):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
        raise AssertionError("the store did not start")

    def _ask(self, **ask):
        self.speaker.stdin.write(json.dumps(ask) + "\n")
        self.speaker.stdin.flush()
        return json.loads(self.speaker.stdout.readline())

    def make(self, bucket):
        answer = self._ask(do="make", bucket=bucket)
        assert answer is True, answer

    def put(self, bucket, name, text):
        answer = self._ask(do="put", bucket=bucket, name=name, text=text)
        assert answer is True, answer

    def get(self, bucket, name):
        return self._ask(do="get", bucket=bucket, name=name)

    def names(self, bucket):
        return self._ask(do="list", bucket=bucket)

    def hang(self):
        """It takes connections and answers nobody."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        self.go_on()
        self.process.terminate()
        self.process.wait(20)
        self.speaker.stdin.close()
        self.speaker.wait(20)
