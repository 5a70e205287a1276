"""Put each known fault back, one after the other, and write how soon the simulation finds it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from simulation.cooperative import REAL_CLOCK
from simulation.known_faults import KNOWN
from simulation.machines import REAL_EXIT
from simulation.runner import children_seconds, fork_schedule
from simulation.schedules import Schedule
from simulation.shrink import broken_invariant

LIMIT = 300.0  # seconds of a core for one fault
INVARIANT = "BrokenError"
HEAD = """# Known faults that simulations find

After this page you know which faults of the project's history `make simulate` finds again, and how soon.

Each was put back into the program, alone, and schedules were drawn from seed 0 on until one broke an invariant that it
keeps without the fault, with at most {limit:.0f} s of a core for each fault. `make simulate ARGS=--known-all` makes this page;
`make simulate SEED=N ARGS="--known FAULT"` tells a schedule's story.

| fault | what it was | seed that finds it | schedules | seconds of a core | what breaks |
| --- | --- | --- | --- | --- | --- |
"""  # noqa: E501


@dataclass(frozen=True)
class Finding:
    """How soon a fault was found. ``invariant`` is empty where it was not."""

    name: str
    schedules: int
    seconds: float
    seed: int = 0
    invariant: str = ""

    def row(self) -> str:
        """Return the row of the table."""
        described = (KNOWN[self.name].__doc__ or "").strip()
        if not self.invariant:
            return f"| `{self.name}` | {described} | **none** | {self.schedules} | {self.seconds:.0f} | |"
        broken = self.invariant.partition(": ")[2].replace("|", "/").strip(" #:")
        cells = (f"`{self.name}`", described, self.seed, self.schedules, f"{self.seconds:.1f}", broken)
        return f"| {' | '.join(map(str, cells))} |"


def find(name: str, directory: str, limit: float) -> Finding:
    """Draw schedules until one breaks an invariant with the fault, and none without it."""
    first, spent = 0, 0.0
    while True:
        finding = _search_in_child(name, directory, first, limit - spent)
        spent += finding.seconds
        if not finding.invariant or not fork_schedule(Schedule(finding.seed), directory).broken:
            return replace(finding, seconds=spent)
        print(f"seed {finding.seed} breaks an invariant without a fault too", flush=True)
        first = finding.seed + 1


def _search_in_child(name: str, directory: str, first: int, limit: float) -> Finding:
    """Put a fault back in a child of this process, and draw schedules there from a seed on."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        KNOWN[name]()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(_search(name, directory, first, limit)))
        REAL_EXIT(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


def _search(name: str, directory: str, first: int, limit: float) -> Finding:
    spent, invariant = 0.0, ""
    begun = children_seconds()
    for seed in count(first):
        outcome = fork_schedule(Schedule(seed), directory)
        spent, invariant = children_seconds() - begun, broken_invariant(outcome)
        if invariant.startswith(INVARIANT) or spent > limit:
            return Finding(name, seed + 1, spent, seed, invariant if invariant.startswith(INVARIANT) else "")
    raise AssertionError("seeds have no end")


def findings(names: Iterable[str], directory: str, limit: float) -> Iterator[Finding]:
    """Yield how soon each fault is found, and print it."""
    for name in names:
        began = REAL_CLOCK()
        finding = find(name, directory, limit)
        print(f"{finding.row()}  ({REAL_CLOCK() - began:.0f} s)", flush=True)
        yield finding


def write_page(found: Iterable[Finding], page: Path, limit: float) -> None:
    """Write the page of the docs."""
    page.write_text(HEAD.format(limit=limit) + "".join(f"{finding.row()}\n" for finding in found))
