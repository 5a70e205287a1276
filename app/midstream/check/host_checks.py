"""Checks of one host of a target: whether the engine can run there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from midstream.check.check_result import FAIL, PASS, WARN, Check, judge
from midstream.errors import HostError
from midstream.fleet.fleet import HostConfig
from midstream.hosts.container_command import READY
from midstream.hosts.container_host import IMAGE_PYTHON
from midstream.hosts.host import Host
from midstream.install.errors import LaunchError
from midstream.install.interpreter import python_build
from midstream.install.package_check import MINIMUM
from midstream.install.variant import choose_variant
from midstream.install.wheelhouse import glibc_version
from midstream.launch.trainer_config import MISSING_GPU, missing_gpu
from midstream_core.visible_devices import VISIBLE
from midstream_host.machine import environments
from midstream_host.machine.checks import Survey
from midstream_host.runs.process_start import with_setup

DISK = 10e9  # bytes: an environment, an engine, and room for a checkpoint
GLIBC, GLIBC_TPU = (2, 27), (2, 31)
SKEW_LIMIT = 5.0  # seconds; more confuses a reader of logs and fails certificates, no decision depends on clocks


def check_host(
    host: Host, config: HostConfig, survey: Survey, skew: float, *, login_node: bool = False
) -> Iterator[Check]:
    """Yield the checks of one host.

    ``skew`` is its clock minus this machine's, in seconds. ``login_node``: its jobs have the accelerators.
    """
    name = host.name
    packages = check_packages(name, config, survey)
    yield packages
    yield from _accelerators(name, config, survey, login_node)
    yield check_python(host, config, survey)
    tpu = packages.detail.startswith("tpu")
    if config.container is None:
        yield check_libc(name, survey.facts.libc, GLIBC_TPU if tpu else GLIBC)
    free = survey.facts.disk_free
    yield judge(
        "disk",
        free > DISK,
        f"{free / 1e9:.1f} GB free at {host.root}",
        f"an environment takes up to 6 GB: free space on {name}, or root: in the fleet file",
        name,
        WARN,
    )
    yield judge(
        "root",
        survey.facts.root_writable,
        f"{host.root} can be written" if survey.facts.root_writable else f"{host.root} cannot be written",
        f"chown it on {name}, or set root: in the fleet file",
        name,
    )
    yield _clock(name, survey, skew)
    if login_node:
        return  # engines run on other machines, of which SLURM allocates what is free
    memory = survey.facts.memory_available
    yield judge("memory", memory > 4e9, f"{memory / 1e9:.1f} GB available", "stop what uses it", name, WARN)
    yield from _dirty(name, survey, virtual=config.devices is not None)
    yield _outlives(name, survey)


def _accelerators(name: str, config: HostConfig, survey: Survey, login_node: bool) -> Iterator[Check]:
    accelerators = survey.accelerators
    kinds = accelerators.gpus or accelerators.tpus
    yield from check_devices(name, config, survey)
    if config.devices is not None:
        yield Check("accelerators", PASS, f"{config.devices} virtual CPU devices", host=name)
    elif not kinds and login_node:
        yield Check("accelerators", PASS, "none on the login node: those of a job count", host=name)
    elif not kinds:
        yield Check(
            "accelerators",
            WARN,
            "none found: the CPU is one device",
            "if it has a GPU: install the NVIDIA driver; devices: N in the fleet file creates virtual devices",
            name,
        )
    else:
        counted = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
        driver = f", driver {accelerators.driver}, CUDA {accelerators.cuda or 'unknown'}" if accelerators.gpus else ""
        visible = f" (those that {VISIBLE} leaves visible)" if accelerators.gpus and config.visible is not None else ""
        yield Check("accelerators", PASS, counted + visible + driver, host=name)
    down = [port for port in survey.infiniband if port.state != "active"]
    for port in down:
        yield Check(
            "InfiniBand",
            WARN,
            f"port {port.port} of {port.device} is {port.state}",
            "run ibstat there; without InfiniBand NCCL uses Ethernet",
            name,
        )


def check_devices(name: str, config: HostConfig, survey: Survey) -> Iterator[Check]:
    """Check that the host has the GPUs that the fleet file names."""
    for missing in missing_gpu(config, survey.accelerators):
        what = f"it has no GPU {missing}, which the fleet file names"
        yield Check("devices", FAIL, what, MISSING_GPU, name)


def check_packages(name: str, config: HostConfig, survey: Survey) -> Check:
    """Check which build of the engine's packages the host gets."""
    try:
        variant = choose_variant(name, config, survey.accelerators)
    except LaunchError as error:
        return Check("packages", FAIL, error.message.removeprefix(f"{name}: "), error.hint, name)
    return Check("packages", PASS, f"{variant.name} ({variant.why})", host=name)


