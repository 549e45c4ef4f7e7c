"""The compatibility page, made from the lines that the suites printed."""
import collections
import re

WHAT = {"js": "JavaScript SDK (`e2b` on npm)", "python": "Python SDK (`e2b` on PyPI), blocking and asynchronous",
        "cli": "Command line (`@e2b/cli` on npm)",
        "interpreter-js": "Code interpreter, JavaScript (`@e2b/code-interpreter` on npm)",
        "interpreter-python": "Code interpreter, Python (`e2b-code-interpreter` on PyPI), blocking and asynchronous"}


# What passes its tests and is less than E2B's all the same; the guide says it, too. By method, in whatever spelling of its language.
# A third word: only of lines before these, which still have what it is about.
LESS = [(re.compile(pattern + "$"), why, *before) for pattern, why, *before in (
    (r"Sandbox\.create", "always by token: `secure: false` is taken and opens nothing",
     {"js": (2, 51), "python": (2, 63), "interpreter-js": (2, 8), "interpreter-python": (2, 11)}),
    (r"Sandbox\.create with network\.rules", "of HTTPS requests to port 443; hosts are names, not networks; one secret per header; secrets for keys of scope `admin`"),
    (r"Sandbox\.create with mcp", "of the servers that the gateway of this server knows"),
    (r"Volume\.create", "1 GiB each, until the operator changes it"),
    (r"Secret\.(create|update|get_?[iI]nfo|exists|destroy|list)", "for keys of scope `admin`; names have at most 63 of letters, digits, `-`, `_` and `.`"),
    (r"sandbox metrics", "a history of half an hour, from the first question on"),
    (r"sandbox logs( with --follow)?", "the ledger's entries about the sandbox, not what a daemon inside wrote"),
)]


def is_less(entry, kind, version, method):
    pattern, _, *before = entry
    if not pattern.match(method):
        return False
    return not before or kind not in before[0] or tuple(int(part) for part in version.split(".")[:2]) < before[0][kind]


def cell(lines, kind, version):
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
    less = sorted({line["partly"] for line in done if line.get("partly")} | {entry[1] for entry in LESS if is_less(entry, kind, version, done[0]["method"])})
    if less:
        return "partly", "; ".join(less)
    return "works", None


def page(results, about, before=""):
    """results: {(kind, version): [line, …]}. The section of a package that was not run is the one of the page before."""
    out = ["# E2B: what works", "",
           "Made by `./dev conformance e2b`, which drives the unmodified published packages against this server: do not edit.",
           "", f"{about}", "",
           "*works*: every test of that method passed; *partly*: some did, or it does less than E2B's; *not*: the call fails with",
           "the error type that users catch, and says what is missing; *–*: that version has no such method, type or option, or the",
           "template of this run lacks what it needs.", ""]
    for kind, title in WHAT.items():
        versions = [version for k, version in results if k == kind]
        if not versions:
            kept = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", before, re.M | re.S)
            out += [kept[0].rstrip("\n"), ""] if kept else []
            continue
        total = collections.Counter(line["result"] for (k, _), lines in results.items() if k == kind for line in lines if not line.get("again"))
        out += [f"## {title}", "", f"{total['passed']} tests passed, {total['failed']} failed, {total['skipped']} did not apply.", "", "| method | " + " | ".join(versions) + " | why |",
                "| --- |" + " --- |" * (len(versions) + 1)]
        for method, cells in rows(results, kind).items():
            whys = list(dict.fromkeys(why for _, why in cells.values() if why))
            out.append(f"| `{method}` | " + " | ".join(cells[version][0] for version in versions) + " | " + shown("; ".join(whys)) + " |")
        out.append("")
    return "\n".join(out)


def shown(why):
    return why.replace("|", "\\|")


def rows(results, kind):
    """{method: {version: (word, why)}} of one package, in the order in which they were seen."""
    methods = collections.OrderedDict()
    for (k, version), lines in results.items():
        for line in lines if k == kind else []:
            methods.setdefault(line["method"], {}).setdefault(version, []).append(line)
    versions = [version for k, version in results if k == kind]
    return {method: {version: cell(by_version.get(version, []), kind, version) for version in versions} for method, by_version in methods.items()}


def read(text):
    """A page again: {title: {method: ({version: word}, why)}}."""
    tables, title, versions = {}, None, []
    for line in text.splitlines():
        if line.startswith("## "):
            title = line[3:]
            tables[title] = {}
        elif line.startswith("| method |"):
            versions = [word.strip() for word in line.split("|")[2:-2]]
        elif line.startswith("| `"):
            method, *words, why = (word.strip() for word in re.split(r"(?<!\\)\|", line)[1:-1])
            tables[title][method.strip("`")] = (dict(zip(versions, words)), why)
    return tables


def differs(text, results, template):
    """What a page says of the versions that were run now, and was not seen. With another template other tests apply."""
    if f"template `{template}`" not in text:
        return []
    tables, found = read(text), []
    for kind, version in results:
        table, seen = tables.get(WHAT[kind], {}), rows(results, kind)
        for method, cells in seen.items():
            word, why = cells[version]
            there, reasons = table.get(method, ({}, ""))
            if there.get(version) != word:
                found.append(f"{kind} {version}: {method}: {there.get(version)} there, {word} here")
            elif why and shown(why) not in reasons:
                found.append(f"{kind} {version}: {method}: another reason: {why}")
        found += [f"{kind} {version}: {method}: {words[version]} there, no row here" for method, (words, _) in table.items()
                  if method not in seen and words.get(version, "–") != "–"]
    return found
