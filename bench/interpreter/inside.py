"""Runs inside a sandbox, as its user: the two usual ways to a kernel, with a kernel of the spec `python3` of their own.

    inside.py client ROUNDS      jupyter_client, which speaks with the kernel over its sockets
    inside.py server ROUNDS      a Jupyter server: a kernel by REST, cells over one WebSocket that stays open
    inside.py prompt ROUNDS      the same by a client that acknowledges every packet at once

A round is `1+1` from the request until its result, its reply and the kernel's word that it is idle have come. Prints the
seconds of each as JSON.
"""
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid

WARM = 30


def timed(cell, rounds):
    for _ in range(WARM):
        cell()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        cell()
        times.append(time.perf_counter() - begun)
    return times


def client(rounds):
    from jupyter_client.manager import start_new_kernel
    manager, kernel = start_new_kernel(kernel_name="python3")

    def cell():
        sent, shown = kernel.execute("1+1"), None
        while True:
            message = kernel.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != sent:
                continue
            if message["msg_type"] == "execute_result":
                shown = message["content"]["data"]["text/plain"]
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        while kernel.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != sent:
            pass
        assert shown == "2", shown

    try:
        return timed(cell, rounds)
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)


def server(rounds, prompt=False):
    import websocket
    token, port = uuid.uuid4().hex, 18888
    config = [f"--ServerApp.port={port}", f"--IdentityProvider.token={token}", "--ServerApp.open_browser=False",
              "--ServerApp.ip=127.0.0.1", "--ServerApp.log_level=ERROR", "--ServerApp.root_dir=/tmp"]
    process = subprocess.Popen([sys.executable, "-m", "jupyter_server", *config], stdout=subprocess.DEVNULL)
    url, headers = f"http://127.0.0.1:{port}", {"Authorization": "token " + token, "Content-Type": "application/json"}

    def ask(method, path, body=None):
        return json.load(urllib.request.urlopen(urllib.request.Request(url + path, body, headers, method=method), timeout=60))

    try:
        until = time.monotonic() + 60
        while True:
            try:
                ask("GET", "/api/status")
                break
            except OSError:
                if time.monotonic() > until or process.poll() is not None:
                    raise
                time.sleep(0.05)
        kernel = ask("POST", "/api/kernels", b'{"name": "python3"}')["id"]
        session = uuid.uuid4().hex
        talk = websocket.create_connection(f"ws://127.0.0.1:{port}/api/kernels/{kernel}/channels?session_id={session}",
                                           header=[f"Authorization: token {token}"], timeout=60, enable_multithread=False)
        # The server sends several small messages, each waiting for the acknowledgement of the last: with a usual client,
        # whose system is lazy with those, a cell takes 40 ms more.
        def acknowledge():
            if prompt:
                talk.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

        def cell():
            sent, shown, replied, idle = uuid.uuid4().hex, None, False, False
            talk.send(json.dumps({
                "channel": "shell", "parent_header": {}, "metadata": {}, "buffers": [],
                "header": {"msg_id": sent, "msg_type": "execute_request", "session": session, "username": "", "version": "5.3",
                           "date": ""},
                "content": {"code": "1+1", "silent": False, "store_history": True, "user_expressions": {},
                            "allow_stdin": False, "stop_on_error": True}}))
            while not (replied and idle):
                acknowledge()
                message = json.loads(talk.recv())
                if message["parent_header"].get("msg_id") != sent:
                    continue
                kind = message["header"]["msg_type"]
                replied = replied or kind == "execute_reply"
                idle = idle or (kind == "status" and message["content"]["execution_state"] == "idle")
                if kind == "execute_result":
                    shown = message["content"]["data"]["text/plain"]
            assert shown == "2", shown

        times = timed(cell, rounds)
        talk.close()
        return times
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    os.chdir("/tmp")
    print(json.dumps({"client": client, "server": server, "prompt": lambda n: server(n, True)}[sys.argv[1]](int(sys.argv[2]))))
