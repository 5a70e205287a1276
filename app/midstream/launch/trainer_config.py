"""Config of another trainer's run: its run file, and the driver's flags.

The run file is on hosts; the flags are for a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from midstream.errors import MidstreamError, RemoteError
from midstream.fleet.fleet import HostConfig
from midstream.hosts.host import Host
from midstream.plain_yaml import load_plain
from midstream.remote.machine import checks
from midstream.remote.runs import run_state
from midstream.trainers.run_file_parser import as_text, from_value
from midstream.trainers.world import world_of
from midstream_engine import records
from midstream_engine.foreign.run_file import RunFile, is_run_file

SEARCH_TIMEOUT = 120.0  # seconds for a host to look for its accelerators

__all__ = ["TrainerStart", "as_text", "device_count", "driver_flags", "trainer_on"]


@dataclass(frozen=True)
class TrainerStart:
    """A run of another trainer that is to be started.

    ``attach``: flags of its driver that name a running process.
    """

    run: RunFile
    attach: tuple[str, ...] = ()


def trainer_on(host: Host, run_id: str) -> RunFile | None:
    """Return a run's run file on a host; None for a run of midstream's own engine.

    Raises:
        MidstreamError: It cannot be read, or has another form.
    """
    path = records.RunPaths(host.root, run_id).config
    try:
        text: str = host.call(run_state.read_text)(path=path)
    except RemoteError:
        return None  # the engine reports what is wrong with its own config
    where = f"{host.name}:{path}"
    try:
        value = load_plain(text)
    except Exception:  # noqa: BLE001  a config of the engine, which has its own reader
        return None
    if not is_run_file(value):
        return None
    try:
        return from_value(value, where)
    except records.RecordError as error:
        raise MidstreamError(str(error), "the run directory needs its run.yaml") from None


def driver_flags(run: RunFile, hosts: Sequence[Host], configs: Sequence[HostConfig]) -> tuple[str, ...]:
    """Return the flags that describe the processes of a run on these hosts.

    Raises:
        MidstreamError: The global batch does not divide over them, or the hosts differ.
    """
    counts = {host.name: device_count(host, config) for host, config in zip(hosts, configs, strict=True)}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {number}" for name, number in counts.items())
        raise MidstreamError(f"hosts of one run need as many devices each: {listed}", "choose a group of equal hosts")
    return tuple(world_of(run, len(hosts), next(iter(counts.values()))).flags())


def device_count(host: Host, config: HostConfig) -> int:
    """Return the number of devices of a host.

    It is the fleet file's, else that of its accelerators; 1 without any.
    """
    if config.devices is not None:
        return config.devices
    found = host.call(checks.accelerators, timeout=SEARCH_TIMEOUT)()
    return max(1, len(found.gpus) + len(found.tpus))
