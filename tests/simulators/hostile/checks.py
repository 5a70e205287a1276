"""Execute a case, and check every promise afterwards."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulators.hostile.cases import Case
from simulators.hostile.disk import SECRET
from simulators.hostile.fleet import BAD_RUN, GOOD_RUN, HERE_RUN, MEMORY, OTHER_RUN, Ended, Fleet, Verdict
from support.checkpoints.trees import sha256

IDLE_PROGRAM = 24 << 10  # KiB that an interpreter with our modules in it takes by itself

OWN_FILES = ("names.json", "devices.json")  # that commands which only read may write: names and accelerators last seen

# What a copy may bring to a target, below its root: an opinion of this test alone, apart from the product's.
HISTORY = re.compile(
    r"runs/r(/(run\.yaml|lineage\.json|\.?lock"
    r"|attempts(/\d{3,}(/(metrics\.jsonl|status-\d+\.json|log-\d+\.txt|restore\.json|metrics\.jsonl\.aside-[0-9a-f]{12}))?)?|tblogs(/[\w.-]+)*|\.incoming(/[0-9a-f]+(/[\w.-]+)*)?"
    r"|([\w-]+/)*events\.out\.tfevents\.[\w.-]+))?"
)
CHECKPOINT = re.compile(
    r"runs/r(/checkpoints(/step-\d+-a\d{3}(/(manifest\.json|train\.json|small\.safetensors"
    r"|\.incoming(/[0-9a-f]+(/[\w.-]+)*)?|arrays(/[\w.-]+)*))?)?)?"
)
TOKENS = re.compile(
    r"data(/[0-9a-f]{64}(/(manifest\.json|\.incoming(/[0-9a-f]+(/[\w.-]+)*)?|tokens-\d+\.bin|offsets\.bin))?)?"
)
RECORD = re.compile(r"run: .* at (fence|lineage|status|store)\b")
CODE = re.compile(r"\.(py|pyc|so|pth|sh|pyd|egg)$|/(sitecustomize|usercustomize)")
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
UNCAUGHT = re.compile(
    r"Traceback \(most recent call last\)|Exception in thread|Exception ignored|Fatal Python error"
    r"|^\w*(Error|Exception): ",
    re.M,
)


def run(fleet: Fleet, case: Case) -> Verdict:
    """Execute a case. The verdict lists broken promises; none is raised."""
    verdict = Verdict()
    if case.prepare is not None:
        file, what = case.prepare()
        case.file = os.path.basename(file)
        verdict.changed.append(f"{case.file if case.place == 'disk' else ''} {what}".strip())
    if case.spec:
        fleet.hostile(case.spec)
    if case.copies.endswith("from good"):
        fleet.measure()
    before = fleet.watched()
    for argv in case.commands:
        verdict.ended.append(fleet.command(argv))
    verdict.changed += fleet.changes()
    # Of the probe's lines a run's records alone are kept apart: any other line of another shape ends that probe.
    case.shared = case.shared or (case.place == "probe" and not all(map(RECORD.search, verdict.changed)))
    after = fleet.watched()
    own = [("operator", str(fleet.state / name)) for name in OWN_FILES]
    verdict.broken += [
        f"wrote {where}:{path}"
        for where, path in fleet.written(before, after)
        if not _allowed(case, where, path) and (where, path) not in own
    ]
    if fleet.canary.exists():
        verdict.broken.append("executed what a host sent")
    worst = max(fleet.peaks(), default=0)
    if worst > IDLE_PROGRAM + MEMORY:
        verdict.broken.append(f"a program of the honest host took {worst >> 10} MiB")
    for ended in verdict.ended:
        verdict.broken += of_output(case, ended)
    verdict.broken += _of_copies(fleet, case, verdict.ended[0])
    return verdict


def _allowed(case: Case, where: str, path: str) -> bool:
    """Return True if a copy may have written this file."""
    copied, _, rest = case.copies.partition(" ")
    if not copied or rest.split() != ["from", where] or CODE.search(path):
        return False
    pattern = {"history": HISTORY, "checkpoint": CHECKPOINT, "data": TOKENS}[copied]
    return path in ("", "runs", "data") or pattern.fullmatch(path) is not None


def of_output(case: Case | None, ended: Ended) -> list[str]:
    """Return what is wrong with a command's exit code and output."""
    broken = []
    name = " ".join(ended.argv[2:4] if ended.argv[0] == "--fleet" else ended.argv[:2])
    if ended.late:
        return [f"{name} did not end: {_where(ended.stderr)}"]
    if ended.code not in range(6):
        broken.append(f"{name}: exit code {ended.code}")
    if ended.memory > MEMORY:
        broken.append(f"{name}: {ended.memory >> 10} MiB above idle")
    for stream, data in (("stdout", ended.stdout), ("stderr", ended.stderr)):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            text = data.decode("utf-8", "replace")
            if len(data) < 4 << 20:
                broken.append(f"{name}: {stream} is not UTF-8: {error}")
        if found := UNCAUGHT.search(text):
            last = text[found.start() :].strip().splitlines()
            broken.append(f"{name}: {found.group(0)[:40]} on {stream}: {last[-1][:200]}")
        if not (ended.as_json and stream == "stdout") and (found := CONTROLS.search(text)):
            broken.append(f"{name}: {text[max(0, found.start() - 30) : found.end() + 10]!a} on {stream}")
    if ended.as_json:
        broken += _of_json(ended, name)
    if case is None:
        return broken
    if ended.code and "status" not in name:
        broken += _of_refusal(ended, name)
    if ended.argv[2:3] == ["--status"]:
        broken += _of_status(case, ended)
    return broken


