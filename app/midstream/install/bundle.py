"""The engine as one archive, named by its content, also where it is installed."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import midstream_core
from midstream.hosts.host import Host
from midstream_host.runs import engine_archive

INSTALL_TIMEOUT = 300.0  # seconds: a megabyte over a slow link


@dataclass(frozen=True)
class Bundle:
    """Packages as an uncompressed tar; equal sources give equal bytes.

    Names are sorted, and there are no times and no owners.
    """

    digest: str  # SHA-256 of ``tar``, hex
    tar: bytes = field(repr=False)


@dataclass(frozen=True)
class EngineInstall:
    """The engine on a host. ``directory`` belongs on PYTHONPATH."""

    directory: str
    digest: str


PACKAGES = ("midstream_core", "midstream_engine", "midstream_host")


def packages_directory() -> Path:
    """Return the directory that has the engine's packages side by side."""
    return Path(midstream_core.__file__).parents[1]


def build_bundle(directory: Path | None = None) -> Bundle:
    """Build the bundle of the engine's packages, by default of this installation."""
    directory = directory or packages_directory()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in _files(directory):
            member = tarfile.TarInfo(path.relative_to(directory).as_posix())
            content = path.read_bytes()
            member.size = len(content)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(content))
    tar = buffer.getvalue()
    return Bundle(hashlib.sha256(tar).hexdigest(), tar)


def engine_bytes() -> int:
    """Return the size of the engine's packages of this installation, in bytes."""
    return sum(path.stat().st_size for path in _files(packages_directory()))


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(path for name in PACKAGES for path in (directory / name).rglob("*")):
        relative = path.relative_to(directory)
        hidden = any(name.startswith(".") or name == "__pycache__" for name in relative.parts)
        if not hidden and path.is_file() and path.suffix != ".pyc":
            yield path


def install_engine(host: Host, bundle: Bundle | None = None) -> EngineInstall:
    """Install the engine at the host's ``<root>/engines/<hash>/``, unless complete."""
    bundle = bundle or build_bundle()
    directory = host.call(engine_archive.installed)(root=host.root, digest=bundle.digest)
    if directory is None:
        archive = base64.b64encode(gzip.compress(bundle.tar, mtime=0)).decode()
        directory = host.call(engine_archive.install, timeout=INSTALL_TIMEOUT)(
            root=host.root, digest=bundle.digest, archive=archive
        )
    return EngineInstall(directory, bundle.digest)
