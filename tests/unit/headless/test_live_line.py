"""The redrawn line of a migration at a terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from midstream.headless.live_line import LiveLine
from midstream.migrate import stages
from midstream.migrate.journal import migration_directory
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.journal import Journal
from midstream.migrate.steps.stage_clock import StageClock
from midstream.output import Output
from support.migrations.sample_plan import PLAN


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def last_line(terminal: Terminal) -> str:
    """Return the text of the line that was drawn last, without colours and movements."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    return [line for line in re.split(r"[\r\n]", plain) if line.strip()][-1]


def test_line_has_share_time_left_stage_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    estimate = replace(PLAN.estimate, duration={stages.INSTALL: 30.0, stages.COMPILE: 30.0, stages.DOWNTIME: 30.0})
    directory = migration_directory.create(replace(PLAN, estimate=estimate), "hosts: {}\n")
    journal, terminal = Journal(directory.journal_file), Terminal()
    with directory.locked(), LiveLine(directory, terminal) as line:
        clock = StageClock(directory.plan(), journal)
        clock.begin(stages.INSTALL, "prepare")
        directory.report_step("one", 1204)
        line._live.refresh()
        assert re.search(r" 0% install · about (90s|1m\d\d) left · one at step 1,204", last_line(terminal))
        detail = {"bytes_done": 5_000_000, "bytes_total": 20_000_000, "bytes_per_second": 1e6}
        line.show(Event("phase", 0.0, "prepare", "progress", "", detail))
        line._live.refresh()
        assert "5.0 MB of 20.0 MB, 1.0 MB/s" in last_line(terminal)
        line.show(Event("note", 0.0, "prepare", "", "the source is sealed at step 7"))
        line.show(Event("command", 0.0, "prepare", "", "a command of the details"))
        line.show(Event("phase", 0.0, "cutover", "failed", "no space left"))
    journal.close()
    text = terminal.getvalue()
    assert "the source is sealed at step 7" in text
    assert "cutover: failed: no space left" in text
    assert "a command of the details" not in text
    assert text.endswith("\x1b[2K"), "the line is removed at the end"


@pytest.mark.parametrize(
    ("kind", "terminal", "as_json"), [("dumb", True, False), ("xterm", False, False), ("xterm", True, True)]
)
def test_nothing_is_redrawn_elsewhere(
    kind: str, terminal: bool, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", kind)
    assert Output(as_json, io.StringIO(), Terminal() if terminal else io.StringIO()).live_terminal is None


def test_terminal_gets_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    assert Output(False, io.StringIO(), terminal).live_terminal is terminal
