"""Migrations that lose the answer of a call with an effect, or are killed before they journal the effect.

What such a call made is present on a host and absent from the journal: a standby, an attempt, a copy, a pin, a lock, a
command, a seal. The migration has to find it, record it, and end as if the answer had come.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.migrate.journal.facts import facts_of
from midstream.migrate.journal.journal import read_events
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.modes.registry import COLD, LIVE, WARM
from simulators.sshd import Lab
from support.command_line import Run, midstream
from support.migrations.lost_answers import KILL, LOSE, LostAnswer, lost_answer
from support.migrations.real_migrations import assert_one_lineage, launched, newest_migration

PATIENCE = 240.0  # seconds: a tenth of the longest wait for an attempt
CONTINUED = 3  # times that a migration is continued at most
# Calls with an effect that each migration of a mode makes; it makes others too.
BOTH = ("runs.ownership.acquire", "runs.ownership.send_command", "runs.run_state.claim_attempt", "runs.attempts.start")
WITH_STANDBY = (*BOTH, "runs.checkpoint_pins.pin", "runs.standby_state.put_config", "runs.standby_state.take_over")
EFFECTS = {WARM: WITH_STANDBY, LIVE: WITH_STANDBY, COLD: (*BOTH, "runs.ownership.put_fence")}


class Pair:
    """Hosts "one" and "two", each behind a real SSH server, and a run that migrates between them."""

    def __init__(self, lab: Lab, runs: Callable[..., Run]) -> None:
        one, two = lab.host("one", devices=1), lab.host("two", devices=1)
        self.fleet = lab.fleet_file(one=one.config, two=two.config)
        self.runs = {"one": runs(one.root, "r"), "two": runs(two.root, "r")}
        self.at = "one"
        launched(self.fleet, self.runs["one"], "one", "--trainer.checkpointer.keep", "[{every: 5}]")

    def migrate(self, mode: str, fault: LostAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
        """Migrate the run to the other host, continue to the end, and check all promises."""
        source, to = self.runs[self.at], "two" if self.at == "one" else "one"
        target, before, epoch = self.runs[to], source.attempt, source.fence.epoch
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", fault.environment)
            moved = midstream(
                "--fleet", self.fleet, "--migrate", "r", "--to", to, "--mode", mode,
                "--healthy-steps", "2", "--yes", "--json", timeout=PATIENCE,
            )  # fmt: skip
            directory = newest_migration()
            for _ in range(CONTINUED):
                if not directory.view().open:
                    break
                assert moved.code == 4, (moved.stdout, moved.stderr)
                moved = midstream("--continue", directory.migration, "--json", timeout=PATIENCE)
        assert moved.code == 0, (fault.struck, moved.stdout, moved.stderr)
        self._check(mode, directory, target, before)
        assert not source.running
        assert source.handed_over == target.handed_over
        assert (target.fence.epoch, target.fence.owner) == (epoch + 1, to)
        self.at = to

    def _check(self, mode: str, directory: MigrationDirectory, target: Run, before: int) -> None:
        """Check that one attempt was started for the run, and that the journal has what was adopted."""
        assert directory.view().state == "completed"
        assert json.loads(directory.certificate_file.read_text())["valid"]
        assert target.running
        assert_one_lineage(target)
        events = read_events(directory.journal_file)
        assert not [event.message for event in events if event.event == "phase" and event.state == "failed"]
        facts, attempts = facts_of(events), Path(target.paths.attempts)
        started = [int(name) for name in os.listdir(attempts) if (attempts / name / "launch.json").exists()]
        assert [number for number in started if number > before] == [facts.target_attempt]
        assert facts.stop_sequence is not None
        assert facts.stop_confirmed_at is not None
        if mode == COLD:
            return
        assert facts.standby_attempt == facts.target_attempt
        commands = [event.message for event in events if event.event == "command"]
        sent = [line for line in commands if line.startswith(("command: restore", "command: promote"))]
        assert sent, f"no line has the command to the standby: {commands}"
        assert all(line.endswith(f"(attempt {facts.standby_attempt})") for line in sent)


@pytest.fixture
def pair(lab: Lab, runs: Callable[..., Run]) -> Pair:
    return Pair(lab, runs)


@pytest.mark.drawn
@pytest.mark.timeout(1500)  # as long as its migrations may take
@pytest.mark.parametrize("how", [KILL, LOSE])
def test_started_standby_is_adopted(how: str, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = lost_answer(tmp_path / "fault", how, "runs.attempts.start")
    pair.migrate(WARM, fault, monkeypatch)
    assert fault.struck == "runs.attempts.start"


@pytest.mark.drawn
@pytest.mark.timeout(1500)  # as long as its migrations may take
def test_drawn_answer_is_lost(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(os.environ["MIDSTREAM_TEST_SEED"])
    mode, how = rng.choice(list(EFFECTS)), rng.choice((KILL, LOSE))
    function = rng.choice(EFFECTS[mode])
    print(f"{mode}: {how} the answer of {function}")
    fault = lost_answer(tmp_path / "fault", how, function)
    pair.migrate(mode, fault, monkeypatch)
    assert fault.struck == function


@pytest.mark.slow
@pytest.mark.timeout(7200)  # some 25 migrations
@pytest.mark.parametrize("how", [KILL, LOSE])
@pytest.mark.parametrize("mode", [WARM, LIVE, COLD])
def test_each_answer_is_lost(mode: str, how: str, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call with an effect in turn, until a migration makes no other one."""
    struck: list[str] = []
    while True:
        fault = lost_answer(tmp_path / f"fault-{len(struck)}", how, before=struck)
        pair.migrate(mode, fault, monkeypatch)
        if not fault.call:
            break
        struck.append(fault.call)
        print(f"{mode}: {how} the answer of {fault.call}", flush=True)
    assert set(EFFECTS[mode]) <= {call.partition(" ")[0] for call in struck}
