"""The run directories of this host: look, claim, signal, pin. Runs on the host; standard library only."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import signal as signals
import time
from typing import Any, Collection, Dict, List, Optional, Tuple

from midstream.remote.runs import damaged_records, slurm
from midstream.remote.runs.damaged_records import signature
from midstream_engine import records


class Refused(Exception):
    """What was asked would break a promise; the message says which."""


# ------------------------------------------------------------------------------------------------------- looking


def list_runs(root: str) -> List[str]:
    """Ids of the runs under ``root``. A directory whose name is no run id is none of ours."""
    directory = posixpath.join(root, "runs")
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if _is_run(posixpath.join(directory, name), name))


def _is_run(directory: str, name: str) -> bool:
    """Whether it has attempts, or may have: what cannot be looked into is not taken for nothing."""
    if not re.fullmatch(records.RUN_ID.pattern, name):
        return False
    try:
        os.lstat(posixpath.join(directory, "attempts"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def describe(root: str, run_id: str) -> Dict[str, Any]:
    """Everything small about one run: fence, lineage, attempts, the newest one's status, checkpoints. `records.Damaged`
    where any record of it cannot be read: whoever wants this is about to act on the run."""
    damaged_records.refuse(root, run_id)
    paths = records.RunPaths(root, run_id)
    numbers = attempts(paths)
    newest = newest_started(paths, numbers)
    found = status(root, run_id, newest) if newest else {"status": None, "running": False}
    return {
        "run_id": run_id,
        "fence": _value(records.Fence.read_or_none(paths.fence)),
        "lineage": _value(records.Lineage.read_or_none(paths.lineage)),
        "attempts": numbers,
        "attempt": newest,
        "status": found["status"],
        "running": found["running"],
        "checkpoints": checkpoints(paths),
    }


def _value(record: Any) -> Optional[Dict[str, Any]]:
    return None if record is None else record.to_json()


def attempts(paths: records.RunPaths) -> List[int]:
    """Numbers of the attempts, rising."""
    try:
        names = os.listdir(paths.attempts)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if re.fullmatch(r"[0-9]{3,18}", name))


def newest_started(paths: records.RunPaths, numbers: List[int]) -> int:
    """The newest attempt in which something was started. A number that was claimed and then left (its claimer died)
    says nothing of the run, unless there is no other."""
    for number in reversed(numbers):
        if processes(paths.attempt(number)):
            return number
    return numbers[-1] if numbers else 0


def processes(path: records.AttemptPaths) -> List[int]:
    """Numbers of an attempt's processes that this host knows of, rising: those that were started, or have a status."""
    found = set()
    for name in _names(path.dir):
        match = re.fullmatch(r"(?:status|launch)-([0-9]{1,6})\.json", name)
        if match:
            found.add(int(match.group(1)))
        elif name in ("launch.json", slurm.JOB):
            found.add(0)
    return sorted(found)


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def status(root: str, run_id: str, attempt: int) -> Dict[str, Any]:
    """``{"status": ..., "running": ...}`` of process 0, or where it is another host's, of the first that is ours. Alive
    is positive evidence: the very process runs."""
    path = records.RunPaths(root, run_id).attempt(attempt)
    known = processes(path)
    first: Optional[Dict[str, Any]] = None
    for process in known:
        found = status_of(path, process)
        if found["running"]:
            return found
        first = first or found
    return first or {"status": None, "running": False}


def status_of(path: records.AttemptPaths, process: int) -> Dict[str, Any]:
    """The same of one process."""
    found = records.Status.read_or_none(path.status(process))
    identity = found.identity if found else _launched(path, process)
    alive = (identity is not None and records.is_running(identity)) or slurm.is_running(path, found)
    if not alive:
        # Its last words, where it wrote them between being read and being looked for.
        found = records.Status.read_or_none(path.status(process))
    return {"status": found.to_json() if found else None, "running": alive}


def _launched(path: records.AttemptPaths, process: int = 0) -> Optional[records.ProcessIdentity]:
    """The process that was started for an attempt, before it has written a status of its own."""
    return records.ProcessIdentity.read_or_none(path.launched(process))


