"""An attempt that stands by: the root that a run is to be moved to, and what it is told there."""

from __future__ import annotations

import shutil
from pathlib import Path

from midstream_engine import records
from support.engine_runs import Engine


class Held:
    """A second root, to which the run is to be moved, with the data and the checkpoint that is rehearsed on."""

    def __init__(self, source: Path, root: Path, first: str, *flags: str):
        self.source, self.root, self.flags = records.RunPaths(str(source), "r"), root, flags
        self.paths = records.RunPaths(str(root), "r")
        shutil.copytree(source / "data", root / "data")
        shutil.copytree(source / "compile-cache", root / "compile-cache")
        Path(self.paths.attempt(2).dir).mkdir(parents=True)
        self.bring(first)

    def bring(self, name: str) -> None:
        shutil.copytree(self.source.checkpoint(name), self.paths.checkpoint(name))

    def order(
        self, action: str, serial: int, checkpoint: str | None = None, epoch: int = 2, step: int | None = None
    ) -> None:
        digest = None
        if checkpoint is not None:
            digest = records.Manifest.read(f"{self.source.checkpoint(checkpoint)}/{records.MANIFEST}").root_digest
        order = records.Command(
            action, epoch=epoch, checkpoint=checkpoint, root_digest=digest, sequence=serial, step=step
        )
        order.write(self.paths.attempt(2).command_file)

    def start(self, *flags: str, **environment: str) -> Engine:
        said = {"MIDSTREAM_ATTEMPT": "2", "MIDSTREAM_EPOCH": "2", "MIDSTREAM_TARGET": "two", **environment}
        return Engine(self.root, *self.flags, *flags, devices=4, **said)

    def status(self) -> records.Status | None:
        return records.Status.read_or_none(self.paths.attempt(2).status())

    def is_in(self, state: str):
        """For ``until``: the status once it has this state."""
        return lambda: status if (status := self.status()) is not None and status.state == state else None

    def has_done(self, serial: int):
        """For ``until``: the status once it has carried out this order."""
        return lambda: status if (status := self.status()) is not None and status.acknowledged >= serial else None

    def has_refused(self, serial: int):
        """For ``until``: the status once it has refused this order."""
        return lambda: status if (status := self.status()) is not None and status.rejected >= serial else None
