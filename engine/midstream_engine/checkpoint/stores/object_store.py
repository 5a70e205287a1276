"""The objects of one checkpoint: the interface of directories and buckets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol


class ObjectStore(Protocol):
    """The objects of one checkpoint. Paths are relative, with ``/``.

    A file system raises FileNotFoundError, FileExistsError and other OSErrors; a bucket also CheckpointError.
    """

    @property
    def where(self) -> str:
        """Directory or prefix, for messages."""
        ...

    def prepare(self, needed: int) -> None:
        """Prepare the store for ``needed`` bytes and remove an interrupted save.

        The interrupted save stays if another process may use it.

        Raises:
            CheckpointFullError: There is no room.
            CheckpointError: Nothing can be committed here.
        """
        ...

    def write(self, path: str, blocks: Iterable[memoryview]) -> None:
        """Create an object from any thread, durable once :meth:`sync` has returned.

        Raises:
            FileExistsError: A directory has another object of that path.
            CheckpointError: A bucket has another object of that path.
        """
        ...

    def sync(self) -> None:
        """Wait until everything written is durable.

        Raises:
            CheckpointError: The stored bytes are not those that were written.
        """
        ...

    def close(self) -> None:
        """Release the resources of a save that failed."""
        ...

    def commit(self, path: str, data: bytes) -> None:
        """Create an object atomically and durably.

        At most one of two concurrent calls succeeds.

        Raises:
            FileExistsError: The object exists.
        """
        ...

    def abandon(self) -> None:
        """Remove what a failed save wrote, unless another process may use it."""
        ...

    def tidy(self, listed: Collection[str]) -> None:
        """Remove all of a committed checkpoint but ``listed`` objects and the manifest."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether the object exists.

        Raises OSError or CheckpointError where that cannot be determined.
        """
        ...

    def size(self, path: str) -> int:
        """Return the object's bytes.

        Raises:
            FileNotFoundError: There is no such object.
        """
        ...

    def expect(self, path: str) -> None:
        """Start reading the object ahead, if the store can."""
        ...

    def read(
        self, path: str, into: Iterable[memoryview], take: Callable[[memoryview], object], crc32c: str = ""
    ) -> int:
        """Fill each buffer in turn from the start of the object; return the bytes read.

        ``take`` is called with each block that was read. The next buffer is requested when the previous one is full.
        A bucket is read again if the bytes do not have ``crc32c`` (base64); those of the last time count.
        """
        ...

    def get(self, path: str) -> bytes:
        """Return the bytes of a small object.

        Raises:
            FileNotFoundError: There is no such object.
        """
        ...

    def names(self) -> list[str]:
        """Return the paths of all objects."""
        ...

    def clear(self) -> None:
        """Remove everything, the manifest first."""
        ...
