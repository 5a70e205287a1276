"""The engine as one archive that is named by its content, and put on hosts under that name."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import midstream_engine
from midstream.hosts.host import Host

CALL = 300.0  # seconds: a megabyte over a slow link


@dataclass(frozen=True)
class Bundle:
    """A package as an uncompressed tar. The same sources are the same bytes: names sorted, no times, no owners."""

    digest: str  # SHA-256 of ``tar``, hex
    tar: bytes = field(repr=False)


@dataclass(frozen=True)
class EngineInstall:
    """The engine on a host: ``directory`` goes on PYTHONPATH."""

    directory: str
    digest: str


def build_bundle(package: Path | None = None) -> Bundle:
    """The bundle of a package directory: midstream's own engine, where none is given."""
    package = package or Path(midstream_engine.__file__).parent
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(package.rglob("*")):
            relative = path.relative_to(package)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
            if hidden or not path.is_file() or path.suffix == ".pyc":
                continue
            member = tarfile.TarInfo((Path(package.name) / relative).as_posix())
            content = path.read_bytes()
            member.size = len(content)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(content))
    tar = buffer.getvalue()
    return Bundle(hashlib.sha256(tar).hexdigest(), tar)


def install_engine(host: Host, bundle: Bundle | None = None) -> EngineInstall:
    """Put the engine at ``<root>/engines/<hash>/`` of the host. One that is there and whole is left as it is."""
    bundle = bundle or build_bundle()
    directory = host.call("runs.attempts.installed", root=host.root, digest=bundle.digest)
    if directory is None:
        archive = base64.b64encode(gzip.compress(bundle.tar, mtime=0)).decode()
        directory = host.call(
            "runs.attempts.install", root=host.root, digest=bundle.digest, archive=archive, timeout=CALL
        )
    return EngineInstall(directory, bundle.digest)
