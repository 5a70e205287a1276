"""Complete migrations from or to a hostile host: the slow part of the campaign."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

from midstream_core import records
from simulators.hostile.fleet import BAD_RUN, PLANTED, Fleet, Verdict
from simulators.hostile.frames import FRAMES
from simulators.hostile.values import RAW

MOVE_DEADLINE = 420.0  # seconds
# The functions that a migration calls on its source, in about the order of the phases.
CALLED = (
    "copy.history.describe", "copy.history.digests", "verify.objects.describe", "verify.objects.missing",
    "runs.run_state.describe", "runs.run_state.status",
    "runs.run_state.read_text", "runs.standby_state.newest_state", "runs.standby_state.pin_newest",
    "runs.standby_state.rows", "runs.run_state.restore_evidence",
    "verify.tree.manifest_value", "runs.ownership.migration_lock", "runs.ownership.put_fence",
    "runs.ownership.send_command",
    "runs.attempt_view.attempt", "runs.checkpoint_pins.pin",
    "copy.growing_checkpoint.rest", "verify.tree.store_of",
)  # fmt: skip
# What the engine and midstream itself write on a target, below its root: an opinion of this test alone.
ENGINE = re.compile(
    r"(runs(/\.[\w.-]+)?|engines(/.*)?|envs(/.*)?|compile-cache(/.*)?|data(/.*)?|runs/r(/(run\.yaml|lineage\.json|fence\.json"
    r"|migration_lock\.json|store\.json|\.?lock|\.[\w-]*lock|attempts(/\d{3,}(/.*)?)?|pins(/[\w.-]+)?|checkpoints(/.*)?|tblogs(/.*)?"
    r"|\.incoming(/.*)?|\.secrets(/.*)?))?)?"
)
CODE = re.compile(r"\.(py|pyc|pth|sh|egg)$")


def draw(fleet: Fleet, seed: int, number: int) -> dict[str, Any]:
    """Return what the source does in a migration, and its mode. The hosts are as `Fleet.restore` leaves them."""
    rng = random.Random(f"{seed}-{number}-move")
    place = rng.choice(("plant", "plant", "rpc", "rpc", "frames", "report", "disk"))
    spec: dict[str, Any] = {"place": place, "seed": f"{seed}-{number}"}
    plants = rng.sample(fleet.plants(fleet.run), k=3)
    plants = [next(each for each in fleet.plants(fleet.run) if each["path"] == "yaml.py"), *plants]
    if place == "plant":
        function = rng.choice(("copy.history.describe", "verify.objects.describe"))
        spec.update(place="rpc", function=function, action="plant", plants=plants)
    elif place == "rpc":
        spec.update(function=rng.choice(CALLED), action=rng.choice(("value", "value", "error", rng.choice(RAW[:8]))))
    elif place == "frames":
        spec.update(function="copy.sender.send", action=rng.choice(FRAMES))
    elif place == "report":
        spec.update(
            function="machine.probe.main,copy.growing_checkpoint.follow",
            event="",
            action="value",
            at=rng.choice((3, 5, 8)),
            keep=["event"],
        )
    return {
        "spec": spec if place != "disk" else {},
        "to": rng.choice(("here", "good")),
        "mode": rng.choice(("cold", "warm")),
        "what": f"{place}: {spec.get('function', 'odd files')} {spec.get('action', '')}".strip(),
        "place": place,
        "running": rng.random() < 0.4,
    }


def run(fleet: Fleet, case: dict[str, Any]) -> Verdict:
    """Execute the case. Every engine that it started is ended."""
    verdict = Verdict()
    relay = fleet.relayed
    try:
        if case["running"]:
            for name in PLANTED:  # its own engine is honest
                (fleet.run / name).unlink()
            started = fleet.command(["--launch", str(fleet.run / "run.yaml"), "--on", "bad", "--run-id", BAD_RUN], 300)
            if started.code:
                verdict.broken.append(f"the run could not be started: {started.stderr[-500:]!r}")
                return verdict
            _await_step(fleet)
            for name in PLANTED:
                (fleet.run / name).write_text(fleet.code)
        if case["place"] == "disk":
            _hold(fleet, verdict)
        if case["spec"]:
            fleet.hostile(case["spec"])
        before = fleet.watched()
        move = ["--migrate", BAD_RUN, "--to", case["to"], "--mode", case["mode"]]
        move += ["--certify-steps", "2", "--healthy-steps", "2", "--yes"]
        verdict.ended.append(fleet.command(move, MOVE_DEADLINE, file=relay))
        verdict.changed += fleet.changes()
        ended = verdict.ended[0]
        if ended.code == 4:
            verdict.broken += _goes_on(fleet, verdict)
        verdict.broken += _one_lineage(fleet, case["to"], verdict.ended[-1].code)
        after = fleet.watched()
        for where, path in fleet.written(before, after):
            allowed = (
                where == case["to"] and ENGINE.fullmatch(path) and not (CODE.search(path) and path.startswith("runs/"))
            )
            state = where == "operator" and path.startswith((str(fleet.state), str(fleet.home / "cache")))
            if not allowed and not state:
                verdict.broken.append(f"wrote {where}:{path}")
        if fleet.canary.exists():
            verdict.broken.append("executed what a host sent")
    finally:
        _end_engines(fleet)
    return verdict


def _hold(fleet: Fleet, verdict: Verdict) -> None:
    """Put modules into every directory of the source, and links that lead out of it."""
    attempt = fleet.run / "attempts" / "001"
    (attempt / "restore.json").unlink(missing_ok=True)
    (attempt / "restore.json").symlink_to(fleet.secret)
    (fleet.run / "tblogs").mkdir()
    (fleet.run / "tblogs" / "events.out.tfevents.1").symlink_to(fleet.secret)
    (fleet.run / "tblogs" / "__init__.py").write_text(fleet.code)
    verdict.changed.append("links and modules in the run's directory")


def _await_step(fleet: Fleet) -> None:
    paths = records.RunPaths(str(fleet.roots["bad"]), BAD_RUN).attempt(2)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(records.RecordError):
            status = records.Status.read_or_none(paths.status())
            if status is not None and status.state == records.TRAINING and status.step > 0:
                return
        time.sleep(0.1)
    log = Path(paths.log())
    raise AssertionError(f"the source did not begin to train: {log.read_text()[-2000:] if log.exists() else 'no log'}")


def _goes_on(fleet: Fleet, verdict: Verdict) -> list[str]:
    """Continue an interrupted migration with the command that it printed, with an honest host."""
    said = verdict.ended[-1].stderr.decode(errors="replace") + verdict.ended[-1].stdout.decode(errors="replace")
    found = re.search(r"midstream --(continue|rollback) ([\w.-]+)", said)
    if not found:
        return [f"exit 4 without a line that goes on: {said[-300:]!r}"]
    (fleet.control / "spec.json").unlink(missing_ok=True)
    words = [f"--{found.group(1)}", found.group(2), *(["--yes"] if found.group(1) == "rollback" else [])]
    verdict.ended.append(fleet.command(words, MOVE_DEADLINE))
    return []


def _one_lineage(fleet: Fleet, to: str, code: int) -> list[str]:
    """Check that at most one group may commit, and that a successful migration is on the target."""
    fences = {}
    for name in ("bad", to):
        with contextlib.suppress(records.RecordError):
            fences[name] = records.Fence.read_or_none(records.RunPaths(str(fleet.roots[name]), BAD_RUN).fence)
    epochs = {name: fence.epoch for name, fence in fences.items() if fence is not None}
    target = fences.get(to)
    if code == 0 and (target is None or target.epoch < 2):
        return [f"the migration ended well, and the target's fence is {target}"]
    if code in (1, 5) and epochs.get(to, 0) > epochs.get("bad", 0):
        return [f"rolled back, and the target is ahead: {epochs}"]
    return []


def _end_engines(fleet: Fleet) -> None:
    """Kill engines that still train, and the migrations of this room."""
    for lock in fleet.state.glob("migrations/*/.lock"):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(lock.read_text()), signal.SIGKILL)
    for root in fleet.roots.values():
        for file in (*root.glob("runs/r/attempts/*/status-*.json"), *root.glob("runs/r/attempts/*/launch*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, records.RecordError):
                value = json.loads(file.read_text())
                identity = records.ProcessIdentity(value["boot_id"], value["pid"], value["start_ticks"])
                if records.is_running(identity):
                    os.kill(identity.pid, signal.SIGKILL)
