#!/usr/bin/env python3
"""Writes what is generated about the boundaries, from what they did just now on this machine:

    boundaries.py RESULTS

RESULTS is a folder with the XML that the programs of tests/e2e named boundary* left (GTEST_OUTPUT). Written are the
lists that tests/behaviour compares with, and between their marks parts of docs/boundaries.md, docs/threat-model.md and
docs/boundaries-behaviour.md. ./dev boundaries does it all.
"""
import glob
import os
import sys
import xml.etree.ElementTree

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tests/behaviour"))
import boundaries  # noqa: E402

# What a row of the table says, and the cases that show it. Several: all must pass. A case that skips, and is not about
# what the machine lacks, has its reason in the table; one that a boundary refuses has the property `cell`.
ROWS = [
    ("commands, input and output, exit codes", ["Boundaries.ACommandRunsAndNothingIsLeft"]),
    ("every sandbox says which boundary it has", ["Boundaries.EachSaysWhichOneItIs"]),
    ("files, watches, ports inward, metrics", ["Boundaries.FilesPortsAndWatches"]),
    ("terminals", ["Boundaries.ATerminal"]),
    ("users, modes and setuid inside", ["Boundaries.FilesStayInTheSandboxAndSetuidWorks"]),
    ("disk limit", ["Boundaries.TheDiskLimitHolds"]),
    ("time limit", ["Boundaries.ATimeLimitEndsIt"]),
    ("more memory than the limit", ["Boundaries.TooMuchMemoryEndsAProgramOrTheSandbox"]),
    ("more processes than the limit", ["Boundaries.ManyProcessesEndAtTheLimit"]),
    ("the memory that is shown inside is the limit's", ["Boundaries.AMachineAsLargeAsItsLimit"]),
    ("more than one processor", ["BoundaryRows.SeveralProcessors"]),
    ("freeze and go on", ["Boundaries.FreezingAndGoingOn"]),
    ("killed, it is gone with all its processes", ["Boundaries.KilledItIsGoneWithAllItsProcesses"]),
    ("a new link cuts the old, in the middle of everything",
     ["Boundaries.ASecondLinkCutsTheFirst", "Boundaries.ALinkIsMadeAnewInTheMiddleOfEverything"]),
    ("it lives on when the launcher is killed",
     ["Boundaries.ItOutlivesALauncherThatIsKilled", "BoundariesNet.ALauncherThatTakesOverFindsTheNetwork"]),
    ("parked ahead of time", ["Boundaries.AParkedOneIsClaimed"]),
    ("no network without a policy", ["Boundaries.WithoutAPolicyThereIsNoNetwork"]),
    ("policies by the gate", ["BoundariesNet.TheGateDecides"]),
    ("folders of the host (`--mount-ro`), volumes", ["Boundaries.FoldersAndVolumesAreShown"]),
    ("the host's kernel release is hidden", ["Boundaries.WhatItLearnsAboutTheHost"]),
    ("nobody but root inside reaches the link of process 1", ["Boundaries.NobodyReachesTheLinkOfProcessOne"]),
    ("mounts and devices of its own for root inside", ["BoundaryRows.MountsAndDevicesOfItsOwn"]),
    ("snapshot and fork: files", ["BoundaryRows.KeepsFiles", "BoundaryMemory.FilesAlone"]),
    ("snapshot and fork: files and memory", ["BoundaryRows.KeepsMemory", "BoundaryMemory.ForksAreApartAndTheSourceGoesOn"]),
    ("pause and resume, again and again",
     ["BoundaryRows.KeepsMemory", "BoundaryMemory.APausedSandboxGoesOnAsItselfAndAsAnother", "BoundaryMemory.AgainAndAgainWithoutMoreLayers",
      "BoundaryMemory.GenerationsInARowAndFrozenOnes"]),
    ("paused, it outlives a launcher that is killed",
     ["BoundaryRows.KeepsMemory", "BoundaryMemory.ALauncherThatIsKilledBetweenPauseAndResume"]),
    ("a damaged memory image is refused",
     ["BoundaryRows.KeepsMemory", "BoundaryMemory.OneFlippedBitIsRefused", "BoundaryMemory.BrokenFilesAreRefused"]),
    ("connections to the outside end with a pause, new ones work",
     ["BoundaryRows.KeepsMemory", "BoundaryMemoryNet.ConnectionsToTheOutsideAreCutAndNewOnesWork"]),
]


