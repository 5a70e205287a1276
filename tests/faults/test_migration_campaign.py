"""Moves in every mode into which a fault comes at a random moment, many times over.

    python tests/faults/test_migration_campaign.py [--runs 300] [--seed 1] [--jobs 2] [--results FILE]

The fault kills the process that carries the move out, an engine on either side, or the SSH server; cuts a link; stops a
process for a while; or fills a disk: see ``lab/migration_faults.py``. Afterwards the move is continued with the line
that it printed, as often as it takes, and then: one lineage, every step of it once, the losses and batches of a run
that nobody touched, no sealed step lost, and the run trains on.

Results are appended one line a run, so that a campaign that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from lab.command_line import COMPILED, step_of
from lab.migration_faults import KINDS, MODES, PATIENCE, Broken, Campaign, UnderWay, said
from lab.sshd import SSHD
from midstream.errors import MidstreamError
from midstream.migrate import process
from midstream.migrate.model import HANDOVER
from midstream_engine import records

DEAR = pytest.mark.slow  # the suite has a whole move or two of each kind already
RESULTS = Path(__file__).parents[2] / "docs/campaigns/migration-faults.jsonl"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory):
    if not SSHD:
        pytest.skip("no sshd: apt-get install openssh-server")
    made = Campaign(tmp_path_factory.mktemp("moves"), Path(COMPILED))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _its_own_state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stays from test to test, and so do its moves."""
    if "campaign" in request.fixturenames:
        monkeypatch.setenv("MIDSTREAM_STATE", str(request.getfixturevalue("campaign").room / "state"))


@pytest.mark.system
@pytest.mark.parametrize("number", [0, 4, 8, 9, 13, 17])
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

    row = campaign.go(HANDOVER, said("order: save, seal"), strike, source="one")
    assert (row["outcome"], row["holder"]) == ("completed", "two")


@DEAR
@pytest.mark.system
def test_an_attempt_that_waits_may_die_before_it_is_needed(campaign: Campaign):
    row = campaign.go(HANDOVER, said("; it waits"), lambda move: campaign.kill_engine(move, move.target))
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

    row = campaign.go(HANDOVER, said("order: restore"), strike)
    assert (row["outcome"], row["holder"]) == ("rolled back", row["from"])


@DEAR
@pytest.mark.system
@pytest.mark.parametrize("words", ["it rehearses on", "order: save, seal", "order: restore"])
def test_a_handover_whose_process_was_killed_is_taken_back(campaign: Campaign, words: str):
    row = campaign.go(HANDOVER, said(words), campaign.kill_operator, goes_on=process.rollback)
    assert (row["outcome"], row["holder"]) == ("rolled back", row["from"])


@pytest.mark.system
def test_a_run_that_crashes_on_its_target_goes_on_from_what_it_saved_there(campaign: Campaign):
    row = campaign.go(HANDOVER, lambda events: False, lambda move: "nothing")
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


def main() -> int:
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    flags.add_argument("--runs", type=int, default=300)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--jobs", type=int, default=1, help="runs at a time, each between hosts of its own")
    flags.add_argument("--job", type=int, default=0, help="which of the jobs this process is")
    flags.add_argument("--seconds", type=float, default=0.0, help="stop after that long; 0: when all runs are done")
    flags.add_argument("--results", type=Path, default=RESULTS)
    flags.add_argument("--only", type=int, nargs="*", help="these runs alone")
    options = flags.parse_args()
    if options.jobs > 1 and not options.job:
        others = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--job", str(job)])
            for job in range(1, options.jobs)
        ]
    else:
        others = []
    code = part(options)
    return max([code, *(other.wait() for other in others)])


def part(options: argparse.Namespace) -> int:
    """The runs of one job, as many as the time allows. 1 where a promise was broken: the run is then told in a file
    beside the results, and what it left is kept."""
    began = time.monotonic()
    room = Path(tempfile.mkdtemp(prefix="midstream-moves-"))
    broken = options.results.with_suffix(".broken.jsonl")
    campaign = Campaign(room, Path(tempfile.gettempdir()) / "midstream-campaign-compiled")
    code, ended = 0, False
    try:
        for number in options.only or range(options.job, options.runs, options.jobs):
            if (options.seed, number) in done(options.results) | done(broken):
                continue
            if options.seconds and time.monotonic() - began > options.seconds:
                break
            try:
                row, file = campaign.move(options.seed, number), options.results
            except (Broken, MidstreamError, pytest.fail.Exception) as error:
                code, file = 1, broken
                row = {"seed": options.seed, "run": number, "error": str(error), "kept": str(campaign.give_up())}
            with file.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
            print(f"{time.monotonic() - began:6.1f}  {json.dumps(row)}", flush=True)
        ended = True
    finally:
        campaign.close()
        if ended and not code:
            shutil.rmtree(room)
    return code


def done(results: Path) -> set[tuple[int, int]]:
    """``(seed, run)`` of what was written down already."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {(row["seed"], row["run"]) for row in map(json.loads, lines)}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts, mounts and runs are ended
    sys.exit(main())
