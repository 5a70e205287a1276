"""The target's end of a copy: what is there already, what is on its way, and the manifest that is written last.

What arrives is written under ``.incoming/<generation>/`` below the target directory; a generation belongs to one copy,
and each of its programs holds a shared lock on the generation's ``lock``. So a later copy can tell what dead ones left
behind, and takes over their parts: chunks of them whose hash is the source's are not sent again. An object takes its
own name only when size and hash agree. There is no journal: what lies on the disk is all that is known.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import posixpath
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from midstream.remote.lines import SILENCE, Lines
from midstream.remote.tree import BLOCK, HASHERS, INCOMING, checked, emit, file_sha256, inside
from midstream_engine import records

LOCK = "lock"
CHUNK = 8 << 20  # bytes: what is sent again at most of each stream that was cut
SLACK = 1 << 20  # bytes of the disk beside the objects: manifest and directories
LATE = SILENCE + 5.0  # seconds that receivers of a dead copy may take to notice
MANIFESTS = 256  # other trees that are looked through for objects, the newest ones
TOGETHER = 512  # objects in one report
SYNCERS = 16  # threads that wait for the disk: a journal commits many files at once


class Stage:
    """One generation of arrivals. Made when something is first written."""

    def __init__(self, directory: str, generation: str):
        if not generation.isalnum():
            raise records.RecordError("generation {!r}".format(generation))
        self.directory = directory
        self.incoming = posixpath.join(directory, INCOMING)
        self.here = posixpath.join(self.incoming, generation)
        self._lock = -1
        self._left = False
        self._entering = threading.Lock()  # one descriptor: a second would hold the lock against `leave`
        self._parents: Set[str] = set()

    def enter(self) -> None:
        """Idempotent; several threads may. OSError once it was left."""
        with self._entering:
            if self._left:
                raise OSError(errno.ECANCELED, "this copy has ended")
            if self._lock < 0:
                self._lock = self._opened()
                fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _opened(self) -> int:
        while True:
            os.makedirs(self.directory, exist_ok=True)
            # Another generation that leaves takes the directory that both share away with it, where it is empty.
            with contextlib.suppress(FileNotFoundError):
                os.makedirs(self.here, exist_ok=True)
                return os.open(posixpath.join(self.here, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def leave(self) -> None:
        """Whoever goes last takes the directory away, unless parts of objects are left in it. There is no way back."""
        with self._entering:
            self._left = True
            if self._lock < 0:
                return
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.listdir(self.here) == [LOCK]:
                    os.unlink(posixpath.join(self.here, LOCK))
                    os.rmdir(self.here)
                    os.rmdir(self.incoming)
            os.close(self._lock)
            self._lock = -1

    def part(self, entry: Dict[str, Any]) -> str:
        """Where an object is put together. The same for every copy of the same bytes to the same name."""
        self.enter()
        return posixpath.join(self.here, part_name(entry))

    def name(self, part: str, place: str) -> None:
        """Give an object that was verified its name."""
        parent = posixpath.dirname(place)
        if parent not in self._parents:
            os.makedirs(parent, exist_ok=True)
            self._parents.add(parent)
        os.replace(part, place)

    def adopt(self, objects: Sequence[Dict[str, Any]]) -> None:
        """Take over what dead copies left of these objects, and remove what else they left. One that lives keeps its
        own; receivers of a dead one may need a while to notice."""
        try:
            generations = [name for name in os.listdir(self.incoming) if name != posixpath.basename(self.here)]
        except FileNotFoundError:
            return
        wanted = {part_name(entry) for entry in objects}
        deadline = time.monotonic() + LATE
        for name in generations:
            old = posixpath.join(self.incoming, name)
            if not os.path.isdir(old):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(old)
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with open(posixpath.join(old, LOCK), "ab") as lock:
                    if not _taken(lock.fileno(), deadline):
                        continue
                    for part in os.listdir(old):
                        if part in wanted:
                            self.enter()
                            os.replace(posixpath.join(old, part), posixpath.join(self.here, part))
                    shutil.rmtree(old, ignore_errors=True)


def part_name(entry: Dict[str, Any]) -> str:
    return "{}-{}".format(hashlib.sha256(entry["path"].encode()).hexdigest()[:16], entry["sha256"][:16])


def _taken(descriptor: int, deadline: float) -> bool:
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            if not told:
                emit("waiting", message="another copy to this directory has not ended yet")
                told = True
            time.sleep(0.05)


def free_bytes(path: str) -> int:
    """Bytes that we may still write on the file system of ``path``, or of its nearest parent that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize


