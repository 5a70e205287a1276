"""The checks of one host of a target: can the engine run there, and is anything in its way?"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from midstream.check.check_result import FAIL, PASS, WARN, Check, judge
from midstream.errors import HostError
from midstream.fleet.fleet import HostConfig
from midstream.hosts.host import Host
from midstream.launch.environment import MINIMUM
from midstream.launch.errors import LaunchError
from midstream.launch.interpreter import python_build
from midstream.launch.variant import choose_variant

DISK = 10e9  # bytes: an environment, an engine, and room for a checkpoint
GLIBC, GLIBC_TPU = (2, 27), (2, 31)
SKEW_LIMIT = 5.0  # seconds; more confuses a reader of logs and fails certificates, no decision depends on clocks
LIBTPU_LOCK = "/tmp/libtpu_lockfile"


def check_host(host: Host, config: HostConfig, survey: Mapping[str, Any], skew: float) -> Iterator[Check]:
    """``survey``: what ``remote.checks.survey`` says of the host; ``skew``: its clock minus ours, in seconds."""
    name = host.name
    packages = check_packages(name, config, survey)
    yield packages
    yield from _accelerators(name, config, survey)
    yield check_python(host, config, survey)
    tpu = packages.detail.startswith("tpu")
    yield check_libc(name, survey["libc"], GLIBC_TPU if tpu else GLIBC)
    free = survey["disk_free"]
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
        survey["root_writable"],
        f"{host.root} can be written" if survey["root_writable"] else f"{host.root} cannot be written",
        f"chown it on {name}, or set root: in the fleet file",
        name,
    )
    memory = survey["memory_available"]
    yield judge("memory", memory > 4e9, f"{memory / 1e9:.1f} GB available", "stop what uses it", name, WARN)
    yield _clock(name, survey, skew)
    yield from _dirty(name, survey, virtual=config.devices is not None)
    yield _outlives(name, survey)


def _accelerators(name: str, config: HostConfig, survey: Mapping[str, Any]) -> Iterator[Check]:
    found = survey["accelerators"]
    kinds = found["gpus"] or found["tpus"]
    if config.devices is not None:
        yield Check("accelerators", PASS, f"{config.devices} virtual CPU devices", host=name)
    elif not kinds:
        yield Check(
            "accelerators",
            WARN,
            "none was found: the CPU is one device",
            "where there is a GPU: install the NVIDIA driver; devices: N in the fleet file makes virtual ones",
            name,
        )
    else:
        counted = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
        driver = f", driver {found['driver']}, CUDA {found['cuda'] or 'unknown'}" if found["gpus"] else ""
        yield Check("accelerators", PASS, counted + driver, host=name)
    down = [port for port in survey["infiniband"] if port["state"] != "active"]
    for port in down:
        yield Check(
            "InfiniBand",
            WARN,
            f"port {port['port']} of {port['device']} is {port['state']}",
            "ibstat there tells more; NCCL goes over Ethernet without it",
            name,
        )


def check_packages(name: str, config: HostConfig, survey: Mapping[str, Any]) -> Check:
    """Which build of the engine's packages the host gets."""
    try:
        variant = choose_variant(name, config, survey["accelerators"])
    except LaunchError as error:
        return Check("packages", FAIL, error.message.removeprefix(f"{name}: "), error.hint, name)
    return Check("packages", PASS, f"{variant.name} ({variant.why})", host=name)


def check_python(host: Host, config: HostConfig, survey: Mapping[str, Any]) -> Check:
    """Whether there is an interpreter for the engine, or one can be brought."""
    if config.python:
        found = host.call(
            "machine.environments.ask",
            argv=[config.python, "-I", "-c", "import sys; print(*sys.version_info[:3])"],
            env={},
        )
        if found["code"]:
            return Check(
                "python", FAIL, f"{config.python}: {found['error']}", "mend python: in the fleet file", host.name
            )
        version = tuple(int(part) for part in found["output"].split())
        words = f"{'.'.join(map(str, version))} ({config.python})"
        return judge("python", version >= MINIMUM, words, "the engine needs 3.11 or newer: name another", host.name)
    found = survey["interpreters"]
    if found["python"]:
        return Check("python", PASS, f"{found['version']} ({found['python']})", host=host.name)
    try:
        build = python_build(survey["machine"])
    except LaunchError as error:
        return Check("python", FAIL, f"only {found['newest']}; {error.message}", error.hint, host.name)
    words = f"only {found['newest']}: {build.version} is brought there at the first launch"
    return Check("python", PASS, words, host=host.name)


