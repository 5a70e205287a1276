"""Python environments on this host: which interpreters there are, and one built from a lock file."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import posixpath
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

from midstream_engine import records

STAMP = ".complete.json"
NEUTRAL = "/"  # where installers and interpreters start: they read modules and settings of that directory
NEWEST_FIRST = ("python3.12", "python3.11", "python3.13", "python3")  # 3.12 first: most wheels
PLACES = ("~/.local/bin", "~/.cargo/bin", "/usr/local/bin", "/usr/bin", "/opt/homebrew/bin")
_VERSION = (
    "import json, platform, sys; print(json.dumps([getattr(sys, '_base_executable', '') or sys.executable,"
    " '.'.join(map(str, sys.version_info[:3])), platform.machine()]))"
)


def find(minimum: Sequence[int], also: Sequence[str] = ()) -> Dict[str, Any]:
    """``{uv, python, version, machine, newest}``: paths of uv and of an interpreter of version ``minimum`` or newer
    (of those that are known by name, then of ``also``), None where there is none; ``newest`` is the newest version that
    was seen."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *(os.path.expanduser(place) for place in PLACES)])
    uv = shutil.which("uv", path=path)
    if uv is not None and _output([uv, "--version"]) is None:
        uv = None  # a shim that leads nowhere
    candidates = [shutil.which(name, path=path) for name in NEWEST_FIRST] + [sys.executable, *also]
    newest = ""
    for candidate in candidates:
        said = _output([candidate, "-I", "-c", _VERSION]) if candidate else None
        if said is None:
            continue
        executable, version, machine = json.loads(said)
        if not newest or _numbers(version) > _numbers(newest):
            newest = version
        if _numbers(version) >= list(minimum):
            return {"uv": uv, "python": executable, "version": version, "machine": machine, "newest": newest}
    return {"uv": uv, "python": None, "version": None, "machine": None, "newest": newest}


def _numbers(version: str) -> List[int]:
    return [int(part) for part in version.split(".")]


def _output(argv: Sequence[str]) -> Optional[str]:
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
            cwd=NEUTRAL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode() if done.returncode == 0 else None


def ready(root: str, name: str) -> Optional[Dict[str, Any]]:
    """The stamp of a complete environment with its ``python``, None where there is none."""
    directory = posixpath.join(root, "envs", name)
    stamp = records.read_json_or_none(posixpath.join(directory, STAMP))
    python = posixpath.join(directory, "bin", "python")
    return None if stamp is None or not os.access(python, os.X_OK) else dict(stamp, python=python)


def ask(argv: Sequence[str], env: Mapping[str, str], timeout: float = 290.0) -> Dict[str, Any]:
    """Run a command with ``env`` added to this environment: ``{code, output, error}``, the last line of stderr."""
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
            cwd=NEUTRAL,
        )
    except FileNotFoundError:
        return {"code": 127, "output": "", "error": "{}: command not found".format(argv[0])}
    except OSError as error:
        return {"code": 126, "output": "", "error": "{}: {}".format(argv[0], error.strerror)}
    except subprocess.TimeoutExpired:
        return {"code": 124, "output": "", "error": "no answer within {:.0f} s".format(timeout)}
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return {
        "code": done.returncode,
        "output": done.stdout.decode(errors="replace"),
        "error": words[-1] if words else "",
    }


def build(
    root: str,
    name: str,
    lock: str,
    python: str,
    uv: Optional[str],
    env: Mapping[str, str],
    wheels: Optional[str] = None,
) -> int:
    """A streaming program: make ``<root>/envs/<name>`` hold exactly what the text ``lock`` pins, hashes required; from
    the directory ``wheels`` alone, where one is given.

    Environments cannot be moved, so it is built in place, under a lock that the installers inherit; the stamp is
    written last, and what lacks it is built anew. Lines: ``line`` with ``text``, at the end ``done`` with ``python``
    and ``how``, or ``problem`` with ``message``."""
    directory = posixpath.join(root, "envs", name)
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    descriptor = os.open(posixpath.join(root, "envs", "." + name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _emit("line", text="another launch builds {}: waiting for it".format(directory))
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    present = ready(root, name)
    if present is not None:
        _emit("done", **present)
        return 0
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)
    how = "uv" if uv else "venv and pip"
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
    }
    environment.update(env)
    try:
        for argv in _commands(directory, lock, python, uv, wheels):
            _run(argv, environment, descriptor)
        records.write_json(posixpath.join(directory, STAMP), {"how": how, "base": python})
    except _Failed as failure:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)
        _emit("problem", message=str(failure))
        return 1
    _emit("done", how=how, base=python, python=posixpath.join(directory, "bin", "python"))
    return 0


def _commands(directory: str, lock: str, python: str, uv: Optional[str], wheels: Optional[str]) -> Any:
    """One after the other: the requirements are written once the directory is there."""
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
        yield [uv, "pip", "sync", *offline, *source, "--python", made, "--require-hashes", requirements]
    else:
        pip = [made, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        yield [*pip, *source, "--require-hashes", "--no-deps", "-r", requirements]


class _Failed(Exception):
    """A command that failed, in one line."""


def _run(argv: Sequence[str], env: Mapping[str, str], lock: int) -> None:
    _emit("line", text=" ".join(argv))
    last: List[str] = []
    try:
        with subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            pass_fds=(lock,),
            cwd=NEUTRAL,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                text = line.decode(errors="replace").rstrip()
                if text:
                    last = [*last[-4:], text]
                    _emit("line", text=text)
    except OSError as error:
        raise _Failed("{}: {}".format(argv[0], error.strerror)) from error
    if process.returncode:
        words = " / ".join(last) or "exit code {}".format(process.returncode)
        raise _Failed("{} failed: {}".format(" ".join(argv[:4]), words))


def _emit(event: str, **fields: Any) -> None:
    sys.stdout.buffer.write(json.dumps(dict(fields, event=event)).encode() + b"\n")
    sys.stdout.buffer.flush()
