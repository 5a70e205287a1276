"""Installation of the engine on this host, from an archive that the app sends."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import posixpath
import shutil
import tarfile
from typing import Dict, Optional

from midstream_core import records
from midstream_core.json_types import object_or_empty
from midstream_host.declarations import reads, repeatable
from midstream_host.shapes import FileName

STAMP = ".complete.json"


@reads()
def installed(root: str, digest: str) -> Optional[FileName]:
    """Directory of the engine ``digest``; None where it is absent or was changed."""
    directory = _engine_directory(root, digest)
    try:
        stamp = records.read_json_or_none(posixpath.join(directory, STAMP))
        if stamp is None:
            return None
        files = object_or_empty(object_or_empty(stamp)["files"])
        for path, sha256 in files.items():
            with open(posixpath.join(directory, path), "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != sha256:
                    return None
        # The directory is on PYTHONPATH: a module beside the engine's package could be imported instead of another.
        own = {path.split("/")[0] for path in files}
        if not set(os.listdir(directory)) <= {*own, STAMP, "__pycache__"}:
            return None
    except (records.RecordError, FileNotFoundError, KeyError):
        return None
    return directory


@repeatable("a second call finds the engine installed")
def install(root: str, digest: str, archive: str) -> FileName:
    """Unpack the engine and return its directory; a second call finds it installed.

    ``archive`` is the base64 of a gzipped tar whose SHA-256 is ``digest``. The directory appears in one rename.
    """
    present = installed(root, digest)
    if present is not None:
        return present
    tar = gzip.decompress(base64.b64decode(archive))
    if hashlib.sha256(tar).hexdigest() != digest:
        raise ValueError("the engine's archive is not the one that was announced")
    directory = _engine_directory(root, digest)
    # Hosts that share the root may have the same process ids.
    temporary = "{}.incoming-{}".format(directory, os.urandom(8).hex())
    os.makedirs(temporary)
    try:
        files = _unpack(tar, temporary)
        records.write_json(posixpath.join(temporary, STAMP), {"digest": digest, "files": files})
        with records.locked(posixpath.join(root, "engines", ".lock")):
            present = installed(root, digest)
            if present is not None:
                return present
            if os.path.exists(directory):  # damaged: no process can use it
                shutil.rmtree(directory)
            os.rename(temporary, directory)
            records.sync_directory(os.path.dirname(directory))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _engine_directory(root: str, digest: str) -> str:
    return posixpath.join(root, "engines", digest[:16])


def _unpack(tar: bytes, directory: str) -> Dict[str, str]:
    """Write the archive's files, and return their hashes by path."""
    files: Dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            if not (member.isfile() and records.safe_relative(member.name)):
                raise ValueError("the engine's archive holds {!r}".format(member.name))
            source = archive.extractfile(member)
            assert source is not None
            content = source.read()
            path = posixpath.join(directory, member.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            records.write_bytes(path, content)
            files[member.name] = hashlib.sha256(content).hexdigest()
    return files
