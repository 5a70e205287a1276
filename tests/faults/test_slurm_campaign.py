"""Runs on a real Slurm cluster: states, requeues whose processes go on, signals, limits, restarts, lost answers.

    python tests/faults/test_slurm_campaign.py --runs 160 --seed 1

Each case starts an engine that commits (`support/engines/committing_engine.py`) as a job and draws what happens to it.
One engine commits at any time, no acknowledged step is lost, and `--status` has a reason for every end.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from simulators.clusters.slurm_cluster import why_not
from support.commit_seed import commit_seed
from support.migrations.campaigns import Campaign, Case, read
from support.paths import REPOSITORY
from support.slurm import slurm_events
from support.slurm.slurm_setting import Setting, opened

RESULTS = REPOSITORY / "docs/campaigns/slurm.jsonl"
CASES = 160
SAMPLE = 2
SIGNAL = {"do": "signal", "signal": "TERM", "to": "batch"}
PLAIN: Case = {"target": "plain", "events": [], "end": {"do": "stop", "lost": ""}, "again": False}
BROKEN: list[tuple[str, Case]] = [
    ("second engine beside a stopped job", {**PLAIN, "events": [{"do": "pause", "state": "STOPPED"}]}),
    ("second engine while a job is being requeued",
     {**PLAIN, "events": [{"do": "pause", "state": "SUSPENDED"}, {"do": "requeue", "words": ["requeue"]}]}),
    ("two engines of one attempt", {**PLAIN, "events": [{"do": "hang"}], "again": True}),
    ("second engine beside a failed node", {**PLAIN, "target": "no requeue", "end": {"do": "node"}}),
    ("engine killed by a signal for the script", {**PLAIN, "target": "batch", "end": SIGNAL, "again": True}),
    ("next start gets the signal of a requeue",
     {**PLAIN, "target": "batch", "events": [{"do": "requeue", "words": ["requeuehold"]}], "end": SIGNAL}),
    ("signal that the controller swallows", {**PLAIN, "end": {"do": "stop", "lost": "swallowed"}}),
    ("engine killed where its controller has forgotten that it runs",
     {**PLAIN, "events": [{"do": "controller", "signal": "SIGKILL"}]}),
    ("no answer to the signal", {**PLAIN, "end": {"do": "stop", "lost": "dead"}}),
    ("no signal before the end of a reservation", {**PLAIN, "target": "reservation", "end": {"do": "limit"}}),
]  # fmt: skip


def one(case: Case, _random: random.Random, setting: Setting) -> str:
    return slurm_events.run_case(case, setting)


CAMPAIGN = Campaign(slurm_events.draw, one, opened)
needs_slurm = pytest.mark.skipif(bool(why_not()), reason=why_not())


@needs_slurm
@pytest.mark.system
@pytest.mark.drawn
def test_slurm_campaign_sample() -> None:
    seed = commit_seed()
    assert sum(1 for _ in CAMPAIGN.rows(seed, range(SAMPLE))) == SAMPLE


@pytest.fixture(scope="module")
def setting() -> Iterator[Setting]:
    with opened() as made:
        yield made


@needs_slurm
@pytest.mark.system
@pytest.mark.drawn
@pytest.mark.parametrize("case", [case for _, case in BROKEN], ids=[name for name, _ in BROKEN])
def test_broken_cases_of_earlier_versions(case: Case, setting: Setting) -> None:
    slurm_events.run_case(case, setting)


@needs_slurm
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_slurm_campaign() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    assert sum(1 for _ in CAMPAIGN.rows(seed, range(CASES))) == CASES


def test_slurm_campaign_results() -> None:
    rows = read(RESULTS)
    assert len({(row["seed"], row["run"]) for row in rows}) == len(rows) >= 150
    assert {event["do"] for row in rows for event in row["events"]} == set(slurm_events.LIVE)
    assert {row["end"]["do"] for row in rows} == set(slurm_events.ENDINGS)
    assert {row["outcome"] for row in rows} <= {slurm_events.SAVED, slurm_events.KILLED, slurm_events.FORGOTTEN}


if __name__ == "__main__":
    CAMPAIGN.main(RESULTS, CASES)
