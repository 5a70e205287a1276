"""Code and data of another trainer's run as a tree of objects.

The tree is named by its content.

`<root>/data/<digest>/` has the files below ``files/`` and a manifest. Small files are copied, because an editor may
write them again in place; large ones are linked where that is possible.
"""

from __future__ import annotations

import dataclasses
import errno
import glob
import hashlib
import os
import posixpath
import shutil
import tempfile
from typing import Dict, List, Sequence, Set

from midstream_core import records
from midstream_host.declarations import repeatable
from midstream_host.object_files import object_sha256

FILES = "files"
FORMAT, VERSION = "midstream-files", 1
LINKED = 64 << 20  # bytes from which a file is linked
MAX_FILES = 1 << 18  # files
LOCK = ".files.lock"  # beside the trees
LEFT_OUT = ("__pycache__", ".git", ".venv", ".ipynb_checkpoints")


@dataclasses.dataclass(frozen=True)
class TravellingFiles:
    """A tree of files; ``digest`` names it."""

    digest: str
    files: int
    size: int  # bytes


@repeatable("the same files make the same tree")
def snapshot(root: str, directory: str, patterns: Sequence[str], leave: Sequence[str] = ()) -> TravellingFiles:
    """Make a tree of the files below ``directory`` that match the patterns.

    Return its digest.

    A pattern that names a directory stands for all files in it. Below ``leave`` nothing is taken.

    Raises ValueError where a pattern matches nothing, or leaves the directory.
    """
    if not os.path.isdir(directory):
        raise ValueError("{}: there is no such directory".format(directory))
    store = posixpath.join(root, "data")
    os.makedirs(store, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=".files-", dir=store)
    try:
        objects: List[Dict[str, object]] = []
        for path in _matching(directory, patterns, [*leave, root]):
            target = posixpath.join(temporary, FILES, path)
            os.makedirs(posixpath.dirname(target), exist_ok=True)
            _take(posixpath.join(directory, path), target)
            relative = posixpath.join(FILES, path)
            objects.append(
                {"path": relative, "size": os.stat(target).st_size, "sha256": object_sha256(temporary, relative)}
            )
        manifest: Dict[str, object] = {"format": FORMAT, "version": VERSION, "objects": objects}
        digest = hashlib.sha256(records.canonical_json(manifest)).hexdigest()  # as of every data tree
        manifest["digest"] = digest
        records.write_json(posixpath.join(temporary, records.MANIFEST), manifest)
        os.chmod(temporary, 0o755)
        place = posixpath.join(store, digest)
        with records.locked(posixpath.join(store, LOCK)):  # another start may make the same tree
            if not os.path.exists(posixpath.join(place, records.MANIFEST)):
                shutil.rmtree(place, ignore_errors=True)
                os.rename(temporary, place)
                records.sync_directory(store)
        return TravellingFiles(digest, len(objects), sum(int(str(entry["size"])) for entry in objects))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _matching(directory: str, patterns: Sequence[str], leave: Sequence[str]) -> List[str]:
    """Paths of the files that match, sorted, relative to the directory."""
    apart = [os.path.realpath(posixpath.join(directory, name)) for name in leave]
    apart = [
        folder for folder in apart if folder != os.path.realpath(directory)
    ]  # a trainer that writes beside its code
    paths: Set[str] = set()
    for pattern in patterns:
        if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
            raise ValueError("files: {!r} leaves the directory".format(pattern))
        names = glob.glob(posixpath.join(glob.escape(directory), pattern), recursive=True)
        if not names:
            raise ValueError("files: {!r} matches nothing in {}".format(pattern, directory))
        for name in names:
            below = (
                [posixpath.join(parent, suffix) for parent, _, each_of in os.walk(name) for suffix in each_of]
                if os.path.isdir(name)
                else [name]
            )
            for path in below:
                relative = posixpath.relpath(path, directory)
                real = os.path.realpath(path)
                if set(relative.split("/")) & set(LEFT_OUT) or not os.path.isfile(path):
                    continue
                if any(real == folder or real.startswith(folder + "/") for folder in apart):
                    continue
                if not records.safe_relative(relative):
                    raise ValueError("files: {} cannot travel under this name".format(ascii(relative)))
                paths.add(relative)
    if len(paths) > MAX_FILES:
        raise ValueError("files: {:,} files, more than {:,}: pack them, or name fewer".format(len(paths), MAX_FILES))
    return sorted(paths)


def _take(source: str, target: str) -> None:
    if os.stat(source).st_size >= LINKED:
        try:
            os.link(os.path.realpath(source), target)
            return
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
                raise
    shutil.copyfile(source, target)
    shutil.copymode(source, target)
