"""The engine's rehearsal on a target: compile the run's programs, report memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from midstream.check.check_result import FAIL, PASS, Check
from midstream.errors import HostError, MidstreamError, RemoteError
from midstream.fleet.fleet import Target
from midstream.hosts.container_command import in_container
from midstream.hosts.host_pool import HostPool
from midstream.hosts.rpc.result_checks import printed_value
from midstream.launch.config_file import read_config
from midstream.launch.host_group_start import prepare_target
from midstream.launch.start_attempt import Launch, engine_environment
from midstream_host.machine import checks
from midstream_host.runs.process_start import with_setup

COMPILE_TIMEOUT = 3600.0  # seconds
MODULE = "midstream_engine.rehearse"


@dataclass(frozen=True)
class _Memory:
    total: int  # bytes on each device


@dataclass(frozen=True)
class _Program:
    name: str
    seconds: float  # that its compilation took
    memory: _Memory


@dataclass(frozen=True)
class _Rehearsal:
    """The parts that are shown of what the engine's rehearsal prints."""

    event: Literal["rehearsal"]
    parameters: int
    devices: int
    device_kind: str
    programs: list[_Program]
    fits: bool | None  # None: the devices do not report their memory
    memory_limit: int | None  # bytes


def rehearse(
    hosts: HostPool,
    target: Target,
    config_path: str | Path,
    overrides: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
) -> Iterator[Check]:
    """Compile the config's programs on each host of the target, for its own devices.

    Engine and environment are installed first. Writes engines, environments and the compile cache, and no run.

    Args:
        hosts: Connections to the fleet's hosts.
        target: The target.
        config_path: The config.
        overrides: Flags for the engine.
        say: Called with each line of progress.
    """
    text = read_config(config_path)
    try:
        prepared = prepare_target(hosts, target, say)
    except (MidstreamError, HostError) as error:
        yield Check("environment", FAIL, error.message, error.hint)
        return
    for name, ready in prepared.items():
        yield Check("environment", PASS, f"{ready.environment.python} ({ready.environment.how})", host=name)
        yield _one(hosts, target, name, text, ready.engine.directory, ready.environment.python, overrides)


def _one(
    hosts: HostPool,
    target: Target,
    name: str,
    text: str,
    engine: str,
    python: str,
    overrides: Sequence[str],
) -> Check:
    host, config = hosts.get(name), hosts.fleet.config_of(target, name)
    env = engine_environment(host.root, config, engine, Launch("rehearsal", target.name), 0)
    command = [python, "-P", "-m", MODULE, "--config_path", "{config}", "--trainer.root", host.root, *overrides]
    answer = host.call(checks.rehearse, timeout=COMPILE_TIMEOUT + 60)(
        root=host.root,
        config=text,
        argv=with_setup(in_container(config.container, command, root=host.root, variables=env), config.setup),
        env=env,
        seconds=COMPILE_TIMEOUT,
    )
    line = next((line for line in reversed(answer.output.splitlines()) if line.startswith("{")), "")
    if answer.code or not line:
        why = (answer.error or f"exit code {answer.code}").removeprefix("midstream: ")
        return Check("rehearsal", FAIL, why, "correct the config as the engine's message says", name)
    try:
        report = printed_value(name, "the engine's rehearsal", _Rehearsal, line)
    except RemoteError as error:
        return Check("rehearsal", FAIL, error.message.removeprefix(f"{name}: "), error.hint, name)
    need = max((program.memory.total for program in report.programs if program.name == "step"), default=0)
    seconds = sum(program.seconds for program in report.programs)
    words = (
        f"{report.parameters / 1e6:.1f} M parameters on {report.devices} x {report.device_kind}: compiled in "
        f"{seconds:.0f} s, a step needs {need / 2**20:.0f} MiB a device"
    )
    if report.fits is False and report.memory_limit is not None:
        limit = report.memory_limit / 2**20
        return Check(
            "rehearsal", FAIL, f"{words}, it has {limit:.0f}", "set a smaller trainer.per_device_parallelism", name
        )
    return Check("rehearsal", PASS, words, host=name)
