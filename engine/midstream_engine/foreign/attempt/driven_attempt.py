"""An attempt of another trainer's run: start, follow, save, stop, seal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any, Dict, List, Optional

from midstream_engine import records
from midstream_engine.checkpoint import save_fence
from midstream_engine.foreign.attempt.adopted_trainer import adopt, keep_fence_of_adopted, refuse_adopted
from midstream_engine.foreign.attempt.attempt_fence import check_fence, keep_fence
from midstream_engine.foreign.attempt.attempt_group import LEFT_AFTER, AttemptGroup
from midstream_engine.foreign.attempt.attempt_lineage import record_end, record_start
from midstream_engine.foreign.attempt.attempt_origin import find_origin, write_evidence
from midstream_engine.foreign.attempt.attempt_place import AttemptPlace, EndedEarlyError, say
from midstream_engine.foreign.attempt.attempt_trainer import AttemptTrainer
from midstream_engine.foreign.attempt.output_lock import lock_output
from midstream_engine.foreign.attempt.signals import STOPS, block_signals, wait_for_signal
from midstream_engine.foreign.attempt.standby import Standby
from midstream_engine.foreign.checkpoint_watch import CheckpointWatch
from midstream_engine.foreign.marked_processes import end_marked, watch_driver
from midstream_engine.foreign.metrics_tail import MetricsTail
from midstream_engine.foreign.run_file import RunFile, World
from midstream_engine.foreign.trainer_process import Adopted, TrainerProcess
from midstream_engine.foreign.trainer_setup import PACKAGES, Node, Setup, versions
from midstream_engine.foreign.work_directory import Restored, placed_checkpoint
from midstream_engine.trainer.runtime.status_file import StatusFile

END_TIMEOUT = 60.0  # seconds past the grace for the drivers of other nodes to end their trainers


class DrivenAttempt:
    """The attempt on this node. Node 0 has the fence, the lineage and the checkpoints."""

    def __init__(
        self, place: AttemptPlace, world: World, node: Node, python: str, left_after: float = LEFT_AFTER
    ) -> None:
        """Prepare an attempt.

        Args:
            place: Its directories and epoch.
            world: Processes of the run.
            node: This node.
            python: Interpreter of the trainer.
            left_after: Seconds after the end of node 0 in which the trainer of another node ends by itself.
        """
        self._place, self._world, self._node, self._python = place, world, node, python
        self._launch = AttemptTrainer(place, world, node, python)
        self._group = AttemptGroup(place, node.number, world.nodes, left_after)
        self._status: Optional[StatusFile] = None
        self._trainer: Optional[TrainerProcess] = None
        self._tail: Optional[MetricsTail] = None
        self._watch: Optional[CheckpointWatch] = None
        self._stop: Optional[records.Command] = None  # what is being done; None for a signal
        self._sequence = 0  # of the newest command that was read
        self._requested = False  # a signal to stop has arrived
        self._saves: List[int] = []  # sequences of commands to save that are not answered yet
        self._log_size = 0
        self._lock: Optional[int] = None  # descriptor, open until this process exits

    # ------------------------------------------------------------------------------------------------ start

    def run(self, run: RunFile, attach: int = 0, started: int = 0) -> int:
        """Run the attempt to its end and return the exit code.

        ``attach``: pid of a trainer that runs already, 0: none; ``started``: its start time in ticks, 0: not known.

        Raises:
            FenceRejectedError: Another epoch has the run.
            EndedEarlyError: The trainer has ended by itself before the run was done.
            MismatchError: A checkpoint has other bytes than were recorded.
            RecordError: A record, or a template, cannot be used.
            FenceUnreadableError: The fence cannot be read.
        """
        block_signals()  # before any thread
        place = self._place
        watch_driver(self._launch.mark, lambda: keep_fence_of_adopted(place))
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
            command = Standby(self._launch, self._status).run(run, first)
            if command is None:
                return self._ended(records.STOPPED)
            first = command
        check_fence(place, first=self._node.number == 0)
        self._sequence = max(self._sequence, first.sequence if first is not None else 0)
        return self._train(run, first, attach, started)

    @property
    def status(self) -> StatusFile:
        assert self._status is not None
        return self._status

    def fail(self, message: str, code: int) -> int:
        """End the trainer, report why, and return ``code``.

        A trainer that was adopted trains on, unless another epoch has the run: `watch_driver` keeps its fence.
        """
        end_marked(self._launch.mark)
        line = " ".join(message.split())[:600]
        if isinstance(self._trainer, Adopted) and code != records.EXIT_FENCED and self._trainer.poll() is None:
            line = "{} (process {} trains on: adopt it again)".format(line, self._trainer.pids[0])
        elif self._trainer is not None:
            self._trainer.end()
        say(line)
        if self._status is not None:
            self._status.update(state=records.FAILED, message=line)
            self._status.close()
        return code

    # ------------------------------------------------------------------------------------------------ train

    def _train(self, run: RunFile, command: Optional[records.Command], attach: int, started: int) -> int:
        place, setup = self._place, self._launch.setup(run, self._launch.directory(run))
        began = time.monotonic()
        found = versions(self._python, tuple(dict.fromkeys([*PACKAGES, *run.environment.packages])), os.environ)
        name, digest = find_origin(place.paths, command)
        self.status.update(state=records.RESTORING if name else records.STARTING, epoch=place.epoch, versions=found)
        # Before anything is moved: another trainer may be writing there.
        if not attach:
            refuse_adopted(place)
        if run.directory and self._group.is_first:
            self._lock = lock_output(place, setup)
        restored = None if attach else self._inputs(setup, name)
        step = restored.step if restored else 0
        if restored is not None and name is not None and self._group.is_first:
            write_evidence(place, restored, name, digest, self._world.size, time.monotonic() - began)
        if self._group.is_first:
            self._tail = self._launch.open_tail(setup, place.files.metrics, step, adopted=bool(attach))
        self._watch = CheckpointWatch(setup, place.paths, place.number, place.epoch, found, first=step)
        if attach:
            self._trainer = adopt(place, attach, started)
        else:
            self._trainer = self._launch.start(setup, restored.path if restored else "")
        self.status.update(
            state=records.STARTING,
            step=step,
            checkpoint=name,
            root_digest=restored.root_digest if restored else None,
            acknowledged=self._sequence,
        )
        if self._group.is_first:
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

    def _inputs(self, setup: Setup, name: Optional[str]) -> Optional[Restored]:
        """Place files and checkpoint, or wait until node 0 has. Errors as of `run`."""
        if self._group.is_first:
            placed = self._launch.place_inputs(setup, name)
            self._group.announce_inputs()
            return placed
        self._group.wait_for_inputs()
        return placed_checkpoint(self._place.paths, name, setup.checkpoints) if name is not None else None

    def _follow(self, run: RunFile) -> int:
        """Follow the trainer until it has ended, or was stopped."""
        assert self._trainer is not None
        while True:
            arrived = wait_for_signal()
            if arrived in STOPS:
                self._requested = True
            if arrived == signal.SIGUSR1:
                self._saves.append(0)
            self._look()
            self._read_command()
            keep_fence(self._place)
            if self._requested or self._stop is not None:
                return self._stop_trainer(run)
            how = self._trainer.poll()
            if how is not None:
                self._look(settle=True, ended_well=_ended_well(how))
                return self._ended_by_itself(run, how)
            self._group.check()
            if self._group.was_left():
                self._note("node 0 has ended, and the trainer here is ended with it")
                self._trainer.end()
                return self._ended(records.STOPPED)

    def _look(self, *, settle: bool = False, ended_well: bool = False) -> None:
        """Read new rows, record new checkpoints, and bring the status up to date.

        ``settle``: the trainer has ended, so wait until its newest complete checkpoint is recorded. ``ended_well``: it
        was not ended in the middle of a save.
        """
        if self._tail is None:
            self._look_at_first()
            return
        assert self._watch is not None
        news: Dict[str, Any] = {}
        rows = self._tail.poll() + (self._tail.poll() if settle else 0)  # a source's last row may be waited for
        state = self.status.value.state
        if rows and state in (records.STARTING, records.RESTORING):
            state = records.TRAINING
        recorded = self._watch.poll(settle=settle, ended_well=ended_well)
        if recorded is not None:
            self._tail.sync()
            news.update(checkpoint=recorded.name, root_digest=recorded.root_digest, state_bytes=recorded.size)
            if self._saves:
                news.update(acknowledged=max([*self._saves, self.status.value.acknowledged]))
                self._saves = []
        if self._watch.problem or self._tail.problem:
            news.update(message=self._watch.problem or self._tail.problem)
        step = max(self._tail.step, self.status.value.step)
        self._look_at_log()
        self.status.update(state=state, step=step, **news)

    def _look_at_first(self) -> None:
        """Take the step of node 0, which alone reads metrics and records checkpoints."""
        first, state = self._group.first_status(), self.status.value.state
        self._look_at_log()
        if first is not None:
            if first.state == records.TRAINING and state in (records.STARTING, records.RESTORING):
                state = records.TRAINING
            self.status.update(state=state, step=max(first.step, self.status.value.step))

    def _look_at_log(self) -> None:
        with contextlib.suppress(OSError):
            size = os.stat(self._place.files.log(self._node.number)).st_size
            if size != self._log_size:  # a trainer that logs every hundredth step is not stalled in between
                self._log_size = size
                self.status.update(progress=time.time())

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
        ended = self._trainer.poll()  # by itself, before the signal
        self._trainer.signal(policy.signal)
        deadline = time.monotonic() + policy.grace
        while self._trainer.poll() is None and time.monotonic() < deadline:
            wait_for_signal()
            if policy.saves:
                self._look()
        killed = self._trainer.poll() is None
        left = self._trainer.end()
        if left:  # the epoch stays here: whatever they still write is part of it
            raise EndedEarlyError("processes {} of the trainer cannot be ended".format(", ".join(map(str, left))))
        if self._group.is_first:
            self._group.wait_ended(policy.grace + END_TIMEOUT)
        # What was complete before the end; exit codes prove nothing.
        self._look(settle=True, ended_well=_ended_well(ended) if ended else policy.saves and not killed)
        newest = self._watch.newest_step
        if policy.saves and newest == before and self._group.is_first:
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
        self.status.update(message="waiting for the next checkpoint of the trainer, then it stops")
        while time.monotonic() < deadline and self._trainer.poll() is None:
            self._look()
            if self._group.is_first:
                if self._watch.newest_step > before or (before >= 0 and before >= self.status.value.step):
                    break
            elif self._group.is_stopping():
                break
            arrived = wait_for_signal()
            if arrived == signal.SIGINT:  # as of the engine: a second SIGTERM or SIGHUP gives up no step
                break
            stopping = self._stop
            self._read_command()
            if stopping is not None and self._stop is None:
                self.status.update(message="")
                return True
            keep_fence(self._place)
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
        if command is not None and command.epoch > place.epoch and self._group.is_first:
            if newest is None:
                raise EndedEarlyError(
                    "the trainer has stopped without a complete checkpoint: there is nothing to migrate"
                )
            save_fence.seal(place.paths, epoch=command.epoch, owner=command.owner, step=newest.step)
        if command is not None:
            self.status.update(acknowledged=command.sequence)
        if newest is not None and self._group.is_first:
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
        if self._group.is_first and self._watch is not None:
            record_end(self._place.paths, self._place.number, self.status.value.step)
        self.status.update(state=state)
        self.status.close()
        return records.EXIT_DONE


def _ended_well(how: str) -> bool:
    """Return whether a trainer that ended by itself completed its last checkpoint.

    ``how``: its exit code; that of an adopted trainer is not known.
    """
    return how == "exit code 0" or how.startswith("exit code unknown")
