"""An MCP server over standard input and output, as small as can be: one tool that says what it was told."""
import json
import os
import sys

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "echo", "version": "1"}}
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        result = {"tools": [{"name": name, "description": name, "inputSchema": schema} for name in ("echo", "whoami", "leave")]}
    elif params["name"] == "leave":
        sys.exit(1)
    else:
        said = params["arguments"]["text"] if params["name"] == "echo" else f"{os.getuid()} {os.getenv('COLOUR')} {os.getenv('GATEWAY_ACCESS_TOKEN')}"
        result = {"content": [{"type": "text", "text": said}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
