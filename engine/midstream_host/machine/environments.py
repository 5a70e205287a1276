"""Python environments on this host.

Interpreters are found, and environments are built from lock files.
"""

from __future__ import annotations

import dataclasses
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from typing import Iterator, List, Mapping, Optional, Sequence

from midstream_core import records
from midstream_core.json_types import object_or_empty
from midstream_host.declarations import program, reads
from midstream_host.machine import installers
from midstream_host.shapes import FileName, Signed, Text

STAMP = ".complete.json"
NEWEST_FIRST = ("python3.12", "python3.11", "python3.13", "python3")  # 3.12 first: most wheels
USAGE = re.compile("(Run|See|Try) ['\"]")  # a last line of stderr that only names the help: the error is before it
FOLDERS = ("~/.local/bin", "~/.cargo/bin", "/usr/local/bin", "/usr/bin", "/opt/homebrew/bin")
_VERSION = (
    "import json, platform, sys; print(json.dumps([getattr(sys, '_base_executable', '') or sys.executable,"
    " '.'.join(map(str, sys.version_info[:3])), platform.machine()]))"
)


@dataclasses.dataclass(frozen=True)
class Interpreters:
    """Paths of uv and of an interpreter that is new enough; None where there is none."""

    uv: Optional[FileName]
    python: Optional[FileName]
    version: Optional[str]  # of ``python``
    machine: Optional[str]
    newest: str  # version of the newest interpreter on the host


@dataclasses.dataclass(frozen=True)
class CommandResult:
    """Exit code, output and last line of stderr of a command, which has the error."""

    code: Signed
    output: Text
    error: Text


@dataclasses.dataclass(frozen=True)
class InstalledEnvironment:
    """A complete Python environment and how it was built."""

    python: FileName
    how: str = ""
    base: FileName = ""  # the interpreter that it was built with


@reads()
def find(minimum: Sequence[int], also: Sequence[str] = ()) -> Interpreters:
    """Look for uv and for an interpreter of version ``minimum`` or newer.

    The interpreter is looked for by its usual names, then in ``also``.
    """
    path = os.pathsep.join([os.environ.get("PATH", ""), *(os.path.expanduser(folder) for folder in FOLDERS)])
    uv = shutil.which("uv", path=path)
    if uv is not None and _output([uv, "--version"]) is None:
        uv = None  # a shim without uv
    candidates = [shutil.which(name, path=path) for name in NEWEST_FIRST] + [sys.executable, *also]
    newest = ""
    for candidate in candidates:
        output = _output([candidate, "-I", "-c", _VERSION]) if candidate else None
        if output is None:
            continue
        executable, version, machine = json.loads(output)
        if not newest or _numbers(version) > _numbers(newest):
            newest = version
        if _numbers(version) >= list(minimum):
            return Interpreters(uv, executable, version, machine, newest)
    return Interpreters(uv, None, None, None, newest)


def _numbers(version: str) -> List[int]:
    return [int(number) for number in version.split(".")]


def _output(argv: Sequence[str]) -> Optional[str]:
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
            cwd=installers.NEUTRAL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode() if done.returncode == 0 else None


@reads()
def ready(root: str, name: str) -> Optional[InstalledEnvironment]:
    """The environment ``name``, None where there is no complete one."""
    directory = posixpath.join(root, "envs", name)
    stamp = records.read_json_or_none(posixpath.join(directory, STAMP))
    python = posixpath.join(directory, "bin", "python")
    if stamp is None or not os.access(python, os.X_OK):
        return None
    fields = object_or_empty(stamp)
    return InstalledEnvironment(python, str(fields.get("how", "")), str(fields.get("base", "")))


@reads()
def run_command(argv: Sequence[str], env: Mapping[str, str], timeout: float = 290.0) -> CommandResult:
    """Run a command with ``env`` added to this environment."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH")}
    environment.update(env)
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=timeout,
            cwd=installers.NEUTRAL,
        )
    except FileNotFoundError:
        return CommandResult(127, "", "{}: command not found".format(argv[0]))
    except OSError as error:
        return CommandResult(126, "", "{}: {}".format(argv[0], error.strerror))
    except subprocess.TimeoutExpired:
        return CommandResult(124, "", "no answer within {:.0f} s".format(timeout))
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    lines = [line for line in lines if line.strip() and not USAGE.match(line)] or lines
    return CommandResult(done.returncode, done.stdout.decode(errors="replace"), lines[-1] if lines else "")


@program
def build(
    root: str,
    name: str,
    lock: str,
    python: str,
    uv: Optional[str],
    env: Mapping[str, str],
    wheels: Optional[str] = None,
    hashed: bool = True,
) -> int:
    """Build the environment ``<root>/envs/<name>`` from the lock file ``lock``.

    A program. Hashes are required, unless ``hashed`` is false: another trainer's requirements. An environment cannot be
    moved, so it is built in place, under a lock that the installers inherit; the stamp is written last, and a directory
    without one is built again.

    Events: ``line`` (``text``), then ``done`` (``python``, ``how``) or ``problem`` (``message``).

    Args:
        root: Root of this host.
        name: Name of the environment.
        lock: Text of the lock file.
        python: Interpreter to build with.
        uv: Path of uv; None: venv and pip.
        env: Added to the installers' environment.
        wheels: Directory of wheels to install from, without a network.
        hashed: The lock has the hash of every package, and no package needs another one.
    """
    directory = posixpath.join(root, "envs", name)
    with installers.locked(root, name) as descriptor:
        present = ready(root, name)
        if present is not None:
            installers.emit("done", **vars(present))
            return 0
        installers.remove(directory)
        how = "uv" if uv else "venv and pip"
        try:
            for argv in _commands(directory, lock, python, uv, wheels, hashed):
                installers.run(argv, installers.environment_with(env), descriptor)
            records.write_json(posixpath.join(directory, STAMP), {"how": how, "base": python})
        except (installers.BuildError, OSError) as failure:
            message = installers.full_disk(root) or str(failure)  # installers may only say that a part of them failed
            installers.remove(directory)
            installers.emit("problem", message=message)
            return 1
    installers.emit("done", how=how, base=python, python=posixpath.join(directory, "bin", "python"))
    return 0


def _commands(
    directory: str, lock: str, python: str, uv: Optional[str], wheels: Optional[str], hashed: bool
) -> Iterator[List[str]]:
    """Yield the commands in order; writes the requirements once the directory exists."""
    made = posixpath.join(directory, "bin", "python")
    requirements = posixpath.join(directory, "requirements.txt")
    if uv:
        yield [uv, "venv", "--quiet", "--no-project", "--python", python, directory]
    else:
        yield [python, "-I", "-m", "venv", directory]
    records.write_bytes(requirements, lock.encode())
    source = ["--no-index", "--find-links", wheels] if wheels else []
    if uv:
        offline = ["--offline"] if wheels else []
        if hashed:
            yield [uv, "pip", "sync", *offline, *source, "--python", made, "--require-hashes", requirements]
        else:
            yield [uv, "pip", "install", *offline, *source, "--python", made, "-r", requirements]
    else:
        pip = [made, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        # Modules are compiled as they are imported: most never are, and compiling all takes longer than unpacking them.
        strict = ["--require-hashes", "--no-deps"] if hashed else []
        yield [*pip, *source, "--no-compile", *strict, "-r", requirements]
