"""Faults of a schedule: which call, journal line or moment they strike at, and what they do."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from simulation.clusters import Cluster
from simulation.links import Call
from simulation.machines import Machine, SimulatedProcess, present
from simulation.scheduler import SCHEDULER
from simulation.world import World

LINK = ("request lost", "answer lost")
LINES = ("kill before line", "kill after line")  # of a journal; their ``call`` is the number of the line
KINDS = (*LINES, *LINK, "kill process", "kill process after", "crash source", "crash target", "cut source",
         "cut target", "cut both", "kill engine", "keep state", "restore state", "freeze process", "fill source",
         "fill target", "fill operator", "reboot operator", "snapshot source", "snapshot target",
         "cut bucket")  # fmt: skip
# Drawn more often: what fewer schedules have seen.
WEIGHTED = (*KINDS, *("crash source", "crash target", "reboot operator", "snapshot source", "snapshot target") * 2)
LATER = " later"  # a fault that strikes some time after its call
DELAY = 100.0  # seconds
FURTHER = ("kill engine later", "crash target later", "crash source later")
# Of places with a cluster.
CLUSTER = (
    "requeue jobs",
    "preempt jobs",
    "requeue jobs later",
    "preempt jobs later",
    "lose nodes",
    "lose nodes after save",
    "isolate nodes later",
    "hang controller",
    "busy controller",
)
CLUSTER_KINDS = ("requeue", "preempt", "lose", "isolate", "hang", "busy")
LASTING = ("crash", "cut", "freeze", "fill", "snapshot", "lose", "hang", "busy")
OUTAGES = (5.0, 60.0, 700.0, 4000.0)  # seconds until a machine or link works again, or a snapshot is restored


@dataclass(frozen=True)
class Fault:
    """A fault at the ``call``-th call of a migration.

    Attributes:
        call: Number of the call, counted from the start of the command.
        kind: One of `KINDS`.
        seconds: How long an outage lasts.
    """

    call: int
    kind: str
    seconds: float = 0.0

    def story(self) -> str:
        """Return the fault in words."""
        lasts = f" for {self.seconds:.0f} s" if self.seconds else ""
        return f"call {self.call}: {self.kind}{lasts}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def draw(dice: random.Random, calls: int, most: int = 3, kinds: Sequence[str] = WEIGHTED) -> list[Fault]:
    """Draw faults for a migration of about so many calls."""
    found = [draw_fault(dice, calls, kinds) for _ in range(dice.choice([1, 1, 1, 2, 2, *range(3, most + 1)]))]
    return sorted(found, key=lambda fault: fault.call)


def draw_fault(dice: random.Random, calls: int, kinds: Sequence[str] = WEIGHTED) -> Fault:
    """Draw a fault of a migration of about so many calls."""
    kind = dice.choice(kinds)
    return Fault(dice.randrange(calls + 5), kind, dice.choice(OUTAGES) if kind.startswith(LASTING) else 0.0)


class Strikes:
    """Makes the faults of a schedule happen."""

    def __init__(self, world: World, faults: list[Fault], source: str, target: str) -> None:
        self._world, self._faults = world, list(faults)
        self._source, self._target = source, target
        self._first = len(world.network.calls)
        self.struck = world.struck
        self._after: list[Callable[[], None]] = []
        world.network.fault, world.network.after = self.before, self.after
        world.journal_lines = 0
        world.at_line = self.at_line

    def before(self, call: Call) -> str:
        """Strike before a call; return what happens to the call itself."""
        number, answer = call.number - self._first, ""
        for fault in [fault for fault in self._faults if fault.call == number and fault.kind not in LINES]:
            self._faults.remove(fault)
            self.struck.append(f"{SCHEDULER.now:.1f} {fault.story()} ({call.host}: {call.function})")
            if fault.kind in LINK:
                answer = fault.kind
            elif fault.kind == "kill process after":
                self._after.append(lambda process=call.process: process and process.kill())
            elif fault.kind.endswith(LATER):
                now = replace(fault, kind=fault.kind.removesuffix(LATER))
                _later(DELAY, lambda now=now, call=call: self._strike(now, call))
            else:
                self._strike(fault, call)
        return answer

    def at_line(self, number: int, after: bool) -> None:
        """Strike before or after a line of a journal is written."""
        kind = LINES[after]
        for fault in [fault for fault in self._faults if fault.call == number and fault.kind == kind]:
            self._faults.remove(fault)
            self.struck.append(f"{SCHEDULER.now:.1f} line {number}: {kind}")
            process = present()
            if process is not None:
                process.kill()

    def after(self, call: Call) -> None:
        """Strike after a call has taken effect."""
        waiting, self._after = self._after, []
        for strike in waiting:
            strike()

    def _strike(self, fault: Fault, call: Call) -> None:
        kind, world = fault.kind, self._world
        if kind == "kill process" and call.process is not None:
            call.process.kill()
        elif kind == "freeze process" and call.process is not None:
            SCHEDULER.park(fault.seconds)
        elif kind.startswith("crash"):
            machine = world.machines[self._source if kind.endswith("source") else self._target]
            if machine.name in world.behind_target and len(world.behind_target) > 1:
                machine = world.machines[world.dice.choice(world.behind_target)]
            self._crash(machine)
            _later(fault.seconds, lambda: world.boot(machine))
        elif kind == "reboot operator":
            machine = world.machines["operator"]
            self._crash(machine)
            world.boot(machine)
        elif kind.startswith("snapshot"):
            machine = world.machines[self._source if kind.endswith("source") else self._target]
            kept = world.keep_root(machine.name)
            _later(fault.seconds, lambda: self._restore(machine, kept))
        elif kind == "cut bucket":
            if world.bucket is not None:
                world.bucket.reachable = False
                _later(fault.seconds, lambda: setattr(world.bucket, "reachable", True))
        elif kind.startswith("cut"):
            names = {"cut source": [self._source], "cut target": [self._target]}.get(kind, [self._source, self._target])
            world.network.cut.update(names)
            _later(fault.seconds, lambda: world.network.cut.difference_update(names))
        elif kind.startswith("fill"):
            named = {"source": self._source, "target": self._target}
            machine = world.machines[named.get(kind.partition(" ")[2], "operator")]
            machine.full = True
            _later(fault.seconds, lambda: setattr(machine, "full", False))
        elif kind == "kill engine":
            for engine in [
                p for m in world.machines.values() for p in m.processes.values() if p.name.startswith("engine")
            ]:
                engine.kill()
        else:
            _strike_records(world, fault)

    def _restore(self, machine: Machine, kept: str) -> None:
        """Put an earlier copy of a machine's root back, as a restored snapshot does."""
        self._crash(machine)
        lost = self._world.restore_root(machine.name, kept)
        self.struck.append(f"{SCHEDULER.now:.1f} {machine.name}: root restored, {lost} commits exist nowhere any more")
        self._world.boot(machine)

    def _crash(self, machine: Machine) -> None:
        lost = machine.crash()
        if lost:
            self.struck.append(f"{SCHEDULER.now:.1f} {machine.name}: {lost}")


