"""Cases of the hostile host: what it does, and which command meets it."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulators.hostile import disk
from simulators.hostile.fleet import BAD_RUN, GOOD_RUN, HERE_RUN, OTHER_RUN, Fleet, name_data
from simulators.hostile.frames import FRAMES
from simulators.hostile.interpreter import BEGINS, STREAMS
from simulators.hostile.values import RAW, Mutator

PLACES = (
    "rpc", "probe", "disk", "frames", "plant", "rpc", "report", "disk", "begin", "login", "frames", "stream", "disk",
)  # fmt: skip

# Which functions of the hostile host each command calls, that return a value.
CALLS: dict[str, tuple[str, ...]] = {
    "log": ("runs.attempt_view.attempt", "runs.run_state.read_lines"),
    "config": ("runs.run_state.read_text",),
    "tree": ("verify.tree.manifest_value",),
    "diff": ("verify.tree.manifest_value",),
    "clean": ("runs.run_state.list_runs", "verify.tree.store_of", "runs.leftovers.leftovers", "runs.leftovers.remove",
    "runs.writers.writers"),
    "check": ("machine.checks.survey", "machine.checks.accelerators"),
    "dry run": ("runs.run_state.describe", "runs.run_state.read_text", "verify.tree.store_of",
    "runs.standby_state.newest_state", "runs.ownership.migration_lock",
                "runs.standby_state.clock", "verify.tree.manifest_value", "copy.tls_peer.probe"),
    "dry run to": ("machine.checks.facts", "runs.run_state.list_runs", "runs.run_state.running_attempt",
    "runs.run_state.describe", "verify.tree.store_of",
                   "copy.tls_peer.probe", "runs.run_state.read_text"),
    "history from": ("copy.history.describe", "copy.history.digests"),
    "history to": ("copy.history.sizes", "copy.history.digests", "copy.history.merge_lineage"),
    "checkpoint from": ("verify.objects.describe",),
    "data from": ("verify.objects.describe",),
}  # fmt: skip
REPORTS: dict[str, tuple[str, ...]] = {
    "verify": ("verify.tree.verify",),
    "deep": ("verify.array_check.examine",),
    "check": ("machine.checks.clock",),
    "checkpoint to": ("copy.session.serve", "copy.disk_receiver.receive"),
    "history to": ("copy.session.serve", "copy.disk_receiver.receive"),
}
EVENTS = ("run", "run", "run", "metrics", "log", "hello", "inventory", "beat", "clock")
LOGINS = (
    "printf 'Welcome, no end of line'", "printf 'Welcome\\n\\033]52;c;aGk=\\007'", "echo lost >&2",
    "printf '\\0midstream\\n'",
    "printf '{\"value\": 7}\\n'", "exit 3", "head -c 80000000 /dev/zero", "yes hello", "yes hello >&2", "kill -9 $$",
    "trap '' PIPE; echo /; echo /bin/sh", "echo 'bash: warning: \\\\033[2J'", "exec 1>&-", "exec 0<&-",
    "printf '/root\\n'",
)  # fmt: skip
BANNERS = (
    "\x1b]52;c;aGk=\x07\x1b[2J",
    "Welcome\r\n" * 10000,
    "x" * (1 << 20),
    "\u202eevil",
    "\xff\xfe",
    "midstream: done\n" * 3,
)


@dataclass
class Case:
    """A case. ``spec`` is for the host's interpreter, ``prepare`` for its disk; ``commands`` meet them.

    ``shared``: the change affects more than one run.
    """

    place: str
    what: str
    commands: list[list[str]]
    spec: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[], tuple[Path, str]] | None = None
    shared: bool = False
    copies: str = ""  # "history to here", ...
    file: str = ""  # that was prepared


def draw(fleet: Fleet, seed: int, number: int) -> Case:
    """Return the case of a number, always the same. The hosts are as `Fleet.restore` leaves them."""
    rng = random.Random(f"{seed}-{number}")
    place = PLACES[number % len(PLACES)]
    spec: dict[str, Any] = {"place": place, "seed": f"{seed}-{number}"}
    return _DRAWN[place](fleet, rng, spec)


def is_quick(case: Case) -> bool:
    """Return True for a case of about half a second: one command that meets one host."""
    words = case.commands[0]
    one = words[0] == "copy" and case.copies.endswith("here") and words[1] != "history"
    return len(case.commands) == 1 and (one or (words[0] in ("--verify", "--checkpoints") and ":" in words[-1]))


def _commands(fleet: Fleet, rng: random.Random, kind: str) -> tuple[list[list[str]], str]:
    """Return the command of a kind, and what it copies."""
    checkpoint = fleet.checkpoint
    other = f"good:{fleet.roots['good']}/runs/{GOOD_RUN}/checkpoints/step-8-a001"
    as_json = ["--json"] if rng.random() < 0.3 else []
    where = rng.choice(("good", "here"))
    mine = HERE_RUN if where == "here" else GOOD_RUN
    what, _, way = kind.partition(" ")
    if what in ("history", "checkpoint", "data"):
        one, two = ("bad", where) if way == "from" else (where, "bad")
        name = {
            "history": "",
            "checkpoint": fleet.checkpoint_name if way == "from" else "step-8-a001",
            "data": fleet.data,
        }[what]
        run = BAD_RUN if way == "from" else mine
        file = fleet.relayed if rng.random() < 0.7 else fleet.file
        return [["copy", what, str(file), one, two, run, name]], f"{what} {way} {where}"
    command = {
        "log": ["--log", BAD_RUN],
        "config": ["--config", BAD_RUN],
        "metrics": ["--metrics", f"{BAD_RUN},{OTHER_RUN}" if rng.random() < 0.3 else BAD_RUN],
        "checkpoints": ["--checkpoints"],
        "tree": ["--checkpoints", checkpoint],
        "diff": ["--diff", checkpoint, other] if rng.random() < 0.5 else ["--diff", other, checkpoint],
        "clean": ["--clean", BAD_RUN, "--yes"] if rng.random() < 0.3 else ["--clean"],
        "check": ["--check", "bad"],
        "dry run": ["--migrate", BAD_RUN, "--to", where, "--dry-run"],
        "dry run to": ["--migrate", mine, "--to", "bad", "--dry-run"],
        "verify": ["--verify", BAD_RUN if rng.random() < 0.3 else checkpoint],
        "deep": ["--verify", checkpoint, "--deep"],
        "status": ["--status"],
        "stop": ["--stop", BAD_RUN],
    }[kind]
    return [[*command, *as_json]], ""


def _seldom(rng: random.Random, kinds: Sequence[str]) -> str:
    """Choose one of them; the slowest ones seldom."""
    kind = rng.choice(kinds)
    slow = kind in ("dry run", "dry run to", "check", "clean")
    return rng.choice(kinds) if slow and rng.random() < 0.6 else kind


def _rpc(fleet: Fleet, rng: random.Random, spec: dict[str, Any]) -> Case:
    kind = _seldom(rng, sorted(CALLS))
    function = rng.choice(CALLS[kind])
    action = rng.choice(("value", "value", "value", "value", "envelope", "error", rng.choice(RAW[:10])))
    commands, copies = _commands(fleet, rng, kind)
    spec.update(function=function, action=action)
    return Case(
        "rpc",
        f"{function}: {action}",
        commands,
        spec,
        shared=True,
        copies=copies,
        prepare=_partial_checkpoint(fleet, kind),
    )


def _partial_checkpoint(fleet: Fleet, kind: str) -> Callable[[], tuple[Path, str]] | None:
    """Leave something for ``--clean`` to find."""

    def make() -> tuple[Path, str]:
        partial = fleet.run / "checkpoints" / "step-99-a001"
        partial.mkdir()
        (partial / "x").write_text("x")
        for path in (partial / "x", partial):
            os.utime(path, (time.time() - 7200, time.time() - 7200))
        return partial, "a partial checkpoint"

    return make if kind == "clean" else None


def _probe(fleet: Fleet, rng: random.Random, spec: dict[str, Any]) -> Case:
    event = rng.choice(EVENTS)
    action = "value" if rng.random() < 0.75 else rng.choice(RAW[:10])
    run = BAD_RUN if event in ("run", "metrics", "log") else ""
    keep = ["event", *(["run"] if rng.random() < 0.9 else [])]
    spec.update(
        function="machine.probe.main",
        event=event,
        run=run,
        action=action,
        at=rng.choice((0, 0, 1)) if run else 0,
        keep=keep,
    )
    kinds = [
        "status",
        "status",
        "status",
        "checkpoints",
        "metrics",
        "log",
        "config",
        "verify",
        "dry run",
        "dry run to",
        "stop",
    ]
    commands, _ = _commands(fleet, rng, _seldom(rng, kinds))
    contained = run and action == "value" and "run" in keep
    return Case("probe", f"{event}: {action}", commands, spec, shared=not contained)


def _report(fleet: Fleet, rng: random.Random, spec: dict[str, Any]) -> Case:
    kind = rng.choice(sorted(REPORTS))
    action = "value" if rng.random() < 0.7 else rng.choice(RAW[:10])
    commands, copies = _commands(fleet, rng, kind)
    function = ",".join(REPORTS[kind]) if rng.random() < 0.5 else rng.choice(REPORTS[kind])
    spec.update(function=function, action=action, at=rng.choice((0, 0, 1, 2)), keep=rng.choice(([], ["event"])))
    return Case("report", f"{function}: {action}", commands, spec, shared=True, copies=copies)


def _frames(fleet: Fleet, rng: random.Random, spec: dict[str, Any]) -> Case:
    kind = rng.choice(("history from", "checkpoint from", "checkpoint from", "data from"))
    commands, copies = _commands(fleet, rng, kind)
    for command in commands:
        command[2] = str(fleet.relayed)
    action = rng.choice(FRAMES)
    spec.update(function="copy.sender.send", action=action)
    return Case("frames", action, commands, spec, shared=True, copies=copies)


def _plant(fleet: Fleet, rng: random.Random, spec: dict[str, Any]) -> Case:
    kind = rng.choice(("history from", "checkpoint from", "data from"))
    commands, copies = _commands(fleet, rng, kind)
    what = kind.split()[0]
    directory = {"history": fleet.run, "checkpoint": fleet.run / "checkpoints" / fleet.checkpoint_name,
                 "data": fleet.roots["bad"] / "data" / fleet.data}[what]  # fmt: skip
    plants = fleet.plants(directory)
    chosen = rng.sample(plants, k=rng.choice((1, 1, 2, 3)))
    if what == "history" or rng.random() < 0.6:
        function = "copy.history.describe" if what == "history" else "verify.objects.describe"
        spec.update(place="rpc", function=function, action="plant", plants=chosen)
        return Case("plant", f"{what}: {ascii(chosen[0]['path'])[:40]}", commands, spec, shared=True, copies=copies)

    def list_more() -> tuple[Path, str]:  # the host's own manifest names it, and its programs are honest
        if what == "data":  # its name is the digest of what it names
            commands[0][-1] = name_data(directory, also=chosen)
            return directory, "names " + ascii(chosen[0]["path"])[:40]
        file = directory / "manifest.json"
        value = json.loads(file.read_text())
        value["objects"] = [*chosen, *value["objects"]]
        file.write_text(json.dumps(value))
        return file, "names " + ascii(chosen[0]["path"])[:40]

    return Case("plant", f"{what}: manifest", commands, {}, prepare=list_more, shared=True, copies=copies)


def _begin(fleet: Fleet, rng: random.Random, spec: dict[str, Any]) -> Case:
    kind = _seldom(rng, ("status", "verify", "check", "history from", "checkpoint from", "checkpoint to", "dry run"))
    function = {"status": "machine.probe.main", "verify": "verify.tree.verify", "check": "machine.checks.clock",
                "dry run": "machine.probe.main",
                "checkpoint to": "copy.session.serve"}.get(kind, "copy.sender.send")  # fmt: skip
    commands, copies = _commands(fleet, rng, kind)
    action = rng.choice(BEGINS)
    spec.update(function=function, action=action)
    return Case("begin", f"{function}: {action}", commands, spec, shared=True, copies=copies)


def _stream(fleet: Fleet, rng: random.Random, spec: dict[str, Any]) -> Case:
    kind = _seldom(
        rng,
        ("status", "log", "verify", "check", "history from", "checkpoint from", "checkpoint to", "dry run", "clean"),
    )
    function = {
        "status": "machine.probe.main", "log": "runs.run_state.read_lines", "verify": "verify.tree.verify", "check":
        "machine.checks.survey",
        "history from": "copy.history.describe", "checkpoint from": rng.choice(("verify.objects.describe",
        "copy.sender.send")),
        "checkpoint to": "copy.session.serve", "dry run": "runs.run_state.describe", "clean":
        "runs.leftovers.leftovers",
    }[kind]  # fmt: skip
    commands, copies = _commands(fleet, rng, kind)
    action = rng.choice(STREAMS)
    spec.update(function=function, action=action)
    return Case("stream", f"{function}: {action}", commands, spec, shared=True, copies=copies)


def _login(fleet: Fleet, rng: random.Random, _spec: dict[str, Any]) -> Case:
    commands, copies = _commands(
        fleet, rng, _seldom(rng, ("status", "status", "check", "dry run", "history from", "clean"))
    )
    banner = rng.random() < 0.3
    text = rng.choice(BANNERS if banner else LOGINS)

    def make() -> tuple[Path, str]:
        file = fleet.control / ("banner" if banner else "login.sh")
        file.write_text(text + ("" if banner else "\n"), encoding="latin-1" if text.startswith("\xff") else "utf-8")
        return file, file.name

    return Case("login", ascii(text)[:50], commands, {}, prepare=make, shared=True, copies=copies)


def _disk(fleet: Fleet, rng: random.Random, _spec: dict[str, Any]) -> Case:
    mutator = Mutator(rng, f"touch {fleet.canary}")
    run = fleet.run
    ways: list[tuple[str, Callable[[], tuple[Path, str]]]] = [
        ("record", lambda: disk.damage_record(run, mutator)),
        ("record", lambda: disk.damage_record(run, mutator)),
        ("odd kind", lambda: disk.odd_kind(run, rng, fleet.secret)),
        ("rows", lambda: disk.odd_rows(run, mutator)),
        ("text", lambda: disk.odd_text(run, mutator)),
        ("names", lambda: disk.odd_names(fleet.roots["bad"], run, mutator)),
        ("link", lambda: disk.leave_links(run, rng, fleet.secret)),
    ]
    name, make = rng.choice(ways)
    kinds = ["status", "status", "checkpoints", "metrics", "log", "config", "verify", "tree", "diff", "clean",
             "dry run", "stop", "history from", "checkpoint from", "deep"]  # fmt: skip
    if name == "link":
        kinds = ["history from", "checkpoint from", "status", "config", "log"]
    commands, copies = _commands(fleet, rng, _seldom(rng, kinds))
    if rng.random() < 0.4:
        commands.append(["--status", "--json"])
    return Case("disk", name, commands, {}, prepare=make, copies=copies)


_DRAWN: dict[str, Callable[[Fleet, random.Random, dict[str, Any]], Case]] = {
    "rpc": _rpc, "probe": _probe, "report": _report, "frames": _frames, "plant": _plant, "begin": _begin,
    "stream": _stream, "login": _login, "disk": _disk,
}  # fmt: skip
