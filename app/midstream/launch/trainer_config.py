"""Config of another trainer's run: its run file, and the driver's flags.

The run file is on hosts; the flags are for a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from midstream.counts import count
from midstream.errors import Exit, MidstreamError, RemoteError
from midstream.fleet.fleet import HostConfig
from midstream.hosts.host import Host
from midstream.plain_yaml import load_plain
from midstream.trainers.run_file_parser import as_text, from_value
from midstream.trainers.world import check_world, process_per_device, world_of
from midstream_core import records
from midstream_host.driver.run_file import RunFile, World, is_run_file
from midstream_host.machine import checks
from midstream_host.runs import run_state

MISSING_GPU = "nvidia-smi -L lists them; correct devices: or CUDA_VISIBLE_DEVICES in env: of the fleet file"
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


def driver_flags(
    run: RunFile, hosts: Sequence[Host], configs: Sequence[HostConfig], trained_on: int = 0
) -> tuple[str, ...]:
    """Return the flags that describe devices and processes of a run on these hosts.

    ``trained_on``: devices that the run has trained on, of all hosts; 0: it is new.

    Raises:
        MidstreamError: The global batch does not divide over them, or would change; or the hosts differ.
    """
    counts = {host.name: device_count(host, config) for host, config in zip(hosts, configs, strict=True)}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {number}" for name, number in counts.items())
        raise MidstreamError(f"hosts of one run need as many devices each: {listed}", "choose a group of equal hosts")
    number = next(iter(counts.values()))
    world = world_of(run, len(hosts), number, trained_on)
    if world.limited and not run.devices and _accelerators(hosts[0], configs[0]).tpus:  # nothing hides a TPU
        world = world_of(run, len(hosts), number)
    if trained_on:
        devices = max(1, trained_on // len(hosts))
        before = World(len(hosts), devices, processes=devices if process_per_device(run) else 1)
        changed = check_world(run, before, world)
        if changed:
            raise MidstreamError(changed, f"a host with {count(trained_on, 'device')}", Exit.REFUSED)
    return tuple(world.flags())


def device_count(host: Host, config: HostConfig) -> int:
    """Return the devices of a host by the fleet file, else the visible accelerators.

    A host without any has 1.

    Raises:
        MidstreamError: It lacks a GPU that the fleet file names.
    """
    if config.devices is not None:
        return config.devices
    accelerators = _accelerators(host, config)
    for missing in missing_gpu(config, accelerators):
        raise MidstreamError(f"{host.name} has no GPU {missing}", MISSING_GPU)
    return max(1, len(accelerators.gpus) + len(accelerators.tpus))


def _accelerators(host: Host, config: HostConfig) -> checks.AcceleratorKinds:
    return host.call(checks.accelerators, timeout=SEARCH_TIMEOUT)(visible=config.visible)


def missing_gpu(config: HostConfig, kinds: checks.AcceleratorKinds) -> list[str]:
    """Return the first GPU of the fleet file that a host lacks; empty without one."""
    visible = config.visible or []
    return visible[len(visible) - kinds.missing :][:1] if 0 < kinds.missing <= len(visible) else []
