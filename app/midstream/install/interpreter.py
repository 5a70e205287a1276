"""A pinned Python for hosts whose own is too old or missing, from uv or a tarball.

The build is python-build-standalone's, named with its hash in ``locks/python.json``. The tarball is in this
machine's cache (``$MIDSTREAM_CACHE``, default ``~/.cache/midstream``), or is downloaded to it from
``$UV_PYTHON_INSTALL_MIRROR`` (``file://`` too) or from its publisher. The host needs a shell, tar and gzip.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midstream.bundled_files import shipped
from midstream.hosts.host import Host
from midstream.install.errors import LaunchError
from midstream.install.placed_directory import install_command, is_complete
from midstream.state_directory import make_directory
from midstream_core.json_types import JsonObject

INSTALL_TIMEOUT = 600.0  # seconds for the host to download or unpack
DOWNLOAD_TIMEOUT = 60.0  # seconds without a byte
ABANDONED_AFTER = 86400.0  # seconds since the last byte of a download that was killed

_LOOK = """\
uname -m; ldd --version 2>&1 | head -n 1
for each in uv "$HOME/.local/bin/uv" "$HOME/.cargo/bin/uv"; do
    if "$each" --version >/dev/null 2>&1; then command -v "$each"; exit 0; fi
done
echo
"""
_COMPLETE = '[ -f "$1/.complete" ] && [ -x "$1/bin/python3" ]'
_UNPACK = """\
tar -xzf - -C "$2" --strip-components=1
"$2/bin/python3" -I -c 'import encodings, hashlib, ssl, zlib' || { echo it does not run here >&2; exit 1; }
"""
_UV = """\
set -e
"$2" python install --quiet --no-bin --install-dir "$1" "$3"
for each in "$1"/cpython-"$3"-*/bin/python3; do
    "$each" -I -c 'import ssl'; echo "$each"; exit 0
done
exit 1
"""


@dataclass(frozen=True)
class PythonBuild:
    """One tarball. ``file`` is its path under a mirror."""

    version: str
    machine: str
    file: str
    sha256: str
    mirror: str

    @property
    def name(self) -> str:
        return f"midstream-{self.version}-{self.sha256[:12]}"


def python_build(machine: str, pins: JsonObject | None = None) -> PythonBuild:
    """Return the pinned build for ``uname -m``.

    Raises:
        LaunchError: There is none.
    """
    pinned: Mapping[str, Any] = pins or json.loads(shipped("locks/python.json").read_text(encoding="utf-8"))
    build = pinned["builds"].get(machine)
    if build is None:
        raise LaunchError(f"there is no Python build for {machine}", "python: in the fleet file names an interpreter")
    return PythonBuild(pinned["version"], machine, build["file"], build["sha256"], pinned["mirror"])


def _ignore(line: str) -> None:
    del line


def bring_python(
    host: Host,
    env: Mapping[str, str],
    progress: Callable[[str], None] | None = None,
    pins: JsonObject | None = None,
) -> str:
    """Return the path of a Python under ``<root>/pythons/``; install it if missing.

    Args:
        host: The host.
        env: Variables for installers on the host (UV_PYTHON_INSTALL_MIRROR).
        progress: Called with each line of progress.
        pins: The pinned builds, by default those of ``locks/python.json``.

    Raises:
        LaunchError: It cannot be installed; the hint says how to do it by hand.
    """
    say = progress or _ignore
    lines = host.run(["sh", "-c", _LOOK]).stdout.decode(errors="replace").splitlines()
    machine, libc, uv = (*lines, "", "", "")[:3]
    if "musl" in libc:
        raise LaunchError(f"{host.name}: jax has no build for musl", "a system with glibc 2.27 or newer")
    build = python_build(machine, pins)
    directory = f"{host.root}/pythons/{build.name}"
    if is_complete(host, directory, _COMPLETE):
        return f"{directory}/bin/python3"
    if uv:
        say(f"{host.name}: uv python install {build.version}")
        words = ["sh", "-c", _UV, "sh", f"{host.root}/pythons", uv, build.version]
        done = host.run(words, env=env, timeout=INSTALL_TIMEOUT)
        if done.returncode == 0:
            return done.stdout.decode().strip().splitlines()[-1]
        words = done.stderr.decode(errors="replace").strip().splitlines()
        say(f"{host.name}: uv failed ({words[-1].strip() if words else done.returncode}); a tarball is sent instead")
    tarball = python_tarball(build)
    say(f"{host.name}: Python {build.version} is sent ({tarball.stat().st_size / 1e6:.0f} MB)")
    done = host.run(install_command(directory, _UNPACK, _COMPLETE), stdin=tarball.read_bytes(), timeout=INSTALL_TIMEOUT)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise LaunchError(
            f"{host.name}: {tarball.name} cannot be unpacked: {words[-1] if words else done.returncode}",
            f"tar and gzip, and space under {host.root}; or python: in the fleet file",
        )
    return f"{directory}/bin/python3"


def python_tarball(build: PythonBuild) -> Path:
    """Return the tarball in this machine's cache; download it if it is missing.

    The tarball's hash was checked.

    Raises:
        LaunchError: It cannot be downloaded, or has another hash.
    """
    import http.client  # with TLS, which takes 2 MB
    import urllib.request

    cache = Path(os.environ.get("MIDSTREAM_CACHE") or "~/.cache/midstream").expanduser() / "pythons"
    path = cache / build.file.rpartition("/")[2]
    if path.exists() and _sha256(path) == build.sha256:
        return path
    make_directory(cache)
    _remove_abandoned(path)
    mirror = os.environ.get("UV_PYTHON_INSTALL_MIRROR") or build.mirror
    url = f"{mirror.rstrip('/')}/{build.file.replace('+', '%2B')}"
    by_hand = f"put it at {path} by hand, name a mirror with UV_PYTHON_INSTALL_MIRROR, or an interpreter with python:"
    partial = path.with_name(f"{path.name}.part-{secrets.token_hex(8)}")  # several hosts may need it at the same time
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as source, partial.open("wb") as file:
            shutil.copyfileobj(source, file)
        if _sha256(partial) != build.sha256:
            raise LaunchError(f"{url} is not the file that is pinned (its SHA-256 differs)", by_hand)
        partial.replace(path)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = " ".join(str(getattr(error, "reason", None) or error).split())  # a server's answer has its line ends
        raise LaunchError(f"{url} cannot be fetched: {reason[:200]}", by_hand) from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def _remove_abandoned(path: Path) -> None:
    for partial in path.parent.glob(f"{path.name}.part-*"):
        with contextlib.suppress(OSError):  # another process removes it too
            if time.time() - partial.stat().st_mtime > ABANDONED_AFTER:
                partial.unlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
