"""Simulate migrations: `python tests/simulation/simulate.py --seeds 0:100`.

Each seed draws a migration, its faults and the order of everything that happens at the same time, runs the real
program through it, follows the commands that it prints, and checks the invariants. A seed that breaks one is printed
as a story; the same seed gives the same story.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__" and sys.flags.hash_randomization:  # sets would have another order in each process
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
sys.path.insert(0, str(Path(__file__).parents[1]))
CLOCK = time.perf_counter

from simulation import world as worlds  # noqa: E402  (first: it replaces threads and clocks)
from simulation import engine, faults, invariants  # noqa: E402
from simulation.cooperative import HUB, EndlessWaitError  # noqa: E402
from simulation.world import RUN, World  # noqa: E402

MODES = ("cold", "warm")
CALLS = {"cold": 80, "warm": 95}  # of a migration without faults, about
ATTEMPTS = 12  # commands that an operator gives until the run is somewhere
SHORT = ("--yes", "--healthy-steps", "3", "--certify-steps", "2")
HINT = re.compile(r"midstream (--[a-z-]+ [^;,()\n]*)")


@dataclass
class Outcome:
    """Result of one seed."""

    seed: int
    story: list[str] = field(default_factory=list)
    broken: str = ""
    virtual: float = 0.0
    calls: int = 0


def run_seed(seed: int, directory: str, chosen: list[faults.Fault] | None = None, mode: str = "") -> Outcome:
    """Run one schedule in a directory that has nothing else."""
    dice = random.Random(f"schedule {seed}")
    HUB.reset(seed)
    engine.LEDGER.commits.clear()
    engine.LEDGER.training.clear()
    engine.LEDGER.seals.clear()
    outcome = Outcome(seed)
    mode = mode or dice.choice(MODES)
    world = World(directory)
    try:
        world.begin_run("one", 15)
        drawn = faults.draw(dice, CALLS[mode]) if chosen is None else chosen
        outcome.story.append(f"mode {mode}; " + "; ".join(fault.story() for fault in drawn))
        strikes = faults.Strikes(world, drawn, "one", "two")
        consents: list[int] = []
        _operate(world, mode, dice, outcome, consents)
        outcome.story += strikes.struck
        _settle(world, dice, outcome, consents)
        invariants.check_commits(engine.LEDGER.commits, consents)
        invariants.check_certificates(world)
    except (invariants.BrokenError, EndlessWaitError) as error:
        outcome.broken = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  a fault of the simulation is shown like one of the program
        outcome.broken = traceback.format_exc()
    outcome.virtual, outcome.calls = HUB.now, len(world.network.calls)
    outcome.story += [f"$ midstream {words}\n  exit {code}: {_last(text)}" for words, code, text in world.said]
    outcome.story.append(f"trains on {world.trains()}")
    return outcome


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.startswith(("midstream:", f"{RUN}:"))]
    return (lines or text.strip().splitlines() or [""])[-1][:600]


def _give(world: World, *words: str) -> tuple[int, str]:
    """Give a command, and wait for its end."""
    number = len(world.said)
    world.command(*words)
    world.run_until(lambda: len(world.said) > number)
    _, code, text = world.said[number]
    return code, text


def _operate(world: World, mode: str, dice: random.Random, outcome: Outcome, consents: list[int]) -> None:
    """Migrate, and give the commands that the program prints until the migration has ended."""
    _give(world, "--migrate", RUN, "--to", "two", "--mode", mode, *SHORT)


def _open_migrations(world: World) -> list[str]:
    found = Path(world.directory, "state", "migrations")
    return sorted(path.name for path in found.iterdir() if path.is_dir()) if found.is_dir() else []


def _settle(world: World, dice: random.Random, outcome: Outcome, consents: list[int]) -> None:
    """Continue what is open until the run trains on one machine, by the commands that the program offers."""
    for trial in range(ATTEMPTS):
        world.run_for(dice.choice([1.0, 30.0, 200.0]) if trial < 3 else max(faults.OUTAGES))
        movers = [p for p in world.machines["operator"].processes.values() if p.name.startswith("mover")]
        if movers:
            world.run_until(lambda: all(p.exit_code is not None for p in movers))
        if len(world.trains()) == 1 and not _is_open(world):
            return
        migrations = _open_migrations(world)
        if migrations and _is_open(world):
            _give(world, "--continue", migrations[-1])
        elif not world.trains():
            _relaunch(world)
    if len(world.trains()) != 1 or _is_open(world):
        raise invariants.BrokenError(f"after {ATTEMPTS} commands the run trains on {world.trains()}, open: {_is_open(world)}")


def _is_open(world: World) -> bool:
    """Return whether the newest migration is open, by its journal."""
    migrations = _open_migrations(world)
    if not migrations:
        return False
    journal = Path(world.directory, "state", "migrations", migrations[-1], "journal.jsonl")
    lines = journal.read_bytes().splitlines() if journal.is_file() else []
    results = [json.loads(line) for line in lines if b'"result"' in line]
    last = results[-1] if results else {}
    return last.get("outcome") not in ("completed", "rolled_back", "rolled back", "moved_on", "moved on")


def _relaunch(world: World) -> None:
    """Start the run again where its newest fence says that it belongs."""
    owners = [name for name in ("one", "two") if (fence := world.fence(name)) is not None and fence.owner == name]
    newest = max(owners, key=lambda name: world.fence(name).order, default=None)  # type: ignore[union-attr]
    if newest is None:
        raise invariants.BrokenError("no machine owns the run")
    _give(world, "--launch", world.paths(newest).config, "--run-id", RUN, "--on", newest, "--yes")


def fork_seed(seed: int, directory: str) -> Outcome:
    """Run a seed in a child of this process, in an empty directory."""
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        gc.disable()
        outcome = run_seed(seed, directory)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(vars(outcome)).encode())
        REAL_EXIT(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return Outcome(**json.loads(data)) if data else Outcome(seed, broken="the simulation's process died")


REAL_EXIT = worlds.machines.REAL_EXIT


def warm(directory: str) -> None:
    """Run one migration of each mode, so that everything is imported and cached before the first fork."""
    for mode in MODES:
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        outcome = run_seed(0, directory, [], mode)
        if outcome.broken:
            sys.exit("\n".join([outcome.broken, *outcome.story]))


def _profile(seeds: range, directory: str) -> int:
    import cProfile
    import pstats

    profile = cProfile.Profile()
    for seed in seeds:
        shutil.rmtree(directory)
        os.makedirs(directory)
        profile.runcall(run_seed, seed, directory)
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    return 0


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--seeds", default="0:20", help="FIRST:END")
    flags.add_argument("--seconds", type=float, default=0.0)
    flags.add_argument("--show", action="store_true")
    flags.add_argument("--profile", action="store_true", help="run the seeds in this process, and print where time goes")
    options = flags.parse_args()
    first, end = map(int, options.seeds.split(":"))
    directory = tempfile.mkdtemp(prefix="midstream-simulation-", dir="/dev/shm") + "/world"
    worlds.install()
    warm(directory)
    if options.profile:
        return _profile(range(first, end), directory)
    began, done, broken = CLOCK(), 0, 0
    for seed in range(first, end):
        if options.seconds and CLOCK() - began > options.seconds:
            break
        outcome: Any = fork_seed(seed, directory)
        done += 1
        if outcome.broken or options.show:
            broken += bool(outcome.broken)
            print(f"\nseed {seed}: {outcome.broken}")
            print("\n".join(outcome.story))
    spent, used = CLOCK() - began, os.times().children_user + os.times().children_system
    print(f"\n{done} schedules in {spent:.1f} s, {used / done:.3f} s of a core each ({60 * done / used:.0f} a minute of it), "
          f"{broken} broke an invariant")  # fmt: skip
    shutil.rmtree(Path(directory).parent, ignore_errors=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
