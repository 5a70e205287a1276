"""A simulated engine: the real protocol on real files, with a state of a few bytes and updates that take no computing.

Attempt, start number, fence, status, lineage, metrics, retention and seal are the engine's own code. The state after
step k is a function of k alone, so that the bytes of a checkpoint prove its step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from midstream_core import records
from midstream_core.attempt import replay_file, save_fence
from midstream_core.attempt.earlier_process import running_earlier
from midstream_core.attempt.errors import CheckpointError, FencedError
from midstream_core.attempt.standby_lease import Lease
from midstream_core.attempt.status_file import StatusFile
from midstream_core.object_store.bucket_client import ABSENT
from midstream_engine.attempt.take_start import take_start
from midstream_engine.checkpoint.loading.checkpoint_list import newest_complete
from midstream_engine.checkpoint.saving.retention import Retention
from midstream_engine.checkpoint.stores import bucket_fence, in_bucket
from midstream_engine.checkpoint.stores.run_bucket import RunBucket
from midstream_engine.config.keep_policy import KeepEvery, KeepPolicy
from midstream_engine.loop.fence_reader import FenceReader
from midstream_engine.runtime import attempt_record
from midstream_engine.tracking.metrics_file import MetricsFile
from simulation import groups
from simulation.cooperative import SCHEDULER
from simulation.machines import SimulatedProcess, present

STEP = 5.0  # seconds of an update
REPLAYED_STEP = STEP / 4  # of a replica, which has to catch up
SAVE_INTERVAL = 60.0  # seconds
STEPS = 100_000
DATA = hashlib.sha256(b"data").hexdigest()


@dataclass(frozen=True)
class Commit:
    """One accepted save, in the order in which engines made them."""

    time: float
    run: str
    machine: str
    attempt: int
    epoch: int
    start: int
    step: int
    restored: int
    pid: int
    root_digest: str


@dataclass(frozen=True)
class Start:
    """One start of an engine that may commit."""

    machine: str
    epoch: int
    start: int
    restored: int


@dataclass
class History:
    """Events that really happened. No program under test reads them."""

    commits: list[Commit] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    training: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # process -> (epoch, start)
    seals: list[tuple[float, str, int, str, int]] = field(default_factory=list)  # time, machine, epoch, owner, step
    doubles: list[str] = field(default_factory=list)  # second processes of an attempt that was running

    def clear(self) -> None:
        """Forget everything."""
        groups.ATTEMPTS.clear()
        self.commits.clear()
        self.starts.clear()
        self.training.clear()
        self.seals.clear()
        self.doubles.clear()


HISTORY = History()


def state_of(step: int) -> bytes:
    """Return the state after ``step`` updates."""
    return hashlib.sha256(f"state {step}".encode()).digest()


def loss_of(step: int) -> float:
    """Return the loss of an update."""
    return 5.0 / (1 + step / 100) + int.from_bytes(state_of(step)[:2], "big") / 1e6


def batch_digest(step: int) -> str:
    """Return the digest of the batch of an update."""
    return hashlib.sha256(f"batch {step}".encode()).hexdigest()


def train_record(step: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``train.json`` of a checkpoint."""
    size = config["trainer"]["train_batch_size"]
    return {
        "state": {"step": step, "batch_schedule": [{"start": 0, "value": size}], "next_batch": batch_digest(step)},
        "reference_losses": {"losses": [loss_of(step)], "sequences": 1},
        "provenance": {"config": dict(config), "validation": {}},
    }


def array_of(step: int) -> tuple[records.ArrayEntry, bytes]:
    """Return the one array of a state, and its bytes."""
    return records.ArrayEntry("model.weight", ["embed"], [8], "float32", [1], ["model.weight/c/0"]), state_of(step)


