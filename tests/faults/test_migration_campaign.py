"""Migrations in every mode with a fault at a random moment, many times.

    python tests/faults/test_migration_campaign.py [--runs 300] [--seed 1] [--jobs 2] [--results FILE]

The fault kills the migration's process, an engine of source or target, or the SSH server; cuts a link; suspends a
process; or fills a disk: see ``support/migrations/migration_faults.py``. Afterwards the migration is continued
with the line that it printed until it ends, and then: one lineage, every step of it once, the losses and batches of an
undisturbed run, no sealed step lost, and the run trains.

Results are appended, one line per run: an interrupted campaign continues where it was.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from midstream.migrate import migration_process
from midstream.migrate.modes.registry import WARM
from midstream_core import records
from simulators.sshd import SSHD
from support.command_line import COMPILED, step_of
from support.migrations.migration_faults import KINDS, MODES, PATIENCE, Campaign, UnderWay, said
from support.migrations.migration_program import main
from support.paths import REPOSITORY

SLOW = pytest.mark.slow  # the suite has a complete migration or two of each kind already
RESULTS = REPOSITORY / "docs/campaigns/migration-faults.jsonl"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    if not SSHD:
        pytest.skip("no sshd: apt-get install openssh-server")
    made = Campaign(tmp_path_factory.mktemp("moves"), Path(COMPILED))
    yield made
    made.close()


@pytest.mark.system
@pytest.mark.parametrize(
    "number",
    [0, pytest.param(4, marks=pytest.mark.drawn), *(pytest.param(number, marks=SLOW) for number in (8, 9, 13, 17))],
)
def test_migration_campaign_sample(campaign: Campaign, number: int) -> None:
    print(campaign.move(7, number))


@pytest.mark.system
@pytest.mark.drawn
def test_source_unreachable_at_seal_is_waited_for(campaign: Campaign) -> None:
    """A partition hides the source's seal: the target does not start before its end."""

    def strike(move: UnderWay) -> str:
        campaign.server.stop()
        source, target = campaign.runs[move.source], campaign.runs[move.target]
        sealed = move.directory.plan().epoch
        source.wait(lambda run: run.fence.epoch == sealed and not run.running, "the hidden seal", PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while not any("losing contact is not losing the run" in event.message for event in move.reader.events()):
            assert time.monotonic() < deadline, "no note that the source is unreachable"
            time.sleep(0.05)
        status = target.status()
        assert status is not None
        assert (status.state, status.epoch, target.rows()) == (records.WAITING, 0, [])
        campaign.server.start()
        return "the server of one, until the seal was written"

    row = campaign.go(WARM, said("command: save, seal"), strike, source="one")
    assert (row["outcome"], row["owner"]) == ("completed", "two")


@SLOW
@pytest.mark.system
def test_killed_standby_is_replaced_before_seal(campaign: Campaign) -> None:
    row = campaign.go(WARM, said("; it waits"), lambda move: campaign.kill_engine(move, move.target))
    assert "waiting" in row["hit"]
    assert (row["outcome"], row["owner"]) == ("completed", row["to"])


@SLOW
@pytest.mark.system
def test_standby_killed_at_takeover_rolls_back(campaign: Campaign) -> None:
    def strike(move: UnderWay) -> str:
        operator = int((move.directory.path / ".lock").read_text())
        os.kill(operator, signal.SIGSTOP)  # before it has read an update
        try:
            return campaign.kill_engine(move, move.target)
        finally:
            os.kill(operator, signal.SIGCONT)

    row = campaign.go(WARM, said("command: restore"), strike)
    assert (row["outcome"], row["owner"]) == ("rolled back", row["from"])


@SLOW
@pytest.mark.system
@pytest.mark.parametrize("words", ["it rehearses on", "command: save, seal", "command: restore"])
def test_warm_migration_of_killed_operator_rolls_back(campaign: Campaign, words: str) -> None:
    row = campaign.go(WARM, said(words), campaign.kill_operator, goes_on=migration_process.rollback)
    assert (row["outcome"], row["owner"]) == ("rolled back", row["from"])


@pytest.mark.system
@pytest.mark.drawn
def test_crashed_run_restarts_from_checkpoint_of_target(campaign: Campaign) -> None:
    row = campaign.go(WARM, lambda _: False, lambda _: "nothing")
    assert (row["outcome"], row["owner"]) == ("completed", row["to"])
    run = campaign.runs[campaign.at]
    sealed = run.fence.sealed_step
    assert sealed is not None
    run.wait(lambda run: step_of(run.checkpoints()[-1]) > sealed, "a checkpoint of its own", PATIENCE)
    run.kill()
    run.wait(lambda run: not run.running, "its end", PATIENCE)
    own, crashed = step_of(run.checkpoints()[-1]), run.attempt
    campaign.start_again()
    run.wait(lambda run: run.attempt > crashed and bool(run.rows()), "the next attempt", PATIENCE)
    assert run.rows()[0]["global_step"] == own > sealed


def test_migration_campaign_results() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert len({(row["seed"], row["run"]) for row in rows}) == len(rows)
    for row in rows:
        assert (row["kind"] in KINDS, row["mode"] in MODES) == (True, True)
        assert row["outcome"] in ("completed", "rolled back", "moved on")
        assert row["largest_difference"] <= 1e-4


if __name__ == "__main__":
    sys.exit(main(Path(__file__), __doc__ or "", Campaign, RESULTS, 300))
