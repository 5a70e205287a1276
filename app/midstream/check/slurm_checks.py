"""Checks of a SLURM target: its commands, its flags of sbatch, and its packages.

The packages are for devices that are elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.counts import count
from midstream.errors import UsageError
from midstream.fleet.fleet import HostConfig, SlurmTarget
from midstream.format import duration
from midstream.hosts.host import Host
from midstream.install.errors import LaunchError
from midstream.launch.slurm_allocation import query_allocation, requested_devices, time_limit
from midstream.launch.slurm_job import short_limit
from midstream_host.runs import slurm

SBATCH = "sbatch: of the target in the fleet file"


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
    """Check that SLURM accepts the flags, and that packages fit the requested devices."""
    try:
        allocation = query_allocation(host, name, target)
    except LaunchError as error:
        yield Check("allocation", FAIL, error.message.removeprefix(f"{host.name}: "), error.hint, host.name)
        return
    wait = max(0.0, allocation.starts - time.time())
    start = "now" if wait < 60 else f"in about {wait / 60:.0f} min"
    yield Check(
        "allocation", PASS, f"would start {start} on {allocation.nodes} ({allocation.partition})", host=host.name
    )
    yield _time_limit(host, target, allocation)
    try:
        requested = requested_devices(name, target, config, allocation)
    except UsageError as error:
        yield Check("devices", WARN, f"{error.message}; no run can be migrated there", error.hint, host.name)
        return
    granted = (
        f"; SLURM would grant {count(allocation.count, 'node')}" if allocation.count not in (0, requested.nodes) else ""
    )
    yield Check("devices", WARN if granted else PASS, requested.describe() + granted, host=host.name)
    if config.devices is None and config.python is None and config.variant in (None, "cpu"):
        yield Check(
            "packages",
            FAIL,
            f"{host.name} is a login node: which packages the GPUs of its jobs need is not found there",
            f"variant: cuda13 (or cuda12) of host {host.name} in the fleet file, or python:",
            host.name,
        )


def _time_limit(host: Host, target: SlurmTarget, allocation: slurm.Allocation) -> Check:
    """Check that a job trains before SLURM signals it to save and stop."""
    limit, short = time_limit(target.sbatch, allocation), short_limit(target.sbatch, allocation)
    if short:
        return Check("time limit", FAIL, short, f"--time= or a shorter --signal=TERM@SECONDS in {SBATCH}", host.name)
    return Check("time limit", PASS, duration(limit) if limit else "none", host=host.name)
