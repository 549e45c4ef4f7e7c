"""The contract, openapi.json, held against what the server really answers: every reply of every test passes here."""
import json
import os
import re

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/dialect/native/openapi.json")


class Contract:
    def __init__(self):
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

    def check(self, method, target, reply):
        path = target.split("?")[0]
        operations = next((self.all["paths"][name] for text, name in self.paths if text.match(path)), None)
        operation = (operations or {}).get("get" if method == "HEAD" else method.lower())
        if not operation:
            return  # nothing of ours: 404, 405, or another dialect
        responses = operation["responses"]
        said = responses.get(str(reply.status)) or responses.get(f"{reply.status // 100}XX")
        assert said, f"{method} {path} answered {reply.status}, which its contract does not know: {reply}"
        content = self.resolve(said).get("content", {}).get("application/json")
        if content and reply.headers.get("content-type", "").startswith("application/json") and reply.body:
            self.match(content["schema"], reply.json, f"{method} {path} {reply.status}")

    def match(self, schema, value, where):
        """That no object has a word which the contract does not have, and all that it promises."""
        schema = self.resolve(schema)
        for some in ("oneOf", "anyOf"):
            if some in schema:
                return
        properties, required = dict(schema.get("properties", {})), list(schema.get("required", []))
        for part in schema.get("allOf", []):
            part = self.resolve(part)
            properties.update(part.get("properties", {}))
            required += part.get("required", [])
        if isinstance(value, list) and "items" in schema:
            for one in value[:20]:
                self.match(schema["items"], one, where + "[]")
        if not isinstance(value, dict) or not properties:
            return
        missing = [name for name in required if name not in value]
        assert not missing, f"{where}: {missing} are promised and missing in {value}"
        if not schema.get("additionalProperties"):
            unknown = [name for name in value if name not in properties]
            assert not unknown, f"{where}: {unknown} are not in the contract: {value}"
        for name, inner in properties.items():
            if value.get(name) is not None:
                self.match(inner, value[name], where + "." + name)
