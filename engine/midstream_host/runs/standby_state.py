"""Standby attempts of this host: their config, lease and promotion.

Runs on the host; standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
import time
from typing import Any, Dict, List, Literal, Optional

from midstream_core import records
from midstream_core.attempt import replay_file
from midstream_core.json_types import JsonObject, int_of, object_or_empty
from midstream_core.listed_checkpoint import ListedCheckpoint, newest_checkpoint
from midstream_host.declarations import MANIFEST_LIMIT, reads, repeatable
from midstream_host.runs import checkpoint_pins, losses, ownership, run_checkpoints, run_state
from midstream_host.runs.run_checkpoints import CheckpointName

POLL_INTERVAL = 0.02  # seconds


@dataclasses.dataclass(frozen=True)
class NewestState:
    """The newest complete, accepted checkpoint."""

    name: CheckpointName
    manifest: records.Manifest
    train: Dict[str, Any]  # train.json


@dataclasses.dataclass(frozen=True)
class CommandAnswer(run_state.ProcessState):
    """The state of an attempt after a command.

    ``answered``: carried out or rejected, or the attempt has exited.
    """

    answered: bool


@dataclasses.dataclass(frozen=True)
class Promotion(run_state.ProcessState):
    """The outcome of handing the run to a standby attempt.

    ``exited``: it does not run. ``sent before``: the run is its own already. ``not ready``: it does not wait yet, and
    no command was sent. ``sent``: the command was sent.
    """

    outcome: Literal["exited", "sent before", "not ready", "sent"]
    sequence: int  # of the command; 0 where none was sent


@dataclasses.dataclass(frozen=True)
class NewRows(run_state.ProcessState):
    """New rows of an attempt's metrics, and the byte offset of the next one.

    ``start``: number of the process that replays, in the attempt; rows of an earlier one are left out.
    """

    rows: List[losses.MetricsRow]
    offset: int
    start: int = 0


@repeatable("it writes the same file again")
def put_config(root: str, run_id: str, text: str) -> None:
    """Write the run's config.

    Raises RefusedError where an attempt runs: it may be reading it.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    run_state.make_attempts(paths)
    with records.locked(paths.lock):
        running = run_state.running_attempt(root, run_id)
        if running:
            raise run_state.RefusedError("attempt {} of {} runs here already".format(running, run_id))
        records.write_bytes(paths.config, text.encode(), mode=0o600)


@reads(limit=MANIFEST_LIMIT)
def newest_state(root: str, run_id: str) -> Optional[NewestState]:
    """The newest complete, accepted checkpoint; None where there is none.

    Read in one call: a run that is training replaces one checkpoint by the next.
    """
    paths = records.RunPaths(root, run_id)
    while True:
        checkpoint = _newest(paths, "")
        if checkpoint is None:
            return None
        directory = paths.checkpoint(checkpoint.name)
        manifest = posixpath.join(directory, records.MANIFEST)
        try:
            train = object_or_empty(records.read_json(posixpath.join(directory, records.TRAIN)))
            return NewestState(checkpoint.name, records.Manifest.read(manifest), train)
        except FileNotFoundError as error:
            if os.path.exists(manifest):  # nothing has removed the checkpoint
                raise records.DamagedRecordError(
                    "{}: {} is missing".format(directory, os.path.basename(error.filename))
                ) from None


@repeatable("it writes a pin again, of what is newest by then")
def pin_newest(root: str, run_id: str, migration: str, expires: float, name: str = "") -> Optional[ListedCheckpoint]:
    """Pin the newest complete, accepted checkpoint, or the one with that name.

    Retention does not delete it before ``expires``. None where there is no such checkpoint.

    Args:
        root: Root directory of the host.
        run_id: The run.
        migration: The migration that needs the checkpoint.
        expires: UTC seconds.
        name: Name of the checkpoint; empty: the newest.
    """
    paths = records.RunPaths(root, run_id)
    while True:
        checkpoint = _newest(paths, name)
        if checkpoint is None:
            return None
        checkpoint_pins.pin(root, run_id, migration, checkpoint.name, expires)
        if os.path.exists(posixpath.join(paths.checkpoint(checkpoint.name), records.MANIFEST)):
            return checkpoint


def _newest(paths: records.RunPaths, name: str) -> Optional[ListedCheckpoint]:
    checkpoints = run_checkpoints.checkpoints(paths)
    return newest_checkpoint(
        checkpoint for checkpoint in checkpoints if checkpoint.usable and name in ("", checkpoint.name)
    )


@repeatable("a lease may be renewed at any time")
def renew(root: str, run_id: str, migration: str) -> None:
    """Renew the lease of the standby of this migration.

    The standby exits when the lease expires.
    """
    paths = records.RunPaths(root, run_id)
    number = run_state.attempt_of_migration(root, run_id, migration)
    if number is not None and number.running and (number.status is None or number.status.epoch == 0):
        records.write_bytes(paths.attempt(number.attempt).lease, b"")


@reads()
def clock() -> float:
    """This host's time: UTC seconds."""
    return time.time()


@reads()
def command(root: str, run_id: str, attempt: int) -> Optional[records.Command]:
    """The newest command of an attempt; None where it has none."""
    return records.Command.read_or_none(records.RunPaths(root, run_id).attempt(attempt).command_file)


