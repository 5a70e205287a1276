"""Record of one launch of a run: attempt number, epoch, entry in the lineage."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from midstream_core import records
from midstream_core.attempt.errors import CheckpointError, EngineError, FencedError
from midstream_core.attempt.save_fence import check_not_removed
from midstream_core.json_types import JsonObject
from midstream_engine.checkpoint.stores import bucket_fence
from midstream_engine.processes.rendezvous import ALONE, Processes
from midstream_engine.processes.shared_file_systems import SharedFileSystems

log = logging.getLogger(__name__)
PRIVATE = 0o600  # of run.yaml: a configuration may have a secret


@dataclass(frozen=True)
class AttemptRecord:
    """Attempt as the launcher describes it, or without one as the engine found it."""

    paths: records.RunPaths
    number: int
    epoch: int
    target: str
    launched: bool  # the launcher claimed the directory and redirected the log
    standby: bool = False  # it waits or replays, and does not own the run until a command promotes it
    processes: Processes = ALONE  # all of this attempt
    file_systems: SharedFileSystems | None = None  # which of them share one; None with one process
    start: int = 0  # its number within the epoch, once it may commit

    @property
    def files(self) -> records.AttemptPaths:
        """The paths of the attempt's files."""
        return self.paths.attempt(self.number)

    @property
    def first_epoch(self) -> int:
        """The epoch of its status from the start: 0 while it waits or replays.

        Readers take the copy of a run with the highest epoch for the run itself; a standby that is killed during its
        start must not be that copy.
        """
        return 0 if self.standby else self.epoch


def open_attempt(root: str, run_id: str, environment: Mapping[str, str], store: str = "") -> AttemptRecord:
    """Open the attempt that the environment's variables describe.

    The variables are ``MIDSTREAM_ATTEMPT``, ``MIDSTREAM_EPOCH`` and ``MIDSTREAM_TARGET``.

    What the variables leave open is claimed here: the next free attempt number, the fence's epoch, a first fence for a
    new run. An attempt that starts as a standby or replica writes no fence. ``store`` is the URL of its
    checkpoints; empty for the run's directory.

    Raises:
        FencedError: The fence has a higher epoch than the one given.
        EngineError: A value is invalid, or the run's checkpoints are in another store.
    """
    try:
        paths = records.RunPaths(root, records.check_run_id(run_id), store)
    except records.RecordError as error:
        raise EngineError(str(error)) from None
    target = environment.get("MIDSTREAM_TARGET") or socket.gethostname()
    for directory in (paths.attempts, paths.pins, *([] if store else [paths.checkpoints])):
        # Logs may have secrets.
        os.makedirs(directory, mode=0o700 if directory == paths.attempts else 0o777, exist_ok=True)
    _check_store(paths)
    given_epoch = _number(environment, "MIDSTREAM_EPOCH")
    given_attempt = _number(environment, "MIDSTREAM_ATTEMPT")
    standby = given_attempt is not None and _is_standby(paths.attempt(given_attempt))
    if standby and given_epoch is None:
        raise EngineError("a standby attempt has no ownership (hint: set MIDSTREAM_EPOCH)")
    with records.locked(paths.lock):
        fence = records.Fence.read_or_none(paths.fence)
        if fence is None and standby:
            fence = records.Fence(0, "")
        elif fence is None:
            try:
                check_not_removed(paths)
            except CheckpointError as error:
                raise EngineError(str(error)) from None
            fence = dataclasses.replace(records.first_fence(target), epoch=given_epoch or 1)
            fence.write(paths.fence)
    epoch = fence.epoch if given_epoch is None else given_epoch
    if fence.epoch > epoch:
        raise FencedError(
            f"run {run_id} belongs to {fence.owner} (ownership {fence.epoch}, sealed at step {fence.sealed_step}); "
            f"ownership {epoch} cannot continue it"
        )
    if given_attempt is not None:
        number = given_attempt
        os.makedirs(paths.attempt(number).dir, exist_ok=True)
    else:
        number = claim_attempt(paths)
    return AttemptRecord(paths, number, epoch, target, given_attempt is not None, standby)


def _check_store(paths: records.RunPaths) -> None:
    """Check that the run's checkpoints are in ``paths.store``, and record that.

    Raises:
        EngineError: The run has checkpoints in another store; a new start beside them would lose them unnoticed.
    """
    store = records.Store.read_or_none(paths.store_file)
    if store is not None and store.url.rstrip("/") != paths.store.rstrip("/"):
        raise EngineError(
            f"run {paths.run_id} has its checkpoints under {store.url} "
            "(hint: set trainer.checkpointer.base_path to that, or choose another --trainer.id)"
        )
    if store is None and paths.store:
        here = os.path.join(paths.dir, "checkpoints")
        if os.path.isdir(here) and any(records.parse_checkpoint_name(name) for name in os.listdir(here)):
            raise EngineError(
                f"run {paths.run_id} has checkpoints in {here} (hint: remove trainer.checkpointer.base_path, "
                f"or copy them to {paths.checkpoints} and remove that directory)"
            )
        records.Store(paths.store.rstrip("/")).write(paths.store_file)