def results(folder):
    """(suite.case, boundary) -> ("passed"|"skipped"|"failed", text)."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.xml"))):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            name, _, boundary = case.get("name").partition("/")
            key = (case.get("classname").rpartition("/")[2] + "." + name, boundary)
            cells = [one.get("value") for one in case.iter("property") if one.get("name") == "cell"]
            if case.find("failure") is not None:
                found[key] = ("failed", "")
            elif case.find("skipped") is not None:
                found[key] = ("skipped", reason(case.find("skipped").get("message") or ""))
            else:
                found[key] = ("passed", cells[-1] if cells else "")
    return found


def reason(said):
    """What a skip printed, without the place in the source that stands before it."""
    lines = [line for line in said.splitlines() if line and ".cc:" not in line]
    return lines[0] if lines else "not tried here"


def sentence(text):
    text = " ".join(text.replace("isola: ", "").split())
    return text.replace("|", "\\|")


def cell(cases, boundary, found):
    words = []
    for case in cases:
        kind, text = found.get((case, boundary), ("absent", ""))
        if kind == "failed":
            return "**fails**"
        if kind != "absent":
            words.append(sentence(text) if text else "✓" if kind == "passed" else "not tried")
    if not words:
        return "–"
    other = [word for word in dict.fromkeys(words) if word != "✓"]
    return "; ".join(other) or "✓"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def between(document, mark, text):
    """Replaces what stands between the marks of that name."""
    path = os.path.join(ROOT, document)
    begin, end = f"<!-- {mark}: begin (written by ./dev boundaries) -->\n", f"<!-- {mark}: end -->"
    with open(path) as file:
        old = file.read()
    if old.count(begin) != 1 or old.count(end) != 1:
        sys.exit(f"boundaries: {document} has no marks '{mark}'")
    head, tail = old.split(begin)[0], old.split(end)[1]
    with open(path, "w") as file:
        file.write(head + begin + "\n" + text + "\n\n" + end + tail)


def notes(rows):
    """Long sentences go below the table, with numbers."""
    said, out = {}, []
    for row in rows:
        cells = [row[0]]
        for text in row[1:]:
            if len(text) > 60:
                number = said.setdefault(text, len(said) + 1)
                short = text.split(":")[0] if text.split(":")[0] in ("refused",) else "no"
                text = f"{short} ({number})"
            cells.append(text)
        out.append(cells)
    return out, [f"{number}. {text}" for text, number in said.items()]


def matrix(found, names):
    rows, below = notes([[what, *[cell(cases, name, found) for name in names]] for what, cases in ROWS])
    text = table(["", *names], rows)
    return text + ("\n\n" + "\n".join(below) if below else "")


def behaviour(island, names):
    before = boundaries.read(boundaries.DIFFERENCES)
    listed = {}
    for name in names:
        known = before.get(name, {}).get("differences", {})
        listed[name] = {"engine": island.engine(name), "differences": boundaries.differences(island, name, known)}
    # What this machine's own kernel lacks says nothing of the jail.
    lacking = boundaries.differences(island, "bare")
    listed["jail"]["differences"] = {check: said for check, said in listed["jail"]["differences"].items()
                                     if lacking.get(check) != said}
    boundaries.write(boundaries.DIFFERENCES, listed)
    all_checks = boundaries.checks(island)
    others = [name for name in names]
    summary = table(["", *others], [
        ["engine", *[listed[name]["engine"] for name in others]],
        [f"as Linux does, of {len(all_checks)}",
         *[str(len(all_checks) - len(listed[name]["differences"])) for name in others]],
        ["differ", *[str(sum(said.startswith("differs") for said in listed[name]["differences"].values()))
                     for name in others]],
        ["not there", *[str(sum(said.startswith("not there") for said in listed[name]["differences"].values()))
                        for name in others]]])
    parts = [summary]
    for topic in dict.fromkeys(one[0] for one in all_checks):
        rows = []
        for where, name, claim in all_checks:
            if where != topic or not any(name in listed[one]["differences"] for one in others):
                continue
            rows.append([f"`{name}`: {claim}".replace("|", "\\|"),
                         *[sentence(listed[one]["differences"].get(name, "✓")) for one in others]])
        total = sum(one[0] == topic for one in all_checks)
        parts.append(f"## {topic[0].upper() + topic[1:]}\n\n" + (
            f"{total - len(rows)} of {total} are the same everywhere. The others:\n\n" + table(["what Linux does", *others], rows)
            if rows else f"All {total} are the same everywhere."))
    return "\n\n".join(parts)


def learned(island, names):
    listed = {name: boundaries.learned(island, name) for name in names}
    boundaries.write(boundaries.LEARNED, listed)
    words = {"host": "**the host's**", "own": "its own", "nothing": "–"}
    facts = boundaries.facts(island.bare("isola-learns"))
    return table(["", *names], [[what, *[words[listed[name][fact]] for name in names]]
                                for fact, (what, _, _) in facts.items()])


def main(folder):
    island = boundaries.Island()
    try:
        names = island.offered()
        for name in boundaries.read(boundaries.DIFFERENCES):
            if name not in names:
                sys.exit(f"boundaries: this machine lacks {name} ({island.offers[name]['missing']}), and its columns would be lost")
        found = results(folder)
        if not found:
            sys.exit(f"boundaries: there are no results in {folder}")
        between("docs/boundaries.md", "matrix", matrix(found, names))
        between("docs/boundaries-behaviour.md", "behaviour", behaviour(island, names))
        between("docs/threat-model.md", "learned", learned(island, names))
    finally:
        island.close()


if __name__ == "__main__":
    main(sys.argv[1])
