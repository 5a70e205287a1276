"""Checkpoints of other trainers in a bucket, copied to a disk to be converted."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from midstream_core import levanter_checkpoints, maxtext_checkpoints
from midstream_core.attempt.errors import EngineError
from midstream_core.latest_file import named_folder
from midstream_core.object_store.bucket_client import CHUNK, READS, BucketClient, StoredObject
from midstream_core.object_store.errors import StoreError
from midstream_core.object_store.open_bucket import engine_bucket
from midstream_core.object_store.urls import split_url

AT_ONCE = 8  # objects
_DCP = ".metadata"
FETCHED = "fetched.jsonl"  # a line for each object that has arrived
# Configurations above a checkpoint, by the name of a file that the checkpoint has.
PARENT_CONFIGS = {
    "metadata.json": ("../config.yaml", "../../config.yaml"),
    _DCP: ("../config.json", "../../config.json"),
    maxtext_checkpoints.TREE: maxtext_checkpoints.CONFIGS[1:],
}
_STEP = re.compile(r"(?:global_step|step-)(\d+)")
_NUMBERED = re.compile(r"\D*(\d{1,12})")  # folder of a checkpoint of torch (DCP)

Show = Callable[[str, int, int], None]  # object, bytes done, bytes in total


def fetch(url: str, directory: str, config: str = "", show: Show = lambda *_: None) -> tuple[str, str]:
    """Copy the checkpoint at ``url`` to ``directory``.

    Returns its path there, and that of ``config``. Of a run's checkpoints only the newest is copied. Objects that an
    interrupted call has copied are not read again, if they are of the same version.

    Args:
        url: ``gs://`` or ``s3://`` of a checkpoint, or of a run of another trainer.
        directory: Created where it is missing.
        config: URL of the run's configuration; empty: near the checkpoint.
        show: Called with each object that has arrived.

    Raises:
        EngineError: The bucket cannot be read, there is nothing, a name is not one of a file, or the disk is full.
    """
    scheme, name, prefix = split_url(url)
    root = scheme + name
    try:
        client = engine_bucket(root, public=True, settings_of=url)
        chosen = _chosen(client, prefix, url)
        if not config:
            chosen.update(_parent_configs(client, prefix, {path.rpartition("/")[2] for path in chosen}))
        paths = {entry.path: _place(directory, prefix, relative, url) for relative, entry in chosen.items()}
        objects = list(chosen.values())
        if config:
            config_object = _named(client, root, config)
            paths[config_object.path] = os.path.join(directory, "config", posixpath.basename(config_object.path))
            objects.append(config_object)
        _copy(client, objects, paths, directory, show)
        for entry in objects:
            _check_last_line(paths[entry.path], f"{root}/{entry.path}")
    except StoreError as error:
        raise EngineError(error.with_hint()) from error
    except FileNotFoundError as error:
        raise EngineError(f"{url}: {error.filename or error}: deleted while it was copied") from error
    return _place(directory, prefix, "", url), paths[objects[-1].path] if config else ""


def _chosen(client: BucketClient, prefix: str, url: str) -> dict[str, StoredObject]:
    """Return the objects of one checkpoint, by path relative to ``prefix``."""
    start = f"{prefix}/" if prefix else ""
    objects_of_run = {
        path[len(start) :]: entry for path, entry in client.entries(start).items() if not path.endswith("/")
    }
    if not objects_of_run:
        raise EngineError(f"{url}: no such directory in the bucket")
    folders = {path.split("/")[0] for path in objects_of_run if "/" in path}
    steps = {folder for folder in folders if _STEP.fullmatch(folder)}
    if "latest" in objects_of_run and steps:
        try:
            newest = named_folder(client.get(start + "latest")[0].decode(errors="replace"), folders)
        except ValueError as error:
            raise EngineError(f"{url}/{error}") from None
    elif (finished := _numbered(client, start, objects_of_run, folders, url)) is not None:
        newest, steps = finished
    else:
        complete = [step for step in steps if f"{step}/metadata.json" in objects_of_run]
        if "metadata.json" in objects_of_run or not complete:
            return objects_of_run
        try:
            newest = _newest(client, start, complete, objects_of_run)
        except ValueError as error:
            raise EngineError(f"{url}/{error}") from None
    older = tuple(f"{step}/" for step in steps - {newest})
    return {path: entry for path, entry in objects_of_run.items() if not path.startswith(older)}


def _numbered(
    client: BucketClient, start: str, stored: dict[str, StoredObject], folders: set[str], url: str
) -> tuple[str, set[str]] | None:
    """Return the newest checkpoint of a run, and the folders of all its steps.

    None: it is no run of torch (DCP) or MaxText.
    """
    numbers = {folder: int(match[1]) for folder in folders if (match := _NUMBERED.fullmatch(folder))}
    of_torch = [folder for folder in numbers if f"{folder}/{_DCP}" in stored]
    if of_torch:
        return max(of_torch, key=numbers.__getitem__), set(numbers)

    def names(directory: str) -> list[str]:
        below = f"{directory}/" if directory else ""
        return sorted({path[len(below) :].split("/")[0] for path in stored if path.startswith(below)})

    def text(path: str) -> str:
        return client.get(start + path)[0].decode(errors="replace")

    try:
        newest = maxtext_checkpoints.newest(levanter_checkpoints.Places(names, stored.__contains__, text), "")
    except ValueError as error:
        raise EngineError(f"{url}/{error}") from None
    if newest is None:
        return None
    above = posixpath.dirname(newest)
    return newest, {posixpath.join(above, name) for name in names(above) if name.isdecimal()}


def _newest(client: BucketClient, start: str, complete: list[str], objects_of_run: dict[str, StoredObject]) -> str:
    """Return the newest of a run's checkpoints, as its release chooses it."""
    listed = [
        levanter_checkpoints.described(
            folder,
            client.get(f"{start}{folder}/{levanter_checkpoints.METADATA}")[0].decode(errors="replace"),
            by_time=f"{folder}/{levanter_checkpoints.OCDBT}" not in objects_of_run,
        )
        for folder in complete
    ]
    newest = levanter_checkpoints.newest([checkpoint for checkpoint in listed if checkpoint is not None])
    return newest.path if newest is not None else ""


