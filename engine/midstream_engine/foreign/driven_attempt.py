"""An attempt of another trainer's run: start, follow, save, stop, seal, rehearse."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import shutil
import signal
import time
from typing import Any, Dict, List, NamedTuple, Optional

from midstream_engine import records
from midstream_engine.checkpoint import save_fence
from midstream_engine.foreign import recorded_checkpoints, work_directory
from midstream_engine.foreign.attempt_lineage import record_end, record_start
from midstream_engine.foreign.batch_tap import BatchTap, remove
from midstream_engine.foreign.checkpoint_watch import CheckpointWatch
from midstream_engine.foreign.marked_processes import end_marked, watch_driver
from midstream_engine.foreign.metrics_source import open_source
from midstream_engine.foreign.metrics_tail import MetricsTail
from midstream_engine.foreign.run_file import RunFile, World
from midstream_engine.foreign.trainer_process import Adopted, Started, TrainerProcess
from midstream_engine.foreign.trainer_setup import PACKAGES, Node, Setup, versions
from midstream_engine.trainer.runtime.status_file import StatusFile

POLL_INTERVAL = 0.1  # seconds
REHEARSAL_TIMEOUT = 1800.0  # seconds for the first rows of a rehearsal
LEASE = 600.0  # seconds without a renewal after which a standby exits
ADOPTED = "adopted.json"  # of an attempt: identity of the trainer that it has adopted
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SIGNALS = (*STOPS, signal.SIGUSR1)


def say(message: str) -> None:
    """Print a line to the attempt's log, with its time: a trainer prints there too."""
    print("{} midstream: {}".format(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), message), flush=True)


class EndedEarlyError(Exception):
    """The trainer has ended without being requested to."""


class Place(NamedTuple):
    """An attempt as the launcher describes it."""

    paths: records.RunPaths
    number: int
    epoch: int
    target: str
    host: str

    @property
    def files(self) -> records.AttemptPaths:
        return self.paths.attempt(self.number)


