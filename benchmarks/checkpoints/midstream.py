"""Checkpoints as the engine saves and restores them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from checkpoints.state import Case


class Midstream:
    """Checkpoints as the engine saves and restores them."""

    name = "midstream"

    def __init__(self, case: Case) -> None:
        self._case = case
        self.stall = 0.0

    def _named(self, tree: dict[str, Any]) -> dict[str, Any]:
        import haliax as hax
        from haliax import NamedArray

        return {
            name: NamedArray(value, tuple(hax.Axis(a, n) for a, n in zip(*self._case.shapes[name], strict=True)))
            for name, value in tree.items()
        }

    def tree(self) -> dict[str, Any]:
        """The present state, with the names of its axes, which a trainer's state has."""
        return self._named(self._case.state)

    def begin(self, directory: Path, *, copy: bool, tree: dict[str, Any] | None = None) -> Any:
        """Begin a save of ``tree``; None: of the present state."""
        from midstream_core.records import RunPaths
        from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
        from midstream_engine.checkpoint.saving.save import begin_save
        from midstream_engine.checkpoint.saving.snapshot import Copy

        paths = RunPaths(str(directory), "bench")
        os.makedirs(paths.dir, exist_ok=True)
        return begin_save(
            paths,
            self.tree() if tree is None else tree,
            train_document({"step": 1}, {}, None),
            step=1,
            attempt=1,
            epoch=1,
            copy=Copy.HOST if copy else Copy.NONE,
        )

    def save(self, directory: Path) -> None:
        self.begin(directory, copy=False).finish()

    def save_behind(self, directory: Path) -> None:
        """As the training loop does: with a snapshot that the state does not share."""
        tree = self.tree()
        began = time.perf_counter()
        pending = self.begin(directory, copy=True, tree=tree)
        self.stall = time.perf_counter() - began
        pending.finish()

    def restore(self, directory: Path, mesh: Any) -> dict[str, Any]:
        from midstream_engine.checkpoint.loading.restore import restore_checkpoint

        template = self._case.template(mesh)
        shardings = {name: leaf.sharding for name, leaf in template.items()}
        where = directory / "runs/bench/checkpoints/step-1-a001"
        return restore_checkpoint(str(where), self._named(template), shardings).tree
