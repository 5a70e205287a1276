"""Campaigns: seeded runs with random faults, as a program and as a test sample. See docs/campaigns/README.md."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.commit_seed import commit_seed

SAMPLE = 6  # runs of a random seed in the suite

Case = dict[str, Any]  # what happens in a run, as JSON


@dataclass(frozen=True)
class Campaign:
    """A kind of campaign.

    ``draw`` chooses what happens in a run, ``run`` executes it and returns the outcome, ``opened`` yields what all runs
    share. An AssertionError of ``run`` is a broken promise.
    """

    draw: Callable[[random.Random], Case]
    run: Callable[[Case, random.Random, Any], str]
    opened: Callable[[], AbstractContextManager[Any]]

    def rows(self, seed: int, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the results of the runs ``numbers`` of a seed. AssertionError with seed and case."""
        with self.opened() as opened:
            for number in numbers:
                random_ = random.Random(f"{seed}-{number}")
                case = self.draw(random_)
                try:
                    outcome = self.run(json.loads(json.dumps(case)), random_, opened)
                except AssertionError as error:
                    said = f"seed {seed}, run {number}: {str(error)[:1500]}"
                    raise AssertionError(f"{said}\n{json.dumps(case)}") from error
                yield {"seed": seed, "run": number, **case, "outcome": outcome}

    def sample(self) -> None:
        """Return a few runs that are not in the results yet."""
        seed = commit_seed()
        assert sum(1 for _ in self.rows(seed, range(SAMPLE))) == SAMPLE

    def main(self, results: Path, runs: int) -> None:
        """Run the program: one line of ``results`` for each run. An interrupted campaign continues."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--runs", type=int, default=runs)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument(
            "--seconds", type=float, default=480.0, help="after which the campaign stops; a second start continues it"
        )
        parser.add_argument("--results", type=Path, default=results)
        options = parser.parse_args()
        done = sum(row["seed"] == options.seed for row in read(options.results))
        until = time.monotonic() + options.seconds
        with options.results.open("a", buffering=1) as file:
            for row in self.rows(options.seed, range(done, options.runs)):
                file.write(json.dumps(row) + "\n")
                if time.monotonic() > until:
                    break
        rows = read(options.results)
        print(len(rows), dict(Counter(row["outcome"] for row in rows).most_common()))


def read(results: Path) -> list[dict[str, Any]]:
    """Return the runs in a results file."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
