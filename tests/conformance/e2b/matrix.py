"""The compatibility page, made from the lines that the suites printed."""
import collections

WHAT = {"js": "JavaScript SDK (`e2b` on npm)", "python": "Python SDK (`e2b` on PyPI), blocking and asynchronous",
        "cli": "Command line (`@e2b/cli` on npm)",
        "interpreter-js": "Code interpreter, JavaScript (`@e2b/code-interpreter` on npm)",
        "interpreter-python": "Code interpreter, Python (`e2b-code-interpreter` on PyPI), blocking and asynchronous"}


def cell(lines):
    """works / partly / not, and why."""
    done = [line for line in lines if line["result"] != "skipped"]
    if not done:
        return "–", None
    bad = [line for line in done if line["result"] == "failed"]
    missing = next((line["absent"] for line in done if line.get("absent")), None)
    if bad and len(bad) == len(done):
        return "**no**", bad[0]["test"]
    if bad:
        return "partly", "fails: " + "; ".join(sorted({line["test"] for line in bad}))
    if missing:
        return "not", missing
    less = sorted({line["partly"] for line in done if line.get("partly")})
    if less:
        return "partly", "; ".join(less)
    return "works", None


def page(results, about):
    """results: {(kind, version): [line, …]}"""
    out = ["# E2B: what works", "",
           "Made by `./dev conformance e2b`, which drives the unmodified published packages against this server: do not edit.",
           "", f"{about}", "",
           "*works*: every test of that method passed; *partly*: some did, or it does less than E2B's; *not*: the call fails with",
           "the error type that users catch, and says what is missing; *–*: that version has no such method, or the template of",
           "this run lacks what it needs.", ""]
    total = collections.Counter(line["result"] for lines in results.values() for line in lines if not line.get("again"))
    out += [f"{total['passed']} tests passed, {total['failed']} failed, {total['skipped']} did not apply.", ""]
    for kind, title in WHAT.items():
        versions = [version for k, version in results if k == kind]
        if not versions:
            continue
        methods = collections.OrderedDict()
        for (k, version), lines in results.items():
            for line in lines if k == kind else []:
                methods.setdefault(line["method"], {}).setdefault(version, []).append(line)
        out += [f"## {title}", "", "| method | " + " | ".join(versions) + " | why |",
                "| --- |" + " --- |" * (len(versions) + 1)]
        for method, by_version in methods.items():
            cells, whys = [], []
            for version in versions:
                word, why = cell(by_version.get(version, []))
                cells.append(word)
                if why and why not in whys:
                    whys.append(why)
            out.append(f"| `{method}` | " + " | ".join(cells) + " | " + "; ".join(whys).replace("|", "\\|") + " |")
        out.append("")
    return "\n".join(out)