@repeatable("it writes the same file again")
def keep_config(root: str, run_id: str, text: str) -> None:
    """Write the run's config again, also while an attempt runs."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    with records.locked(paths.lock):
        records.write_bytes(paths.config, text.encode(), mode=0o600)


@repeatable("a second call reports that the command was sent before")
def take_over(
    root: str,
    run_id: str,
    attempt: int,
    fence: JsonObject,
    command: JsonObject,
    patience: float,
    chain: Optional[JsonObject] = None,
) -> Promotion:
    """Hand the run over to a standby attempt: write the fence, then the command.

    Args:
        root: Root of this host.
        run_id: The run.
        attempt: The standby attempt.
        fence: JSON of the new fence.
        command: JSON of the command.
        patience: Seconds to wait for the answer to the command.
        chain: JSON of the signed records that prove the fence.
    """
    ownership.put_fence(root, run_id, fence, str(command.get("migration", "")), chain)
    process = run_state.status(root, run_id, attempt)
    status = process.status
    if not process.running:
        return Promotion(status, process.running, "exited", 0)
    if status is not None and (status.epoch > 0 or _carries_out(root, run_id, attempt, status, command)):
        return Promotion(status, process.running, "sent before", 0)
    if status is None or status.state not in (records.WAITING, records.REPLAYING):
        return Promotion(status, process.running, "not ready", 0)
    sequence = ownership.send_command(root, run_id, attempt, command)
    answer = await_answer(root, run_id, attempt, sequence, patience)
    return Promotion(answer.status, answer.running, "sent", sequence)


def _carries_out(root: str, run_id: str, attempt: int, status: records.Status, command: JsonObject) -> bool:
    """Return whether the attempt has acknowledged this command.

    A replica that is promoted has epoch 0 until the step of its promotion.
    """
    before = records.Command.read_or_none(records.RunPaths(root, run_id).attempt(attempt).command_file)
    if before is None or status.acknowledged < before.sequence:
        return False
    return before == records.Command.from_json({**command, "sequence": before.sequence}, "command")


@reads()
def await_answer(root: str, run_id: str, attempt: int, sequence: int, patience: float) -> CommandAnswer:
    """Wait until an attempt has carried out or rejected a command, or has exited.

    Args:
        root: Root directory of the host.
        run_id: The run.
        attempt: Number of the attempt.
        sequence: Number of the command.
        patience: Longest wait, in seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        process = run_state.status(root, run_id, attempt)
        status = process.status
        done = not process.running or (
            status is not None
            and (status.state in records.ENDED or max(status.acknowledged, status.rejected) >= sequence)
        )
        if done or time.monotonic() >= deadline:
            return CommandAnswer(status, process.running, done)
        time.sleep(POLL_INTERVAL)


@reads(limit=MANIFEST_LIMIT)
def rows(root: str, run_id: str, attempt: int, name: str, offset: int, first: int, start: int = 0) -> NewRows:
    """The complete rows of an attempt's ``name`` (metrics.jsonl or replay.jsonl).

    Args:
        root: Root of this host.
        run_id: The run.
        attempt: The attempt.
        name: The file's name; replay.jsonl is that of the newest process of the attempt.
        offset: Byte to begin at.
        first: Step to begin at.
        start: Process whose file the offset is of: that of a newer one is read from its beginning.
    """
    process = run_state.status(root, run_id, attempt)
    files, number = records.RunPaths(root, run_id).attempt(attempt), 0
    path = posixpath.join(files.dir, name)
    if name == posixpath.basename(files.replay):
        number, path = replay_file.newest(files)
        offset = offset if number == start else 0
    data = b""
    with contextlib.suppress(FileNotFoundError), records.open_regular(path) as file:
        file.seek(offset)
        data = file.read()
    complete = data[: data.rfind(b"\n") + 1]
    counts = losses.counted(root, run_id, attempt)
    kept = [
        losses.reduced(row)
        for row in records.parse_metrics(complete.decode().splitlines())
        if "train/loss" in row and int_of(row.get("global_step", -1)) >= first and counts(row)
    ]
    return NewRows(process.status, process.running, kept, offset + len(complete), number)


@reads()
def parameter_drift(
    root: str, run_id: str, attempt: int, expected: bool, patience: float
) -> Optional[records.ParameterDrift]:
    """Read ``parameter_drift.json`` of an attempt; None without it.

    Where one is ``expected``, wait for it up to ``patience`` seconds while the attempt runs.

    Args:
        root: Root directory of the host.
        run_id: The run.
        attempt: Number of the attempt.
        expected: Whether the attempt is to write one.
        patience: Longest wait, in seconds.
    """
    path = records.RunPaths(root, run_id).attempt(attempt).parameter_drift
    deadline = time.monotonic() + patience
    while True:
        drift = records.ParameterDrift.read_or_none(path)
        over = not expected or time.monotonic() >= deadline
        if drift is None and not over and not run_state.status(root, run_id, attempt).running:
            drift, over = records.ParameterDrift.read_or_none(path), True
        if drift is not None or over:
            return drift
        time.sleep(10 * POLL_INTERVAL)