# ---------------------------------------------------------------------------------------------- what is there


def chunks(size: int, chunk: int = CHUNK) -> Iterator[Tuple[int, int]]:
    """(offset, length) of the chunks of an object."""
    for offset in range(0, size, chunk):
        yield offset, min(chunk, size - offset)


def chunk_hashes(path: str, size: int) -> List[List[Any]]:
    """``[offset, length, sha256]`` of the chunks that a part may hold: whole ones before its end, holes left out."""
    found = []
    with open(path, "rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        for offset, length in chunks(size):
            if offset + length > end:
                break
            if not _is_hole(file.fileno(), offset, length):
                found.append([offset, length, file_sha256(path, offset, length)])
    return found


def _is_hole(descriptor: int, offset: int, length: int) -> bool:
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA) >= offset + length
    except OSError as error:
        return error.errno == errno.ENXIO  # no data from here on; EINVAL: nothing is known


def missing(directory: str, objects: Sequence[Dict[str, Any]]) -> List[List[str]]:
    """``[path, what]`` of the objects that are not there, or not with their sizes. Nothing is hashed."""
    found = []
    for entry in objects:
        try:
            size = os.stat(inside(directory, entry["path"])).st_size
        except FileNotFoundError:
            found.append([entry["path"], "missing"])
            continue
        if size != entry["size"]:
            found.append([entry["path"], "{} bytes, the manifest says {}".format(size, entry["size"])])
    return found


def digests(directory: str, ranges: Sequence[Sequence[Any]]) -> List[Optional[str]]:
    """SHA-256 of each ``[path, offset, length]`` of the tree; None where it cannot be read."""

    def one(item: Sequence[Any]) -> Optional[str]:
        try:
            return file_sha256(inside(directory, item[0]), item[1], item[2])
        except OSError:
            return None

    with ThreadPoolExecutor(HASHERS) as pool:
        return list(pool.map(one, ranges))


def _elsewhere(root: str, directory: str, wanted: Set[Tuple[str, int]]) -> Dict[Tuple[str, int], List[str]]:
    """Files of other trees below ``root`` that their manifests give one of these (sha256, size)."""
    manifests = []
    for pattern in ("runs/*/checkpoints/*", "data/*"):
        for path in glob.glob(posixpath.join(glob.escape(root), pattern, records.MANIFEST)):
            with contextlib.suppress(OSError):
                manifests.append((os.stat(path).st_mtime, path))
    found: Dict[Tuple[str, int], List[str]] = {}
    for _, path in sorted(manifests, reverse=True)[:MANIFESTS]:
        parent = posixpath.dirname(path)
        if posixpath.realpath(parent) == posixpath.realpath(directory):
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a torn neighbour is not our matter
            with open(path, encoding="utf-8") as file:
                entries = json.load(file)["objects"]
            for entry in entries:
                key = (entry["sha256"], entry["size"])
                if key in wanted and records.safe_relative(entry["path"]):
                    found.setdefault(key, []).append(posixpath.join(parent, entry["path"]))
    return found


def _copied(source: str, target: str) -> str:
    """Copy a file; SHA-256 of the bytes that were written."""
    digest = hashlib.sha256()
    view = memoryview(bytearray(BLOCK))
    with open(source, "rb", buffering=0) as reading, open(target, "wb") as writing:
        while True:
            count = reading.readinto(view)
            if not count:
                return digest.hexdigest()
            digest.update(view[:count])
            writing.write(view[:count])


# ------------------------------------------------------------------------------------- objects in ranges


class _Assembly:
    """An object whose ranges arrive in any order: hashed from its beginning as they join up."""

    def __init__(self, entry: Dict[str, Any]):
        self.entry = entry
        self.ranges: Dict[int, int] = {}  # offset -> end, of what has landed and does not join up yet
        self.front = 0
        self.hashed = 0
        self.busy = False
        self.digest = hashlib.sha256()

    def landed(self, offset: int, length: int) -> None:
        self.ranges[offset] = max(offset + length, self.ranges.get(offset, 0))
        while True:
            joined = [start for start in self.ranges if start <= self.front]
            if not joined:
                return
            for start in joined:
                self.front = max(self.front, self.ranges.pop(start))


