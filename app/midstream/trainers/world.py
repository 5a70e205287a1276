"""Devices and processes of a trainer on a target, and its global batch there."""

from __future__ import annotations

from dataclasses import replace

from midstream.counts import count
from midstream.errors import Exit, MidstreamError
from midstream.fleet.fleet import Target
from midstream.trainers.registry import TRAINERS
from midstream_host.driver.checkpoints.checkpoint_finder import rule_of
from midstream_host.driver.run_file import BY_COMMAND, BY_DEVICE, FIXED, RunFile, World

LARGEST = 4096  # devices of a hint


def world_of(run: RunFile, nodes: int, devices: int, trained_on: int = 0) -> World:
    """Divide a run over ``devices`` of each of ``nodes`` hosts.

    A command without ``{devices}`` or ``{world}`` uses all that it sees. Where nothing keeps its global batch, it gets
    as many devices as it has trained on, and does not see the others.

    Args:
        run: The run.
        nodes: Hosts.
        devices: Of each of them.
        trained_on: Devices that the run has trained on, of all its hosts; 0: it is new.

    Raises:
        MidstreamError: The hosts have fewer devices than the run file says, or the global batch does not divide; the
            hint has the counts that work.
    """
    has = max(1, devices)
    if run.devices > has:
        raise MidstreamError(
            f"the run file says devices: {run.devices}, and each host has {count(has, 'device')}",
            "a target with more devices, or another number in the run file",
            Exit.REFUSED,
        )
    used = run.devices or has
    if not run.devices and not run.scales and run.batch.kept_by == FIXED and 0 < trained_on < nodes * has:
        used = max(1, trained_on // nodes)
    world = World(nodes, used, run.batch.per_device, 0, used if process_per_device(run) else 1, used < has)
    if run.batch.kept_by != BY_COMMAND:
        return world
    total, sequences = world.device_count, run.batch.sequences
    shares = [number for number in range(1, min(sequences, LARGEST) + 1) if sequences % number == 0]
    if total not in shares:
        near = sorted(sorted(shares, key=lambda number: abs(number - total))[:6])
        raise MidstreamError(
            f"the global batch of {sequences} does not divide over {count(total, 'device')}",
            f"counts that work: {', '.join(map(str, near))}",
            Exit.REFUSED,
        )
    share = sequences // total
    largest = run.batch.per_device or share
    per_device = max(number for number in range(1, min(share, largest) + 1) if share % number == 0)
    return replace(world, per_device=per_device, accumulation=share // per_device)


def process_per_device(run: RunFile) -> bool:
    """Return whether a run has a process for each device.

    Else it has one for all devices of a node. Programs in jax have one process on each node. Some start one for each
    device by themselves.
    """
    if run.processes:
        return run.processes == BY_DEVICE
    if not run.launcher:
        return True
    trainer = TRAINERS[run.trainer]
    if trainer.one_process or rule_of(run.checkpoints.rule).one_process:
        return False
    return run.scales or trainer.starts_processes


def check_group(run: RunFile, target: Target) -> None:
    """Check that several hosts of a target can train one run.

    Raises:
        MidstreamError: They share no directory, so that every checkpoint would lack what the others save; or the
            command is the same on each of them.
    """
    if len(target.hosts) == 1:
        return
    if not target.shared_root:
        raise MidstreamError(
            f"the hosts of {target.name} share no directory, and the processes of {run.trainer} write one checkpoint",
            f"shared_root: of {target.name} in the fleet file, or a target of one host",
            Exit.REFUSED,
        )
    joined = any(run.uses(name) for name in ("nodes", "rank", "master"))
    if run.launcher and not joined and not target.describes_itself:  # a slice describes itself
        raise MidstreamError(
            f"the command of {run.trainer} is the same on each host of {target.name}: each would train alone",
            "{nodes}, {rank}, {master} and {port} in command and resume, or a target of one host",
            Exit.REFUSED,
        )


def check_world(run: RunFile, before: World, after: World) -> str:
    """Check that a run of the world ``before`` can continue in the world ``after``.

    Returns what the user has to agree to; empty where nothing changes the global batch.

    Raises:
        MidstreamError: Its checkpoints belong to its number of processes, or its batch to its number of devices.
    """
    if after.size != before.size and not run.checkpoints.reshards:
        raise MidstreamError(
            f"checkpoints of {run.trainer} are loaded by as many processes as saved them: "
            f"{count(before.size, 'process', 'processes')} -> {after.size}",
            f"count that works: {before.size}; checkpoints: {{reshards: true}} in the run file if yours do reshard",
            Exit.REFUSED,
        )
    if run.batch.kept_by != FIXED or after.device_count == before.device_count:
        return ""
    what = f"{count(before.device_count, 'device')} -> {after.device_count}"
    if run.scales or run.devices or TRAINERS[run.trainer].sees_all:
        raise MidstreamError(
            f"nothing keeps the global batch of this run: {what} would change it",
            f"count that works: {before.device_count}; {{accumulation}} or {{per_device}} in the command and batch: "
            "{sequences: N} keep it, batch: {kept_by: trainer} says that the trainer does",
            Exit.REFUSED,
        )
    return (
        f"the global batch changes if {run.trainer} uses all devices that it sees: {what}, and its command has no "
        "{devices} (devices: N in the run file says how many it uses)"
    )
