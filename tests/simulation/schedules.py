"""Schedules of simulated migrations.

Each seed draws a migration, its faults and the order of everything that happens at the same time, runs the real
program through it, follows the commands that it prints, and checks the invariants. A seed that breaks one is printed
as a story; the same seed gives the same story.
"""

from __future__ import annotations

import os
import random
import shutil
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGINT

from simulation import buckets, clusters, faults, hints, invariants, operators
from simulation.history import HISTORY
from simulation.invariants import ANY
from simulation.scheduler import SCHEDULER, EndlessWaitError
from simulation.world import CLAIMED, RUN, World, records

MODES = ("cold", "warm", "live")
CALLS = {"cold": 80, "warm": 95, "live": 140}  # of a migration without faults, about
GROUP = "group"  # the target has two hosts
CLUSTER = "cluster"  # the target is an allocation of SLURM
CLUSTERS = 0.15  # share of the drawn schedules whose target is one
ELSEWHERE = ("disk", "disk", "disk", "disk", "bucket", "bucket", "bucket without conditions", GROUP, GROUP)
PLACES = (*ELSEWHERE, CLUSTER)
TARGETS = {GROUP: "pair", CLUSTER: clusters.TARGET}
OTHER_RUNS = 0.3  # share of the schedules with another run on the same roots
SHORT = ("--yes", "--healthy-steps", "3", "--certify-steps", "2")


@dataclass(frozen=True)
class Schedule:
    """A simulated migration with its faults. Empty fields are drawn from the seed.

    Attributes:
        seed: Decides the order of what happens at the same time, and what else is drawn.
        faults: None: drawn.
    """

    seed: int
    scenario: str = ""
    mode: str = ""
    faults: tuple[faults.Fault, ...] | None = None
    place: str = ""

    def drawn(self, dice: random.Random) -> Schedule:
        """Return this schedule with what it leaves open drawn; as much is drawn where nothing is open."""
        mode = dice.choice(MODES)
        struck = faults.draw(dice, CALLS[mode])
        scenario = dice.choice(COMMON)
        place = dice.choice(ELSEWHERE)
        other = random.Random(f"cluster {self.seed}")  # schedules of other places stay what they are
        place = CLUSTER if other.random() < CLUSTERS else place
        scenario = other.choice(FURTHER) if other.random() < 0.2 else scenario
        if (self.place or place) == CLUSTER:
            struck = faults.draw(other, CALLS[mode], kinds=(*faults.WEIGHTED, *faults.CLUSTER * 4))
        elif (self.scenario or scenario) in FURTHER:
            struck = faults.draw(other, CALLS[mode], kinds=(*faults.WEIGHTED, *faults.FURTHER * 4))
        given = self.faults if self.faults is not None else tuple(struck)
        mode, place = self.mode or mode, self.place or place
        mode = "warm" if "bucket" in place and mode == "live" else mode  # live is refused there
        return Schedule(self.seed, self.scenario or scenario, mode, given, place)

    def story(self) -> str:
        """Return the schedule in a line."""
        return f"{self.scenario}, mode {self.mode}, {self.place}; " + "; ".join(
            fault.story() for fault in self.faults or ()
        )


@dataclass
class Outcome:
    """Result of one schedule, with what was drawn for it."""

    schedule: Schedule
    story: list[str] = field(default_factory=list)
    broken: str = ""
    struck: int = 0  # faults that happened
    virtual: float = 0.0
    calls: int = 0


