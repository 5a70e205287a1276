"""Run directories as an engine leaves them, written by hand."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midstream_core import records


class RunDirectory:
    """One run below a root. No engine trains in it."""

    def __init__(self, root: Path, run_id: str = "run") -> None:
        self.paths = records.RunPaths(str(root), run_id)
        Path(self.paths.attempts).mkdir(parents=True)
        Path(self.paths.checkpoints).mkdir()
        Path(self.paths.pins).mkdir()

    def attempt(self, number: int) -> records.AttemptPaths:
        paths = self.paths.attempt(number)
        Path(paths.dir).mkdir(exist_ok=True)
        return paths

    def rows(self, attempt: int, *steps: int) -> None:
        """Append a line of metrics for each step."""
        self.text(attempt, "".join(json.dumps(row(step)) + "\n" for step in steps))

    def text(self, attempt: int, text: str) -> None:
        """Append text to an attempt's metrics."""
        with open(self.attempt(attempt).metrics, "a") as file:
            file.write(text)

    def log(self, attempt: int, text: str) -> None:
        with open(self.attempt(attempt).log(), "a") as file:
            file.write(text)

    def status(self, attempt: int, state: str, step: int, process: records.ProcessIdentity | None = None) -> None:
        """Write the status of process 0. By default it names this process, which runs."""
        identity = process or records.this_process()
        records.Status(
            state=state,
            step=step,
            process=0,
            heartbeat=time.time(),
            run_id=self.paths.run_id,
            attempt=attempt,
            **identity.to_json(),
        ).write(self.attempt(attempt).status(), durable=False)

    def fence(self, epoch: int, owner: str = "here", sealed: int | None = None, seals: Sequence[Any] = ()) -> None:
        records.Fence(epoch, owner, sealed, list(seals)).write(self.paths.fence, durable=False)

    def lineage(self, *attempts: Mapping[str, Any]) -> None:
        """Write the lineage. Each entry has ``attempt`` and ``epoch`` at least."""
        chain = records.Lineage(self.paths.run_id)
        for given in attempts:
            words = {"target": "here", "devices": 1, "device_kind": "cpu", "first_step": 0, **given}
            chain = chain.with_entry(records.LineageEntry.from_json(words))
        chain.write(self.paths.lineage, durable=False)

    def checkpoint(self, step: int, attempt: int = 1, epoch: int = 1, complete: bool = True) -> str:
        """Write a checkpoint without arrays; without its manifest unless ``complete``."""
        return write_checkpoint(self.paths, step, attempt, epoch, complete)


def write_checkpoint(
    paths: records.RunPaths, step: int, attempt: int = 1, epoch: int = 1, complete: bool = True
) -> str:
    """Write a checkpoint without arrays; without its manifest unless ``complete``."""
    name = records.checkpoint_name(step, attempt)
    directory = Path(paths.checkpoint(name))
    directory.mkdir(parents=True, exist_ok=True)
    if complete:
        records.Manifest(
            format=records.FORMAT,
            version=records.FORMAT_VERSION,
            run_id=paths.run_id,
            step=step,
            attempt=attempt,
            epoch=epoch,
            created=1000.0 + step,
            root_digest="d" * 64,
            arrays=[],
            objects=[{"path": "a", "size": 40, "sha256": "0" * 64}, {"path": "b", "size": 2, "sha256": "0" * 64}],
        ).write(str(directory / records.MANIFEST), durable=False)
    return name


def row(step: int) -> dict[str, Any]:
    return {"global_step": step, "train/loss": 1.0 / (1 + step), "time": 1000.0 + step}


def dead_process() -> records.ProcessIdentity:
    """Return the identity of a process that has exited: this pid, with another start time."""
    here = records.this_process()
    return records.ProcessIdentity(here.boot_id, os.getpid(), here.start_ticks - 1)