def _parent_configs(client: BucketClient, prefix: str, names: set[str]) -> dict[str, StoredObject]:
    configs: dict[str, StoredObject] = {}
    for relative in (path for name, paths in PARENT_CONFIGS.items() if name in names for path in paths):
        path = posixpath.normpath(posixpath.join(prefix, relative))
        if not path.startswith(".") and (there := client.look(path)) is not None:
            configs[relative] = there
    return configs


def _named(client: BucketClient, root: str, config: str) -> StoredObject:
    """Return the object of a configuration that was named."""
    if not config.startswith(f"{root}/"):
        raise EngineError(f"--config {config}: not in the checkpoint's bucket (hint: copy it beside the checkpoint)")
    entry = client.look(config[len(root) + 1 :])
    if entry is None:
        raise EngineError(f"--config {config}: no such object")
    return entry


def _place(directory: str, prefix: str, relative: str, url: str) -> str:
    """Return an object's path, below two directories for the checkpoint's parents.

    Raises:
        EngineError: The object's name would be a path outside of them.
    """
    parts = relative.split("/") if relative else []
    if "\0" in relative or any(name in ("", ".") for name in parts):
        raise EngineError(f"{url}: an object's name is not that of a file: {relative!r}")
    if ".." in parts and not any(relative in paths for paths in PARENT_CONFIGS.values()):
        raise EngineError(f"{url}: an object's name is not that of a file: {relative!r}")
    return os.path.normpath(os.path.join(directory, "a", "b", posixpath.basename(prefix) or "checkpoint", relative))


def _check_last_line(file: str, url: str) -> None:
    """Check that a YAML ends with a line's end.

    A part of one is YAML too, with other values. Programs commit what was written of an object when their writer fails.
    """
    if not file.endswith((".yaml", ".yml")):
        return
    with open(file, "rb") as opened:
        data = opened.read()
    if data and not data.endswith(b"\n"):
        raise EngineError(f"{url}: its last line has no end: perhaps a part of the file (hint: write it again)")


def _copy(client: BucketClient, objects: list[StoredObject], paths: dict[str, str], directory: str, show: Show) -> None:
    os.makedirs(directory, exist_ok=True)
    record = os.path.join(directory, FETCHED)
    arrived = _arrived(record)
    total = sum(entry.size for entry in objects)
    missing = [
        entry for entry in objects if arrived.get(entry.path) != entry.version or not os.path.isfile(paths[entry.path])
    ]
    needed, free = sum(entry.size for entry in missing), shutil.disk_usage(directory).free
    if needed > free:
        raise EngineError(f"{directory}: {needed:,} bytes are needed for the copy, {free:,} are free")
    done, lock = total - needed, threading.Lock()

    def fetch(entry: StoredObject) -> None:
        nonlocal done
        path = paths[entry.path]
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _read(client, entry, f"{path}.partial")
        os.replace(f"{path}.partial", path)
        with lock:
            lines.write(json.dumps([entry.path, entry.version]) + "\n")
            lines.flush()
            done += entry.size
            show(entry.path, done, total)

    with open(record, "a", encoding="utf-8") as lines, ThreadPoolExecutor(AT_ONCE) as pool:
        for future in [pool.submit(fetch, entry) for entry in missing]:
            try:
                future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _read(client: BucketClient, entry: StoredObject, path: str) -> None:
    """Copy an object to a file, and check its bytes.

    The bytes must have the checksum that the service reports. Without one, or with an ETag that is not their MD5, two
    readings must have the same SHA-256.

    Raises:
        EngineError: The bytes are others each time.
    """
    checksum, before = client.checksum(entry), ""
    for _ in range(READS):
        comparison, digest = checksum.begin() if checksum else None, hashlib.sha256()
        with open(path, "wb") as file:
            for data in _pieces(client, entry):
                digest.update(data)
                if comparison is not None:
                    comparison.update(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if comparison is not None and comparison.matches():
            return
        if checksum is None or not checksum.certain:
            if digest.hexdigest() == before:
                return
            before = digest.hexdigest()
    what = f"{checksum.algorithm} is another than the service says" if checksum and checksum.certain else "bytes differ"
    raise EngineError(f"{client.url}/{entry.path}: read {READS} times, its {what}")


def _pieces(client: BucketClient, entry: StoredObject) -> Iterator[bytes]:
    """Yield the bytes of an object.

    Raises EngineError where it is shorter than it was listed.
    """
    size = 0
    while size < entry.size:
        data = client.read(entry.path, size, min(CHUNK, entry.size - size), entry.version)
        if not data:
            raise EngineError(f"{client.url}/{entry.path}: {size} bytes of {entry.size} arrived")
        yield data
        size += len(data)


def _arrived(record: str) -> dict[str, str]:
    """Return the version of each object that has arrived.

    A line that was cut is left out.
    """
    versions: dict[str, str] = {}
    if os.path.exists(record):
        with open(record, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    path, version = json.loads(line)
                    versions[path] = version
    return versions
