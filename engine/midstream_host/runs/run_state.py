"""State of the runs of this host; claims, signals, pins.

Their checkpoints are in `run_checkpoints`. Runs on the host; standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import posixpath
import re
import signal as signals
from typing import List, Optional, Tuple

from midstream_core import records
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_host.declarations import MANIFEST_LIMIT, PAGE_LIMIT, reads, repeatable
from midstream_host.runs import damaged_records, run_checkpoints, slurm
from midstream_host.runs.damaged_records import names_in
from midstream_host.shapes import Annotated, Text

RunId = Annotated[str, records.RUN_ID]


@dataclasses.dataclass(frozen=True)
class ProcessState:
    """The last status of a process, and whether that very process runs.

    The status is None before the first one.
    """

    status: Optional[records.Status]
    running: bool


NO_PROCESS = ProcessState(None, False)


@dataclasses.dataclass(frozen=True)
class MigrationAttempt(ProcessState):
    """The newest attempt that a migration started; epoch and action of its command."""

    attempt: int
    epoch: int
    action: str


@dataclasses.dataclass(frozen=True)
class RunDescription(ProcessState):
    """Records of a run; ``status`` and ``running`` are those of its newest attempt."""

    run_id: str
    fence: Optional[records.Fence]
    lineage: Optional[records.Lineage]
    attempts: List[int]
    attempt: int
    checkpoints: List[ListedCheckpoint]
    ownership: Text = ""  # of its ownership.json, which the operator's machine checks

    @property
    def usable(self) -> List[ListedCheckpoint]:
        """The complete, accepted checkpoints."""
        return [entry for entry in self.checkpoints if entry.usable]


@dataclasses.dataclass(frozen=True)
class OwnerRecords:
    """Records of a run's owner that can be read, whatever else of the run is damaged.

    ``problem``: why those in ownership.json cannot be read; empty where they can, or where there are none.
    """

    fence: Optional[records.Fence]
    ownership: Text = ""
    problem: Text = ""


@dataclasses.dataclass(frozen=True)
class Lines:
    """Complete lines of a file, and the byte offset of the next one."""

    text: Text
    offset: int


class RefusedError(Exception):
    """The operation is not allowed in the run's present state; the message says why."""


# ------------------------------------------------------------------------------------------------------- state


@reads()
def list_runs(root: str) -> List[RunId]:
    """Ids of the runs under ``root``; directories with other names are left out."""
    directory = posixpath.join(root, "runs")
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if _is_run(posixpath.join(directory, name), name))


