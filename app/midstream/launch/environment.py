"""The Python environment that the engine runs in: one that is there, or one built from the lock file."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

from midstream.fleet.config import HostConfig, LocalHost
from midstream.hosts.base import Host
from midstream.hosts.programs import run_program
from midstream.launch.errors import LaunchError
from midstream.remote.engine import with_setup
from midstream.shipped import shipped

LOCK = "engine-cpu.txt"
MINIMUM = (3, 11)
MODULES = (
    "draccus",
    "equinox",
    "google_crc32c",
    "haliax",
    "jax",
    "jaxtyping",
    "jmp",
    "ml_dtypes",
    "numpy",
    "optax",
    "safetensors",
    "tensorstore",
    "yaml",
)
IMPORTS = 300.0  # seconds that the engine's packages may take to import: cold, from a shared disk
CALL = 120.0  # seconds that a host may take to look for its interpreters

_CHECK = """
import importlib, json, sys
missing = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        missing.append([name, f"{type(error).__name__}: {error}"])
print(json.dumps({"version": list(sys.version_info[:3]), "missing": missing}))
"""


@dataclass(frozen=True)
class Environment:
    """``python`` is the interpreter as the engine is started with; ``how`` says where it comes from, for people."""

    python: str
    how: str


def prepare_environment(
    host: Host,
    config: HostConfig,
    progress: Callable[[str], None] | None = None,
    *,
    lock: str | None = None,
    modules: Sequence[str] = MODULES,
    cancel: Event | None = None,
) -> Environment:
    """An interpreter on ``host`` that imports ``modules``.

    The configuration's ``python:`` is taken as it is; on this machine midstream's own interpreter, where it has the
    engine's packages; else ``<root>/envs/<hash of lock and interpreter>/`` is built from the lock file's text
    ``lock``, with uv where the host has it. ``progress`` gets a line at a time.
    LaunchError with the line that mends it."""
    if config.python:
        wrong = _wrong(host, config, config.python, modules)
        if wrong:
            raise LaunchError(
                f"{host.name}: python: {config.python}: {wrong}",
                "install the engine extra there, or leave python: out to have an environment built",
            )
        return Environment(config.python, "named in the fleet file")
    if isinstance(config, LocalHost) and not _wrong(host, config, sys.executable, modules):
        return Environment(sys.executable, "midstream's own")
    return _build(host, config, progress, engine_lock() if lock is None else lock, modules, cancel)


def engine_lock() -> str:
    """The text of the engine's lock file."""
    return shipped(f"locks/{LOCK}").read_text(encoding="utf-8")


def environment_name(lock: str, version: str, machine: str) -> str:
    """One name for one lock, Python version and machine type: roots may be shared between machines."""
    return hashlib.sha256("\0".join((lock, version, machine)).encode()).hexdigest()[:16]


def _build(
    host: Host,
    config: HostConfig,
    progress: Callable[[str], None] | None,
    lock: str,
    modules: Sequence[str],
    cancel: Event | None,
) -> Environment:
    found = host.call("environments.find", minimum=list(MINIMUM), timeout=CALL)
    wanted = ".".join(map(str, MINIMUM))
    if found["python"] is None:
        seen = f"has only Python {found['newest']}" if found["newest"] else "has no Python"
        raise LaunchError(
            f"{host.name} {seen}, and the engine needs {wanted} or newer",
            f"install one there, or name it with python: for {host.name} in the fleet file",
        )
    name = environment_name(lock, found["version"], found["machine"])
    ready = host.call("environments.ready", root=host.root, name=name)
    if ready is None:
        arguments = {
            "root": host.root,
            "name": name,
            "lock": lock,
            "python": found["python"],
            "uv": found["uv"],
            "env": dict(config.env),
        }
        for report in run_program(host, "environments.build", arguments, cancel):
            if report["event"] == "line" and progress is not None:
                progress(report["text"])
            elif report["event"] == "problem":
                raise LaunchError(
                    f"{host.name}: the engine's environment cannot be built: {report['message']}",
                    f"what installers need to know (PIP_INDEX_URL, SSL_CERT_FILE) stands in env: of {host.name} in the "
                    "fleet file; python: names an interpreter that has the engine's packages already",
                )
            elif report["event"] == "done":
                ready = report
        if ready is None:
            raise LaunchError(f"{host.name}: building the engine's environment ended without a word", "try again")
    wrong = _wrong(host, config, ready["python"], modules)
    if wrong:
        raise LaunchError(f"{host.name}: {ready['python']}: {wrong}", f"remove {host.root}/envs/{name} and try again")
    return Environment(ready["python"], f"built from the lock with {ready['how']}")


def _wrong(host: Host, config: HostConfig, python: str, modules: Sequence[str]) -> str:
    """Why the engine would not run with ``python``, in one line; empty where it would."""
    argv = with_setup([python, "-c", _CHECK, *modules], config.setup)
    done = host.run(argv, env={**config.env, "JAX_PLATFORMS": "cpu"}, timeout=IMPORTS)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        return words[-1] if words else f"ends with {done.returncode}"
    said = json.loads(done.stdout.decode().strip().splitlines()[-1])
    if tuple(said["version"]) < MINIMUM:
        return (
            f"is Python {'.'.join(map(str, said['version']))}, the engine needs {'.'.join(map(str, MINIMUM))} or newer"
        )
    if said["missing"]:
        names = ", ".join(name for name, _ in said["missing"])
        return f"cannot import {names} ({said['missing'][0][1]})"
    return ""
