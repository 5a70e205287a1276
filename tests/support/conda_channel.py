"""A channel of conda on loopback: packages that are made here, served with what was requested of them."""

from __future__ import annotations

import bz2
import functools
import hashlib
import io
import json
import os
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from midstream_host.machine.conda_environments import own_platform

PACKAGE = "parcel"  # a package of Python code, with a program of that name
VERSION = "{}.{}".format(*sys.version_info[:2])


@dataclass
class Link:
    """A symbolic link in a package."""

    target: str


@dataclass
class Channel:
    """A directory of packages, by platform, and its address while it is served."""

    directory: Path
    address: str = ""
    requested: list[str] = field(default_factory=list[str])
    packages: list[str] = field(default_factory=list[str])  # paths below the directory

    def add(
        self, name: str, version: str, subdir: str, files: Mapping[str, bytes | Link], *, depends: Sequence[str] = (),
        noarch: dict[str, Any] | None = None,
    ) -> str:  # fmt: skip
        """Write a package. Return its path below the channel."""
        stem = f"{name}-{version}-0"
        index = {"name": name, "version": version, "build": "0", "build_number": 0, "depends": [*depends],
                 "subdir": subdir} | ({"noarch": "python"} if noarch else {})  # fmt: skip
        paths = [
            {"_path": path, "path_type": "softlink"} if isinstance(content, Link) else
            {"_path": path, "path_type": "hardlink", "sha256": hashlib.sha256(content).hexdigest(),
             "size_in_bytes": len(content)}
            for path, content in files.items()
        ]  # fmt: skip
        info: dict[str, Any] = {"index.json": index, "paths.json": {"paths": paths, "paths_version": 1}}
        if noarch:
            info["link.json"] = {"noarch": noarch, "package_metadata_version": 1}
        contents: dict[str, bytes | Link] = {f"info/{file}": json.dumps(value).encode() for file, value in info.items()}
        contents["info/files"] = "".join(f"{path}\n" for path in files).encode()
        path = self.directory / subdir / f"{stem}.tar.bz2"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bz2.compress(_tar({**contents, **files}), 1))
        self.packages.append(f"{subdir}/{path.name}")
        return self.packages[-1]

    def digest(self, path: str, algorithm: str = "sha256") -> str:
        return hashlib.new(algorithm, (self.directory / path).read_bytes()).hexdigest()

    def explicit(self, algorithm: str = "sha256", prefix: str = "") -> str:
        """Return the explicit list of its packages; ``prefix``: of their paths."""
        lines = [f"{self.address}{prefix}/{path}#{self.digest(path, algorithm)}" for path in self.packages]
        return "\n".join([f"# platform: {own_platform()}", "@EXPLICIT", *lines]) + "\n"

    def unified(self, pip: Sequence[tuple[str, str, str]] = (), prefix: str = "") -> str:
        """Return its packages as a ``conda-lock.yml``, with packages of pip: name, URL and SHA-256."""
        rows: list[dict[str, Any]] = []
        for path in self.packages:
            name, version, _ = path.rpartition("/")[2].rsplit("-", 2)
            rows.append(
                {"name": name, "version": version, "manager": "conda", "platform": own_platform(), "dependencies": {},
                 "url": f"{self.address}{prefix}/{path}", "category": "main", "optional": False,
                 "hash": {"md5": self.digest(path, "md5"), "sha256": self.digest(path)}}
            )  # fmt: skip
        for name, url, sha256 in pip:
            rows.append(
                {"name": name, "version": "1.0", "manager": "pip", "platform": own_platform(), "dependencies": {},
                 "url": url, "category": "main", "optional": False, "hash": {"sha256": sha256}}
            )  # fmt: skip
        metadata = {"content_hash": {own_platform(): "0" * 64}, "channels": [],
                    "platforms": [own_platform()], "sources": ["environment.yml"]}  # fmt: skip
        return yaml.safe_dump({"version": 1, "metadata": metadata, "package": rows}, sort_keys=False)

    def add_python(self) -> None:
        """Add this machine's interpreter, as an environment that refers to it, and a package of Python code."""
        base = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
        settings = f"home = {os.path.dirname(base)}\nversion = {VERSION}\ninclude-system-site-packages = false\n"
        full = ".".join(map(str, sys.version_info[:3]))
        programs: dict[str, bytes | Link] = {
            "bin/python": Link(base), "bin/python3": Link("python"), f"bin/python{VERSION}": Link("python"),
        }  # fmt: skip
        self.add("python", full, own_platform(), {**programs, "pyvenv.cfg": settings.encode()})
        self.add_code(PACKAGE, "2.0", f"VALUE = 42\ndef main():\n    print({PACKAGE!r})\n")

    def add_pip(self) -> None:
        """Add pip, from the wheel that Python brings; skip the test where it brings none."""
        import ensurepip

        wheels = list((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
        if not wheels:
            pytest.skip("no wheel of pip in this Python")
        with zipfile.ZipFile(wheels[0]) as wheel:
            files = {f"site-packages/{name}": wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
        program = {"type": "python", "entry_points": ["pip = pip._internal.cli.main:main"]}
        self.add("pip", wheels[0].name.split("-")[1], "noarch", files, depends=["python"], noarch=program)

    def add_code(self, name: str, version: str, code: str) -> None:
        """Add a package of Python code, whose program calls ``main``."""
        information = f"site-packages/{name}-{version}.dist-info"
        files: dict[str, bytes | Link] = {
            f"site-packages/{name}/__init__.py": code.encode(),
            f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
            f"{information}/INSTALLER": b"conda",
        }
        program = {"type": "python", "entry_points": [f"{name} = {name}:main"]}
        self.add(name, version, "noarch", files, depends=["python"], noarch=program)


def _tar(files: Mapping[str, bytes | Link]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.mode = 0o644
            if isinstance(content, Link):
                member.type, member.linkname = tarfile.SYMTYPE, content.target
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return raw.getvalue()


@contextmanager
def served(channel: Channel) -> Iterator[Channel]:
    """Serve the channel on loopback, and what is below ``/t/TOKEN/`` too."""

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            channel.requested.append(path)
            parts = path.split("/")
            return super().translate_path("/".join(parts[3:]) if parts[1] == "t" else path)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(channel.directory))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        channel.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield channel
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def python_channel(directory: Path) -> Iterator[Channel]:
    """Serve a new channel that has a Python."""
    made = Channel(directory)
    made.add_python()
    with served(made):
        yield made
