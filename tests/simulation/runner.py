"""Run simulated schedules: each in a fork of a warm process, with a summary of what broke.

`simulate.py` is the command.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import json
import os
import pickle
import pstats
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

from simulation import faults, installation, unseen
from simulation.machines import REAL_EXIT
from simulation.scheduler import REAL_CLOCK
from simulation.schedules import CALLS, CLUSTER, GROUP, MODES, Outcome, Schedule, run_schedule
from simulation.shrink import DRAWN, TRIALS, broken_invariant, faults_text, read_faults, replay_command, shrink

MOST = 60  # seconds of a core for one schedule
PAGE = Path(__file__).parents[2] / "docs/explanation/simulation-known-faults.md"
MEMORY = 3 << 30  # bytes of address space for one schedule


def single_faults(kinds: Sequence[str]) -> Iterator[Schedule]:
    """Yield every schedule with one fault, for each mode and place, those of a cluster where the target is one."""
    for mode, place in itertools.product(MODES, ("disk", "bucket", GROUP, CLUSTER)):
        if mode == "live" and "bucket" in place:
            continue
        here = [kind for kind in kinds if place == CLUSTER or kind not in faults.CLUSTER]
        for call, kind in itertools.product(range(CALLS[mode]), here):
            seconds = 60.0 if kind.startswith(faults.LASTING) else 0.0
            yield pinned(0, mode, (faults.Fault(call, kind, seconds),), place)


def pinned(seed: int, mode: str, struck: tuple[faults.Fault, ...], place: str = "disk") -> Schedule:
    """Return the simplest schedule of a mode and place with these faults."""
    simplest = {name: values[0] for name, values in DRAWN.items()}
    return Schedule(seed, **{**simplest, "mode": mode, "place": place}, faults=struck)


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


def children_seconds() -> float:
    """Return the seconds of a core that ended children of this process have taken."""
    times = os.times()
    return times.children_user + times.children_system


def warm(directory: str) -> None:
    """Run one migration of each mode, so that everything is imported and cached before the first fork."""
    for mode in MODES:
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        outcome = run_schedule(pinned(0, mode, ()), directory)
        if outcome.broken:
            sys.exit("\n".join([outcome.broken, *outcome.story]))


def _profile(schedules: Iterator[Schedule], directory: str) -> int:
    profile = cProfile.Profile(time.process_time)  # others may have the core
    for schedule in schedules:
        shutil.rmtree(directory)
        os.makedirs(directory)
        profile.runcall(run_schedule, schedule, directory)
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    pstats.Stats(profile).sort_stats("cumtime").print_stats(120)
    return 0


def story_of(outcome: Outcome) -> str:
    """Return the story of a schedule; lines that repeat are counted."""
    lines: list[str] = []
    for line, same in groupby(outcome.story):
        times = len(list(same))
        lines.append(f"{line}\n  ({times} times)" if times > 1 else line)
    return "\n".join(lines)


def append_result(results: Path, outcome: Outcome) -> None:
    """Append what came out of a schedule to a campaign's file."""
    schedule = outcome.schedule
    line = {
        "scenario": schedule.scenario, "mode": schedule.mode, "place": schedule.place, "seed": schedule.seed,
        "faults": faults_text(schedule.faults or ()), "struck": outcome.struck, "broken": broken_invariant(outcome),
    }  # fmt: skip
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def not_yet_run(schedules: Iterable[Schedule], results: Path) -> list[Schedule]:
    """Return the schedules of a campaign that its file has not, in an order that is a fair sample at any moment."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {(line["scenario"], line["mode"], line["place"], line["seed"], line["faults"]) for line in lines}
    left = [
        schedule
        for schedule in schedules
        if (schedule.scenario, schedule.mode, schedule.place, schedule.seed, faults_text(schedule.faults or ()))
        not in done
    ]
    random.Random("order").shuffle(left)
    return left


class Campaign:
    """Runs schedules, and prints those that break an invariant."""

    def __init__(
        self,
        directory: str,
        show: bool = False,
        known: str = "",
        shrunk: set[str] | None = None,
        trials: int = TRIALS,
        results: Path | None = None,
    ) -> None:
        """Prepare to run schedules in a directory.

        Args:
            directory: It is removed before each schedule.
            show: Print the story of each schedule.
            known: Name of the known fault that was put back.
            shrunk: Invariants for which a smaller schedule was printed; more are added.
            trials: Schedules that are run at most to shrink one.
            results: A file that gets a line of JSON for each schedule; None: none does.
        """
        self._trials, self._results = trials, results
        self._directory, self._show, self._known = directory, show, known
        self._began = REAL_CLOCK()
        self._shrunk = set[str]() if shrunk is None else shrunk
        self.done = self.broken = 0

    def spent(self) -> float:
        """Return the seconds since the beginning."""
        return REAL_CLOCK() - self._began

    def run(self, schedules: Iterable[Schedule], seconds: float = 0.0, most: int = 0) -> None:
        """Run schedules until ``seconds`` have passed or ``most`` have broken an invariant. 0: no limit."""
        for schedule in schedules:
            if (seconds and self.spent() > seconds) or (most and self.broken >= most):
                return
            outcome = fork_schedule(schedule, self._directory)
            self.done += 1
            if self._results is not None:
                append_result(self._results, outcome)
            if outcome.broken or self._show:
                self._print(outcome)

    def _print(self, outcome: Outcome) -> None:
        print(f"\nseed {outcome.schedule.seed}: {outcome.broken}")
        print(story_of(outcome), flush=True)
        invariant = broken_invariant(outcome)
        if not invariant:
            return
        self.broken += 1
        if self._trials and invariant not in self._shrunk:
            self._shrunk.add(invariant)
            outcome = shrink(outcome, lambda schedule: fork_schedule(schedule, self._directory), self._trials)
            print(f"\nshrunk: {outcome.broken}")
            print(story_of(outcome))
        print(f"replay: {replay_command(outcome.schedule, self._known)}", flush=True)

    def summary(self) -> str:
        """Return the number of schedules, their pace, and how many broke an invariant."""
        used = children_seconds()
        pace = f"{used / self.done:.3f} s of a core each ({60 * self.done / used:.0f} a minute of it), "
        return (
            f"{self.done} schedules in {self.spent():.1f} s, {pace if self.done else ''}"
            f"{self.broken} broke an invariant"
        )


def _flags() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description="Simulate migrations with faults.")
    flags.add_argument("--seeds", default=f"0:{10**9}", help="FIRST:END")
    flags.add_argument("--seed", type=int, help="one seed, with its story")
    for name, values in DRAWN.items():
        flags.add_argument(f"--{name}", choices=values, default="", help="in place of the drawn one")
    flags.add_argument("--faults", type=read_faults, help="in place of the drawn ones: CALL:KIND[:SECONDS],...")
    flags.add_argument("--seconds", type=float, default=0.0, help="end after that long")
    flags.add_argument("--trials", type=int, default=TRIALS, help="schedules to run to shrink one; 0: none is shrunk")
    flags.add_argument("--show", action="store_true", help="print the story of each seed")
    flags.add_argument(
        "--each", nargs="*", metavar="KIND", help="every call of each mode with one fault of these kinds"
    )
    flags.add_argument(
        "--found", nargs="?", const="0/1", metavar="PART/PARTS",
        help="the schedules that broke an invariant once (found.py), or each so many-th of them",
    )  # fmt: skip
    flags.add_argument("--known", metavar="NAME", help="put a fault of the project's history back (known_faults.py)")
    flags.add_argument(
        "--known-all", nargs="*", metavar="NAME", help="put each of these or of all back, and write the docs' table"
    )
    flags.add_argument("--night", action="store_true", help="single faults, pairs, drawn ones, on all cores")
    flags.add_argument("--workers", type=int, default=0, help="processes of --night; 0: one for each core")
    flags.add_argument("--summary", type=Path, default=Path("simulation-night.md"), help="file of --night")
    flags.add_argument("--core-seconds", type=float, default=300.0, help="limit for each fault of --known-all")
    flags.add_argument(
        "--each-update",
        action="store_true",
        help="make also what no other task sees; the story is the same",
    )
    flags.add_argument(
        "--results",
        type=Path,
        help="file of JSON lines: schedules that it has are not run again, the others in any order",
    )
    flags.add_argument(
        "--profile", action="store_true", help="run the seeds in this process, and print where time goes"
    )
    return flags


def _known_all(names: Sequence[str], directory: str, limit: float) -> int:
    from simulation import known_table

    missed = 0
    for finding in known_table.findings(names or known_table.KNOWN, directory, limit):
        known_table.write_page([finding], PAGE, limit)
        missed += finding.schedule is None
    return 1 if missed else 0


def main() -> int:
    options = _flags().parse_args()
    first, end = map(int, options.seeds.split(":"))
    if options.seed is not None:
        first, end, options.show = options.seed, options.seed + 1, True
    directory = tempfile.mkdtemp(prefix="midstream-simulation-", dir="/dev/shm") + "/world"
    installation.install()
    if options.each_update:
        unseen.leave_out_nothing()
    warm(directory)
    if options.known:
        from simulation.known_table import KNOWN

        KNOWN[options.known]()
    if options.night:
        from simulation import night

        workers = night.workers_of(options.workers)
        return 1 if night.run(directory, options.seconds, night.phases_of(first), options.summary, workers) else 0
    if options.known_all is not None:
        return _known_all(options.known_all, directory, options.core_seconds)
    given = {name: getattr(options, name) for name in (*DRAWN, "faults")}
    schedules = (Schedule(seed, **given) for seed in range(first, end))
    if options.profile:
        return _profile(schedules, directory)
    if options.each is not None:
        schedules = single_faults(options.each or (*faults.KINDS, *faults.CLUSTER))
    elif options.known and options.seed is None:
        from simulation.known_table import schedules_of

        schedules = islice(schedules_of(options.known), first, end)
    if options.found:
        from simulation.found import FOUND

        part, parts = map(int, options.found.split("/"))
        schedules = iter(FOUND[part % parts :: parts])
    if options.results is not None:
        schedules = not_yet_run(schedules, options.results)
    campaign = Campaign(directory, options.show, options.known, trials=options.trials, results=options.results)
    campaign.run(schedules, options.seconds, most=1 if options.known else 0)
    print(f"\n{campaign.summary()}")
    shutil.rmtree(Path(directory).parent, ignore_errors=True)
    return 1 if campaign.broken else 0
