"""Moves in every mode into which a fault comes at a random moment, many times over.

    python tests/faults/test_migration_campaign.py [--runs 300] [--seed 1] [--jobs 2] [--results FILE]

The fault kills the process that carries the move out, an engine on either side, or the SSH server; cuts a link; stops a
process for a while; or fills a disk: see ``support/migration_faults.py``. Afterwards the move is continued with the
line
that it printed, as often as it takes, and then: one lineage, every step of it once, the losses and batches of a run
that nobody touched, no sealed step lost, and the run trains on.

Results are appended one line a run, so that a campaign that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from midstream.migrate.execution import migration_process
from midstream.migrate.model import WARM
from midstream_engine import records
from simulators.sshd import SSHD
from support.command_line import COMPILED, step_of
from support.migration_faults import KINDS, MODES, PATIENCE, Campaign, UnderWay, said
from support.migration_program import main

DEAR = pytest.mark.slow  # the suite has a whole move or two of each kind already
RESULTS = Path(__file__).parents[2] / "docs/campaigns/migration-faults.jsonl"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory):
    if not SSHD:
        pytest.skip("no sshd: apt-get install openssh-server")
    made = Campaign(tmp_path_factory.mktemp("moves"), Path(COMPILED))
    yield made
    made.close()


@pytest.mark.system
@pytest.mark.parametrize("number", [0, 4, *(pytest.param(number, marks=DEAR) for number in (8, 9, 13, 17))])
def test_whatever_happens_in_a_move_the_run_is_one_and_goes_on(campaign: Campaign, number: int):
    print(campaign.move(7, number))


@pytest.mark.system
def test_a_source_that_falls_silent_as_it_seals_is_waited_for(campaign: Campaign):
    """A partition: the seal is written, and nobody can say so. The target is not started on a guess."""

    def strike(move: UnderWay) -> str:
        campaign.server.stop()
        source, target = campaign.runs[move.source], campaign.runs[move.target]
        sealed = move.directory.plan().epoch
        source.wait(lambda run: run.fence.epoch == sealed and not run.alive, "the seal, which nobody sees", PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while not any("losing contact is not losing the run" in event.message for event in move.reader.events()):
            assert time.monotonic() < deadline, "nobody said that the source is silent"
            time.sleep(0.05)
        status = target.status()
        assert status is not None
        assert (status.state, status.epoch, target.rows()) == (records.WAITING, 0, [])
        campaign.server.start()
        return "the server of one, until the seal was written"

    row = campaign.go(WARM, said("order: save, seal"), strike, source="one")
    assert (row["outcome"], row["holder"]) == ("completed", "two")


@DEAR
@pytest.mark.system
def test_an_attempt_that_waits_may_die_before_it_is_needed(campaign: Campaign):
    row = campaign.go(WARM, said("; it waits"), lambda move: campaign.kill_engine(move, move.target))
    assert "waiting" in row["hit"]
    assert (row["outcome"], row["holder"]) == ("completed", row["to"])


@DEAR
@pytest.mark.system
def test_an_attempt_that_dies_as_it_takes_over_gives_the_run_back(campaign: Campaign):
    def strike(move: UnderWay) -> str:
        operator = int((move.directory.path / ".lock").read_text())
        os.kill(operator, signal.SIGSTOP)  # it has not seen an update yet
        try:
            return campaign.kill_engine(move, move.target)
        finally:
            os.kill(operator, signal.SIGCONT)

    row = campaign.go(WARM, said("order: restore"), strike)
    assert (row["outcome"], row["holder"]) == ("rolled back", row["from"])


@DEAR
@pytest.mark.system
@pytest.mark.parametrize("words", ["it rehearses on", "order: save, seal", "order: restore"])
def test_a_handover_whose_process_was_killed_is_taken_back(campaign: Campaign, words: str):
    row = campaign.go(WARM, said(words), campaign.kill_operator, goes_on=migration_process.rollback)
    assert (row["outcome"], row["holder"]) == ("rolled back", row["from"])


@pytest.mark.system
def test_a_run_that_crashes_on_its_target_goes_on_from_what_it_saved_there(campaign: Campaign):
    row = campaign.go(WARM, lambda events: False, lambda move: "nothing")
    assert (row["outcome"], row["holder"]) == ("completed", row["to"])
    run = campaign.runs[campaign.at]
    sealed = run.fence.sealed_step
    assert sealed is not None
    run.wait(lambda run: step_of(run.checkpoints()[-1]) > sealed, "a checkpoint of its own", PATIENCE)
    run.kill()
    run.wait(lambda run: not run.alive, "its end", PATIENCE)
    own, crashed = step_of(run.checkpoints()[-1]), run.attempt
    campaign.start_again()
    run.wait(lambda run: run.attempt > crashed and bool(run.rows()), "the next attempt", PATIENCE)
    assert run.rows()[0]["global_step"] == own > sealed


def test_the_results_that_are_committed_keep_the_promise():
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert len({(row["seed"], row["run"]) for row in rows}) == len(rows)
    for row in rows:
        assert (row["kind"] in KINDS, row["mode"] in MODES) == (True, True)
        assert row["outcome"] in ("completed", "rolled back", "moved on")
        assert row["largest_difference"] <= 1e-4


if __name__ == "__main__":
    sys.exit(main(Path(__file__), __doc__ or "", Campaign, RESULTS, 300))