def check_python(host: Host, config: HostConfig, survey: Survey) -> Check:
    """Check that there is an interpreter for the engine, or that one can be installed.

    The interpreter of an image is not started, because a check does not fetch the image: the runtime prints its
    version.
    """
    if config.container is not None:
        runtime = config.container.runtime
        if runtime in READY:
            answer = host.call(environments.run_command)(argv=with_setup(READY[runtime], config.setup), env={})
            if answer.code:
                hint = f"install {runtime} on {host.name} and start it, or correct runtime: of the container"
                return Check("container", FAIL, f"{runtime} starts no container: {answer.error}", hint, host.name)
        where = f"{config.python or IMAGE_PYTHON} in the {config.container.runtime} container {config.container.image}"
        return Check("python", PASS, f"{where}, which is started at the launch", host=host.name)
    if config.python:
        answer = host.call(environments.run_command)(
            argv=[config.python, "-I", "-c", "import sys; print(*sys.version_info[:3])"], env={}
        )
        if answer.code:
            return Check(
                "python", FAIL, f"{config.python}: {answer.error}", "correct python: in the fleet file", host.name
            )
        parts = re.fullmatch(r"(\d{1,4}) (\d{1,4}) (\d{1,4})\s*", answer.output, re.ASCII)
        if parts is None:
            detail = f"{config.python} prints no version: {answer.output.strip()[:60]!r}"
            return Check("python", FAIL, detail, "correct python: in the fleet file", host.name)
        version = tuple(int(group) for group in parts.groups())
        words = f"{'.'.join(map(str, version))} ({config.python})"
        return judge("python", version >= MINIMUM, words, "the engine needs 3.11 or newer: name another", host.name)
    interpreters = survey.interpreters
    if interpreters.python:
        return Check("python", PASS, f"{interpreters.version} ({interpreters.python})", host=host.name)
    try:
        build = python_build(survey.facts.machine)
    except LaunchError as error:
        return Check("python", FAIL, f"only {interpreters.newest}; {error.message}", error.hint, host.name)
    words = f"only {interpreters.newest}: {build.version} is brought there at the first launch"
    return Check("python", PASS, words, host=host.name)


def check_libc(name: str, libc: str, floor: tuple[int, int] = GLIBC) -> Check:
    """Check that jax's wheels load on the host."""
    version = glibc_version(libc)
    if version is None:
        return Check("glibc", FAIL, f"{libc or 'unknown'}: jax's wheels need glibc", "a system with glibc", name)
    words = libc.removeprefix("glibc ")
    return judge("glibc", version >= floor, words, f"jax needs {floor[0]}.{floor[1]}: a newer system", name)


def _clock(name: str, survey: Survey, skew: float) -> Check:
    words = f"{round(skew * 1000):+d} ms against this machine"
    if abs(skew) > SKEW_LIMIT:
        return Check("clock", FAIL, words, f"timedatectl set-ntp true on {name} (or here)", name)
    if survey.clock_synchronized is False:
        return Check("clock", WARN, f"{words}; it follows no time server", f"timedatectl set-ntp true on {name}", name)
    return Check("clock", PASS, words, host=name)


def _dirty(name: str, survey: Survey, virtual: bool) -> Iterator[Check]:
    """Check for processes on the accelerators, stale locks and running engines.

    Virtual devices have no owner.
    """
    users = [] if virtual else survey.accelerator_users
    for process in users:
        pid, user = process.pid, process.user or "another user"
        yield Check(
            "accelerators are free",
            FAIL,
            f"process {pid} of {user} uses them: {process.command}",
            f"if it is not needed: kill {pid} on {name}; if it is a run of midstream: midstream --stop RUN",
            name,
        )
    shared = [] if virtual else survey.unattributed
    for process in shared:
        yield Check(
            "accelerators are free",
            WARN,
            f"process {process.pid} of {process.user or 'another user'} uses a GPU of which this host has a part: "
            f"{process.command}",
            "nvidia-smi shows which MIG device it is on; on another one it is no concern of this host",
            name,
        )
    if not users and not shared:
        yield Check("accelerators are free", PASS, "no process uses them", host=name)
    for lock in () if virtual else survey.locks:
        if lock.pids or users:
            continue  # it belongs to a process that is reported above
        yield Check(
            "stale lock",
            FAIL if lock.foreign else WARN,
            f"{lock.path} (of {lock.user}) was left by a process that has exited",
            f"{'sudo ' if lock.foreign else ''}rm {lock.path} on {name}: libtpu takes it for a running process",
            name,
        )
    for run in survey.engines:
        yield Check(
            "nothing trains there",
            WARN,
            f"run {run.run} trains there (attempt {run.attempt})",
            f"midstream --stop {run.run}, or expect both to be slow",
            name,
        )
    if not survey.engines:
        yield Check("nothing trains there", PASS, "no run of this root is running", host=name)


def _outlives(name: str, survey: Survey) -> Check:
    if not survey.kills_left_behind:
        return Check("outlives the login", PASS, "the engine has its own session", host=name)
    if survey.scope:
        return Check(
            "outlives the login", PASS, "the engine has its own systemd scope (KillUserProcesses is on)", host=name
        )
    return Check(
        "outlives the login",
        FAIL,
        "systemd-logind kills the processes of users who log out (KillUserProcesses), and allows no scope",
        f"loginctl enable-linger on {name}, once",
        name,
    )


def reach(host: Host) -> Check:
    """Check that the host answers and has a Python for `midstream_host`."""
    try:
        host.connect()
    except HostError as error:
        return Check("answers", FAIL, error.message.removeprefix(f"{host.name}: "), error.hint, host.name)
    if not host.remote_python:
        words = "no Python 3.8 or newer: one is installed at the first launch; until then nothing else can be checked"
        hint = f"midstream --launch CONFIG --on {host.name} installs one; or install python3 there"
        return Check("answers", WARN, words, hint, host.name)
    return Check("answers", PASS, posixpath.join(host.root, ""), host=host.name)