class DrivenAttempt:
    """The attempt on this node. Node 0 has the fence, the lineage and the checkpoints."""

    def __init__(self, place: Place, world: World, node: Node, python: str) -> None:
        self._place, self._world, self._node, self._python = place, world, node, python
        self._status: Optional[StatusFile] = None
        self._trainer: Optional[TrainerProcess] = None
        self._tail: Optional[MetricsTail] = None
        self._watch: Optional[CheckpointWatch] = None
        self._stop: Optional[records.Command] = None  # what is being done; None for a signal
        self._sequence = 0  # of the newest command that was read
        self._requested = 0  # requests to stop: a second one does not wait
        self._saves: List[int] = []  # sequences of commands to save that are not answered yet
        self._log_size = 0

    # ------------------------------------------------------------------------------------------------ start

    def run(self, run: RunFile, attach: int = 0) -> int:
        """Run the attempt to its end and return the exit code.

        Raises:
            FenceRejectedError: Another epoch has the run.
            EndedEarlyError: The trainer has ended by itself before the run was done.
            MismatchError: A checkpoint has other bytes than were recorded.
            RecordError: A record, or a template, cannot be used.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # before any thread: they wait for `_pause`
        place = self._place
        watch_driver(self._mark)
        print("resolved configuration:\n{}".format(json.dumps(run.to_json(), indent=1)), flush=True)
        say("attempt {} of {} under epoch {}".format(place.number, place.paths.run_id, place.epoch))
        first = records.Command.read_or_none(place.files.command_file)
        standby = first is not None and first.action == records.STANDBY
        for directory in (place.paths.attempts, place.paths.pins, place.paths.checkpoints, place.files.dir):
            os.makedirs(directory, exist_ok=True)
        self._status = StatusFile(
            place.files.status(self._node.number),
            run_id=place.paths.run_id,
            attempt=place.number,
            epoch=0 if standby else place.epoch,
            num_train_steps=run.steps,
            process=self._node.number,
            processes=self._world.nodes,
            host=place.host,
        )
        devices = [{"kind": "", "platform": run.trainer, "memory_bytes": None}] * self._world.size
        self._status.update(devices=devices, data_digests=[run.files_digest] if run.files_digest else [])
        if standby:
            assert first is not None
            command = self._rehearse(run, first)
            if command is None:
                return self._ended(records.STOPPED)
            first = command
        self._check_fence(place.epoch)
        self._sequence = max(self._sequence, first.sequence if first is not None else 0)
        return self._train(run, first, attach)

    @property
    def _mark(self) -> str:
        return "{}#{}".format(self._place.files.dir, self._node.number)

    @property
    def status(self) -> StatusFile:
        assert self._status is not None
        return self._status

    def fail(self, message: str, code: int) -> int:
        """End the trainer, report why, and return ``code``."""
        end_marked(self._mark)
        if self._trainer is not None:
            self._trainer.end()
        line = " ".join(message.split())[:600]
        say(line)
        if self._status is not None:
            self._status.update(state=records.FAILED, message=line)
            self._status.close()
        return code

    def _check_fence(self, epoch: int) -> None:
        paths, place = self._place.paths, self._place
        with records.locked(paths.lock):
            fence = save_fence.read_fence(paths)
            if fence is None and self._node.number == 0:
                fence = records.Fence(epoch, place.target)
                fence.write(paths.fence)
        if fence is not None and fence.epoch > epoch:
            raise save_fence.FenceRejectedError(
                "run {} belongs to {} (epoch {}, sealed at step {}); epoch {} cannot continue it".format(
                    paths.run_id, fence.owner, fence.epoch, fence.sealed_step, epoch
                )
            )

    def _setup(self, run: RunFile, directory: str) -> Setup:
        tap = posixpath.join(self._place.files.dir, "batches-{}.jsonl".format(self._node.number))
        return Setup(run, self._world, self._node, self._python, directory, tap)

    def _directory(self, run: RunFile) -> str:
        return run.directory or posixpath.join(self._place.paths.dir, work_directory.WORK)

    def _place_inputs(self, setup: Setup, name: Optional[str]) -> Optional[work_directory.Restored]:
        """Bring the files that travel and the checkpoint to the working directory."""
        run, place = setup.run, self._place
        os.makedirs(setup.directory, exist_ok=True)
        if run.files_digest and not run.directory:
            work_directory.bring_files(place.paths.root, run.files_digest, setup.directory)
        if self._node.number == 0:
            inside = setup.checkpoints == posixpath.normpath(setup.directory)
            pattern = (run.checkpoints.pattern or "checkpoint*") if inside else "*"
            work_directory.set_aside(setup.checkpoints, place.number, pattern)
            if setup.out not in (setup.checkpoints, posixpath.normpath(setup.directory)):
                work_directory.set_aside(setup.out, place.number)
        os.makedirs(setup.out, exist_ok=True)
        if name is None:
            return None
        return work_directory.place_checkpoint(place.paths, name, setup.checkpoints)

    def _start(self, setup: Setup, checkpoint: str) -> Started:
        commands, environments = setup.commands(checkpoint), setup.environments(os.environ)
        say("{} in {}: {}".format(setup.run.trainer, setup.directory, " ".join(commands[0])))
        remove(setup.tap)
        return Started(commands, environments, setup.directory, self._mark)

    def _open_tail(self, setup: Setup, path: str, first: int) -> MetricsTail:
        try:
            reader = open_source(setup, self._place.files.log(self._node.number))
        except ValueError as error:
            raise records.RecordError("metrics: {}".format(error)) from None
        return MetricsTail(reader, path, first=first, tap=BatchTap(setup.tap))

    # ------------------------------------------------------------------------------------------------ train

    def _train(self, run: RunFile, command: Optional[records.Command], attach: int) -> int:
        place, setup = self._place, self._setup(run, self._directory(run))
        began = time.monotonic()
        found = versions(self._python, tuple(dict.fromkeys([*PACKAGES, *run.environment.packages])), os.environ)
        name, digest = self._origin(command)
        self.status.update(state=records.RESTORING if name else records.STARTING, epoch=place.epoch, versions=found)
        restored = None if attach else self._place_inputs(setup, name)
        step = restored.step if restored else 0
        if restored is not None and name is not None:
            self._prove(restored, name, digest, time.monotonic() - began)
        if attach:
            identity = records.identify(attach)
            if identity is None:
                raise EndedEarlyError("process {} does not run".format(attach))
            records.write_json(posixpath.join(place.files.dir, ADOPTED), identity.to_json())
            self._trainer = Adopted(identity)
        else:
            self._refuse_adopted()
            self._trainer = self._start(setup, restored.path if restored else "")
        self._tail = self._open_tail(setup, place.files.metrics, step)
        self._watch = CheckpointWatch(setup, place.paths, place.number, place.epoch, found, first=step)
        self.status.update(
            state=records.STARTING,
            step=step,
            checkpoint=name,
            root_digest=restored.root_digest if restored else None,
            acknowledged=self._sequence,
        )
        if self._node.number == 0:
            record_start(
                place.paths,
                records.LineageEntry(
                    attempt=place.number,
                    epoch=place.epoch,
                    target=place.target,
                    devices=self._world.size,
                    device_kind="",
                    first_step=step,
                    checkpoint=name,
                    root_digest=restored.root_digest if restored else None,
                    migration=command.migration if command else "",
                    started=time.time(),
                ),
            )
        return self._follow(run)

    def _refuse_adopted(self) -> None:
        """Raise EndedEarlyError where an adopted trainer still runs without its driver.

        An earlier attempt had adopted it.
        """
        for name in sorted(os.listdir(self._place.paths.attempts)):
            path = posixpath.join(self._place.paths.attempts, name, ADOPTED)
            identity = records.ProcessIdentity.read_or_none(path)
            if identity is not None and records.is_running(identity):
                raise EndedEarlyError(
                    "process {}, which attempt {} had adopted, still runs: stop it, or adopt it again".format(
                        identity.pid, int(name)
                    )
                )

    def _origin(self, command: Optional[records.Command]) -> "tuple[Optional[str], Optional[str]]":
        """Return name and expected root digest of the checkpoint this attempt starts from."""
        if command is not None and command.action in records.STARTS and command.checkpoint:
            return command.checkpoint, command.root_digest
        found = recorded_checkpoints.usable(self._place.paths)
        if found:
            return found[-1].name, found[-1].root_digest
        fence = save_fence.read_fence(self._place.paths)
        if fence is not None and fence.sealed_step is not None:
            raise records.RecordError(
                "run {} was migrated at step {}, and that checkpoint is missing".format(
                    self._place.paths.run_id, fence.sealed_step
                )
            )
        return None, None

    def _prove(self, restored: work_directory.Restored, name: str, expected: Optional[str], seconds: float) -> None:
        """Write the evidence of what the trainer is started from.

        Raises MismatchError for other bytes.
        """
        for wanted in (restored.recorded, expected):
            if wanted is not None and restored.root_digest != wanted:
                raise work_directory.MismatchError(
                    "{} has root digest {}, expected is {}; the trainer is not started".format(
                        name, restored.root_digest, wanted
                    )
                )
        records.Restore(
            checkpoint=name,
            step=restored.step,
            root_digest=restored.root_digest,
            expected_root_digest=expected or restored.recorded,
            recorded_losses=[],
            recomputed_losses=[],
            losses_error=0.0,
            batch_digest="",
            recorded_batch_digest="",
            devices=self._world.size,
            seconds={"restore": seconds},
        ).write(self._place.files.restore)

    def _follow(self, run: RunFile) -> int:
        """Follow the trainer until it has ended, or was stopped."""
        assert self._trainer is not None
        while True:
            arrived = self._pause()
            if arrived in STOPS:
                self._requested += 1
            if arrived == signal.SIGUSR1:
                self._saves.append(0)
            self._look()
            self._read_command()
            self._keep_fence()
            if self._requested or self._stop is not None:
                return self._stop_trainer(run)
            how = self._trainer.poll()
            if how is not None:
                self._look(settle=True)
                return self._ended_by_itself(run, how)

    @staticmethod
    def _pause(seconds: float = POLL_INTERVAL) -> Optional[int]:
        arrived = signal.sigtimedwait(SIGNALS, seconds)
        return None if arrived is None else arrived.si_signo

    def _look(self, *, settle: bool = False) -> None:
        """Read new rows, record new checkpoints, and bring the status up to date.

        ``settle``: the trainer has ended, so wait until its newest complete checkpoint is recorded.
        """
        assert self._tail is not None
        assert self._watch is not None
        news: Dict[str, Any] = {}
        rows = self._tail.poll() + (self._tail.poll() if settle else 0)  # a source's last row may be waited for
        state = self.status.value.state
        if rows and state in (records.STARTING, records.RESTORING):
            state = records.TRAINING
        recorded = self._watch.poll(settle=settle) if self._node.number == 0 else None
        if recorded is not None:
            self._tail.sync()
            news.update(checkpoint=recorded.name, root_digest=recorded.root_digest, state_bytes=recorded.size)
            if self._saves:
                news.update(acknowledged=max([*self._saves, self.status.value.acknowledged]))
                self._saves = []
        if self._watch.problem or self._tail.problem:
            news.update(message=self._watch.problem or self._tail.problem)
        step = max(self._tail.step, self.status.value.step)
        log = posixpath.join(self._place.files.log(self._node.number))
        with contextlib.suppress(OSError):
            size = os.stat(log).st_size
            if size != self._log_size:  # a trainer that logs every hundredth step is not stalled in between
                self._log_size = size
                news.update(progress=time.time())
        self.status.update(state=state, step=step, **news)

    def _read_command(self) -> None:
        try:
            command = records.Command.read_or_none(self._place.files.command_file)
        except (OSError, records.RecordError):  # it is being replaced, or the disk hangs
            return
        if command is None or command.sequence <= self._sequence:
            return
        self._sequence = command.sequence
        if command.action == records.STOP:
            self._stop = command
        elif command.action == records.SAVE:
            self._stop = None
            self._saves.append(command.sequence)
            self.status.update(message="a save was requested: the next checkpoint of the trainer is waited for")
        else:
            self.status.update(rejected=command.sequence, message="{}: it trains already".format(command.action))

    def _keep_fence(self) -> None:
        """Raise FenceRejectedError where the run has passed to another epoch."""
        try:
            fence = save_fence.read_fence(self._place.paths)
        except save_fence.FenceUnreadableError:
            return
        if fence is not None and fence.epoch > self._place.epoch:
            raise save_fence.FenceRejectedError(
                "run {} has passed to {} (epoch {})".format(self._place.paths.run_id, fence.owner, fence.epoch)
            )

    # ------------------------------------------------------------------------------------------------ stop

    def _stop_trainer(self, run: RunFile) -> int:
        """Stop the trainer by its policy, then seal if that was commanded.

        As few steps are given up as the policy permits.
        """
        assert self._trainer is not None
        assert self._watch is not None
        policy = run.stop
        if not policy.saves and not self._named_checkpoint():
            withdrawn = self._wait_for_checkpoint(policy.wait)
            if withdrawn:
                return self._follow(run)
        self.status.update(state=records.STOPPING)
        before = self._watch.newest_step
        self._trainer.signal(policy.signal)
        deadline = time.monotonic() + policy.grace
        while self._trainer.poll() is None and time.monotonic() < deadline:
            self._pause()
            if policy.saves:
                self._look()
        killed = self._trainer.poll() is None
        left = self._trainer.end()
        if left:  # the epoch stays here: whatever they still write is part of it
            raise EndedEarlyError("processes {} of the trainer cannot be ended".format(", ".join(map(str, left))))
        self._look(settle=True)  # what was complete before the end; exit codes prove nothing
        newest = self._watch.newest_step
        if policy.saves and newest == before:
            self._note("{} saved nothing new on {}".format(run.trainer, policy.signal))
        if killed:
            self._note("the trainer was killed {:.0f} s after {}".format(policy.grace, policy.signal))
        return self._seal()

    def _named_checkpoint(self) -> bool:
        """Return whether the command stops the run for a checkpoint that exists already."""
        return self._stop is not None and self._stop.checkpoint is not None

    def _wait_for_checkpoint(self, seconds: float) -> bool:
        """Wait for the next periodic checkpoint; return whether the stop was withdrawn.

        The trainer trains during the wait.
        """
        assert self._trainer is not None
        assert self._watch is not None
        deadline, before = time.monotonic() + seconds, self._watch.newest_step
        requested = self._requested
        self.status.update(message="waiting for the next checkpoint of the trainer, then it stops")
        while time.monotonic() < deadline and self._trainer.poll() is None:
            self._look()
            if self._watch.newest_step > before or (before >= 0 and before >= self.status.value.step):
                break
            arrived = self._pause()
            requested += 1 if arrived in STOPS else 0
            stopping = self._stop
            self._read_command()
            if stopping is not None and self._stop is None:
                self.status.update(message="")
                return True
            self._keep_fence()
            if requested > max(1, self._requested):
                break  # a second signal: do not wait
        self.status.update(message="")
        return False

    def _note(self, message: str) -> None:
        say(message)
        self.status.update(message=message)

    def _seal(self) -> int:
        """Pass the epoch on, now that no process of the trainer runs, and end the attempt."""
        assert self._watch is not None
        command, place = self._stop, self._place
        newest = self._watch.newest
        if command is not None and command.epoch > place.epoch and self._node.number == 0:
            if newest is None:
                raise EndedEarlyError(
                    "the trainer has stopped without a complete checkpoint: there is nothing to migrate"
                )
            save_fence.seal(place.paths, epoch=command.epoch, owner=command.owner, step=newest.step)
        if command is not None:
            self.status.update(acknowledged=command.sequence)
        if newest is not None:
            self.status.update(step=newest.step)
        return self._ended(records.STOPPED)

    def _ended_by_itself(self, run: RunFile, how: str) -> int:
        """End the attempt of a trainer that has ended without a request."""
        assert self._trainer is not None
        step = self.status.value.step
        newest = self._watch.newest_step if self._watch is not None else -1
        self._trainer.end()
        if run.steps and max(step, newest) >= run.steps:
            return self._ended(records.FINISHED)
        if how == "exit code 0" and not run.steps:
            return self._ended(records.FINISHED)
        what = "of {} ".format(run.steps) if run.steps else ""
        line = "{} ended by itself at step {} {}({})".format(run.trainer, step, what, how)
        if how != "exit code 0":
            raise EndedEarlyError(line)
        self._note(line)  # a signal from outside, or the trainer's own decision: it is not known
        return self._ended(records.STOPPED)

    def _ended(self, state: str) -> int:
        if self._tail is not None:
            self._tail.sync()
            self._tail.close()
        if self._node.number == 0 and self._watch is not None:
            record_end(self._place.paths, self._place.number, self.status.value.step)
        self.status.update(state=state)
        self.status.close()
        return records.EXIT_DONE

    # ------------------------------------------------------------------------------------------------ standby

    def _rehearse(self, run: RunFile, command: records.Command) -> Optional[records.Command]:
        """Start the trainer once on an earlier checkpoint, and wait for the state.

        Nothing is compared here.

        Its rows go to ``replay.jsonl``: the migration compares them with those of the source, which has trained past
        that checkpoint. Returns the command that hands the run over; None where it was stopped.

        Raises:
            EndedEarlyError: The trainer does not train here.
        """
        files = self._place.files
        directory = posixpath.join(files.dir, "rehearsal")
        setup = self._setup(run, directory)
        self._sequence = command.sequence
        self.status.update(state=records.RESTORING, acknowledged=command.sequence)
        restored = self._place_inputs(setup, command.checkpoint)
        assert restored is not None
        if command.root_digest not in (None, restored.root_digest):
            raise work_directory.MismatchError("{} was not copied as it was recorded".format(command.checkpoint))
        self.status.update(state=records.COMPILING, step=restored.step)
        trainer = self._start(setup, restored.path)
        tail = self._open_tail(setup, files.replay, restored.step)
        deadline = time.monotonic() + REHEARSAL_TIMEOUT
        times: List[float] = []
        how: Optional[str] = None
        while tail.rows < run.rehearsal_steps and time.monotonic() < deadline:
            arrived = self._pause()
            if arrived in STOPS or self._lease_expired():
                trainer.end()
                return None
            how = trainer.poll()
            if tail.poll():
                times.append(time.monotonic())
                self.status.update(progress=time.time())
            if how is not None:
                tail.poll()
                break
        trainer.end()
        rows = tail.rows
        tail.close()
        if not rows:
            why = "has not logged a step" if how is None else "ended ({})".format(how)
            raise EndedEarlyError("the rehearsal: {} {} after step {}".format(run.trainer, why, restored.step))
        pace = (times[-1] - times[0]) / max(1, rows - 1) if len(times) > 1 else 0.0
        shutil.rmtree(directory, ignore_errors=True)
        self.status.update(state=records.WAITING, rehearsed_seconds=pace)
        return self._wait_for_state()

    def _wait_for_state(self) -> Optional[records.Command]:
        while True:
            if self._pause() in STOPS or self._lease_expired():
                return None
            try:
                command = records.Command.read_or_none(self._place.files.command_file)
            except (OSError, records.RecordError):
                continue
            if command is None or command.sequence <= self._sequence:
                continue
            self._sequence = command.sequence
            if command.action == records.STOP:
                self.status.update(acknowledged=command.sequence)
                return None
            if command.action == records.RESTORE:
                self.status.update(epoch=self._place.epoch, acknowledged=command.sequence, state=records.RESTORING)
                return command
            self.status.update(rejected=command.sequence, message="a standby does not {}".format(command.action))

    def _lease_expired(self) -> bool:
        try:
            renewed = os.stat(self._place.files.lease).st_mtime
        except FileNotFoundError:
            renewed = self._started_at()
        return time.time() - renewed > LEASE

    def _started_at(self) -> float:
        with contextlib.suppress(OSError):
            return os.stat(self._place.files.command_file).st_mtime
        return time.time()
