"""An attempt that stands by on this host: what it needs to be started, and how it takes an order."""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from typing import Any, Dict, Mapping, Optional

from midstream.remote.runs import ownership, run_state
from midstream_engine import records

POLL = 0.02  # seconds between two looks


def put_config(root: str, run_id: str, text: str) -> None:
    """Make ``text`` the run's config. Refused where an attempt of the run lives: it may be reading its own."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    os.makedirs(paths.attempts, exist_ok=True)
    with records.locked(paths.lock):
        living = run_state.running_attempt(root, run_id)
        if living:
            raise run_state.Refused("attempt {} of {} runs here already".format(living, run_id))
        records.write_bytes(paths.config, text.encode())


def newest_state(root: str, run_id: str) -> Optional[Dict[str, Any]]:
    """The newest complete, accepted checkpoint: ``{"name", "manifest", "train"}``; None where there is none. Looked at
    in one go: a run that trains on replaces one by the next."""
    paths = records.RunPaths(root, run_id)
    while True:
        point = _newest(paths, "")
        if point is None:
            return None
        directory = paths.checkpoint(point["name"])
        manifest = posixpath.join(directory, records.MANIFEST)
        try:
            return {
                "name": point["name"],
                "manifest": records.Manifest.read(manifest).to_json(),
                "train": records.read_json(posixpath.join(directory, records.TRAIN)),
            }
        except FileNotFoundError as error:
            if os.path.exists(manifest):  # nothing has removed the checkpoint
                raise records.Damaged("{}: {} is missing".format(directory, os.path.basename(error.filename))) from None


def pin_newest(root: str, run_id: str, migration: str, expires: float, name: str = "") -> Optional[Dict[str, Any]]:
    """Keep retention away from the newest complete, accepted checkpoint, or from the one that is named, until
    ``expires``; as ``runs.run_state.describe`` tells of it. None where there is none."""
    paths = records.RunPaths(root, run_id)
    while True:
        point = _newest(paths, name)
        if point is None:
            return None
        run_state.pin(root, run_id, migration, point["name"], expires)
        if os.path.exists(posixpath.join(paths.checkpoint(point["name"]), records.MANIFEST)):
            return point


def _newest(paths: records.RunPaths, name: str) -> Optional[Dict[str, Any]]:
    usable = [point for point in run_state.checkpoints(paths) if point["complete"] and point["accepted"]]
    usable = [point for point in usable if name in ("", point["name"])]
    return max(usable, key=lambda point: (point["step"], point["attempt"])) if usable else None


def renew(root: str, run_id: str, migration: str) -> None:
    """Say to whatever stands by for this migration that it is still wanted."""
    paths = records.RunPaths(root, run_id)
    found = run_state.attempt_of_migration(root, run_id, migration)
    if found is not None and found["running"] and (found["status"] is None or found["status"]["epoch"] == 0):
        records.write_bytes(paths.attempt(found["attempt"]).lease, b"")


def clock() -> float:
    """This host's time: UTC seconds."""
    return time.time()


def command(root: str, run_id: str, attempt: int) -> Optional[Dict[str, Any]]:
    """The newest order of an attempt; None where it has none."""
    found = records.Command.read_or_none(records.RunPaths(root, run_id).attempt(attempt).command_file)
    return None if found is None else found.to_json()


def keep_config(root: str, run_id: str, text: str) -> None:
    """Make ``text`` the run's config again."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    with records.locked(paths.lock):
        records.write_bytes(paths.config, text.encode())


def take_over(
    root: str, run_id: str, attempt: int, fence: Mapping[str, Any], order: Mapping[str, Any], patience: float
) -> Dict[str, Any]:
    """Hand the run over to the attempt that stands by: the fence, then the order. ``{"outcome", "status", "running",
    "sequence"}``; outcome ``gone`` (it does not live), ``told`` (it was told before), ``unready`` (it does not wait
    yet;
    no order was given), or ``given`` (the status is that after ``patience`` seconds at the latest)."""
    ownership.put_fence(root, run_id, fence, str(order.get("migration", "")))
    found = run_state.status(root, run_id, attempt)
    status = found["status"]
    if not found["running"]:
        return dict(found, outcome="gone", sequence=0)
    if status is not None and status["epoch"] > 0:
        return dict(found, outcome="told", sequence=0)
    if status is None or status["state"] not in (records.WAITING, records.REPLAYING):
        return dict(found, outcome="unready", sequence=0)
    serial = ownership.send_command(root, run_id, attempt, order)
    return dict(heard(root, run_id, attempt, serial, patience), outcome="given", sequence=serial)


def heard(root: str, run_id: str, attempt: int, serial: int, patience: float) -> Dict[str, Any]:
    """``{"heard", "status", "running"}`` once the attempt has carried out or refused order ``serial`` or has ended, and
    after ``patience`` seconds at the latest."""
    deadline = time.monotonic() + patience
    while True:
        found = run_state.status(root, run_id, attempt)
        status = found["status"]
        done = not found["running"] or (
            status is not None
            and (status["state"] in records.ENDED or max(status["acknowledged"], status["rejected"]) >= serial)
        )
        if done or time.monotonic() >= deadline:
            return dict(found, heard=done)
        time.sleep(POLL)


def rows(root: str, run_id: str, attempt: int, name: str, offset: int, first: int) -> Dict[str, Any]:
    """Whole rows of an attempt's ``name`` (metrics.jsonl or replay.jsonl) from byte ``offset`` on, of steps from
    ``first`` on: ``{"rows", "offset", "status", "running"}``; of a row, what comparing takes."""
    found = run_state.status(root, run_id, attempt)
    path = posixpath.join(records.RunPaths(root, run_id).attempt(attempt).dir, name)
    data = b""
    with contextlib.suppress(FileNotFoundError), records.open_regular(path) as file:
        file.seek(offset)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    wanted = ("global_step", "train/loss", "batch_digest", "time")
    kept = [
        {key: row[key] for key in wanted}
        for row in records.parse_metrics(whole.decode().splitlines())
        if "train/loss" in row and row.get("global_step", -1) >= first
    ]
    return dict(found, rows=kept, offset=offset + len(whole))


def parameter_drift(root: str, run_id: str, attempt: int, expected: bool, patience: float) -> Optional[Dict[str, Any]]:
    """``parameter_drift.json`` of an attempt, waited for while the attempt lives and one is ``expected``; None
    without it."""
    path = records.RunPaths(root, run_id).attempt(attempt).parameter_drift
    deadline = time.monotonic() + patience
    while True:
        found = records.ParameterDrift.read_or_none(path)
        over = not expected or time.monotonic() >= deadline
        if found is None and not over and not run_state.status(root, run_id, attempt)["running"]:
            found, over = records.ParameterDrift.read_or_none(path), True
        if found is not None or over:
            return None if found is None else found.to_json()
        time.sleep(10 * POLL)
