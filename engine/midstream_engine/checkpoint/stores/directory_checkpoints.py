"""A run's checkpoints in a directory."""

from __future__ import annotations

import os

from midstream_core.records import MANIFEST
from midstream_engine.checkpoint.stores.checkpoint_store import TRASH
from midstream_engine.checkpoint.stores.directory_objects import DirectoryObjects


class DirectoryCheckpoints:
    """Checkpoints as folders of a directory; the trash is a renamed folder.

    See :class:`CheckpointStore`.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def store(self, name: str) -> DirectoryObjects:
        return DirectoryObjects(self._at(name))

    def set_aside(self, name: str) -> None:
        os.rename(self._at(name), self._at(TRASH + name))

    def bring_back(self, name: str) -> bool:
        # Without a manifest it is partly deleted.
        if os.path.exists(self._at(name)) or not os.path.exists(os.path.join(self._at(TRASH + name), MANIFEST)):
            return False
        os.rename(self._at(TRASH + name), self._at(name))
        return True

    def empty(self, name: str) -> None:
        DirectoryObjects(self._at(TRASH + name)).clear()