def _is_standby(files: records.AttemptPaths) -> bool:
    command = records.Command.read_or_none(files.command_file)
    return command is not None and command.action in (records.STANDBY, records.REPLAY)


def claim_attempt(paths: records.RunPaths) -> int:
    """Claim the next attempt number by creating its directory.

    Only one process can create it.

    Raises:
        EngineError: The number cannot be claimed in the run's bucket.
    """
    while True:
        taken = [int(name) for name in os.listdir(paths.attempts) if name.isdecimal()]
        number = max(taken, default=0) + 1
        try:
            os.mkdir(paths.attempt(number).dir)
        except FileExistsError:
            continue
        try:
            if paths.store and not bucket_fence.claim_attempt(paths, number):
                continue  # another host has it
        except CheckpointError as error:
            raise EngineError(str(error)) from None
        return number


def record_start(attempt: AttemptRecord, entry: records.LineageEntry) -> None:
    """Append the attempt to ``lineage.json``; process 0 only.

    The entry of an attempt that is started again stays: its first step, and the checkpoint that it began with.
    """
    if not attempt.processes.leads:
        return
    lineage = records.Lineage.read_or_none(attempt.paths.lineage)
    for before in lineage.entries if lineage else []:
        if (before.attempt, before.epoch) == (entry.attempt, entry.epoch) and before.first_step <= entry.first_step:
            entry = dataclasses.replace(before, last_step=None)
    _edit_lineage(attempt, entry)


def record_end(attempt: AttemptRecord, last_step: int) -> None:
    """Write the attempt's last step into ``lineage.json``; process 0 only."""
    if not attempt.processes.leads:
        return
    try:
        lineage = records.Lineage.read_or_none(attempt.paths.lineage)
        for entry in lineage.entries if lineage else []:
            if entry.attempt == attempt.number:
                _edit_lineage(attempt, dataclasses.replace(entry, last_step=last_step))
    except (records.RecordError, OSError) as error:
        # The state is saved, perhaps sealed, and a repair of the lineage reads the last step from the attempt's status.
        log.error("the attempt's end at step %d is not in the lineage: %s", last_step, error)


def _edit_lineage(attempt: AttemptRecord, entry: records.LineageEntry) -> None:
    paths = attempt.paths
    with records.locked(paths.lock):
        lineage = records.Lineage.read_or_none(paths.lineage) or records.Lineage(paths.run_id)
        lineage.with_entry(entry).write(paths.lineage)


def lineage_entry(
    attempt: AttemptRecord,
    *,
    devices: list[dict[str, Any]],
    first_step: int,
    checkpoint: str | None,
    root_digest: str | None,
    migration: str,
) -> records.LineageEntry:
    """Make the attempt's entry at its start.

    Args:
        attempt: The attempt.
        devices: Of all processes, as in the status.
        first_step: Of the attempt's updates.
        checkpoint: Checkpoint that the attempt continues; None for a fresh start.
        root_digest: Of that checkpoint.
        migration: Migration that started the attempt; empty without one.
    """
    return records.LineageEntry(
        attempt=attempt.number,
        epoch=attempt.epoch,
        target=attempt.target,
        devices=len(devices),
        device_kind=devices[0]["kind"] if devices else "",
        first_step=first_step,
        checkpoint=checkpoint,
        root_digest=root_digest,
        migration=migration,
        started=time.time(),
    )


def write_config(paths: records.RunPaths, resolved: JsonObject) -> None:
    """Write ``run.yaml``: the configuration with every default."""
    records.write_bytes(paths.config, _config_text(resolved), mode=PRIVATE)


def _config_text(resolved: JsonObject) -> bytes:
    text = yaml.safe_dump(dict(resolved), sort_keys=False, allow_unicode=True)
    return b"# The resolved configuration of the newest attempt.\n" + text.encode()


def read_config(paths: records.RunPaths) -> bytes | None:
    """Return ``run.yaml``; None if there is none."""
    try:
        with open(paths.config, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def restore_config(paths: records.RunPaths, resolved: JsonObject, before: bytes) -> None:
    """Write ``run.yaml`` as it was ``before``, unless it has been changed since."""
    with records.locked(paths.lock):
        if read_config(paths) == _config_text(resolved):
            records.write_bytes(paths.config, before, mode=PRIVATE)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise EngineError(f"{name}={text!r} is not a positive number")
    return number