def write_checkpoint(
    paths: records.RunPaths, attempt: int, epoch: int, start: int, step: int, config: Mapping[str, Any]
) -> str:
    """Write a checkpoint's objects and manifest; return its name. Call with the run's lock held."""
    name = records.checkpoint_name(step, attempt, start if paths.store else 0)
    directory = paths.checkpoint(name)
    array, content = array_of(step)
    train = json.dumps(train_record(step, config)).encode()
    objects: list[dict[str, Any]] = []
    for path, data in ((array.objects[0], content), (records.TRAIN, train)):
        put_object(directory, path, data)
        objects.append(records.ObjectEntry(path, len(data), hashlib.sha256(data).hexdigest()).to_json())
    hashes = {entry["path"]: entry["sha256"] for entry in objects}
    digest = records.root_digest([array], hashes, json.loads(train)["state"])
    manifest = records.Manifest(
        format=records.FORMAT, version=records.FORMAT_VERSION, run_id=paths.run_id, step=step, attempt=attempt,
        epoch=epoch, created=time.time(), root_digest=digest, arrays=[array.to_json()], objects=objects, start=start,
        numbered=bool(paths.store),
    )  # fmt: skip
    put_object(directory, records.MANIFEST, json.dumps(manifest.to_json()).encode())
    return name


