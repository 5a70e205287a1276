"""Run simulated schedules: each in a fork of a warm process, with a summary of what broke.

`simulate.py` is the command.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pickle
import pstats
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulation import faults
from simulation import world as worlds
from simulation.cooperative import REAL_CLOCK
from simulation.machines import REAL_EXIT
from simulation.schedules import CALLS, MODES, Outcome, Schedule, run_schedule

MOST = 60  # seconds of a core for one schedule
MEMORY = 3 << 30  # bytes of address space for one schedule


def single_faults(kinds: Sequence[str]) -> Iterator[Schedule]:
    """Yield every schedule with one fault."""
    for mode in MODES:
        for call in range(CALLS[mode]):
            for kind in kinds:
                seconds = 60.0 if kind.startswith(faults.LASTING) else 0.0
                yield Schedule(0, "migrate", mode, (faults.Fault(call, kind, seconds),))


def fork_schedule(schedule: Schedule, directory: str) -> Outcome:
    """Run a schedule in a child of this process, in an empty directory."""
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        gc.disable()
        resource.setrlimit(resource.RLIMIT_CPU, (MOST, MOST))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        outcome = run_schedule(schedule, directory)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(outcome))
        REAL_EXIT(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    why = f"the process of the simulation ended with {os.waitstatus_to_exitcode(status)}; it may compute {MOST} s"
    return pickle.loads(data) if data else Outcome(schedule, broken=why)


def warm(directory: str) -> None:
    """Run one migration of each mode, so that everything is imported and cached before the first fork."""
    for mode in MODES:
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        outcome = run_schedule(Schedule(0, "migrate", mode, ()), directory)
        if outcome.broken:
            sys.exit("\n".join([outcome.broken, *outcome.story]))


def _profile(schedules: Iterator[Schedule], directory: str) -> int:
    profile = cProfile.Profile()
    for schedule in schedules:
        shutil.rmtree(directory)
        os.makedirs(directory)
        profile.runcall(run_schedule, schedule, directory)
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    return 0


def _flags() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description="Simulate migrations with faults.")
    flags.add_argument("--seeds", default=f"0:{10**9}", help="FIRST:END")
    flags.add_argument("--seed", type=int, help="one seed, with its story")
    flags.add_argument("--seconds", type=float, default=0.0, help="end after that long")
    flags.add_argument("--show", action="store_true", help="print the story of each seed")
    flags.add_argument(
        "--each", nargs="*", metavar="KIND", help="every call of each mode with one fault of these kinds"
    )
    flags.add_argument("--known", metavar="NAME", help="put a fault of the project's history back (known_faults.py)")
    flags.add_argument(
        "--profile", action="store_true", help="run the seeds in this process, and print where time goes"
    )
    return flags


def main() -> int:
    options = _flags().parse_args()
    first, end = map(int, options.seeds.split(":"))
    if options.seed is not None:
        first, end, options.show = options.seed, options.seed + 1, True
    directory = tempfile.mkdtemp(prefix="midstream-simulation-", dir="/dev/shm") + "/world"
    worlds.install()
    warm(directory)
    if options.known:
        from simulation.known_faults import KNOWN

        KNOWN[options.known]()
    schedules = (Schedule(seed) for seed in range(first, end))
    if options.profile:
        return _profile(schedules, directory)
    began, done, broken = REAL_CLOCK(), 0, 0
    if options.each is not None:
        schedules = single_faults(options.each or faults.KINDS)
    for schedule in schedules:
        if options.seconds and REAL_CLOCK() - began > options.seconds:
            break
        outcome = fork_schedule(schedule, directory)
        done += 1
        if outcome.broken or options.show:
            broken += bool(outcome.broken)
            print(f"\nseed {schedule.seed}: {outcome.broken}")
            print("\n".join(outcome.story), flush=True)
            if options.known:
                break
    spent, used = REAL_CLOCK() - began, os.times().children_user + os.times().children_system
    pace = f"{used / done:.3f} s of a core each ({60 * done / used:.0f} a minute of it)" if done else ""
    print(f"\n{done} schedules in {spent:.1f} s, {pace}, {broken} broke an invariant")
    shutil.rmtree(Path(directory).parent, ignore_errors=True)
    return 1 if broken else 0