def _strike_records(world: World, fault: Fault) -> None:
    if fault.kind == "keep state":
        keep_state(world)
    elif fault.kind == "restore state":
        restore_state(world)
    elif fault.kind.startswith(CLUSTER_KINDS) and world.cluster is not None:
        _strike_cluster(world.cluster, fault)


def _strike_cluster(cluster: Cluster, fault: Fault) -> None:
    if fault.kind == "requeue jobs":
        cluster.requeue()
    elif fault.kind == "preempt jobs":
        cluster.preempt()
    elif fault.kind == "isolate nodes":
        cluster.isolate_nodes()
    elif fault.kind.startswith("lose nodes"):
        cluster.lose_nodes(fault.seconds, fault.kind.endswith("save"))
    else:
        failing = "hangs" if fault.kind == "hang controller" else "busy"
        setattr(cluster, failing, True)
        _later(fault.seconds, lambda: setattr(cluster, failing, False))


def keep_state(world: World) -> None:
    """Copy the operator's state directory, as a backup does."""
    kept, state = Path(world.directory, "state.kept"), Path(world.directory, "state")
    shutil.rmtree(kept, ignore_errors=True)
    if state.is_dir():
        shutil.copytree(state, kept)


def restore_state(world: World) -> None:
    """Put an earlier copy of the operator's state directory back, and end what worked in the present one."""
    kept = Path(world.directory, "state.kept")
    if not kept.is_dir():
        return
    for process in list(world.machines["operator"].processes.values()):
        process.kill()
    shutil.rmtree(Path(world.directory, "state"))
    shutil.copytree(kept, Path(world.directory, "state"))


def _later(seconds: float, act: Callable[[], object]) -> None:
    def wait() -> None:
        SCHEDULER.park(seconds)
        act()

    SCHEDULER.start(wait, None, "outage")


__all__ = ["Fault", "Machine", "SimulatedProcess", "Strikes", "draw"]