def wordless(path: records.AttemptPaths) -> bool:
    """Whether a process that was started for the attempt is gone and has left no status: it ended before its first (on
    a full disk, say). Of a job of a cluster that is not known."""
    for process in processes(path):
        identity = _launched(path, process)
        if identity is not None and not records.is_running(identity) and not os.path.exists(path.status(process)):
            return True
    return False


def launched_running(path: records.AttemptPaths, process: int = 0) -> bool:
    """Whether what was started for a process still runs: the engine itself, or what stands beside it."""
    identity = _launched(path, process)
    return identity is not None and records.is_running(identity)


def attempt_of_migration(root: str, run_id: str, migration: str) -> Optional[Dict[str, Any]]:
    """The newest attempt that this migration ordered, and whether it lives; None where there is none."""
    paths = records.RunPaths(root, run_id)
    for number in reversed(attempts(paths)):
        order = records.Command.read_or_none(paths.attempt(number).command_file)
        if order is not None and order.migration == migration:
            return {"attempt": number, "epoch": order.epoch, **status(root, run_id, number)}
    return None


def running_attempt(root: str, run_id: str) -> int:
    """The attempt whose process runs; 0 where none does."""
    numbers = attempts(records.RunPaths(root, run_id))
    return next((number for number in reversed(numbers) if status(root, run_id, number)["running"]), 0)


def checkpoints(
    paths: records.RunPaths, known: Optional[Dict[str, Tuple[Any, Dict[str, Any]]]] = None
) -> List[Dict[str, Any]]:
    """Every directory of a checkpoint, oldest first: complete, torn (a save that was cut off), or damaged, which says
    why its manifest cannot be read. ``known`` keeps what was read of manifests for the next call: one that has not
    changed is not read again."""
    known = {} if known is None else known
    names = set(_names(paths.checkpoints))
    while True:
        found = _listed(paths, names, known)
        before, names = names, set(_names(paths.checkpoints))
        # Retention may have removed the newest that was listed, after one that was not listed was saved.
        if names == before or any(entry["complete"] for entry in found):
            return found


def _listed(
    paths: records.RunPaths, names: Collection[str], known: Dict[str, Tuple[Any, Dict[str, Any]]]
) -> List[Dict[str, Any]]:
    fence = records.Fence.read_or_none(paths.fence)
    pinned = _pinned(paths)
    found = []
    for name in names:
        parsed = records.parse_checkpoint_name(name)
        if parsed is None:
            continue
        entry = {"name": name, "step": parsed[0], "attempt": parsed[1], "pinned": name in pinned}
        entry.update(_manifest(posixpath.join(paths.checkpoint(name), records.MANIFEST), name, known))
        entry["accepted"] = entry["complete"] and (fence is None or fence.accepts(entry["epoch"], entry["step"]))
        found.append(entry)
    for name in set(known).difference(names):
        del known[name]
    return sorted(found, key=lambda entry: (entry["step"], entry["attempt"]))


PARTIAL = {"complete": False, "epoch": 0, "size": 0, "created": 0.0, "root_digest": "", "damaged": ""}


def _manifest(path: str, name: str, known: Dict[str, Tuple[Any, Dict[str, Any]]]) -> Dict[str, Any]:
    """What a manifest says in short; `TORN` where there is none."""
    mark = None
    try:
        mark = signature(path)
        if name not in known or known[name][0] != mark:
            known[name] = (mark, _short(records.Manifest.read(path), name))
        return known[name][1]
    except (FileNotFoundError, NotADirectoryError):
        return _damaged("a symbolic link to nothing", path) if os.path.islink(path) else PARTIAL
    except records.RecordError as error:
        known[name] = (mark, _damaged(str(error), path))
        return known[name][1]
    except OSError as error:
        return _damaged("cannot be read ({})".format(error.strerror), path)


def _short(manifest: records.Manifest, name: str) -> Dict[str, Any]:
    if manifest.name != name:
        return _damaged("it is the manifest of {}".format(manifest.name), name)
    return {
        "complete": True,
        "epoch": manifest.epoch,
        "size": manifest.size,
        "created": manifest.created,
        "root_digest": manifest.root_digest,
        "damaged": "",
    }


