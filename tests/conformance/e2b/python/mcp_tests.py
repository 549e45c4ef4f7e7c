"""The MCP gateway: the template of examples/e2b/mcp-gateway, built as a user builds it, with a server of ours in it."""
import json
import os
import shutil
import tempfile
import urllib.request

import e2b
from flavour import ASYNC, TEMPLATE, Sandbox, _settle
from harness import Skip, raises, test

HERE = os.path.dirname(os.path.abspath(__file__))
Template = getattr(e2b, "AsyncTemplate" if ASYNC else "Template", None)
built = False


def gateway():
    """Once; the SDK asks for that name and no other."""
    global built
    if not hasattr(e2b.Sandbox, "get_mcp_token") or Template is None:
        raise Skip("this line has no MCP")
    if TEMPLATE == "minimal":
        raise Skip("the template has too little in it")
    if built:
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(os.path.join(HERE, "../../../../examples/e2b/mcp-gateway/mcp-gateway"), folder)
        shutil.copy(os.path.join(HERE, "../echo_mcp.py"), folder + "/echo.py")
        steps = (Template(file_context_path=folder).from_template(TEMPLATE)
                 .copy("mcp-gateway", "/usr/local/bin/mcp-gateway", user="root", mode=0o755)
                 .copy("echo.py", "/opt/mcp/github/acme/echo/echo.py", user="root"))
        _settle(Template.build(steps, alias="mcp-gateway"))
    built = True


def ask(sandbox, token, method, params):
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "50005", "Content-Type": "application/json",
               "Authorization": "Bearer " + token}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    with urllib.request.urlopen(urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/mcp", body, headers), timeout=30) as reply:
        return json.load(reply)


@test(["Sandbox.create with mcp", "Sandbox.get_mcp_token", "Sandbox.get_mcp_url"], "its servers answer behind one address")
def _():
    gateway()
    sandbox = Sandbox.create(mcp={"github/acme/echo": {"run_cmd": "python3 echo.py"}}, timeout=60)
    try:
        assert sandbox.get_mcp_url().startswith("https://50005-")
        token = sandbox.get_mcp_token()
        assert [tool["name"] for tool in ask(sandbox, token, "tools/list", {})["result"]["tools"]] == ["echo", "whoami", "leave"]
        said = ask(sandbox, token, "tools/call", {"name": "echo", "arguments": {"text": "hello"}})
        assert said["result"]["content"][0]["text"] == "hello", said
    finally:
        sandbox.kill()


@test("Template.add_mcp_server", "installs it while the template is built", partly="of the servers that the gateway of this server knows")
def _():
    gateway()

    def add(name):
        _settle(Template.build(Template().from_template("mcp-gateway").add_mcp_server(name), alias=f"with-mcp-py{os.getpid()}"))

    add("github/acme/echo")
    with raises(e2b.BuildException, "exit status 1"):
        add("stripe")


@test("Sandbox.create with mcp", "a server that nobody knows raises")
def _():
    gateway()
    with raises(e2b.SandboxException, "stripe"):
        Sandbox.create(mcp={"stripe": {"secretKey": "x"}}, timeout=60)