def run_schedule(schedule: Schedule, directory: str) -> Outcome:
    """Run one schedule in a directory that has nothing else."""
    dice = random.Random(f"schedule {schedule.seed}")
    schedule = schedule.drawn(dice)
    SCHEDULER.reset(schedule.seed)
    HISTORY.clear()
    outcome = Outcome(schedule)
    bucket = buckets.Bucket(conditional=schedule.place == "bucket") if "bucket" in schedule.place else None
    world = World(directory, schedule.seed, bucket, target=TARGETS.get(schedule.place, "two"))
    try:
        if dice.random() < OTHER_RUNS:
            world.begin_other()
        world.begin_run("one", 15)
        outcome.story.append(schedule.story())
        strikes = faults.Strikes(world, list(schedule.faults or ()), "one", "two")
        consents: list[int] = []
        try:
            _operate(world, schedule.mode, dice, consents, schedule.scenario)
            if schedule.scenario in ("migrate", "patient", "liar", "two at once") and not (strikes.struck or consents):
                invariants.check_completed(world)
            operators.settle(world, dice, consents)
        finally:
            outcome.story += strikes.struck
            outcome.struck = len(strikes.struck)
        if any(name == "three" for name in world.trains()) or any(c.machine == "three" for c in HISTORY.commits):
            raise invariants.BrokenError("an engine was started on a machine that no command has named")
        invariants.check_commits(world, HISTORY.commits, consents)
        invariants.check_certificates(world)
        invariants.check_outcomes(world)
        invariants.check_other(world)
        if not consents:
            invariants.check_accepted(world, world.trains()[0])
    except (invariants.BrokenError, EndlessWaitError) as error:
        outcome.broken = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  a fault of the simulation is shown like one of the program
        outcome.broken = traceback.format_exc()
    outcome.virtual, outcome.calls = SCHEDULER.now, len(world.network.calls)
    outcome.story += [
        f"$ midstream {words}\n  exit {code}: {hints.last_message(text)[:600]}" for words, code, text in world.said
    ]
    outcome.story.append(f"trains on {world.trains()} after {outcome.calls} calls")
    return outcome


def _give(world: World, *words: str) -> tuple[int, str]:
    """Give a command, and wait for its end."""
    return world.wait(world.command(*words))


COMMON = ("migrate", "migrate", "roll back", "two at once", "copied state", "guard", "liar", "and back")
FURTHER = ("patient", "roll back late")
SCENARIOS = (*COMMON, *FURTHER)
LONG = ("--yes", "--healthy-steps", "40", "--certify-steps", "2")  # the target saves before the migration's end


def _operate(world: World, mode: str, dice: random.Random, consents: list[int], scenario: str) -> None:
    """Give the commands of a scenario."""
    migrate = ("--migrate", RUN, "--to", world.target, "--mode", mode, *(LONG if scenario in FURTHER else SHORT))
    if scenario == "guard":
        _guard(world, dice.choice([100.0, 400.0, 1500.0]))
        return
    if scenario == "liar":
        _guard(world, 60.0)  # it signs who owns the run
        if Path(world.paths("one").ownership).is_file():  # else the largest claim is believed, by design
            _claim(world, "three")
    first = world.command(*migrate)
    if scenario in ("roll back", "roll back late", "two at once", "copied state"):
        world.run_for(dice.uniform(90.0, 400.0) if scenario == "roll back late" else dice.uniform(1.0, 90.0))
        state = "state"
        if scenario == "copied state":
            state = "state.copied"
            if Path(world.directory, "state").is_dir():
                shutil.copytree(Path(world.directory, "state"), Path(world.directory, state))
        if migrations := operators.migrations(world, state):
            flag = dice.choice(["--rollback", "--continue"]) if not scenario.startswith("roll back") else "--rollback"
            words = (flag, migrations[-1], *(["--yes"] if flag == "--rollback" else []))
            if flag == "--rollback":
                consents.append(ANY)
            second = world.command(*words, state=state)
            world.wait(second)
    world.wait(first)
    if scenario == "and back" and not operators.is_open(world):
        _give(world, "--migrate", RUN, "--to", "one", "--mode", mode, *SHORT)


def _guard(world: World, seconds: float) -> None:
    """Guard the run for some time."""
    guard = world.command("--guard", RUN, "--to", world.target, "--yes")
    world.run_for(seconds)
    guard.deliver(SIGINT)
    world.wait(guard)


def _claim(world: World, name: str) -> None:
    """Have a machine show the run as its own, under a later epoch than its own."""
    paths = world.paths(name)
    os.makedirs(paths.attempt(CLAIMED).dir)
    for source, target in ((world.paths("one").config, paths.config), (world.paths("one").lineage, paths.lineage)):
        shutil.copy(source, target)
    if world.bucket is None:
        shutil.copytree(world.paths("one").checkpoints, paths.checkpoints)
    else:
        shutil.copy(world.paths("one").store_file, paths.store_file)
    records.Fence(CLAIMED, name, sealed_step=1).write(paths.fence)
    if (status := world.status("one")) is not None:  # None after a power cut in its write
        replace(status, attempt=CLAIMED, epoch=CLAIMED, host=name, step=10**6).write(paths.attempt(CLAIMED).status(0))
