"""Checks of a SLURM target: its commands, its flags of sbatch, and its packages.

The packages are for devices that are elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.errors import UsageError
from midstream.fleet.fleet import HostConfig, SlurmTarget
from midstream.hosts.host import Host
from midstream.launch.errors import LaunchError
from midstream.launch.slurm_allocation import query_allocation, requested_devices
from midstream.remote.runs import slurm


def check_commands(host: Host) -> Iterator[Check]:
    """Check that SLURM's commands run on the login node."""
    for command, version in host.call(slurm.commands)().items():
        if version.startswith("!"):
            optional = command == "sacct"
            hint = (
                "without accounting the reason of a job's end comes from the queue"
                if optional
                else "SLURM's client programs"
            )
            yield Check(command, WARN if optional else FAIL, version[1:], hint, host.name)
        else:
            yield Check(command, PASS, version, host=host.name)


def check_allocation(host: Host, config: HostConfig, name: str, target: SlurmTarget) -> Iterator[Check]:
    """Check that SLURM accepts the flags, and which devices they request.

    Also check that the packages are for these devices.
    """
    try:
        found = query_allocation(host, name, target)
    except LaunchError as error:
        yield Check("allocation", FAIL, error.message.removeprefix(f"{host.name}: "), error.hint, host.name)
        return
    wait = max(0.0, found.starts - time.time())
    start = "now" if wait < 60 else f"in about {wait / 60:.0f} min"
    yield Check("allocation", PASS, f"would start {start} on {found.nodes} ({found.partition})", host=host.name)
    try:
        requested = requested_devices(name, target, config)
    except UsageError as error:
        yield Check("devices", WARN, f"{error.message}; no run can be migrated there", error.hint, host.name)
        return
    yield Check("devices", PASS, requested.describe(), host=host.name)
    if config.devices is None and config.python is None and config.variant in (None, "cpu"):
        yield Check(
            "packages",
            FAIL,
            f"{host.name} is a login node: which packages the GPUs of its jobs need is not found there",
            f"variant: cuda13 (or cuda12) of host {host.name} in the fleet file, or python:",
            host.name,
        )
