"""A standby attempt: its root, and the commands that it receives."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from midstream_core import records
from support.engines.engine_runs import Engine


class Held:
    """A second root, the target of the migration, with the data and a checkpoint for the rehearsal."""

    def __init__(self, source: Path, root: Path, first: str, *flags: str) -> None:
        self.source, self.root, self.flags = records.RunPaths(str(source), "r"), root, flags
        self.paths = records.RunPaths(str(root), "r")
        shutil.copytree(source / "data", root / "data")
        shutil.copytree(source / "compile-cache", root / "compile-cache")
        Path(self.paths.attempt(2).dir).mkdir(parents=True)
        self.bring(first)

    def bring(self, name: str) -> None:
        shutil.copytree(self.source.checkpoint(name), self.paths.checkpoint(name))

    def order(
        self, action: str, sequence: int, checkpoint: str | None = None, epoch: int = 2, step: int | None = None
    ) -> None:
        digest = None
        if checkpoint is not None:
            digest = records.Manifest.read(f"{self.source.checkpoint(checkpoint)}/{records.MANIFEST}").root_digest
        command = records.Command(
            action, epoch=epoch, checkpoint=checkpoint, root_digest=digest, sequence=sequence, step=step
        )
        command.write(self.paths.attempt(2).command_file)

    def start(self, *flags: str, **environment: str) -> Engine:
        said = {"MIDSTREAM_ATTEMPT": "2", "MIDSTREAM_EPOCH": "2", "MIDSTREAM_TARGET": "two", **environment}
        return Engine(self.root, *self.flags, *flags, devices=4, **said)

    def status(self) -> records.Status | None:
        return records.Status.read_or_none(self.paths.attempt(2).status())

    def is_in(self, state: str) -> Callable[[], records.Status | None]:
        """Return a condition for ``until``: the status, once it has this state."""
        return lambda: status if (status := self.status()) is not None and status.state == state else None

    def has_done(self, sequence: int) -> Callable[[], records.Status | None]:
        """Return a condition for ``until``: the status, once it has acknowledged this command."""
        return lambda: status if (status := self.status()) is not None and status.acknowledged >= sequence else None

    def has_refused(self, sequence: int) -> Callable[[], records.Status | None]:
        """Return a condition for ``until``: the status, once it has rejected this command."""
        return lambda: status if (status := self.status()) is not None and status.rejected >= sequence else None
