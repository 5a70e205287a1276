"""Disks of simulated machines: what fsync has not made durable may be lost when a machine crashes.

Content of a file is durable up to the size that it had at its last fsync. A name (made, replaced, removed) is durable
after an fsync of its directory; until then it may be undone, in each directory without regard to the others. What is
older than `WRITE_BACK` seconds is durable, too: kernels write it by then.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import random
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.machines import present
from simulation.operating_system import READING
from simulation.scheduler import SCHEDULER

WRITE_BACK = 60.0  # seconds
CREATED, MADE, RENAMED, REMOVED = "created", "made", "renamed", "removed"
_open, _open_file, _mkdir, _fsync = os.open, builtins.open, os.mkdir, os.fsync
_replace, _rename, _unlink, _link = os.replace, os.rename, os.unlink, os.link


@dataclass
class _Name:
    """A change of a directory that is not durable yet."""

    time: float
    kind: str
    path: str
    source: str = ""  # of a rename
    before: str = ""  # the file that had the name, kept under this one


@dataclass
class _Written:
    time: float  # of the last opening
    durable: int  # bytes


@dataclass
class Disk:
    """A machine's disk, with the changes that are not durable yet."""

    directories: tuple[str, ...]
    kept: str  # directory for replaced and removed files
    names: dict[str, list[_Name]] = field(default_factory=dict)  # directory -> changes, in order
    written: dict[int, _Written] = field(default_factory=dict)  # inode -> state
    random: random.Random = field(default_factory=lambda: random.Random(0))
    _count: int = 0

    def has(self, path: object) -> bool:
        return isinstance(path, str) and path.startswith(self.directories)

    def record(self, kind: str, path: str, source: str = "", before: str = "") -> None:
        """Record a change of a name, and forget what the kernel has written by now."""
        now = SCHEDULER.now
        changes = self.names.setdefault(os.path.dirname(path), [])
        while changes and changes[0].time < now - WRITE_BACK:
            self._forget(changes.pop(0))
        changes.append(_Name(now, kind, path, source, before))

    def rename_directory(self, before: str, after: str) -> None:
        """Follow a directory to its new name."""
        inside = before + os.sep
        for directory in [name for name in self.names if name == before or name.startswith(inside)]:
            changes = self.names.pop(directory)
            for change in changes:
                change.path = after + change.path[len(before) :]
                change.source = after + change.source[len(before) :] if change.source.startswith(inside) else ""
            self.names[after + directory[len(before) :]] = changes

    def keep(self, path: str) -> str:
        """Keep the file that has a name; return where. Empty where there is none."""
        self._count += 1
        kept = os.path.join(self.kept, str(self._count))
        try:
            _link(path, kept)
        except OSError:
            return ""
        return kept

    def write(self, inode: int, size: int) -> None:
        """Note that a file of that durable size is opened for writing."""
        state, now = self.written.get(inode), SCHEDULER.now
        if state is None:
            self.written[inode] = _Written(now, size)
            return
        if state.time < now - WRITE_BACK:
            state.durable = size
        state.time, state.durable = now, min(size, state.durable)

    def sync_file(self, path: str, inode: int, size: int) -> None:
        """Make a file's content durable, and the directories that it is in."""
        if inode in self.written:
            self.written[inode].durable = size
        self._sync_parents(os.path.dirname(path))

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        for change in self.names.pop(path, []):
            self._forget(change)
        self._sync_parents(path)

    def _sync_parents(self, directory: str) -> None:
        """No file system in use writes a file whose directory it then loses."""
        while self.has(directory):
            parent = os.path.dirname(directory)
            changes = self.names.get(parent, [])
            made = [number for number, change in enumerate(changes) if change.path == directory]
            for _ in range(made[-1] + 1 if made else 0):
                self._forget(changes.pop(0))
            directory = parent

    def _forget(self, change: _Name) -> None:
        if change.before:
            _unlink(change.before)

    def lose(self) -> str:
        """Lose what is not durable, as a power cut does. Return what was lost, in words."""
        amount = self.random.choice(["nothing", "some", "some", "all", "all"])
        undone = partial = 0
        if amount != "nothing":
            undone = sum(self._undo(changes, amount) for changes in list(self.names.values()))
            partial = self._cut_files(amount)
        for changes in self.names.values():
            for change in changes:
                self._forget(change)
        self.names.clear()
        self.written.clear()
        return f"{undone} names and the content of {partial} files lost" if undone or partial else ""

    def _undo(self, changes: list[_Name], amount: str) -> int:
        begun = SCHEDULER.now - WRITE_BACK
        recent = [change for change in changes if change.time >= begun]
        count = len(recent) if amount == "all" else self.random.randint(0, len(recent))
        for _ in range(count):
            change = changes.pop()
            with contextlib.suppress(OSError):  # a directory of it was undone before
                self._undo_one(change)
        return count

    @staticmethod
    def _undo_one(change: _Name) -> None:
        if change.kind == CREATED:
            _unlink(change.path)
        elif change.kind == MADE:
            shutil.rmtree(change.path)
        elif change.kind == RENAMED:
            _rename(change.path, change.source)
        if change.before:
            _rename(change.before, change.path)
            change.before = ""

    def _cut_files(self, amount: str) -> int:
        count = 0
        for directory in self.directories:
            for where, _, files in os.walk(directory):
                for name in sorted(files):
                    count += self._cut_file(os.path.join(where, name), amount)
        return count

    def _cut_file(self, path: str, amount: str) -> bool:
        found = os.stat(path)
        state = self.written.get(found.st_ino)
        if state is None or found.st_size <= state.durable or state.time < SCHEDULER.now - WRITE_BACK:
            return False
        size = state.durable if amount == "all" else self.random.randint(state.durable, found.st_size)
        os.truncate(path, size)
        if self.random.random() < 0.25:  # some file systems write the size before the content
            os.truncate(path, found.st_size)
        return True


