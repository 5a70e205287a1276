"""The store of a run's checkpoints: a folder or a prefix in a bucket."""

from __future__ import annotations

from typing import Protocol

from midstream_engine.checkpoint.stores.object_store import ObjectStore

TRASH = ".trash-"  # begins the name of a checkpoint that is being deleted


class RunCheckpoints(Protocol):
    """A run's checkpoints. A name is that of a checkpoint, or begins with ``TRASH``."""

    def names(self) -> list[str]:
        """Return the names of all checkpoints, complete or not, and of the trash."""
        ...

    def store(self, name: str) -> ObjectStore:
        """Return the objects of a checkpoint."""
        ...

    def set_aside(self, name: str) -> None:
        """Move a checkpoint into the trash, atomically."""
        ...

    def bring_back(self, name: str) -> bool:
        """Move a checkpoint back; False if it is partly deleted or was not in the trash."""
        ...

    def empty(self, name: str) -> None:
        """Delete ``name`` from the trash."""
        ...
