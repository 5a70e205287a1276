"""Trainer of an attempt on this node: its inputs, processes and metrics."""

from __future__ import annotations

import os
import posixpath
from typing import List, NamedTuple, Optional

from midstream_core import records
from midstream_host.driver import work_directory
from midstream_host.driver.attempt_place import AttemptPlace, say
from midstream_host.driver.batch_tap import BatchTap, remove
from midstream_host.driver.checkpoints.checkpoint_finder import rule_of
from midstream_host.driver.checkpoints.search import SearchError, search
from midstream_host.driver.command_variables import with_variables
from midstream_host.driver.divided_checkpoint import divide
from midstream_host.driver.metrics_source import open_source
from midstream_host.driver.metrics_tail import MetricsTail
from midstream_host.driver.run_file import RunFile, World
from midstream_host.driver.trainer_process import StartedTrainer
from midstream_host.driver.trainer_setup import Node, TrainerSetup


class AttemptTrainer(NamedTuple):
    """The trainer of an attempt on one node: its setup and its start."""

    place: AttemptPlace
    world: World
    node: Node
    python: str

    @property
    def mark(self) -> str:
        """Mark of its processes."""
        return "{}#{}".format(self.place.files.dir, self.node.number)

    def directory(self, run: RunFile) -> str:
        """Working directory of the run."""
        return run.directory or posixpath.join(self.place.paths.dir, work_directory.WORK)

    def setup(self, run: RunFile, directory: str) -> TrainerSetup:
        tap = posixpath.join(self.place.files.dir, "batches-{}.jsonl".format(self.node.number))
        return TrainerSetup(run, self.world, self.node, self.python, directory, tap)

    def place_inputs(self, setup: TrainerSetup, name: Optional[str]) -> Optional[work_directory.PlacedCheckpoint]:
        """Bring the files that travel and the checkpoint to the working directory.

        A checkpoint of another number of processes is divided. Node 0 alone copies: a group has one working directory.
        Raises RecordError, OSError.
        """
        run, place = setup.run, self.place
        os.makedirs(setup.directory, exist_ok=True)
        if run.files_digest and not run.directory:
            work_directory.bring_files(place.paths.root, run.files_digest, setup.directory)
        inside = setup.checkpoints == posixpath.normpath(setup.directory)  # code and data are there too
        earlier = _checkpoints_in(setup, place.paths.root) if inside else None
        work_directory.set_aside(setup.checkpoints, place.number, earlier)
        if setup.out not in (setup.checkpoints, posixpath.normpath(setup.directory)):
            work_directory.set_aside(setup.out, place.number)
        os.makedirs(setup.out, exist_ok=True)
        if name is None:
            return None
        restored = work_directory.place_checkpoint(place.paths, name, setup.checkpoints)
        if restored.root_digest != restored.recorded:  # damaged: the caller refuses it
            return restored
        return divide(restored, run.checkpoints.rule, self.world.size)

    def start(self, setup: TrainerSetup, checkpoint: str) -> StartedTrainer:
        """Start its processes on this node.

        Raises OSError where a program cannot be started, RecordError for a variable of the command that is not set.
        """
        commands, environments = setup.commands(checkpoint), setup.environments(os.environ)
        say("{} in {}: {}".format(setup.run.trainer, setup.directory, " ".join(commands[0])))  # without its secrets
        commands = [with_variables(words, own) for words, own in zip(commands, environments)]
        remove(setup.tap)
        return StartedTrainer(commands, environments, setup.directory, self.mark)

    def open_tail(
        self, setup: TrainerSetup, path: str, first: int, *, started: Optional[float] = None, start: int = 0
    ) -> MetricsTail:
        """Follow its metrics into ``path`` from step ``first`` on.

        Call it before `start`: what is there then is of earlier attempts, and is left out. Of an adopted trainer,
        which was ``started`` at a time in seconds, what it wrote since then is its own. Rows have the number of the
        driver's ``start``.

        Raises RecordError for a wrong source.
        """
        try:
            reader = open_source(setup, self.place.files.log(self.node.number))
        except ValueError as error:
            raise records.RecordError("metrics: {}".format(error)) from None
        tail = MetricsTail(reader, path, first=first, tap=BatchTap(setup.tap), start=start)
        if started is None:
            tail.pass_over()
        else:
            tail.take_over(started)
        return tail


def _checkpoints_in(setup: TrainerSetup, root: str) -> List[str]:
    """Return the checkpoints in a working directory that has other files too.

    A file that travels, such as weights to begin with, is none. Raises RecordError, OSError.
    """
    rule = rule_of(setup.run.checkpoints.rule)
    try:
        search_result = search(setup.checkpoints, setup.run.checkpoints.pattern or rule.pattern)
    except SearchError as error:
        raise records.RecordError("checkpoints: {}".format(error)) from None
    others = work_directory.travelling(root, setup.run.files_digest)
    search_result = [path for path in search_result if path not in others]
    if rule.newest_file:
        search_result += sorted({posixpath.join(posixpath.dirname(path), rule.newest_file) for path in search_result})
    return search_result
