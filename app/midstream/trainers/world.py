"""Processes of a trainer on a target, and its share of the global batch there."""

from __future__ import annotations

from midstream.counts import count
from midstream.errors import Exit, MidstreamError
from midstream.fleet.fleet import Target, TpuTarget
from midstream_engine.foreign.run_file import BY_COMMAND, FIXED, RunFile, World

LARGEST = 4096  # processes of a hint


def world_of(run: RunFile, nodes: int, devices: int) -> World:
    """Divide a run over ``devices`` of each of ``nodes`` hosts.

    A command without ``{devices}`` or ``{world}`` is one process on each node, whatever the node has.

    Raises:
        MidstreamError: The global batch does not divide; the hint has the counts that work.
    """
    scales = not run.launcher or run.uses("devices") or run.uses("world")
    each = max(1, devices) if scales else 1
    size, batch = nodes * each, run.batch
    if batch.kept_by != BY_COMMAND:
        return World(nodes, each, batch.per_device)
    shares = [number for number in range(1, min(batch.sequences, LARGEST) + 1) if batch.sequences % number == 0]
    if size not in shares:
        near = sorted(sorted(shares, key=lambda number: abs(number - size))[:6])
        raise MidstreamError(
            f"the global batch of {batch.sequences} does not divide over {count(size, 'process', 'processes')}",
            f"counts that work: {', '.join(map(str, near))}",
            Exit.REFUSED,
        )
    share = batch.sequences // size
    largest = batch.per_device or share
    per_device = max(number for number in range(1, min(share, largest) + 1) if share % number == 0)
    return World(nodes, each, per_device, share // per_device)


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
    joined = any(run.uses(each) for each in ("nodes", "rank", "master"))
    if run.launcher and not joined and not isinstance(target.slice, TpuTarget):  # a slice describes itself
        raise MidstreamError(
            f"the command of {run.trainer} is the same on each host of {target.name}: each would train alone",
            "{nodes}, {rank}, {master} and {port} in command and resume, or a target of one host",
            Exit.REFUSED,
        )


def check_world(run: RunFile, before: int, after: World) -> None:
    """Check that a run of ``before`` processes can continue with those of ``after``.

    Raises:
        MidstreamError: Its checkpoints, or its batch, belong to its number of processes.
    """
    if after.size == before:
        return
    what = f"{count(before, 'process', 'processes')} -> {after.size}"
    if not run.checkpoints.reshards:
        more = "; with ds_to_universal in resume: any" if run.checkpoints.rule == "deepspeed" else ""
        raise MidstreamError(
            f"checkpoints of {run.trainer} are loaded by as many processes as saved them: {what}",
            f"count that works: {before}{more}; checkpoints: {{reshards: true}} in the run file if yours do reshard",
            Exit.REFUSED,
        )
    if run.batch.kept_by == FIXED:
        raise MidstreamError(
            f"nothing keeps the global batch of this run: {what} would change it",
            f"count that works: {before}; {{accumulation}} or {{per_device}} in the command and batch: "
            "{sequences: N} keep it, batch: {kept_by: trainer} says that the trainer does",
            Exit.REFUSED,
        )
