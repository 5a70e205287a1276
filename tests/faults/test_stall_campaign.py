"""Migrations in every mode with a stall of 30 to 120 seconds, many times.

    python tests/faults/test_stall_campaign.py [--runs 210] [--seed 1] [--jobs 4] [--results FILE]

The stall suspends the migration's process, an SSH server with its sessions, an engine, a supervisor, every process of
the source, a link, or a sleeping laptop. Other runs reboot the source before or after its first checkpoint, or kill the
operator together with the source's engine: see ``support/migrations/migration_stalls.py``. Afterwards the
migration is continued with the line that it printed, and the promises of ``test_migration_campaign.py`` are checked:
one lineage, every step of it once, the losses of an undisturbed run.

Results are appended, one line per run: an interrupted campaign continues where it was.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from midstream.errors import Exit
from midstream.migrate.modes.registry import COLD, WARM
from simulators.sshd import SSHD, sshd_version
from support.command_line import COMPILED
from support.migrations.migration_faults import MODES, said
from support.migrations.migration_program import main
from support.migrations.migration_stalls import KINDS, LONGEST, SHORTEST, StallCampaign
from support.paths import REPOSITORY

RESULTS = REPOSITORY / "docs/campaigns/stalls.jsonl"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StallCampaign]:
    if not SSHD:
        pytest.skip("no sshd: apt-get install openssh-server")
    made = StallCampaign(tmp_path_factory.mktemp("stalls"), Path(COMPILED))
    yield made
    made.close()


@pytest.mark.system
@pytest.mark.drawn
def test_frozen_source_link_at_seal_is_waited_for(campaign: StallCampaign) -> None:
    row = campaign.struck(WARM, "source link", said("command: save, seal"), 20.0)  # longer than four keep-alives
    assert (row["outcome"], row["exit_code"], row["continued"]) == ("completed", Exit.DONE, 0)


@pytest.mark.slow
@pytest.mark.system
def test_source_rebooted_before_checkpoint_is_not_running(
    campaign: StallCampaign,
) -> None:
    row = campaign.struck(COLD, "reboot before", lambda events: len(events) >= 1, 0.0)
    assert (row["outcome"], row["exit_code"]) == ("rolled back", Exit.NOT_RUNNING)
    assert row["launched"], "the line that was printed starts it"


class IdleCampaign(StallCampaign):
    """Both servers close a channel that is idle for five seconds."""

    sshd = "ChannelTimeout session:*=5s\n"


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sshd_version() < (9, 2), reason="ChannelTimeout came with OpenSSH 9.2")
@pytest.mark.parametrize("mode", MODES)
def test_migration_survives_idle_channel_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", "")  # restored after the test
    made = IdleCampaign(tmp_path / "idle", Path(COMPILED))
    try:
        row = made.go(mode, lambda _: False, lambda _: "nothing")
        assert (row["outcome"], row["exit_code"], row["continued"]) == ("completed", Exit.DONE, 0)
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("number", [0, 4, 8, 13, 17, 21, 32, 40])
def test_stall_campaign_sample(campaign: StallCampaign, number: int) -> None:
    print(campaign.move(7, number))


def test_stall_campaign_results() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert len({(row["seed"], row["run"]) for row in rows}) == len(rows)
    for row in rows:
        assert (row["kind"] in KINDS, row["mode"] in MODES) == (True, True)
        assert SHORTEST <= row["seconds"] <= LONGEST
        assert row["outcome"] in ("completed", "rolled back")
        assert row["largest_difference"] <= 1e-4


if __name__ == "__main__":
    sys.exit(main(Path(__file__), __doc__ or "", StallCampaign, RESULTS, 210))
