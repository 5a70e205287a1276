"""What every place for checkpoints can do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

TRASH = ".trash-"  # before the name of a checkpoint that is being deleted


class Store(Protocol):
    """The objects of one checkpoint. Paths are relative, with ``/``.

    Errors: FileNotFoundError, FileExistsError and other OSErrors of a file system; CheckpointError of a bucket.
    """

    @property
    def where(self) -> str:
        """The directory or prefix, for messages."""
        ...

    def prepare(self, needed: int) -> None:
        """Make it a place for ``needed`` bytes. What a cut-off try left is removed where nobody else can be using it.
        CheckpointFull where there is no room, CheckpointError where nothing can be committed here."""
        ...

    def write(self, path: str, blocks: Iterable[memoryview]) -> None:
        """Create an object, from any thread. It lasts once :meth:`sync` has returned. FileExistsError or
        CheckpointError where another is there."""
        ...

    def sync(self) -> None:
        """Wait until everything written is durable. CheckpointError where it is not what was written."""
        ...

    def close(self) -> None:
        """Give back what a save that failed still held."""
        ...

    def commit(self, path: str, data: bytes) -> None:
        """Create an object as a whole or not at all, durably: of two that try, one at most succeeds. FileExistsError
        where it is there."""
        ...

    def abandon(self) -> None:
        """The save failed: remove what it wrote, unless another saver of the same name may count on it."""
        ...

    def tidy(self, listed: Collection[str]) -> None:
        """It is a checkpoint: remove what lies beside the ``listed`` objects and the manifest."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Bytes. FileNotFoundError where there is no such object."""
        ...

    def expect(self, path: str) -> None:
        """The object will be read soon: fetch it meanwhile, where that can be asked for."""
        ...

    def read(self, path: str, into: Iterable[memoryview], each: Callable[[memoryview], object]) -> int:
        """Fill one buffer after the other from the start of the object, calling ``each`` with what was read, in blocks;
        returns bytes read. The next buffer is asked for when the one before is full."""
        ...

    def get(self, path: str) -> bytes:
        """All of a small object. FileNotFoundError where there is no such object."""
        ...

    def names(self) -> list[str]:
        """Paths of all objects that are there."""
        ...

    def clear(self) -> None:
        """Remove everything, a manifest first."""
        ...


class RunCheckpoints(Protocol):
    """The folder of a run's checkpoints. Names are those of checkpoints, or have ``TRASH`` before them."""

    def names(self) -> list[str]: ...

    def store(self, name: str) -> Store: ...

    def set_aside(self, name: str) -> None:
        """Move a checkpoint into the trash: at once it is no checkpoint any more."""
        ...

    def bring_back(self, name: str) -> bool:
        """Move it back; False where that is too late, because it is half deleted, or not needed."""
        ...

    def empty(self, name: str) -> None:
        """Delete what lies in the trash under ``name``."""
        ...