def _damaged(why: str, path: str) -> Dict[str, Any]:
    prefix = path + ": "
    why = " ".join(why[len(prefix) :].split() if why.startswith(prefix) else why.split())
    return {**PARTIAL, "damaged": "{}: {}".format(records.MANIFEST, why[: damaged_records.LONGEST])}


def restore_evidence(root: str, run_id: str, attempt: int) -> Optional[Dict[str, Any]]:
    """``restore.json`` of an attempt, None where it restored nothing (yet)."""
    return _value(records.Restore.read_or_none(records.RunPaths(root, run_id).attempt(attempt).restore))


def metrics(root: str, run_id: str, attempt: int, offset: int = 0) -> Dict[str, Any]:
    """Whole lines of an attempt's metrics from a byte offset on: ``{"text", "offset"}``, the offset to go on from."""
    try:
        with records.open_regular(records.RunPaths(root, run_id).attempt(attempt).metrics) as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return {"text": "", "offset": offset}
    whole = data[: data.rfind(b"\n") + 1]
    return {"text": whole.decode(), "offset": offset + len(whole)}


def read_text(path: str, offset: int = 0, limit: Optional[int] = None) -> str:
    """A file's text from a byte offset on, at most ``limit`` bytes of it. `records.Damaged` where it is no regular
    file, or without a limit, where it is larger than any that is read as one."""
    if limit is None and not offset:
        return records.read_bytes(path, records.LARGEST_FILE).decode(errors="replace")
    with records.open_regular(path) as file:
        file.seek(offset)
        return file.read(records.LARGEST_FILE if limit is None else limit).decode(errors="replace")


def read_lines(path: str, offset: int, limit: int) -> Dict[str, Any]:
    """``{text, offset}``: whole lines from a byte offset on, about ``limit`` bytes of them, and where the next begin.
    The last line of a file may have no end. No text: there is nothing more."""
    with records.open_regular(path) as file:
        file.seek(offset)
        data = file.read(limit)
    end = data.rfind(b"\n") + 1 or len(data)
    return {"text": data[:end].decode(errors="replace"), "offset": offset + end}


# -------------------------------------------------------------------------------------------------------- acting


def claim_attempt(root: str, run_id: str, at_least: int = 1) -> int:
    """Make the run's next attempt ours: its directory is created by one claimer alone."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    os.makedirs(paths.attempts, exist_ok=True)
    number = max([*attempts(paths), at_least - 1, 0]) + 1
    while True:
        try:
            os.mkdir(paths.attempt(number).dir)
            return number
        except FileExistsError:
            number += 1


def signal(root: str, run_id: str, attempt: int, name: str) -> bool:
    """Signal an attempt's processes of this host, where those very processes run; says whether any did."""
    path = records.RunPaths(root, run_id).attempt(attempt)
    job = slurm.job_of(path)
    if job is not None:
        return slurm.signal_job(job, name)
    told = False
    for process in processes(path):
        found = records.Status.read_or_none(path.status(process))
        identity = found.identity if found else _launched(path, process)
        if identity is None or not records.is_running(identity):
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, signals.Signals[name].value)
            told = True
    return told


def pin(root: str, run_id: str, migration: str, checkpoint: str, expires: float) -> None:
    """Keep retention from deleting a checkpoint until ``expires`` (UTC seconds)."""
    paths = records.RunPaths(root, run_id)
    os.makedirs(paths.pins, exist_ok=True)
    records.Pin(checkpoint, expires).write(_pin_path(paths, migration))


def unpin(root: str, run_id: str, migration: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_pin_path(records.RunPaths(root, run_id), migration))


def _pin_path(paths: records.RunPaths, migration: str) -> str:
    return posixpath.join(paths.pins, records.check_run_id(migration) + ".json")


def _pinned(paths: records.RunPaths) -> Dict[str, float]:
    """Checkpoints with a pin that has not expired."""
    try:
        names = os.listdir(paths.pins)
    except FileNotFoundError:
        return {}
    pins: Dict[str, float] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError, records.RecordError):
            one = records.Pin.read(posixpath.join(paths.pins, name))
            if one.expires > time.time():
                pins[one.checkpoint] = one.expires
    return pins
