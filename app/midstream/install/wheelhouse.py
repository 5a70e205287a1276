"""Wheels for hosts without a package index: collected, checked, copied to them."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from midstream.errors import HostError
from midstream.hosts.host import Host
from midstream.install.errors import LaunchError
from midstream.install.install_progress import PIN, needed_on_linux, normalized
from midstream.install.placed_directory import install_command, is_complete
from midstream.state_directory import make_directory
from midstream_core import records

ENDING = 60.0


def glibc_version(libc: str) -> tuple[int, int] | None:
    """Return major and minor version of ``glibc 2.35``.

    None for another C library or an unknown version.
    """
    matched = re.fullmatch(r"glibc (\d{1,4})\.(\d{1,4})(\.\d+)*", libc, re.ASCII)
    return (int(matched[1]), int(matched[2])) if matched else None


def collect_wheels(
    lock: str,
    directory: Path,
    *,
    version: str,
    machine: str,
    glibc: tuple[int, int],
    progress: Callable[[str], None] | None = None,
) -> list[Path]:
    """Return the wheels that a lock pins; download the missing ones with pip.

    pip checks their hashes.

    Args:
        lock: Text of the lock file.
        directory: Directory of this machine that has the wheels.
        version: Python's version on the host.
        machine: The host's ``uname -m``.
        glibc: The host's version of glibc.
        progress: Called with each line of progress.

    Raises:
        LaunchError: A wheel cannot be downloaded.
    """
    make_directory(directory)
    if not _complete(lock, directory, version):
        # One pip at a time: another host of a target, or another command, may need the same wheels.
        with records.locked(str(directory / ".lock")):
            if not _complete(lock, directory, version):
                platforms = [word for name in _platforms(machine, glibc) for word in ("--platform", name)]
                if progress is not None:
                    progress(f"collecting wheels for Python {version} on {machine} in {directory}")
                _download(lock, directory, machine, ["--python-version", version, *platforms])
    return _pinned(lock, directory)


def _download(lock: str, directory: Path, machine: str, flags: Sequence[str]) -> None:
    """Download the wheels of a lock with pip. LaunchError if one is missing."""
    requirements = directory / f"requirements-{hashlib.sha256(lock.encode()).hexdigest()[:12]}.txt"
    requirements.write_text(lock)
    argv = [*_pip(), "download", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--quiet"]
    argv += [*flags, "--implementation", "cp", "--dest", str(directory), "--requirement", str(requirements)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise LaunchError(
            f"the wheels for {machine} cannot be collected: {words[-1] if words else done.returncode}",
            f"put what is missing into {directory}",
        )


def _complete(lock: str, directory: Path, version: str) -> bool:
    """Return whether the wheels that an interpreter on Linux needs are there."""
    pins = {(normalized(name), pin) for name, pin, marker in PIN.findall(lock) if needed_on_linux(marker, version)}
    wheels = (path.name.split("-") for path in _pinned(lock, directory))
    return pins <= {(normalized(name), pin) for name, pin, *_ in wheels}


def _pinned(lock: str, directory: Path) -> list[Path]:
    """Return the wheels of the directory whose hashes the lock has."""
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock))
    pinned: list[Path] = []
    for path in sorted(directory.glob("*.whl")):
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() in hashes:
                pinned.append(path)
    return pinned


def _platforms(machine: str, glibc: tuple[int, int]) -> list[str]:
    """Return the PEP 600 tags that a host with this C library accepts, newest first."""
    newest = [f"manylinux_2_{minor}_{machine}" for minor in range(glibc[1], 16, -1)]
    return [
        *newest,
        f"manylinux2014_{machine}",
        f"manylinux2010_{machine}",
        f"manylinux1_{machine}",
        f"linux_{machine}",
    ]


def _pip() -> list[str]:
    """Return a pip of this machine.

    midstream's own environment has none if uv created it.
    """
    for python in (sys.executable, getattr(sys, "_base_executable", ""), "python3"):
        argv = [python, "-I", "-m", "pip"]
        try:
            if python and subprocess.run([*argv, "--version"], capture_output=True).returncode == 0:
                return argv
        except OSError:
            continue
    raise LaunchError("no pip on this machine", "apt-get install python3-pip, or collect the wheels by hand")


def send_wheels(host: Host, lock: str, wheels: Sequence[Path], progress: Callable[[str], None] | None = None) -> str:
    """Copy missing wheels to the host's ``<root>/wheels/<lock>/``, and return it."""
    directory = f"{host.root}/wheels/{hashlib.sha256(lock.encode()).hexdigest()[:16]}"
    if is_complete(host, directory):
        return directory
    if progress is not None:
        size = sum(path.stat().st_size for path in wheels)
        progress(f"{host.name}: {len(wheels)} wheels are sent ({size / 1e6:.0f} MB)")
    process = host.open(install_command(directory, 'tar -xf - -C "$2"'))
    try:
        with tarfile.open(fileobj=process.stdin, mode="w|") as archive:
            for path in wheels:
                archive.add(path, path.name)
        process.stdin.close()
        code = process.wait(ENDING)
    except BrokenPipeError:
        code = process.wait(ENDING)
    finally:
        words = process.stderr_text().strip().splitlines()
        process.close()
    if code:
        why = words[-1] if words else code
        raise HostError(f"{host.name}: the wheels cannot be written: {why}", "is its disk full?")
    return directory