def _of_json(ended: Ended, name: str) -> list[str]:
    try:
        events = ended.events
    except ValueError as error:
        return [f"{name}: a line of stdout is not JSON: {error}"]
    return [f"{name}: a line of stdout is no object"] if any(not isinstance(event, dict) for event in events) else []


def _of_refusal(ended: Ended, name: str) -> list[str]:
    """Check that an error is one line that names the host and the subject."""
    lines = ended.stderr.decode(errors="replace").splitlines()
    if not lines or not lines[-1].startswith("midstream: "):
        found = (ended.code == 1 and "--diff" in ended.argv) or (ended.code == 3 and "--check" in ended.argv)
        return [] if ended.stdout and found else [f"{name}: exit {ended.code} without a line: {lines[-1:]}"]
    line = lines[-1]
    if len(line) > 2000:
        return [f"{name}: a line of {len(line)} characters: {line[:100]!a}"]
    if not re.search(r"\bbad\b", line):
        return [f"{name}: the line names no host: {line[:300]!a}"]
    return []


def _of_status(case: Case, ended: Ended) -> list[str]:
    """Check that other hosts and runs have not changed."""
    if ended.code:
        return [f"--status: exit code {ended.code}"]
    text = ended.stdout.decode(errors="replace")
    broken = []
    if ended.as_json:
        try:
            events = ended.events
        except ValueError:
            return []
        links = {event["name"]: event["link"] for event in events if event.get("event") == "host"}
        runs = {(event["run"], event["host"]): event for event in events if event.get("event") == "run"}
        for host, wanted in (
            ("good", GOOD_RUN),
            ("here", HERE_RUN),
            *((("bad", OTHER_RUN),) if not case.shared else ()),
        ):
            if links.get(host) != "live":
                why = [event.get("error") for event in events if event.get("name") == host]
                broken.append(f"--status: {host} is {links.get(host)}: {why}")
            elif (wanted, host) not in runs or runs[wanted, host]["problem"] or runs[wanted, host]["step"] != 8:
                broken.append(f"--status: run {wanted} of {host} is not as it was")
        return broken
    for host, wanted in (("good", GOOD_RUN), ("here", HERE_RUN), *((("bad", OTHER_RUN),) if not case.shared else ())):
        if not re.search(rf"(?m)^{host} +live ", text):
            found = [line for line in text.splitlines() if line.startswith(host)]
            broken.append(f"--status: {host} is not live: {found}")
        if not re.search(rf"(?m)^{wanted} +{host} +stopped +8[/ ]", text):
            broken.append(f"--status: run {wanted} of {host} is not listed as it was")
    return broken


def _of_copies(fleet: Fleet, case: Case, ended: Ended) -> list[str]:
    """Check that complete trees at the target match their manifests, without executables or links."""
    if " from " not in case.copies or ended.argv[0] != "copy":
        return []
    root = fleet.roots[case.copies.rsplit(" ", 1)[1]]
    broken = []
    for path in root.rglob("*"):
        below = str(path.relative_to(root))
        if path.is_symlink() or (path.is_file() and os.stat(path).st_mode & 0o111):
            broken.append(f"arrived as a link or a program: {below}")
        elif path.is_file() and SECRET.encode() in path.read_bytes()[:4096]:
            broken.append(f"{below} holds what a link of the host's led to")
    if case.copies.startswith(("checkpoint", "data")) and not ended.code:
        above = "data" if case.copies.startswith("data") else f"runs/{BAD_RUN}/checkpoints"
        broken += _unlike(root / above / ended.argv[-1])
    return broken


def _unlike(directory: Path) -> list[str]:
    """Return the objects of a complete tree that differ from its manifest."""
    try:
        objects: Sequence[dict[str, Any]] = json.loads((directory / "manifest.json").read_text())["objects"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"the copy ended well, without a manifest: {error}"]
    return [
        f"the copy ended well, and {entry['path']!r} is not what the manifest says"
        for entry in objects
        if not (directory / entry["path"]).is_file()
        or sha256((directory / entry["path"]).read_bytes()) != entry["sha256"]
    ]


def _where(stderr: bytes) -> str:
    """Return the positions in our own code from the stacks of a command that did not exit."""
    found = re.findall(r'midstream/([\w/]+\.py)", line (\d+) in (\w+)', stderr.decode(errors="replace"))
    return ", ".join(f"{file}:{line} {name}" for file, line, name in found[:8])
