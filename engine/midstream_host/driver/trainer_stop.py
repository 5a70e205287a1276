"""Stop of an attempt's trainer by its policy, and the seal.

As few steps are given up as the policy permits.
"""

from __future__ import annotations

import signal
import time
from typing import NamedTuple

from midstream_core import records
from midstream_core.attempt import save_fence
from midstream_core.attempt.status_file import StatusFile
from midstream_host.driver.attempt_commands import AttemptCommands
from midstream_host.driver.attempt_fence import keep_fence
from midstream_host.driver.attempt_group import AttemptGroup
from midstream_host.driver.attempt_place import AttemptPlace, EndedEarlyError, note
from midstream_host.driver.attempt_progress import AttemptProgress
from midstream_host.driver.run_file import RunFile
from midstream_host.driver.signals import wait_for_signal
from midstream_host.driver.trainer_process import TrainerProcess

END_TIMEOUT = 60.0  # seconds past the grace for the drivers of other nodes to end their trainers


class TrainerStop(NamedTuple):
    """Stop of the trainer on this node."""

    place: AttemptPlace
    group: AttemptGroup
    status: StatusFile
    commands: AttemptCommands
    progress: AttemptProgress
    trainer: TrainerProcess

    def stop(self, run: RunFile) -> bool:
        """Stop the trainer; return False where a later command has withdrawn it.

        Raises:
            EndedEarlyError: A process cannot be ended, or that of another node.
            FenceRejectedError: The run has passed on.
        """
        policy, watch, trainer = run.stop, self.progress.watch, self.trainer
        if self.commands.stop is not None and self.commands.stop.last_step_numbers:
            watch.count_last_step()
        named = self.commands.stop is not None and self.commands.stop.checkpoint is not None  # it exists already
        if not policy.saves and not named and self._wait_for_checkpoint(policy.wait):
            return False
        self.status.update(state=records.STOPPING)
        before = watch.newest_step
        ended = trainer.poll()  # by itself, before the signal
        trainer.signal(policy.signal)
        deadline = time.monotonic() + policy.grace
        while trainer.poll() is None and time.monotonic() < deadline:
            wait_for_signal()
            if policy.saves:
                self.progress.look()
        killed = trainer.poll() is None
        running = trainer.end()
        if running:  # the epoch stays here: whatever they still write is part of it
            raise EndedEarlyError("processes {} of the trainer cannot be ended".format(", ".join(map(str, running))))
        if self.group.is_first:
            self.group.wait_ended(policy.grace + END_TIMEOUT)
        # What was complete before the end; exit codes prove nothing.
        self.progress.look(settle=True, ended_well=ended_well(ended) if ended else policy.saves and not killed)
        if policy.saves and watch.newest_step == before and self.group.is_first:
            note(self.status, "{} saved nothing new on {}".format(run.trainer, policy.signal))
        if killed:
            note(self.status, "the trainer was killed {:.0f} s after {}".format(policy.grace, policy.signal))
        return True

    def seal(self) -> None:
        """Pass the epoch on where that was commanded; no process runs any more.

        Raises EndedEarlyError where there is nothing to migrate.
        """
        command, place, newest = self.commands.stop, self.place, self.progress.watch.newest
        if command is not None and command.epoch > place.epoch and self.group.is_first:
            if newest is None:
                raise EndedEarlyError(
                    "the trainer has stopped without a complete checkpoint: there is nothing to migrate"
                )
            save_fence.seal(place.paths, epoch=command.epoch, owner=command.owner, step=newest.step, start=place.start)
        if command is not None:
            self.status.update(acknowledged=self.commands.sequence)
        if newest is not None and self.group.is_first:
            self.status.update(step=newest.step)

    def _wait_for_checkpoint(self, seconds: float) -> bool:
        """Wait for the next periodic checkpoint; return whether the stop was withdrawn.

        The trainer trains during the wait.
        """
        commands, watch = self.commands, self.progress.watch
        deadline, before = time.monotonic() + seconds, watch.newest_step
        self.status.update(message="waiting for the next checkpoint of the trainer, then it stops")
        while time.monotonic() < deadline and self.trainer.poll() is None:
            self.progress.look()
            if self.group.is_first:
                if watch.newest_step > before or self.progress.nothing_is_given_up(before):
                    break
            elif self.group.is_stopping():
                break
            arrived = wait_for_signal()
            if arrived == signal.SIGINT:  # as of the engine: a second SIGTERM or SIGHUP gives up no step
                break
            stopping = commands.stop
            commands.read()
            if stopping is not None and commands.stop is None:
                self.status.update(message="")
                return True
            keep_fence(self.place)
        self.status.update(message="")
        return False


def ended_well(how: str) -> bool:
    """Return whether a trainer that ended by itself completed its last checkpoint.

    ``how``: its exit code; that of an adopted trainer is not known.
    """
    return how == "exit code 0" or how.startswith("exit code unknown")
