"""Base of an engine and a standby: their attempt, its commands, and the restore of a checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from typing import Any

import yaml

from midstream_core import records
from midstream_core.attempt import save_fence
from midstream_core.attempt.errors import CheckpointError
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.checkpoint.loading.checkpoint_list import newest_complete
from midstream_engine.checkpoint.stores import bucket_fence
from midstream_engine.runtime import attempt_record
from simulation import groups
from simulation.checkpoints import batch_digest, get_object, loss_of, manifest_or_none
from simulation.machines import SimulatedProcess

STEP = 5.0  # seconds of an update


class EngineProcess:
    """One process of an attempt: its files, its commands, the checkpoint that it starts from."""

    status: StatusFile  # from `run` on

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        environment = os.environ
        root, run_id = environment["MIDSTREAM_ROOT"], environment["RUN_ID"]
        with open(records.RunPaths(root, run_id).config, encoding="utf-8") as file:
            self._config = yaml.safe_load(file)
        store = self._config["trainer"].get("checkpointer", {}).get("base_path", "")
        self.attempt = attempt_record.open_attempt(root, run_id, environment, store)
        self.paths, self.files = self.attempt.paths, self.attempt.files
        number = int(environment.get(groups.RANK, "0/1").split("/")[1])
        self._peers = groups.Peers(self.files.dir, 0, number)
        self._processes = number
        self._signalled = ""
        self._step = self._restored = 0
        self._answered = 0
        self._promotion: records.Command | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signalled = signal.Signals(number).name

    def _next_command(self) -> records.Command | None:
        self._peers.check()
        command = records.Command.read_or_none(self.files.command_file)
        if command is None or command.sequence <= self._answered:
            return None
        if command.action == records.STOP and (command.step or 0) > self._step:
            return None
        self._answered = command.sequence
        return command

    def _origin(self, command: records.Command | None) -> str:
        """Return the checkpoint to start from, as the engine's ``find_origin`` does."""
        fence = save_fence.read_fence(self.paths)
        if self.paths.store:
            fence = bucket_fence.newest_fence(self.paths, fence)
        if command is not None and command.action in records.STARTS:
            named = records.parse_checkpoint_name(command.checkpoint or "")
            if command.action in records.TAKEOVERS and named is not None and named[1] != self.attempt.number:
                only = self.attempt.number if self.attempt.start <= 1 else None
                since = newest_complete(self.paths, fence, attempt=only)
                if since is not None and (only is not None or self._manifest(since).epoch == self.attempt.epoch):
                    return since
            return command.checkpoint or ""
        name = newest_complete(self.paths, fence)
        if name is None and fence is not None and fence.sealed_step is not None:
            raise CheckpointError(f"the run was migrated at step {fence.sealed_step}, and that checkpoint is missing")
        return name or ""

    def _manifest(self, name: str) -> records.Manifest:
        manifest = manifest_or_none(self.paths.checkpoint(name))
        if manifest is None:
            raise CheckpointError(f"{name} has no manifest")
        return manifest

    def _restore(self, command: records.Command | None) -> tuple[str, str]:
        name = self._origin(command)
        if not name:
            return "", ""
        manifest = self._manifest(name)
        directory = self.paths.checkpoint(name)
        hashes: dict[str, str] = {}
        for entry in manifest.object_entries:
            hashes[entry.path] = hashlib.sha256(get_object(directory, entry.path)).hexdigest()
        train = json.loads(get_object(directory, records.TRAIN))
        digest = records.root_digest(manifest.array_entries, hashes, train["state"])
        if digest != manifest.root_digest:
            raise CheckpointError(f"{name} is damaged")
        time.sleep(STEP)
        self._step = self._restored = train["state"]["step"]
        losses = train["reference_losses"]["losses"]
        records.Restore(
            checkpoint=name, step=self._step, root_digest=digest, expected_root_digest=manifest.root_digest,
            recorded_losses=losses, recomputed_losses=[loss_of(self._step)], losses_error=0.0,
            batch_digest=batch_digest(self._step), recorded_batch_digest=train["state"]["next_batch"], devices=1,
            seconds={"restore": STEP},
        ).write(self.files.restore)  # fmt: skip
        self.status.update(checkpoint=name, root_digest=digest, step=self._step)
        return name, digest

    def _row(self, seconds: float = STEP, now: float | None = None) -> dict[str, Any]:
        return {
            "global_step": self._step, "train/loss": loss_of(self._step), "attempt": self.attempt.number,
            "time": self._process.clock.wall(now), "throughput/duration": seconds,
            "batch_digest": batch_digest(self._step),
        }  # fmt: skip
