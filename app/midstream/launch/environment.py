"""The Python environment that the engine runs in: one that is there, or one built from the lock file."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from midstream.fleet.fleet import HostConfig, LocalHost
from midstream.hosts.host import Host
from midstream.hosts.rpc.remote_program import run_program
from midstream.launch.errors import LaunchError
from midstream.launch.interpreter import bring_python
from midstream.launch.variant import Variant, choose_variant
from midstream.launch.wheelhouse import collect_wheels, send_wheels
from midstream.remote.runs.attempts import with_setup

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
BUCKETS = "google.cloud.storage"  # where checkpoints lie in one
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


def host_variant(host: Host, config: HostConfig) -> Variant:
    """Which build of the packages the host needs: asked of it where the fleet file does not say."""
    asked = config.variant is None and config.devices is None
    return choose_variant(host.name, config, host.call("machine.checks.accelerators", timeout=CALL) if asked else {})


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
    engine's packages for what is built in here; else ``<root>/envs/<hash of lock and interpreter>/`` is built from the
    lock file of the host's variant (or the text ``lock``), with uv where the host has it, and with an interpreter that
    is brought there where its own is too old. ``progress`` gets a line at a time. LaunchError with the line that mends
    it."""
    modules = [*modules, BUCKETS] if config.store else modules
    if config.python:
        wrong = _wrong(host, config, config.python, modules)
        if wrong:
            raise LaunchError(
                f"{host.name}: python: {config.python}: {wrong}",
                "install the engine extra there, or leave python: out to have an environment built",
            )
        return Environment(config.python, "named in the fleet file")
    variant = host_variant(host, config) if lock is None else None
    plugin = [variant.plugin] if variant is not None and variant.plugin else []
    if isinstance(config, LocalHost) and not _wrong(host, config, sys.executable, [*modules, *plugin]):
        return Environment(sys.executable, "midstream's own")
    if variant is not None and progress is not None:
        progress(f"{host.name}: packages for {variant.name} ({variant.why})")
    text = lock if variant is None else variant.lock
    assert text is not None
    return _build(host, config, progress, text, modules, cancel)


def builds_environment(config: HostConfig) -> bool:
    """Whether an environment may have to be built for a host: it names no ``python:``, and is not this machine with
    the engine's packages beside midstream's own. Imports none of them."""
    own = isinstance(config, LocalHost) and all(importlib.util.find_spec(name) is not None for name in MODULES)
    return not config.python and not own


def find_python(host: Host, config: HostConfig, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """``{uv, python, version, machine, newest}`` of the host, as ``remote.environments.find``; with an interpreter that
    was brought there, where it has none that will do."""
    if not host.far_python:  # none at all: not even our own functions run there
        bring_python(host, config.env, progress)
        host.close()
        host.connect()
    found = host.call("machine.environments.find", minimum=list(MINIMUM), timeout=CALL)
    if found["python"] is None:
        wanted = ".".join(map(str, MINIMUM))
        lacks = f"{host.name} has only Python {found['newest']}, and the engine needs {wanted} or newer"
        try:
            brought = bring_python(host, config.env, progress)
        except LaunchError as error:
            raise LaunchError(f"{lacks}; {error.message}", error.hint) from error
        found = host.call("machine.environments.find", minimum=list(MINIMUM), also=[brought], timeout=CALL)
        if found["python"] is None:
            raise LaunchError(lacks, f"python: for {host.name} in the fleet file names another")
    return found


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
    found = find_python(host, config, progress)
    name = environment_name(lock, found["version"], found["machine"])
    ready = host.call("machine.environments.ready", root=host.root, name=name)
    if ready is None:
        wheels = None
        if config.wheelhouse:
            libc = host.call("machine.checks.facts", root=host.root)["libc"].rpartition(" ")[2].split(".")
            glibc = (int(libc[0]), int(libc[1])) if len(libc) > 1 else (2, 28)
            collected = collect_wheels(
                lock,
                Path(config.wheelhouse).expanduser(),
                version=found["version"],
                machine=found["machine"],
                glibc=glibc,
                progress=progress,
            )
            wheels = send_wheels(host, lock, collected, progress)
        arguments = {
            "root": host.root,
            "name": name,
            "lock": lock,
            "python": found["python"],
            "uv": found["uv"],
            "env": dict(config.env),
            "wheels": wheels,
        }
        for report in run_program(host, "machine.environments.build", arguments, cancel):
            if report["event"] == "line" and progress is not None:
                progress(report["text"])
            elif report["event"] == "problem":
                raise LaunchError(
                    f"{host.name}: the engine's environment cannot be built: {report['message']}",
                    f"what installers need to know (PIP_INDEX_URL, SSL_CERT_FILE) stands in env: of {host.name} in the "
                    "fleet file; without a network: wheelhouse:, or python: for an interpreter that has the packages",
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
    # Its environment may hold what nobody else should read: it goes over stdin, not in a command line.
    answer = host.call(
        "machine.environments.ask",
        argv=with_setup([python, "-c", _CHECK, *modules], config.setup),
        env={**config.env, "JAX_PLATFORMS": "cpu", "PYTHONSAFEPATH": "1"},
        timeout=IMPORTS,
    )
    if answer["code"]:
        return answer["error"] or f"ends with {answer['code']}"
    said = json.loads(answer["output"].strip().splitlines()[-1])
    if tuple(said["version"]) < MINIMUM:
        return (
            f"is Python {'.'.join(map(str, said['version']))}, the engine needs {'.'.join(map(str, MINIMUM))} or newer"
        )
    if said["missing"]:
        names = ", ".join(name for name, _ in said["missing"])
        return f"cannot import {names} ({said['missing'][0][1]})"
    return ""
