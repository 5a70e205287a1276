"""An attempt of another trainer's run: its start, and what follows until its end."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from typing import Optional

from midstream_core import records
from midstream_core.attempt.earlier_process import running_earlier
from midstream_core.attempt.errors import AlreadyRunningError
from midstream_core.attempt.status_file import StatusFile
from midstream_host.driver.adopted_trainer import adopt, keep_fence_of_adopted, refuse_adopted
from midstream_host.driver.attempt_commands import AttemptCommands
from midstream_host.driver.attempt_fence import check_fence, keep_fence
from midstream_host.driver.attempt_group import LEFT_AFTER, AttemptGroup
from midstream_host.driver.attempt_lineage import record_end, record_start
from midstream_host.driver.attempt_origin import find_origin, why_complete, write_evidence
from midstream_host.driver.attempt_place import AttemptPlace, EndedEarlyError, note, say
from midstream_host.driver.attempt_progress import AttemptProgress
from midstream_host.driver.attempt_trainer import AttemptTrainer
from midstream_host.driver.checkpoint_places import environment_of, other_place
from midstream_host.driver.checkpoint_watch import CheckpointWatch
from midstream_host.driver.marked_processes import end_marked, watch_driver
from midstream_host.driver.metrics_tail import MetricsTail
from midstream_host.driver.output_lock import lock_output
from midstream_host.driver.run_file import RunFile, World
from midstream_host.driver.signals import block_signals, wait_for_signal
from midstream_host.driver.standby import Standby
from midstream_host.driver.start_evidence import StartEvidence
from midstream_host.driver.trainer_process import Adopted, TrainerProcess, started_at
from midstream_host.driver.trainer_setup import PACKAGES, Node, TrainerSetup, versions
from midstream_host.driver.trainer_stop import TrainerStop, ended_well
from midstream_host.driver.work_directory import PlacedCheckpoint, placed_checkpoint


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
        self._progress: Optional[AttemptProgress] = None
        self._sequence = 0  # of the newest command that was obeyed before the start
        self._lock: Optional[int] = None  # descriptor, open until this process exits

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
        print("resolved configuration:\n{}".format(json.dumps(run.to_json(), indent=1)), flush=True)
        say("attempt {} of {} under ownership {}".format(place.number, place.paths.run_id, place.epoch))
        first = records.Command.read_or_none(place.files.command_file)
        standby = first is not None and first.action == records.STANDBY
        for directory in (place.paths.attempts, place.paths.pins, place.paths.checkpoints, place.files.dir):
            os.makedirs(directory, mode=0o700 if directory == place.paths.attempts else 0o777, exist_ok=True)
        earlier = running_earlier(place.files.status(self._node.number))
        if earlier:
            raise AlreadyRunningError(earlier)
        watch_driver(self._launch.mark, lambda: keep_fence_of_adopted(place))
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
        devices = [{"kind": "", "platform": run.trainer, "memory_bytes": None}] * self._world.device_count
        self._status.update(devices=devices, data_digests=[run.files_digest] if run.files_digest else [])
        if standby:
            assert first is not None
            command = Standby(self._launch, self._status).run(run, first)
            if command is None:
                return self._ended(records.STOPPED)
            first = command
        self._place = check_fence(place, first=self._node.number == 0)
        self.status.update(start=self._place.start)
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

    def _train(self, run: RunFile, command: Optional[records.Command], attach: int, started: int) -> int:
        place, setup = self._place, self._launch.setup(run, self._launch.directory(run))
        began = time.monotonic()
        installed = versions(self._python, tuple(dict.fromkeys([*PACKAGES, *run.environment.packages])), os.environ)
        name, digest = find_origin(place, command)
        self.status.update(state=records.RESTORING if name else records.STARTING, epoch=place.epoch, versions=installed)
        # Before anything is moved: another trainer may be writing there.
        if not attach:
            refuse_adopted(place)
        if run.directory and self._group.is_first:
            self._lock = lock_output(place, setup)
        restored = None if attach else self._inputs(setup, name)
        step = restored.step if restored else 0
        if restored is not None and name is not None and self._group.is_first:
            write_evidence(place, restored, name, digest, self._world.device_count, time.monotonic() - began)
        adopted = adopt(place, attach, started) if attach else None
        since = started_at(adopted.identity) if adopted is not None else None
        tail: Optional[MetricsTail] = None
        evidence: Optional[StartEvidence] = None  # of a trainer that was started from a checkpoint
        if self._group.is_first:
            tail = self._launch.open_tail(setup, place.files.metrics, step, started=since, start=place.start)
        other = other_place(run, setup.commands()[0], setup.directory, environment_of(attach) if attach else os.environ)
        if other.problem:
            note(self.status, other.problem)
        setup = dataclasses.replace(setup, elsewhere=other.folder)
        watch = CheckpointWatch(
            setup, place.paths, place.number, place.epoch, installed, step, since, start=place.start
        )
        complete = why_complete(run, restored) if restored is not None else ""
        if restored is not None and self._group.is_first and not complete:
            evidence = StartEvidence(place.files.trainer_evidence, restored, self._world.nodes)
        commands = AttemptCommands(place, self.status, self._sequence)
        self._progress = AttemptProgress(
            place, self._node.number, self._group, self.status, commands, watch, tail, evidence
        )
        if not complete:
            self._trainer = adopted or self._launch.start(setup, restored.path if restored else "")
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
                    devices=self._world.device_count,
                    device_kind="",
                    first_step=step,
                    checkpoint=name,
                    root_digest=restored.root_digest if restored else None,
                    migration=command.migration if command else "",
                    started=time.time(),
                ),
            )
        if complete:
            note(self.status, "the run is complete, {}: the trainer is not started".format(complete))
            return self._ended(records.FINISHED)
        return self._follow(run, commands, self._progress)

    def _inputs(self, setup: TrainerSetup, name: Optional[str]) -> Optional[PlacedCheckpoint]:
        """Place files and checkpoint, or wait until node 0 has. Errors as of `run`."""
        if self._group.is_first:
            placed = self._launch.place_inputs(setup, name)
            self._group.announce_inputs()
            return placed
        self._group.wait_for_inputs()
        return placed_checkpoint(self._place.paths, name, setup.checkpoints) if name is not None else None

    def _follow(self, run: RunFile, commands: AttemptCommands, progress: AttemptProgress) -> int:
        """Follow the trainer until it has ended, or was stopped."""
        assert self._trainer is not None
        stop = TrainerStop(self._place, self._group, self.status, commands, progress, self._trainer)
        while True:
            commands.take(wait_for_signal())
            progress.look()
            commands.read()
            keep_fence(self._place)
            if commands.stops and stop.stop(run):
                stop.seal()
                return self._ended(records.STOPPED)
            how = self._trainer.poll()
            if how is not None:
                progress.look(settle=True, ended_well=ended_well(how))
                return self._ended_by_itself(run, how)
            self._group.check()
            if self._group.was_left():
                note(self.status, "node 0 has ended, and the trainer here is ended with it")
                self._trainer.end()
                return self._ended(records.STOPPED)

    def _ended_by_itself(self, run: RunFile, how: str) -> int:
        """End the attempt of a trainer that has ended without a request."""
        assert self._trainer is not None
        step = self.status.value.step
        newest = self._progress.watch.newest_step if self._progress is not None else -1
        self._trainer.end()
        if run.steps and max(step, newest) >= run.steps:
            return self._ended(records.FINISHED)
        if how == "exit code 0" and not run.steps:
            return self._ended(records.FINISHED)
        what = "of {} ".format(run.steps) if run.steps else ""
        line = "{} ended by itself at step {} {}({})".format(run.trainer, step, what, how)
        if how != "exit code 0":
            raise EndedEarlyError(line)
        note(self.status, line)  # a signal from outside, or the trainer's own decision: it is not known
        return self._ended(records.STOPPED)

    def _ended(self, state: str) -> int:
        if self._progress is not None:
            self._progress.close()
        if self._group.is_first and self._progress is not None:
            record_end(self._place.paths, self._place.number, self.status.value.step)
        self.status.update(state=state)
        self.status.close()
        return records.EXIT_DONE