def check_libc(name: str, libc: str, floor: tuple[int, int] = GLIBC) -> Check:
    """Whether jax's wheels load there."""
    kind, _, version = libc.partition(" ")
    if kind != "glibc" or not version:
        return Check("glibc", FAIL, f"{libc or 'unknown'}: jax's wheels need glibc", "a system with glibc", name)
    good = tuple(int(part) for part in version.split(".")[:2]) >= floor
    return judge("glibc", good, version, f"jax needs {floor[0]}.{floor[1]}: a newer system", name)


def _clock(name: str, survey: Mapping[str, Any], skew: float) -> Check:
    words = f"{skew * 1000:+.0f} ms against this machine"
    if abs(skew) > SKEW_LIMIT:
        return Check("clock", FAIL, words, f"timedatectl set-ntp true on {name} (or here)", name)
    if survey["clock_synchronized"] is False:
        return Check("clock", WARN, f"{words}; it follows no time server", f"timedatectl set-ntp true on {name}", name)
    return Check("clock", PASS, words, host=name)


def _dirty(name: str, survey: Mapping[str, Any], virtual: bool) -> Iterator[Check]:
    """What holds the accelerators, what a crash left, which engines run. Virtual devices nobody holds."""
    holders = [] if virtual else survey["holders"]
    for process in holders:
        pid, who = process["pid"], process["user"] or "another user"
        yield Check(
            "accelerators are free",
            FAIL,
            f"process {pid} of {who} holds them: {process['command']}",
            f"where it is not needed: kill {pid} on {name}; a run of ours: midstream --stop RUN",
            name,
        )
    if not holders:
        yield Check("accelerators are free", PASS, "no process holds them", host=name)
    for lock in () if virtual else survey["locks"]:
        if lock["holders"] or holders:
            continue  # it belongs to whoever is named above
        yield Check(
            "stale lock",
            FAIL if lock["foreign"] else WARN,
            f"{lock['path']} (of {lock['user']}) was left by a process that is gone",
            f"{'sudo ' if lock['foreign'] else ''}rm {lock['path']} on {name}: libtpu takes it for a living process",
            name,
        )
    for run in survey["engines"]:
        yield Check(
            "nothing trains there",
            WARN,
            f"run {run['run']} trains there (attempt {run['attempt']})",
            f"midstream --stop {run['run']}, or expect both to be slow",
            name,
        )
    if not survey["engines"]:
        yield Check("nothing trains there", PASS, "no run of this root is alive", host=name)


def _outlives(name: str, survey: Mapping[str, Any]) -> Check:
    if not survey["kills_left_behind"]:
        return Check("outlives the login", PASS, "a session of its own is enough", host=name)
    if survey["scope"]:
        return Check("outlives the login", PASS, "in a scope of systemd (KillUserProcesses is on)", host=name)
    return Check(
        "outlives the login",
        FAIL,
        "systemd-logind kills what a user leaves behind (KillUserProcesses), and gives no scope",
        f"loginctl enable-linger on {name}, once",
        name,
    )


def reach(host: Host) -> Check:
    """Whether the host answers at all, with a Python for our own functions."""
    try:
        host.connect()
    except HostError as error:
        return Check("answers", FAIL, error.message.removeprefix(f"{host.name}: "), error.hint, host.name)
    if not host.far_python:
        words = "no Python 3.8 or newer: one is brought there at the first launch; until then the rest is not known"
        return Check(
            "answers", WARN, words, f"midstream --launch brings one; or install python3 on {host.name}", host.name
        )
    return Check("answers", PASS, posixpath.join(host.root, ""), host=host.name)