def _disk(*paths: Any) -> Disk | None:
    """Return the disk that has all paths; None without one."""
    process = present()
    disk = process.machine.disk if process is not None else None
    return disk if disk is not None and all(disk.has(path) for path in paths) else None


def _note_written(disk: Disk, path: str, descriptor: int, existed: bool, size: int) -> None:
    if not existed:
        disk.record(CREATED, path)
    disk.write(os.fstat(descriptor).st_ino, size)


def _size(path: str) -> tuple[bool, int]:
    try:
        return True, os.stat(path).st_size
    except OSError:
        return False, 0


def _opened(path: Any, flags: int, *rest: Any, **given: Any) -> int:
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    path = os.fspath(path) if writes else path
    disk = _disk(path) if writes and not given else None
    if disk is None:
        return _open(path, flags, *rest, **given)
    existed, size = _size(path)
    descriptor = _open(path, flags, *rest)
    _note_written(disk, path, descriptor, existed, 0 if flags & os.O_TRUNC else size)
    return descriptor


def _opened_file(file: Any, mode: str = "r", *rest: Any, **given: Any) -> Any:
    if mode in READING or isinstance(file, int) or not set("wax+") & set(mode):
        return _open_file(file, mode, *rest, **given)
    path = str(file)
    disk = _disk(path)
    if disk is None:
        return _open_file(file, mode, *rest, **given)
    existed, size = _size(path)
    opened = _open_file(file, mode, *rest, **given)
    _note_written(disk, path, opened.fileno(), existed, 0 if "w" in mode else size)
    return opened


def _made(path: Any, *rest: Any, **given: Any) -> None:
    _mkdir(path, *rest, **given)
    disk = None if given.get("dir_fd") is not None else _disk(os.fspath(path))
    if disk is not None:
        disk.record(MADE, os.fspath(path))


def _synced(file: Any) -> None:
    descriptor = file if isinstance(file, int) else file.fileno()
    process = present()
    if process is None or process.machine.disk is None:
        return
    path, found = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
    disk = _disk(path)
    if disk is not None and stat.S_ISDIR(found.st_mode):
        disk.sync_directory(path)
    elif disk is not None:
        disk.sync_file(path, found.st_ino, found.st_size)


def _renaming(real: Callable[..., None]) -> Callable[..., None]:
    def rename(source: Any, target: Any, **given: Any) -> None:
        before, after = os.fspath(source), os.fspath(target)
        disk = None if given else _disk(before, after)
        if disk is None:
            return real(source, target, **given)
        kept = disk.keep(after)
        real(before, after)
        if os.path.isdir(after):
            disk.rename_directory(before, after)
        disk.record(RENAMED, after, before, kept)
        return None

    return rename


def _removed(path: Any, *, dir_fd: int | None = None) -> None:
    disk = _disk(os.fspath(path)) if dir_fd is None else None
    kept = disk.keep(os.fspath(path)) if disk is not None else ""
    _unlink(path, dir_fd=dir_fd)
    if disk is not None:
        disk.record(REMOVED, os.fspath(path), before=kept)


def _linked(source: Any, target: Any, **given: Any) -> None:
    _link(source, target, **given)
    disk = None if given.get("dst_dir_fd") is not None else _disk(os.fspath(target))
    if disk is not None:
        disk.record(CREATED, os.fspath(target))


def install() -> None:
    """Watch what programs write. Call it after `operating_system.install`, before anything of midstream is imported."""
    global _open, _open_file, _mkdir
    _open, _open_file, _mkdir = os.open, builtins.open, os.mkdir
    os.open, builtins.open, io.open, os.mkdir = _opened, _opened_file, _opened_file, _made  # type: ignore[assignment]
    os.fsync, os.link = _synced, _linked  # type: ignore[assignment]
    os.replace, os.rename = _renaming(_replace), _renaming(_rename)  # type: ignore[assignment]
    os.unlink = os.remove = _removed  # type: ignore[assignment]
