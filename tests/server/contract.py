"""The contract, openapi.json, held against what the server really answers: every reply of every test passes here, and
of streams every line and every event. Which of the promised answers came is written down for contract_test.py."""
import atexit
import json
import os
import re
import sys

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/dialect/native/openapi.json")
LINES, EVENTS = "application/x-ndjson", "text/event-stream"
KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def write_down(seen):
    """For the test that looks at what all tests saw together."""
    if folder := os.environ.get("ISOLA_CONTRACT_SEEN"):
        os.makedirs(folder, exist_ok=True)
        name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
        with open(os.path.join(folder, name), "w") as file:
            file.write("".join(line + "\n" for line in sorted(seen)))


class Contract:
    def __init__(self):
        self.seen = set()
        atexit.register(write_down, self.seen)
        with open(SOURCE) as file:
            self.all = json.load(file)
        self.paths = []
        # Exact words before parameters, as the router has it; {path} takes whatever is left.
        for path in sorted(self.all["paths"], key=lambda p: p.count("{")):
            text = re.sub(r"\\{(\w+)\\}", lambda m: ".*" if m[1] == "path" else "[^/]+", re.escape(path))
            self.paths.append((re.compile(text + "$"), path))

    def resolve(self, thing):
        while "$ref" in thing:
            at = self.all
            for word in thing["$ref"].lstrip("#/").split("/"):
                at = at[word]
            thing = at
        return thing

    def said(self, method, target, status):
        """What the contract has of this answer; None: the call is nothing of ours (404, 405, or another dialect)."""
        path = target.split("?")[0]
        name = next((name for text, name in self.paths if text.match(path)), None)
        verb = "get" if method == "HEAD" else method.lower()
        operation = self.all["paths"].get(name, {}).get(verb)
        if not operation:
            return None
        self.seen.add(f"{verb} {name} {status}")
        responses = operation["responses"]
        said = responses.get(str(status)) or responses.get(f"{status // 100}XX")
        assert said, f"{method} {path} answered {status}, which its contract does not know"
        return self.resolve(said).get("content", {})

    def check(self, method, target, reply):
        content = self.said(method, target, reply.status)
        if content is None or not reply.body:
            return
        kind = reply.headers.get("content-type", "").split(";")[0]
        where = f"{method} {target.split('?')[0]} {reply.status}"
        if kind == "application/json" and kind in content:
            self.match(content[kind]["schema"], reply.json, where)
        elif kind == LINES:
            for line in reply.body.splitlines():
                self.line(method, target, json.loads(line))

    def line(self, method, target, value):
        """One line of NDJSON."""
        content = self.said(method, target, 200)
        if content is None:
            return
        assert LINES in content, f"{method} {target} streams lines, which its contract does not know"
        self.match(content[LINES]["schema"], value, f"{method} {target} line")

    def event(self, target, name, value):
        """One server-sent event. Where data says what kind it is, so does the event's name."""
        content = self.said("GET", target, 200)
        if content is None:
            return
        assert EVENTS in content, f"GET {target} streams events, which its contract does not know"
        self.match(content[EVENTS]["x-event-data"], value, f"GET {target} event {name}")
        if "kind" in value:
            assert value["kind"] == name, f"GET {target}: the event {name} holds {value}"

    def named(self, schema, value):
        """A message of a WebSocket: nothing but its name leads to its schema."""
        self.match(self.all["components"]["schemas"][schema], value, schema)

    def match(self, schema, value, where):
        """That no object has a word which the contract does not have, and all that it promises, each as it says."""
        schema = self.resolve(schema)
        for some in ("oneOf", "anyOf"):
            if some in schema:
                return self.match_some(schema[some], value, where)
        self.match_kind(schema, value, where)
        properties, required = dict(schema.get("properties", {})), list(schema.get("required", []))
        for part in schema.get("allOf", []):
            part = self.resolve(part)
            properties.update(part.get("properties", {}))
            required += part.get("required", [])
        if isinstance(value, list) and "items" in schema:
            for one in value[:20]:
                self.match(schema["items"], one, where + "[]")
        if not isinstance(value, dict):
            return
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            for name in value:
                if name not in properties:
                    self.match(more, value[name], where + "." + name)
        if not properties:
            return
        missing = [name for name in required if name not in value]
        assert not missing, f"{where}: {missing} are promised and missing in {value}"
        if not more:
            unknown = [name for name in value if name not in properties]
            assert not unknown, f"{where}: {unknown} are not in the contract: {value}"
        for name, inner in properties.items():
            if name in value:
                self.match(inner, value[name], where + "." + name)

    def match_some(self, schemas, value, where):
        wrong = []
        for one in schemas:
            try:
                return self.match(one, value, where)
            except AssertionError as error:
                wrong.append(str(error))
        raise AssertionError(f"{where}: nothing of what the contract knows: {value}\n  " + "\n  ".join(wrong))

    @staticmethod
    def match_kind(schema, value, where):
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds

        def fits(kind):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if kind in ("integer", "number"):
                return number and (kind == "number" or value == int(value))
            return isinstance(value, KINDS[kind])

        assert not kinds or any(fits(kind) for kind in kinds), f"{where}: {value!r} is none of {kinds}"
        assert "const" not in schema or value == schema["const"], f"{where}: {value!r} is not {schema['const']!r}"
        assert "enum" not in schema or value in schema["enum"], f"{where}: {value!r} is none of {schema['enum']}"
        if "pattern" in schema and isinstance(value, str):
            assert re.search(schema["pattern"], value), f"{where}: {value!r} is not as {schema['pattern']}"