def _is_run(directory: str, name: str) -> bool:
    """Return whether it has attempts; a directory that cannot be read counts as a run."""
    if not re.fullmatch(records.RUN_ID.pattern, name):
        return False
    try:
        os.lstat(posixpath.join(directory, "attempts"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


@reads(limit=PAGE_LIMIT)
def describe(root: str, run_id: str) -> RunDescription:
    """Describe a run: fence, lineage, attempts, status of the newest one, checkpoints.

    Raises DamagedRecordError where a record of the run cannot be read: the caller is about to act on the run.
    """
    damaged_records.refuse(root, run_id)
    paths = records.RunPaths(root, run_id)
    numbers = attempts(paths)
    newest = newest_started(paths, numbers)
    process_state = status(root, run_id, newest) if newest else NO_PROCESS
    return RunDescription(
        status=process_state.status,
        running=process_state.running,
        run_id=run_id,
        fence=records.Fence.read_or_none(paths.fence),
        lineage=records.Lineage.read_or_none(paths.lineage),
        attempts=numbers,
        attempt=newest,
        checkpoints=run_checkpoints.checkpoints(paths),
        ownership=read_ownership(paths),
    )


def read_ownership(paths: records.RunPaths) -> str:
    """Return the text of the run's ``ownership.json``; empty without one.

    DamagedRecordError where it is too large.
    """
    try:
        return records.read_bytes(paths.ownership, records.OwnershipChain.LIMIT).decode(errors="replace")
    except FileNotFoundError:
        return ""


@reads()
def owner_records(root: str, run_id: str) -> OwnerRecords:
    """Return the fence and the signed records of a run, each where it can be read."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    fence, text, problem = None, "", ""
    with contextlib.suppress(OSError, records.RecordError):
        fence = records.Fence.read_or_none(paths.fence)
    try:
        records.OwnershipChain.read_or_none(paths.ownership)
        text = read_ownership(paths)
    except (OSError, records.RecordError) as error:
        problem = str(error)
    return OwnerRecords(fence, text, problem)


def make_attempts(paths: records.RunPaths) -> None:
    """Create the directory of the attempts, which only its owner can enter.

    Logs may have secrets. A directory that an earlier version created gets this mode too.
    """
    os.makedirs(paths.attempts, mode=0o700, exist_ok=True)
    with contextlib.suppress(OSError):  # another user's: its owner decides
        if os.stat(paths.attempts).st_mode & 0o077:
            os.chmod(paths.attempts, 0o700)


def attempts(paths: records.RunPaths) -> List[int]:
    """Numbers of the attempts, rising."""
    try:
        names = os.listdir(paths.attempts)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if re.fullmatch(r"[0-9]{3,18}", name))


def newest_started(paths: records.RunPaths, numbers: List[int]) -> int:
    """The newest attempt that started a process; without one, the newest claim.

    A number that was claimed and not used (its claimer was killed) is no evidence about the run.
    """
    return newest_processes(paths, numbers)[0]


def newest_processes(paths: records.RunPaths, numbers: List[int]) -> Tuple[int, List[int]]:
    """Return `newest_started`, and the numbers of its processes."""
    for number in reversed(numbers):
        found = processes(paths.attempt(number))
        if found:
            return number, found
    return (numbers[-1] if numbers else 0), []


def processes(path: records.AttemptPaths) -> List[int]:
    """Return the sorted numbers of an attempt's processes started here or with status."""
    return sorted({number for number in map(_process_of, names_in(path.dir)) if number is not None})


@functools.lru_cache(maxsize=1024)
def _process_of(name: str) -> Optional[int]:
    """Return the process that a file of an attempt shows to be started here; None for any other file."""
    if name in ("launch.json", slurm.JOB):
        return 0
    match = re.fullmatch(r"(?:status|launch)-([0-9]{1,6})\.json", name)
    return int(match.group(1)) if match else None


@reads()
def status(root: str, run_id: str, attempt: int) -> ProcessState:
    """Return the state of an attempt's first running process on this host.

    If none runs, return the state of the attempt's first process here.
    """
    path = records.RunPaths(root, run_id).attempt(attempt)
    return first_running(path, processes(path))


def first_running(path: records.AttemptPaths, numbers: List[int]) -> ProcessState:
    """Return the state of the first process that runs, else of the first process."""
    first: Optional[ProcessState] = None
    for process in numbers:
        process_state = status_of(path, process)
        if process_state.running:
            return process_state
        first = first or process_state
    return first or NO_PROCESS


def status_of(path: records.AttemptPaths, process: int) -> ProcessState:
    """The state of one process. Running is positive evidence: that very process runs."""
    status_record = records.Status.read_or_none(path.status(process))
    identity = status_record.identity if status_record else _launched(path, process)
    running = (identity is not None and records.is_running(identity)) or slurm.is_running(path, status_record)
    if not running:
        # The process may have written a last status after the first read and then exited.
        status_record = records.Status.read_or_none(path.status(process))
    return ProcessState(status_record, running)


def _launched(path: records.AttemptPaths, process: int = 0) -> Optional[records.ProcessIdentity]:
    """Return the process as its launch recorded it; its own status may not exist yet."""
    return records.ProcessIdentity.read_or_none(path.launched(process))


def ended_without_status(path: records.AttemptPaths, numbers: List[int]) -> bool:
    """Return whether a process ended before its first status, as on a full disk."""
    if not os.path.exists(path.status(0)) and slurm.ended_before_status(path):
        return True
    for process in numbers:
        if os.path.exists(path.status(process)):
            continue
        identity = _launched(path, process)
        if identity is None:
            continue
        if records.has_ended(identity, os.stat(path.launched(process)).st_mtime):
            return True
    return False


def first_failure(path: records.AttemptPaths, numbers: List[int]) -> Optional[records.ProcessExit]:
    """Return the exit record of that one of an attempt's processes that failed first.

    Return None where no record says that one failed.
    """
    ended = [records.ProcessExit.read_or_none(path.exit(process)) for process in numbers]
    return min(
        (exit_record for exit_record in ended if exit_record is not None and exit_record.failed),
        key=lambda exit_record: exit_record.time,
        default=None,
    )


def launched_running(path: records.AttemptPaths, process: int = 0) -> bool:
    """Return whether the started process still runs: the engine or its supervisor."""
    identity = _launched(path, process)
    return identity is not None and records.is_running(identity)


@reads()
def attempt_of_migration(root: str, run_id: str, migration: str) -> Optional[MigrationAttempt]:
    """The newest attempt that this migration started; None where there is none."""
    paths = records.RunPaths(root, run_id)
    for number in reversed(attempts(paths)):
        command = records.Command.read_or_none(paths.attempt(number).command_file)
        if command is not None and command.migration == migration:
            process_state = status(root, run_id, number)
            return MigrationAttempt(process_state.status, process_state.running, number, command.epoch, command.action)
    return None


@reads()
def running_attempt(root: str, run_id: str) -> int:
    """The attempt whose process runs; 0 where none does."""
    numbers = attempts(records.RunPaths(root, run_id))
    return next((number for number in reversed(numbers) if status(root, run_id, number).running), 0)


@reads()
def restore_evidence(root: str, run_id: str, attempt: int) -> Optional[records.Restore]:
    """``restore.json`` of an attempt; None where it has restored nothing yet."""
    return records.Restore.read_or_none(records.RunPaths(root, run_id).attempt(attempt).restore)


@reads()
def trainer_evidence(root: str, run_id: str, attempt: int) -> Optional[records.TrainerEvidence]:
    """``trainer_evidence.json`` of an attempt; None where its driver has written none."""
    return records.TrainerEvidence.read_or_none(records.RunPaths(root, run_id).attempt(attempt).trainer_evidence)


@reads(limit=MANIFEST_LIMIT)
def read_text(path: str, offset: int = 0, limit: Optional[int] = None) -> Text:
    """Read a file from a byte offset on, at most ``limit`` bytes.

    Raises DamagedRecordError where it is no regular file, or, without a limit, is larger than `records.MAX_FILE`.
    """
    if limit is None and not offset:
        return records.read_bytes(path, records.MAX_FILE).decode(errors="replace")
    with records.open_regular(path) as file:
        file.seek(offset)
        return file.read(records.MAX_FILE if limit is None else limit).decode(errors="replace")


@reads(limit=PAGE_LIMIT)
def read_lines(path: str, offset: int, limit: int) -> Lines:
    """Return complete lines from a byte offset on, about ``limit`` bytes of them.

    There is no text at the end of the file.

    The last line of a file may have no end.
    """
    with records.open_regular(path) as file:
        file.seek(offset)
        data = file.read(limit)
    end = data.rfind(b"\n") + 1 or len(data)
    return Lines(data[:end].decode(errors="replace"), offset + end)


# -------------------------------------------------------------------------------------------------------- changes


@repeatable("at worst a number stays unused: an attempt without a process means nothing")
def claim_attempt(root: str, run_id: str, at_least: int = 1) -> int:
    """Claim the run's next attempt by creating its directory, and return its number."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    make_attempts(paths)
    number = max([*attempts(paths), at_least - 1, 0]) + 1
    while True:
        try:
            os.mkdir(paths.attempt(number).dir)
            return number
        except FileExistsError:
            number += 1


@repeatable("the engine treats two signals as one")
def signal(root: str, run_id: str, attempt: int, name: str) -> bool:
    """Signal an attempt's running processes on this host.

    Return whether there was any.
    """
    path = records.RunPaths(root, run_id).attempt(attempt)
    job = slurm.job_of(path)
    if job is not None:
        described = slurm.described(path)
        if described is not None and not slurm.is_recognised(path, described):
            return False  # it would end another run
        known_statuses = [records.Status.read_or_none(path.status(process)) for process in processes(path)]
        statuses = [status for status in known_statuses if status is not None]
        return slurm.signal_job(job, name, begun=bool(statuses), running=any(map(slurm.may_live, statuses)))
    signalled = False
    for process in processes(path):
        process_status = records.Status.read_or_none(path.status(process))
        identity = process_status.identity if process_status else _launched(path, process)
        if identity is None or not records.is_running(identity):
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, signals.Signals[name].value)
            signalled = True
    return signalled
