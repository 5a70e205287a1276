"""Devices and processes of another trainer's run on both ends of a migration."""

from __future__ import annotations

from dataclasses import replace

from midstream.check.trainer_advice import STRUCTURE_TIMEOUT
from midstream.counts import count
from midstream.errors import MidstreamError
from midstream.hosts.host import Host
from midstream.migrate.journal.plan import Change
from midstream.migrate.planning.plan_inputs import Ends
from midstream.trainers.registry import TRAINERS
from midstream.trainers.world import process_per_device, world_of
from midstream.watch.snapshot import Snapshot
from midstream_host.driver.run_file import BY_TRAINER, RunFile, World
from midstream_host.trainers import stored_state

PROCESSES = "processes"  # name of the change of their number


def world_of_source(run: RunFile, ends: Ends, snapshot: Snapshot) -> World:
    """Return the devices and processes that the run has trained on, by its status."""
    nodes, devices = len(ends.source_hosts) or 1, max(1, len(ends.status.devices))
    per_node = max(1, devices // nodes)
    try:
        world = world_of(run, nodes, per_node)
    except MidstreamError:
        world = World(nodes, per_node, run.batch.per_device, 0, per_node if process_per_device(run) else 1)
    host = snapshot.host(ends.run.host)
    machine = host.machine if host is not None else None
    return replace(world, devices=per_node, limited=machine is not None and len(machine.accelerators) > per_node)


def world_changes(run: RunFile, before: World, after: World) -> tuple[Change, Change]:
    """Return how devices and processes change, and what becomes of the global batch."""
    note = "the global batch may change"
    if after.accumulation:
        note = (
            f"the global batch of {run.batch.sequences} stays: {after.device_count} x {after.per_device} x "
            f"{count(after.accumulation, 'accumulation')}"
        )
    elif run.batch.kept_by == BY_TRAINER:
        note = "the trainer divides its global batch by them"
    return (
        Change("devices", str(before.device_count), str(after.device_count), note),
        Change(PROCESSES, str(before.size), str(after.size), "that the trainer has on them"),
    )


def hidden_devices(run: RunFile, target: str, after: World, devices: int) -> tuple[str, ...]:
    """Return a line on the devices of a target that the trainer does not see.

    ``devices``: those of each of the target's hosts.
    """
    if not after.limited or run.devices:  # the run file says how many it uses
        return ()
    where = f"each host of {target}" if after.nodes > 1 else target
    return (
        f"the trainer sees {after.devices} of the {count(devices, 'device')} of {where}: on more, its global batch "
        "would change ({devices} in the command, and batch: {sequences: N}, use all of them)",
    )


def check_data_iterator(source: Host, run_id: str, run: RunFile, before: World, after: World) -> None:
    """Check that another number of processes restores the position of the data.

    Raises:
        MidstreamError: It would refuse the checkpoint.
        HostError: The source does not answer.
    """

    def position() -> str:
        """Return how the newest checkpoint has the position."""
        read = source.call(stored_state.newest, timeout=STRUCTURE_TIMEOUT)
        return read(root=source.root, run_id=run_id, ranks=before.size).data_position

    problem = TRAINERS[run.trainer].data_problem(run, before.size, after.size, position)
    if problem is not None:
        raise problem