def put_object(directory: str, path: str, data: bytes) -> None:
    """Create an object of a checkpoint, on a disk or in a bucket."""
    if in_bucket(directory):
        RunBucket(directory).put(path, data, ABSENT)
        return
    full = os.path.join(directory, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    records.write_bytes(full, data)


def get_object(directory: str, path: str) -> bytes:
    """Return an object of a checkpoint."""
    if in_bucket(directory):
        return RunBucket(directory).get(path)[0]
    with open(os.path.join(directory, path), "rb") as file:
        return file.read()


def manifest_or_none(directory: str) -> records.Manifest | None:
    """Return the manifest of a checkpoint; None where it has none."""
    try:
        text = get_object(directory, records.MANIFEST)
    except FileNotFoundError:
        return None
    return records.Manifest.from_json(records.parse_json(text, directory), directory)


class Engine:
    """One process of an attempt."""

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

    def run(self) -> int:
        """Train, or wait for the state; return the exit code."""
        if refused := running_earlier(self.files.status(0), 5.0):
            print(refused)
            return 1
        self.status = StatusFile(
            self.files.status(0), run_id=self.paths.run_id, attempt=self.attempt.number,
            epoch=self.attempt.first_epoch, num_train_steps=STEPS, processes=self._processes,
            host=os.environ.get("MIDSTREAM_HOST", ""),
        )  # fmt: skip
        self.status.update(state_bytes=len(state_of(0)) + 512, devices=[{"kind": "cpu", "platform": "cpu"}])
        command = records.Command.read_or_none(self.files.command_file)
        self._answered = max(self.status.value.acknowledged, self.status.value.rejected)
        try:
            self._peers.meet()
            return self._attempt(command)
        except (FencedError, save_fence.FenceRejectedError) as error:
            return self._fail(str(error), records.EXIT_FENCED)
        except (CheckpointError, records.RecordError, OSError, KeyError) as error:
            return self._fail(str(error), 1)

    def _fail(self, message: str, code: int) -> int:
        print(message, flush=True)
        self.status.update(state=records.FAILED, message=message)
        return code

    def _attempt(self, command: records.Command | None) -> int:
        rows: list[dict[str, Any]] | None = None  # of a promoted replica
        if command is not None and command.action == records.REPLAY:
            command, rows = self._replay(command)
            if command is None:
                self.status.update(state=records.STOPPED)
                self.status.close()
                return 0
            self.status.update(epoch=self.attempt.epoch)
        elif command is not None and command.action in records.STANDBYS:
            command = self._stand_by(command)
            if command is None:
                self.status.update(state=records.STOPPED)
                self.status.close()
                return 0
            self.status.update(epoch=self.attempt.epoch)
        self.status.update(state=records.RESTORING)
        restores = command is not None and command.action == records.RESTORE
        self.attempt = take_start(self.attempt, self.status, restores=restores)
        if rows is None:
            name, digest = self._restore(command)
            first = self._step
        else:
            assert command is not None
            name, digest, first = self._replayed_from.name, self._replayed_from.root_digest, command.step or 0
            self._restored, self._promotion = first, command
            self._process.start_task(lambda: self._measure_drift(command), "drift")
        entry = attempt_record.lineage_entry(
            self.attempt, devices=[{"kind": "cpu", "platform": "cpu"}], first_step=first, checkpoint=name or None,
            root_digest=digest or None, migration=command.migration if command is not None else "",
        )  # fmt: skip
        attempt_record.record_start(self.attempt, entry)
        self._train(rows or [])
        self.status.close()
        return 0

    # ------------------------------------------------------------------------------------------ standby

    def _stand_by(self, command: records.Command) -> records.Command | None:
        """Rehearse, then wait for a command to restore. None: stopped, or the lease has expired."""
        self.status.update(state=records.COMPILING)
        time.sleep(5 * STEP)
        manifest = self._manifest(command.checkpoint or "")
        self.status.update(step=manifest.step, rehearsed_seconds=STEP, compiled_seconds=5 * STEP)
        self._answered = max(self._answered, command.sequence)
        self.status.update(state=records.WAITING, message=f"waits for its state, ownership {self.attempt.epoch}")
        lease = Lease(self.files.lease)
        while not lease.over():
            if self._signalled:
                return None
            wanted = self._next_command()
            if wanted is not None and wanted.action == records.STOP:
                self.status.update(acknowledged=wanted.sequence, message="")
                return None
            if wanted is not None:
                refusal = self._unfit(wanted)
                if not refusal:
                    self.status.update(acknowledged=wanted.sequence, message="")
                    return wanted
                self.status.update(rejected=wanted.sequence, message=refusal)
                self.status.try_write()
            fence = save_fence.read_fence(self.paths)
            if fence is not None and fence.epoch > self.attempt.epoch:
                raise FencedError(f"the run has passed to {fence.owner} (ownership {fence.epoch})")
            time.sleep(0.5)
        return None

    def _unfit(self, command: records.Command) -> str:
        if command.action != records.RESTORE:
            return f"{command.action}: a standby accepts restore and stop only"
        if command.epoch != self.attempt.epoch or not command.checkpoint:
            return f"the command is of ownership {command.epoch}"
        manifest = manifest_or_none(self.paths.checkpoint(command.checkpoint))
        if manifest is None or manifest.root_digest != command.root_digest:
            return f"{command.checkpoint} is not here, or has another root digest"
        fence = save_fence.read_fence(self.paths)
        if fence is None or (fence.epoch, fence.owner) != (self.attempt.epoch, self.attempt.target):
            return f"the fence does not name {self.attempt.target} as owner of ownership {self.attempt.epoch}"
        return ""

    # ------------------------------------------------------------------------------------------ replica

    def _replay(self, command: records.Command) -> tuple[records.Command | None, list[dict[str, Any]] | None]:
        """Train on from a checkpoint as a replica, until a command promotes it, restores another state, or stops it.

        The rows are those from the command's step on, where it was promoted.
        """
        self.status.update(state=records.COMPILING)
        time.sleep(5 * STEP)
        self.status.update(rehearsed_seconds=REPLAYED_STEP, compiled_seconds=5 * STEP, state=records.RESTORING)
        name, _ = self._restore(command)
        self._replayed_from = self._manifest(name)
        self._answered = max(self._answered, command.sequence)
        self.status.update(state=records.REPLAYING, step=self._step, message="replays as a replica")
        rows: list[dict[str, Any]] = []
        metrics, lease, promotion = MetricsFile(replay_file.create(self.files)), Lease(self.files.lease), None
        try:
            while not self._signalled and not lease.over():
                wanted = self._next_command()
                if wanted is not None and wanted.action == records.STOP:
                    self.status.update(acknowledged=wanted.sequence, message="")
                    return None, None
                if wanted is not None:
                    refusal = self._unfit_for_replica(wanted)
                    answer = (
                        {"rejected": wanted.sequence, "message": refusal}
                        if refusal
                        else {"acknowledged": wanted.sequence}
                    )
                    self.status.update(**answer)
                    self.status.try_write()
                    if not refusal and wanted.action == records.RESTORE:
                        return wanted, None
                    promotion = wanted if not refusal and wanted.action == records.PROMOTE else promotion
                if promotion is not None and self._step >= (promotion.step or 0):
                    self.status.update(message="")
                    return promotion, [row for row in rows if row["global_step"] >= (promotion.step or 0)]
                fence = save_fence.read_fence(self.paths)
                if fence is not None and fence.epoch > self.attempt.epoch:
                    raise FencedError(f"the run has passed to {fence.owner} (ownership {fence.epoch})")
                time.sleep(REPLAYED_STEP)
                rows.append(self._row(REPLAYED_STEP))
                metrics.write(rows[-1])
                self._step += 1
                self.status.update(step=self._step)
        finally:
            metrics.close()
        return None, None

    def _unfit_for_replica(self, command: records.Command) -> str:
        if command.action == records.RESTORE:
            return self._unfit(command)
        if command.action not in (records.STANDBY, records.PROMOTE):
            return f"{command.action}: a replica accepts standby, promote, restore and stop only"
        if command.epoch != self.attempt.epoch:
            replayed = self.attempt.epoch
            return f"the command is of ownership {command.epoch}, and this attempt replays for ownership {replayed}"
        if command.step is None or (command.action == records.STANDBY and command.step < self._step):
            return f"{command.action} at step {command.step}: the replica is at step {self._step} already"
        fence = save_fence.read_fence(self.paths)
        owned = fence is not None and (fence.epoch, fence.owner) == (self.attempt.epoch, self.attempt.target)
        return "" if command.action == records.STANDBY or owned else "the fence has another owner"

    def _measure_drift(self, command: records.Command) -> None:
        """Compare with the sealed checkpoint, once that has been copied."""
        name, step = command.checkpoint or "", command.step or 0
        path = os.path.join(self.paths.checkpoint(name), records.MANIFEST)
        while not os.path.exists(path):
            time.sleep(STEP)
        distance = 0.0 if self._manifest(name).step == step else 1.0
        records.ParameterDrift(
            step, name, self._manifest(name).root_digest, distance, distance, "model.weight", 8
        ).write(self.files.parameter_drift)  # fmt: skip

    # ------------------------------------------------------------------------------------------ training

    def _origin(self, command: records.Command | None) -> str:
        """Return the checkpoint to start from, as the engine's ``find_origin`` does."""
        fence = save_fence.read_fence(self.paths)
        if self.paths.store:
            fence = bucket_fence.newest_fence(self.paths, fence)
        if command is not None and command.action in records.STARTS:
            named = records.parse_checkpoint_name(command.checkpoint or "")
            if command.action == records.RESTORE and named is not None and named[1] != self.attempt.number:
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

    def _row(self, seconds: float = STEP) -> dict[str, Any]:
        return {
            "global_step": self._step, "train/loss": loss_of(self._step), "attempt": self.attempt.number,
            "time": time.time(), "throughput/duration": seconds, "batch_digest": batch_digest(self._step),
        }  # fmt: skip

    def _train(self, rows: list[dict[str, Any]]) -> None:
        """Train until a command, a signal or the fence ends it. ``rows``: those of the replica that it was."""
        metrics = MetricsFile(self.files.metrics, self.attempt.start)
        retention = Retention(KeepPolicy(SAVE_INTERVAL, (KeepEvery(every=10**9),)), time.monotonic())
        reader = FenceReader(self.paths, self.status)
        self.status.update(state=records.TRAINING, step=self._step)
        key = (self._process.machine.name, self._process.pid)
        running = self._process.machine.processes
        HISTORY.doubles += [f"{key} beside {other}" for other in HISTORY.training if other[0] == key[0] and other[1] in running]
        HISTORY.training[key] = (self.attempt.epoch, self.attempt.start)
        HISTORY.starts.append(Start(self._process.machine.name, self.attempt.epoch, self.attempt.start, self._restored))
        saved_at = time.monotonic()
        for row in rows:
            metrics.write(row)
        try:
            if rows or self._promotion is not None:
                self._try_save(metrics)
            while True:
                epoch = reader.epoch()
                if epoch > self.attempt.epoch or reader.superseded(self.attempt.epoch, self.attempt.start):
                    reader.refuse(epoch, self._step, epoch == self.attempt.epoch)
                command = self._next_command()
                if self._signalled or (
                    command is not None and command.action == records.STOP and (command.step or 0) <= self._step
                ):
                    if self._stop(command, metrics):
                        return
                elif command is not None and command.action == records.SAVE:
                    saved = self._try_save(metrics)
                    self.status.update(**{"acknowledged" if saved else "rejected": command.sequence})
                    self.status.try_write()
                elif time.monotonic() - saved_at >= SAVE_INTERVAL:
                    saved_at = time.monotonic()
                    if self._try_save(metrics):
                        self._prune(retention)
                time.sleep(STEP)
                metrics.write(self._row())
                self._step += 1
                self.status.update(step=self._step)
        finally:
            HISTORY.training.pop(key, None)
            metrics.close()

    def _next_command(self) -> records.Command | None:
        self._peers.check()
        command = records.Command.read_or_none(self.files.command_file)
        if command is None or command.sequence <= self._answered:
            return None
        if command.action == records.STOP and (command.step or 0) > self._step:
            return None
        self._answered = command.sequence
        return command

    def _prune(self, retention: Retention) -> None:
        try:
            retention.prune(self.paths, own=(self.attempt.epoch, self.attempt.start))
        except (CheckpointError, records.RecordError, OSError) as error:
            print(f"old checkpoints not removed: {error}", flush=True)

    def _try_save(self, metrics: MetricsFile) -> bool:
        """Save; return whether it succeeded. The status has the reason; training continues."""
        try:
            self._save(metrics)
        except (CheckpointError, OSError) as error:
            self.status.update(state=records.TRAINING, message=f"step {self._step} not saved: {error}")
            self.status.try_write()
            return False
        return True

    def _save(self, metrics: MetricsFile) -> None:
        """Commit a checkpoint where the fence accepts it."""
        start = self.attempt.start
        name = records.checkpoint_name(self._step, self.attempt.number, start if self.paths.store else 0)
        if self.status.value.checkpoint == name:
            return
        self.status.update(state=records.SAVING)
        metrics.settle()
        time.sleep(STEP / 2)
        with records.locked(self.paths.lock):
            fence = save_fence.check(self.paths, self.attempt.epoch, self._step, start)
            if self.paths.store:
                bucket_fence.check_fence(self.paths, fence, self.attempt.epoch, self._step, start)
            write_checkpoint(self.paths, self.attempt.number, self.attempt.epoch, start, self._step, self._config)
            digest = self._manifest(name).root_digest
            HISTORY.commits.append(
                Commit(SCHEDULER.now, self.paths.run_id, self._process.machine.name, self.attempt.number,
                       self.attempt.epoch, self.attempt.start, self._step, self._restored, self._process.pid, digest)
            )  # fmt: skip
        self.status.update(checkpoint=name, root_digest=digest)
        self.status.update(state=records.TRAINING)
        strike, self._process.after_save = self._process.after_save, None
        if strike is not None:
            strike()
            SCHEDULER.park(0.0)

    def _stop(self, command: records.Command | None, metrics: MetricsFile) -> bool:
        self.status.update(state=records.STOPPING, step=self._step)
        if not self._try_save(metrics):
            if command is None:
                raise CheckpointError(self.status.value.message)
            self.status.update(rejected=command.sequence)
            return False
        if command is not None:
            if command.epoch > self.attempt.epoch:
                save_fence.seal(
                    self.paths, epoch=command.epoch, owner=command.owner, step=self._step, start=self.attempt.start
                )
                HISTORY.seals.append(
                    (SCHEDULER.now, self._process.machine.name, command.epoch, command.owner, self._step)
                )
            self.status.update(acknowledged=command.sequence, message="")
        else:
            self.status.update(message=f"stopped by {self._signalled} at step {self._step}, saved")
        attempt_record.record_end(self.attempt, self._step)
        self.status.update(state=records.STOPPED)
        return True


def main() -> int:
    """Run an engine as the present process."""
    process = present()
    assert process is not None
    code = Engine(process).run()
    sys.stdout.flush()
    return code


def record_exit(directory: str, code: int, rank: int = 0) -> None:
    """Write what the engine's supervisor writes after its exit."""
    files = records.AttemptPaths(directory)
    last = records.Status.read_or_none(files.status(rank))
    killed = code < 0
    records.ProcessExit(
        process=rank, code=None if killed else code, time=time.time(),
        signal=signal.Signals(-code).name if killed else "",
        state=last.state if last else "", step=last.step if last else 0, heartbeat=last.heartbeat if last else 0.0,
        message=last.message if last else "",
    ).write(files.exit(rank))  # fmt: skip


__all__ = ["HISTORY", "Commit", "Engine", "dataclasses", "main", "record_exit"]
