"""Restored participants, unreachable hosts, claims and two operators: one lineage.

    python tests/faults/test_restore_campaign.py --runs 300 --seed 1

Each case begins with a true history of hand-overs and rollbacks by the product's own functions. It puts a subset of
{operator's state directory, hosts, bucket} back to earlier moments, makes hosts unreachable or has one claim the run,
and runs one to three commands. An oracle that has the true history judges what they start, plan and write.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from support.migrations.campaigns import Campaign, Case, read
from support.ownership import restored_cases, restored_draws
from support.ownership.restored_cases import Histories, RestoredCase
from support.paths import REPOSITORY

RESULTS = REPOSITORY / "docs/campaigns/restores.jsonl"
CASES = 300
PLAIN: Case = {"actor": "ann", "back": {}, "unreachable": [], "claim": None}
ACTION = {"host": "two", "number": 0, "yes": False, "named": False}
BROKEN: list[tuple[str, Case]] = [
    (
        "suspended process reads a restored source",
        {**PLAIN, "history": 24, "now": 95, "back": {"one": 42}, "unreachable": ["two"],
         "actions": [{**ACTION, "do": "suspended", "number": 59}]},
    ),
    (
        "former owner is planned from",
        {**PLAIN, "history": 1, "now": -1, "back": {"operator": 87, "one": 19}, "unreachable": ["three"],
         "actions": [{**ACTION, "do": "migrate", "host": "three"}]},
    ),
    (
        "launch beside an owner that shows nothing",
        {**PLAIN, "history": 18, "now": 72, "claim": {"kind": "damaged", "host": 0, "owner": True},
         "actions": [{**ACTION, "do": "launch"}]},
    ),
    (
        "rollback by a restored journal, on a restored target",
        {**PLAIN, "history": 33, "now": 43, "back": {"operator": 70, "three": 33},
         "actions": [{**ACTION, "do": "rollback"}]},
    ),
    (
        "the bucket alone remembers the hand-over",
        {**PLAIN, "history": 40, "now": -1, "back": {"operator": 0, "one": 0, "two": 0, "three": 0},
         "actions": [{**ACTION, "do": "launch", "host": "one"}, {**ACTION, "do": "migrate", "host": "two"}]},
    ),
    (
        "the operator alone remembers that the target was permitted to start",
        {**PLAIN, "history": 10, "now": 10, "actor": "ben", "back": {"one": 97}, "unreachable": ["two"],
         "actions": [{**ACTION, "do": "rollback", "host": "two"}]},
    ),
]  # fmt: skip


def one(case: Case, _random: random.Random, histories: Histories) -> str:
    return RestoredCase(case, histories).run()


@contextmanager
def opened() -> Iterator[Histories]:
    with tempfile.TemporaryDirectory(prefix="restores-") as room, restored_cases.opened(Path(room)) as histories:
        yield histories


CAMPAIGN = Campaign(restored_draws.draw, one, opened)


def test_restore_campaign_sample() -> None:
    CAMPAIGN.sample()


@pytest.mark.slow
def test_restore_campaign() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    assert sum(1 for _ in CAMPAIGN.rows(seed, range(CASES))) == CASES


@pytest.mark.parametrize("case", BROKEN, ids=[name for name, _ in BROKEN])
def test_broken_cases_of_earlier_versions(case: tuple[str, Case]) -> None:
    with opened() as histories:
        RestoredCase(case[1], histories).run()


def test_restore_campaign_results() -> None:
    rows = read(RESULTS)
    assert len({(row["seed"], row["run"]) for row in rows}) == len(rows) >= CASES
    done = Counter(action["do"] for row in rows for action in row["actions"])
    assert set(done) == set(restored_draws.ACTIONS)
    assert any("bucket" in row["back"] for row in rows)
    assert {row["claim"]["kind"] for row in rows if row["claim"]} == set(restored_draws.CLAIMS)


if __name__ == "__main__":
    CAMPAIGN.main(RESULTS, CASES)