class _Assemblies:
    def __init__(self, stage: Stage):
        self._stage = stage
        self._pool = ThreadPoolExecutor(HASHERS)
        self._lock = threading.Lock()
        self._open: Dict[str, _Assembly] = {}

    def landed(self, entry: Dict[str, Any], offset: int, length: int) -> None:
        with self._lock:
            assembly = self._open.setdefault(entry["path"], _Assembly(entry))
            assembly.landed(offset, length)
            if assembly.busy or assembly.front == assembly.hashed:
                return
            assembly.busy = True
        self._pool.submit(self._hash, assembly)

    def _hash(self, assembly: _Assembly) -> None:
        part, entry = self._stage.part(assembly.entry), assembly.entry
        view = memoryview(bytearray(BLOCK))
        try:
            with open(part, "rb", buffering=0) as file:
                while True:
                    with self._lock:
                        if assembly.front == assembly.hashed:
                            assembly.busy = False
                            break
                        end = assembly.front
                    while assembly.hashed < end:
                        count = os.preadv(file.fileno(), [view[: min(BLOCK, end - assembly.hashed)]], assembly.hashed)
                        if not count:
                            raise OSError(errno.EIO, "the part ends at {} bytes".format(assembly.hashed))
                        assembly.digest.update(view[:count])
                        assembly.hashed += count
                if assembly.hashed == entry["size"]:
                    self._settle(assembly, part, file.fileno())
        except OSError as error:
            problem(error, self._stage.directory)

    def _settle(self, assembly: _Assembly, part: str, descriptor: int) -> None:
        entry, found = assembly.entry, assembly.digest.hexdigest()
        if found != entry["sha256"]:
            os.unlink(part)
            emit("problem", kind="hash", path=entry["path"], message="SHA-256 is {}".format(found))
            return
        os.fsync(descriptor)
        self._stage.name(part, inside(self._stage.directory, entry["path"]))
        emit("placed", objects=[entry["path"]])


def problem(error: OSError, directory: str) -> None:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    emit("problem", kind="full" if full else "system", message=str(error), free=free_bytes(directory))


# ------------------------------------------------------------------------------------------------- the program


def serve(
    directory: str,
    generation: str,
    objects: Sequence[Dict[str, Any]],
    manifest: Optional[str],
    text: str,
    root: str,
    survey: bool = True,
) -> int:
    """The target's side of a copy of ``objects`` (``{path, size, sha256}``), with the manifest's name and text.

    Lines from the operator: ``{"do": "landed", "ranges": [[path, offset, length], ...]}``, ``{"do": "commit"}``,
    ``{"do": "alive"}``. Lines to it: ``present`` (``objects`` that lie there with the right hash), ``held`` (those
    that lay in another tree, and were linked or copied), ``part`` (``path``, ``chunks``: what an earlier copy left of
    an object), ``ready``, ``placed`` (verified and named), ``committed``; or ``problem`` (kinds other, full, hash,
    system)."""
    lines = Lines(silence=SILENCE, last={"do": "end"})
    stage = Stage(directory, generation)
    try:
        if not _prepared(stage, objects, manifest, text, root, survey):
            return 1
        by_path = {entry["path"]: entry for entry in objects}
        assemblies = _Assemblies(stage)
        while True:
            line = lines.get()
            assert line is not None
            if line["do"] == "landed":
                for path, offset, length in line["ranges"]:
                    assemblies.landed(by_path[path], offset, length)
            elif line["do"] == "commit":
                commit(directory, manifest, text, objects)
                break
            elif line["do"] == "end":
                return 0
    except OSError as error:
        problem(error, directory)
        return 1
    except records.RecordError as error:
        emit("problem", kind="system", message=str(error))
        return 1
    finally:
        stage.leave()
    emit("committed")
    return 0


