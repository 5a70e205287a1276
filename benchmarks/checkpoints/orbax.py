"""Checkpoints of orbax-checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoints.state import Case


class Orbax:
    """StandardCheckpointer, as its documentation shows it. It hashes nothing; OCDBT, its default, compresses."""

    def __init__(self, case: Case, ocdbt: bool) -> None:
        import orbax.checkpoint as ocp

        self.name = f"orbax {ocp.__version__}{'' if ocdbt else ', no OCDBT'}"
        self._case = case
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=True)
        self._checkpointer: Any = ocp.Checkpointer(handler)

    def save(self, directory: Path) -> None:
        self._checkpointer.save(str(directory), self._case.state)

    def restore(self, directory: Path, mesh: Any) -> dict[str, Any]:
        import orbax.checkpoint as ocp

        template = self._case.template(mesh)
        arguments = ocp.checkpoint_utils.construct_restore_args(template)
        return self._checkpointer.restore(str(directory), item=template, restore_args=arguments)
