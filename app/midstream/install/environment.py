"""The engine's Python environment on a host: existing, or built from a lock file."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from midstream.bundled_files import shipped
from midstream.errors import RemoteError
from midstream.fleet.container_config import ContainerConfig
from midstream.fleet.fleet import HostConfig
from midstream.hosts.container_command import RUNTIME_FAILED
from midstream.hosts.container_host import IMAGE_PYTHON, engine_host
from midstream.hosts.host import Host
from midstream.hosts.rpc.remote_program import run_program
from midstream.hosts.rpc.report_types import BUILD, Building, OutputLine, Problem
from midstream.hosts.rpc.result_checks import HINT
from midstream.install.disk_space import FULL, SIZES, check_space, download_bytes
from midstream.install.errors import LaunchError
from midstream.install.install_progress import InstallProgress, read_sizes
from midstream.install.interpreter import bring_python
from midstream.install.package_check import MINIMUM, fault_of, import_packages, package_fault
from midstream.install.reporter import Reporter, reporter_of
from midstream.install.variant import Variant, choose_variant
from midstream.install.wheelhouse import collect_wheels, glibc_version, send_wheels
from midstream_core.object_store.urls import GCS, S3
from midstream_host.machine import checks, environments

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
BUCKETS = {GCS: "google.cloud.storage", S3: "botocore"}  # if the host's checkpoints are in a bucket
IMAGE_HINT = "an image with Python 3.8 or newer; python: of {} names its interpreter"
SEARCH_TIMEOUT = 120.0  # seconds that a host may take to find its interpreters


@dataclass(frozen=True)
class Environment:
    """The interpreter that starts the engine, and its origin in words (``how``)."""

    python: str
    how: str


@dataclass(frozen=True)
class UsablePython:
    """An interpreter on a host that can run the engine, and uv if the host has it."""

    python: str
    version: str
    machine: str
    uv: str | None


def host_variant(host: Host, config: HostConfig) -> Variant:
    """Return the build of packages that a host needs, by fleet file or accelerators."""
    if config.variant is not None or config.devices is not None:
        return choose_variant(host.name, config, None)
    accelerators = host.call(checks.accelerators, timeout=SEARCH_TIMEOUT)(visible=config.visible)
    return choose_variant(host.name, config, accelerators)


def prepare_environment(
    host: Host,
    config: HostConfig,
    progress: Callable[[str], None] | None = None,
    *,
    lock: str | None = None,
    modules: Sequence[str] = MODULES,
    cancel: Event | None = None,
) -> Environment:
    """Find or build an interpreter on ``host`` that imports ``modules``.

    In this order: the fleet file's ``python:``; in a container the image's ``python3``, on this machine midstream's own
    interpreter, if it has the packages; ``<root>/envs/<hash of lock and interpreter>/``, built from the lock file of
    the host's variant, with uv if the host, or the image, has it. If its Python is too old, one is installed there.

    Args:
        host: The host.
        config: Its entry in the fleet file.
        progress: Receives the progress; a function is called with sparse lines.
        lock: Text of a lock file, instead of the variant's.
        modules: Modules that have to be importable.
        cancel: Ends the build when it is set.

    Raises:
        LaunchError: There is no such interpreter; the error has a hint.
        Cancelled: ``cancel`` was set.
    """
    if config.store:  # the name of a store may stand for either kind
        schemes = [scheme for scheme in BUCKETS if config.store.startswith(scheme)] or list(BUCKETS)
        modules = [*modules, *(BUCKETS[scheme] for scheme in schemes)]
    if config.container is not None:
        ready = _in_image(host, config, config.container, modules, progress)
        if ready is not None:
            return ready
    elif config.python:
        wrong = package_fault(host, config, config.python, modules)
        if wrong:
            raise LaunchError(
                f"{host.name}: python: {config.python}: {wrong}",
                "install the packages of locks/engine-cpu.txt there, or leave python: out to have an environment built",
            )
        return Environment(config.python, "named in the fleet file")
    variant = host_variant(host, config) if lock is None else None
    plugin = [variant.plugin] if variant is not None and variant.plugin else []
    own = config.is_local and config.container is None
    if own and not package_fault(host, config, sys.executable, [*modules, *plugin]):
        return Environment(sys.executable, "midstream's own")
    if variant is not None and progress is not None:
        progress(f"{host.name}: packages for {variant.name} ({variant.why})")
    text = lock if variant is None else variant.lock
    assert text is not None
    return build_environment(host, config, reporter_of(progress), text, modules, cancel)


def _in_image(
    host: Host,
    config: HostConfig,
    container: ContainerConfig,
    modules: Sequence[str],
    progress: Callable[[str], None] | None,
) -> Environment | None:
    """Return the interpreter of an image if it imports ``modules``.

    None where packages are missing, or it is too old, and ``python:`` does not name it: an environment is built then.

    Raises:
        LaunchError: It does not start, or ``python:`` names it and it does not import ``modules``.
    """
    python = config.python or IMAGE_PYTHON
    how = f"in the {container.runtime} container {container.image}"
    if container.runtime == "pyxis":  # srun starts it, on the compute nodes alone
        return Environment(python, f"{how}, not checked before the job starts")
    answer = import_packages(host, config, python, modules)
    wrong = fault_of(host, answer)
    if not wrong:
        return Environment(python, how)
    if answer.code:
        raise LaunchError(
            f"{host.name}: {python} {how}: {wrong}",
            _hint_of(host.name, container, answer.code, wrong),
        )
    if config.python:
        raise LaunchError(
            f"{host.name}: {python} {how}: {wrong}",
            "an image with the packages of locks/engine-cpu.txt or another lock, or leave python: out to have an "
            "environment built",
        )
    if progress is not None:
        progress(f"{host.name}: {python} {how}: {wrong}: it gets an environment of its own")
    return None


def _hint_of(name: str, container: ContainerConfig, code: int, error: str) -> str:
    """Return the hint for a command that did not start in a container.

    ``code`` and ``error`` are those of the command.
    """
    if f"{container.runtime}: not found" in error or f"{container.runtime}: command not found" in error:
        return f"install {container.runtime} on {name}, or correct runtime: of the container in the fleet file"
    if code == RUNTIME_FAILED:
        return f"correct container: in the fleet file, or what {container.runtime} needs on {name}"
    return IMAGE_HINT.format(name)


def builds_environment(config: HostConfig) -> bool:
    """Return whether an environment may have to be built for a host.

    Imports no package.

    None is built if the host has ``python:``, or is this machine and midstream's environment has the engine's packages.
    """
    if config.python or (config.container is not None and config.container.runtime == "pyxis"):
        return False
    own = config.is_local and config.container is None
    return not own or any(importlib.util.find_spec(name) is None for name in MODULES)


@dataclass(frozen=True)
class EnvironmentNeeds:
    """Steps that an installation on a host needs."""

    ready: bool | None  # the environment is there; None: not known
    download: int  # bytes of packages; 0: none, or not known


def environment_needs(host: Host, config: HostConfig) -> EnvironmentNeeds:
    """Return what an installation of the engine's environment on a host has to do.

    Only reads.
    """
    if not builds_environment(config):
        return EnvironmentNeeds(True, 0)
    try:
        lock = host_variant(host, config).lock
    except LaunchError:
        return EnvironmentNeeds(None, 0)
    if config.container is not None:  # the image may have the packages: starting it would take seconds
        return EnvironmentNeeds(None, 0)
    download = download_bytes(lock)
    if not host.remote_python:
        return EnvironmentNeeds(False, download)
    interpreter = _interpreters(host)
    if interpreter.python is None or interpreter.version is None or interpreter.machine is None:
        return EnvironmentNeeds(False, download)
    name = environment_name(lock, interpreter.version, interpreter.machine)
    there = host.call(environments.ready)(root=host.root, name=name) is not None
    return EnvironmentNeeds(there, 0 if there else download)


def find_python(host: Host, config: HostConfig, progress: Callable[[str], None] | None = None) -> UsablePython:
    """Find an interpreter for the engine on the host, or install one.

    Raises:
        LaunchError: Neither is possible.
    """
    if not host.remote_python:  # none: midstream_host cannot run there either
        bring_python(host, config.env, progress)
        host.close()
        host.connect()
    interpreters = _interpreters(host)
    if interpreters.python is None:
        required = ".".join(map(str, MINIMUM))
        lacks = f"{host.name} has only Python {interpreters.newest}, and the engine needs {required} or newer"
        try:
            brought = bring_python(host, config.env, progress)
        except LaunchError as error:
            raise LaunchError(f"{lacks}; {error.message}", error.hint) from error
        interpreters = _interpreters(host, [brought])
        if interpreters.python is None:
            raise LaunchError(lacks, f"python: for {host.name} in the fleet file names another")
    assert interpreters.version is not None
    assert interpreters.machine is not None
    return UsablePython(interpreters.python, interpreters.version, interpreters.machine, interpreters.uv)


def _interpreters(host: Host, also: Sequence[str] = ()) -> environments.Interpreters:
    """Return the interpreters of a host.

    Raises:
        RemoteError: The host names an interpreter without version or machine.
    """
    interpreter = host.call(environments.find, timeout=SEARCH_TIMEOUT)(minimum=list(MINIMUM), also=list(also))
    if interpreter.python is not None and (interpreter.version is None or interpreter.machine is None):
        raise RemoteError(
            f"{host.name}: machine.environments.find: {interpreter.python} without version or machine", "Answer", HINT
        )
    return interpreter


def environment_name(lock: str, version: str, machine: str, image: str = "") -> str:
    """Return the environment's name.

    Machines that share a root have the same name only for the same environment. An environment of an ``image`` begins
    with that image's interpreter, so each has its own.
    """
    return hashlib.sha256("\0".join((lock, version, machine, *([image] if image else []))).encode()).hexdigest()[:16]


def buildable(host: Host, config: HostConfig) -> tuple[Host, str]:
    """Return the host as its engines see it, and its image; empty for none.

    Raises:
        LaunchError: Its container exists only within a job, where nothing is built.
    """
    if config.container is not None and config.container.runtime == "pyxis":
        raise LaunchError(
            f"{host.name}: no environment is built in {config.container.image}: pyxis starts it with the job",
            "an image with the packages; python: names its interpreter",
        )
    return engine_host(host, config), "" if config.container is None else config.container.image


def build_environment(
    host: Host,
    config: HostConfig,
    report: Reporter,
    lock: str,
    modules: Sequence[str],
    cancel: Event | None = None,
    *,
    hashed: bool = True,
) -> Environment:
    """Return the environment of a lock on ``host``, built if it is not there.

    The build runs in the host's container, where there is one. Errors as of `prepare_environment`.

    Args:
        host: The host.
        config: Its entry in the fleet file.
        report: Receives the progress.
        lock: Text of the lock file.
        modules: Modules that have to be importable.
        cancel: Ends the build when it is set.
        hashed: Every package of the lock has its hash; without, the installer resolves what the packages
            need too.
    """
    inside, image = buildable(host, config)
    interpreter = find_python(inside, config, report)
    name = environment_name(lock, interpreter.version, interpreter.machine, image)
    ready = inside.call(environments.ready)(root=host.root, name=name)
    if ready is None:
        facts = inside.call(checks.facts)(root=host.root)
        check_space(host.name, facts, download_bytes(lock))
        wheels = None
        if config.wheelhouse:
            glibc = glibc_version(facts.libc) or (2, 28)
            collected = collect_wheels(
                lock,
                Path(config.wheelhouse).expanduser(),
                version=interpreter.version,
                machine=interpreter.machine,
                glibc=glibc,
                progress=report,
            )
            wheels = send_wheels(host, lock, collected, report)
        building = run_program(inside, BUILD, cancel)(
            root=host.root,
            name=name,
            lock=lock,
            python=interpreter.python,
            uv=interpreter.uv,
            env=dict(config.env),
            wheels=wheels,
            hashed=hashed,
        )
        with building as lines:
            ready = _built(host.name, lines, InstallProgress(lock, read_sizes(shipped(SIZES))), report)
        if ready is None:
            raise LaunchError(f"{host.name}: building the engine's environment ended without a result", "try again")
    wrong = package_fault(host, config, ready.python, modules) if modules else ""
    if wrong:
        raise LaunchError(f"{host.name}: {ready.python}: {wrong}", f"remove {host.root}/envs/{name} and try again")
    where = f" in the {config.container.runtime} container {image}" if config.container is not None else ""
    return Environment(ready.python, f"built from the lock with {ready.how}{where}")


def _built(
    host: str, lines: Iterable[Building], progress: InstallProgress, report: Reporter
) -> environments.InstalledEnvironment | None:
    """Return what was built; None if the lines end without it.

    Raises:
        LaunchError: It cannot be built.
    """
    ready = None

    def update() -> None:
        report.update(host, str(progress.state), progress.state.seconds_left)

    update()
    try:
        for line in lines:
            if isinstance(line, OutputLine):
                report.detail(line.text)
                if progress.read(line.text):
                    update()
            elif isinstance(line, Problem):
                if line.message.startswith(FULL):
                    raise LaunchError(
                        f"{host}: the engine's environment cannot be built: {line.message}",
                        f"free space on {host}, or set root: in the fleet file",
                    )
                raise LaunchError(
                    f"{host}: the engine's environment cannot be built: {line.message}",
                    f"set what installers need (PIP_INDEX_URL, SSL_CERT_FILE) in env: of {host} in the fleet file; "
                    "without a network: wheelhouse:, or python: for an interpreter that has the packages",
                )
            else:
                ready = environments.InstalledEnvironment(line.python, line.how)
    finally:
        report.end(host)
    return ready