def _prepared(
    stage: Stage, objects: Sequence[Dict[str, Any]], manifest: Optional[str], text: str, root: str, survey: bool
) -> bool:
    directory = stage.directory
    there = None if manifest is None else _text_or_none(posixpath.join(directory, manifest))
    if there is not None and _named(there) not in (None, _named(text)):
        emit("problem", kind="other")
        return False
    absent = list(objects)
    if survey and os.path.isdir(directory):
        there_already = [entry for entry in objects if os.path.isfile(inside(directory, entry["path"]))]
        present = _reported("present", _right(directory, there_already))
        absent = [entry for entry in objects if entry["path"] not in present]
        stage.adopt(absent)
    parts = [entry for entry in absent if os.path.isfile(posixpath.join(stage.here, part_name(entry)))]
    begun = sum(os.stat(posixpath.join(stage.here, part_name(entry))).st_blocks * 512 for entry in parts)
    needed = sum(entry["size"] for entry in absent)
    if survey and root and absent:
        held = _held(stage, root, absent)
        absent = [entry for entry in absent if entry["path"] not in held]
        needed = sum(entry["size"] for entry in absent)
    free = free_bytes(directory)
    if needed + SLACK > free + begun:
        emit("problem", kind="full", needed=needed, free=free + begun)
        return False
    os.makedirs(directory, exist_ok=True)
    stage.enter()
    for entry in parts:
        if entry in absent:
            emit("part", path=entry["path"], chunks=chunk_hashes(stage.part(entry), entry["size"]))
    emit("ready")
    return True


def _right(directory: str, objects: Sequence[Dict[str, Any]]) -> Iterator[str]:
    return (entry["path"] for entry, wrong in checked(directory, objects) if wrong is None)


def _reported(event: str, paths: Iterator[str]) -> Set[str]:
    """All of ``paths``, told in lots."""
    found: Set[str] = set()
    lot: List[str] = []
    spoke = time.monotonic()
    for path in paths:
        found.add(path)
        lot.append(path)
        if len(lot) >= TOGETHER or time.monotonic() - spoke > 0.1:
            emit(event, objects=lot)
            lot, spoke = [], time.monotonic()
    if lot:
        emit(event, objects=lot)
    return found


def _held(stage: Stage, root: str, absent: Sequence[Dict[str, Any]]) -> Set[str]:
    """Objects that another tree of this host holds: read, and where the hash is right linked, or copied where no link
    can be made."""
    found = _elsewhere(root, stage.directory, {(entry["sha256"], entry["size"]) for entry in absent})
    if not found:
        return set()
    os.makedirs(stage.directory, exist_ok=True)

    def one(entry: Dict[str, Any]) -> Optional[str]:
        place = inside(stage.directory, entry["path"])
        part = stage.part(entry) + ".held"
        for candidate in found.get((entry["sha256"], entry["size"]), ())[:3]:
            with contextlib.suppress(OSError):
                try:
                    if file_sha256(candidate) != entry["sha256"]:
                        continue
                    os.link(candidate, part)
                except OSError as error:
                    if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                        continue
                    fits = free_bytes(stage.directory) > entry["size"] + SLACK
                    if not fits or _copied(candidate, part) != entry["sha256"]:
                        continue
                stage.name(part, place)
                with contextlib.suppress(FileNotFoundError):  # what an earlier copy left of it
                    os.unlink(stage.part(entry))
                return entry["path"]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        return None

    with ThreadPoolExecutor(HASHERS) as pool:
        return _reported("held", (path for path in pool.map(one, absent) if path is not None))


def _named(manifest: str) -> Optional[List[Tuple[str, int, str]]]:
    """What a manifest names. None where it cannot be read: no tree at all, and it may be replaced."""
    try:
        return sorted((entry["path"], entry["size"], entry["sha256"]) for entry in json.loads(manifest)["objects"])
    except (ValueError, KeyError, TypeError):
        return None


def _text_or_none(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None


def commit(directory: str, manifest: Optional[str], text: str, objects: Sequence[Dict[str, Any]]) -> None:
    """Wait until every object is on the disk with its size; then write the manifest, atomically."""

    def sync(entry: Dict[str, Any]) -> str:
        path = inside(directory, entry["path"])
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != entry["size"]:
                raise records.RecordError("{}: not {} bytes any more".format(path, entry["size"]))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return os.path.dirname(path)

    with ThreadPoolExecutor(SYNCERS) as pool:
        parents = {directory, *pool.map(sync, objects)}
    for parent in sorted(parents):
        records.sync_directory(parent)
    if manifest is not None:
        records.write_bytes(posixpath.join(directory, manifest), text.encode())
