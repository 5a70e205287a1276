"""Simulate until a time on all cores: every single fault, then pairs of faults, then drawn schedules.

The summary is a file that grows: what breaks an invariant is added at once, shrunk, with the command that replays it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

from simulation import faults
from simulation.machines import REAL_EXIT
from simulation.runner import Campaign, pinned, single_faults
from simulation.scheduler import REAL_CLOCK
from simulation.schedules import CALLS, MODES, Schedule

PAIRS = 20_000  # sampled pairs of faults
Phases = dict[str, Callable[[], Iterator[Schedule]]]


def pairs(number: int, seed: int) -> Iterator[Schedule]:
    """Yield schedules with two faults, drawn over all modes, calls and kinds."""
    dice = random.Random(f"pairs {seed}")
    for _ in range(number):
        mode = dice.choice(MODES)
        struck = sorted(
            (faults.draw_fault(dice, CALLS[mode]) for _ in range(2)), key=lambda fault: (fault.call, fault.kind)
        )
        yield pinned(dice.randrange(10**9), mode, tuple(struck))


def phases_of(first: int) -> Phases:
    """Return what a night runs, in its order. ``first``: the first seed of the drawn schedules."""
    return {
        "one fault": lambda: single_faults(faults.KINDS),
        "two faults": lambda: pairs(PAIRS, first),
        "drawn": lambda: (Schedule(seed) for seed in count(first)),
    }


def run(directory: str, seconds: float, phases: Phases, summary: Path, workers: int) -> int:
    """Run the phases for ``seconds``; return how many schedules broke an invariant."""
    end = REAL_CLOCK() + seconds
    summary.write_text("# Simulated schedules\n\n")
    pipes = [_begin(number, workers, f"{directory}-{number}", end, phases, summary) for number in range(workers)]
    results: list[dict[str, tuple[int, int]]] = []
    for child, reading in pipes:
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        os.waitpid(child, 0)
        results.append(pickle.loads(data))
    lines = [f"{'schedules':16}{'run':>10}{'broken':>8}"]
    broken = 0
    for name in phases:
        done, failed = (sum(result[name][index] for result in results) for index in range(2))
        lines.append(f"{name:16}{done:>10}{failed:>8}")
        broken += failed
    text = "\n".join(lines) + "\n"
    print(text, end="")
    with summary.open("a") as file:
        file.write(f"\n## In all\n\n{text}")
    return broken


def _begin(number: int, workers: int, directory: str, end: float, phases: Phases, summary: Path) -> tuple[int, int]:
    """Start a worker, which runs every ``workers``-th schedule; return its pid and the pipe of its counts."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    counts: dict[str, tuple[int, int]] = dict.fromkeys(phases, (0, 0))
    known: set[str] = set()  # invariants that a shrunk schedule was written for
    for name, schedules in phases.items():
        campaign = Campaign(directory, shrunk=known)
        with contextlib.redirect_stdout(_Summary(summary)):
            campaign.run(islice(schedules(), number, None, workers), max(0.001, end - REAL_CLOCK()))
        counts[name] = campaign.done, campaign.broken
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(pickle.dumps(counts))
    REAL_EXIT(0)
    raise AssertionError


class _Summary(io.StringIO):
    """Text output that appends stories to a file of several processes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def flush(self) -> None:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        with self._path.open("a") as file:
            file.write(text)


def workers_of(chosen: int) -> int:
    """Return the number of workers; by default one for each core."""
    return chosen or len(os.sched_getaffinity(0))
