"""Moves in every mode in which something stands still for half a minute to two, many times over.

    python tests/faults/test_stall_campaign.py [--runs 210] [--seed 1] [--jobs 4] [--results FILE]

What stands still: the process that carries the move out, an SSH server with its sessions, an engine, a supervisor, a
source as a whole, a link that forwards nothing and tells nobody, a laptop that sleeps. Beside them a source that is
rebooted before or after its first checkpoint, and an operator that is killed together with the source's engine: see
``support/migration_stalls.py``. Afterwards the move is continued with the line that it printed, and then as in
``test_migration_campaign.py``: one lineage, every step of it once, the losses of a run that nobody touched.

Results are appended one line a run, so that a campaign that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from midstream.errors import Exit
from midstream.migrate.model import COLD, WARM
from simulators.sshd import SSHD, sshd_version
from support.command_line import COMPILED
from support.migration_faults import MODES, said
from support.migration_program import main
from support.migration_stalls import KINDS, LONGEST, SHORTEST, StallCampaign

RESULTS = Path(__file__).parents[2] / "docs/campaigns/stalls.jsonl"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory):
    if not SSHD:
        pytest.skip("no sshd: apt-get install openssh-server")
    made = StallCampaign(tmp_path_factory.mktemp("stalls"), Path(COMPILED))
    yield made
    made.close()


@pytest.mark.system
def test_a_source_link_that_forwards_nothing_as_the_run_is_sealed_is_waited_for(campaign: StallCampaign):
    row = campaign.struck(WARM, "source link", said("order: save, seal"), 20.0)  # longer than four keep-alives
    assert (row["outcome"], row["exit_code"], row["continued"]) == ("completed", Exit.DONE, 0)


@pytest.mark.slow
@pytest.mark.system
def test_a_source_that_is_rebooted_before_its_first_checkpoint_is_not_reported_as_running(campaign: StallCampaign):
    row = campaign.struck(COLD, "reboot before", lambda events: len(events) >= 1, 0.0)
    assert (row["outcome"], row["exit_code"]) == ("rolled back", Exit.NOT_RUNNING)
    assert row["launched"], "the line that was printed starts it"


class IdleCampaign(StallCampaign):
    """Both servers close a channel on which nothing moves for five seconds."""

    sshd = "ChannelTimeout session:*=5s\n"


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sshd_version() < (9, 2), reason="ChannelTimeout came with OpenSSH 9.2")
@pytest.mark.parametrize("mode", MODES)
def test_servers_that_close_idle_channels_are_moved_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str):
    monkeypatch.setenv("MIDSTREAM_STATE", "")  # and as it was, afterwards
    made = IdleCampaign(tmp_path / "idle", Path(COMPILED))
    try:
        row = made.go(mode, lambda events: False, lambda move: "nothing")
        assert (row["outcome"], row["exit_code"], row["continued"]) == ("completed", Exit.DONE, 0)
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("number", [0, 4, 8, 13, 17, 21, 32, 40])
def test_a_stall_is_not_a_failure(campaign: StallCampaign, number: int):
    print(campaign.move(7, number))


def test_the_results_that_are_committed_keep_the_promise():
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert len({(row["seed"], row["run"]) for row in rows}) == len(rows)
    for row in rows:
        assert (row["kind"] in KINDS, row["mode"] in MODES) == (True, True)
        assert SHORTEST <= row["seconds"] <= LONGEST
        assert row["outcome"] in ("completed", "rolled back")
        assert row["largest_difference"] <= 1e-4


if __name__ == "__main__":
    sys.exit(main(Path(__file__), __doc__ or "", StallCampaign, RESULTS, 210))
