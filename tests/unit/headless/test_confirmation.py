"""`--migrate` at a terminal shows the plan and asks; without one, what costs or gives up something needs `--yes`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

import pytest

from midstream.errors import Exit, MidstreamError
from midstream.flags import parse
from midstream.headless.confirmation import can_ask, confirmed
from midstream.headless.print_plan import require_consent
from midstream.migrate.journal.plan import Plan
from midstream.migrate.modes.registry import LIVE
from midstream.output import Output
from support.migrations.sample_plan import PLAN, changed

LOSSES = changed(PLAN, steps_lost=7, checkpoint="step-2-a001", checkpoint_step=2)
COSTS = changed(PLAN, consent=("run.yaml of a sets trainer.log_dir",), mode=LIVE)


@dataclass
class Terminal:
    """A pseudo-terminal that becomes stdin and stderr of this process."""

    user: int  # the descriptor at which the user types and reads
    streams: tuple[TextIO, TextIO]
    monkeypatch: pytest.MonkeyPatch

    def attach(self, typed: str = "") -> None:
        """Make it this process's terminal, with what the user types. In a test: pytest replaces streams before."""
        self.monkeypatch.setattr(sys, "stdin", self.streams[0])
        self.monkeypatch.setattr(sys, "stderr", self.streams[1])
        os.write(self.user, typed.encode())

    def shown(self, *, until: str) -> str:
        """Return what the terminal showed: the echo of what is typed and the messages, until ``until`` is there."""
        text = ""
        while until not in text:
            text += os.read(self.user, 1 << 16).decode()
        return text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    user, program = os.openpty()
    with os.fdopen(os.dup(program)) as stdin, os.fdopen(program, "w") as stderr:
        yield Terminal(user, (stdin, stderr), monkeypatch)
        monkeypatch.undo()
    os.close(user)


def consent(plan: Plan, *flags: str, as_json: bool = False, confirmed_before: bool = False) -> str:
    """Return the messages of the confirmation."""
    options, _ = parse(["--migrate", "r", "--to", "b", *flags])
    messages = io.StringIO()
    require_consent(plan, options, Output(as_json, io.StringIO(), messages), confirmed_before=confirmed_before)
    return messages.getvalue()


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_terminal_gets_a_question_before_a_migration(terminal: Terminal, answer: str) -> None:
    terminal.attach(answer)
    assert consent(PLAN) == ""
    assert "Migrate r from a to b? [y/N] " in terminal.shown(until="[y/N] ")


@pytest.mark.parametrize("answer", ["\n", "n\n", "\x04"])
def test_migration_that_is_not_confirmed_changes_nothing(terminal: Terminal, answer: str) -> None:
    terminal.attach(answer)
    with pytest.raises(MidstreamError, match="not confirmed: nothing was changed") as raised:
        consent(PLAN)
    assert raised.value.code == Exit.REFUSED


def test_question_names_what_is_given_up(terminal: Terminal) -> None:
    terminal.attach("y\n")
    assert consent(LOSSES) == "midstream: 7 steps after step-2-a001 would be discarded\n"
    terminal.attach("y\n")
    assert consent(COSTS, confirmed_before=True) == "midstream: run.yaml of a sets trainer.log_dir\n"
    assert consent(PLAN, confirmed_before=True) == "", "an import was confirmed with its migration"


def test_yes_skips_the_question(terminal: Terminal) -> None:
    terminal.attach()
    assert consent(LOSSES, "--yes") == ""


def test_without_terminal_a_loss_needs_yes_and_the_rest_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert consent(PLAN) == ""
    with pytest.raises(MidstreamError, match="7 steps after step-2-a001 would be discarded") as loss:
        consent(LOSSES)
    assert (loss.value.code, loss.value.hint) == (
        Exit.REFUSED, "--yes accepts it; --checkpoint now discards none"
    )  # fmt: skip
    with pytest.raises(MidstreamError, match=r"trainer\.log_dir") as cost:
        consent(COSTS)
    assert cost.value.hint == "--yes accepts it; --mode warm copies instead"


def test_programs_get_no_question(terminal: Terminal) -> None:
    """With --json the output is a program's, also on a terminal."""
    terminal.attach()
    output = Output(True, io.StringIO(), io.StringIO())
    assert not can_ask(output)
    assert not confirmed("Really?", output)
    assert consent(PLAN, as_json=True) == ""
    with pytest.raises(MidstreamError, match="would be discarded"):
        consent(LOSSES, as_json=True)


def test_lost_source_is_not_offered_another_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    lost = changed(LOSSES, source_state="lost")
    with pytest.raises(MidstreamError, match="7 steps after step-2-a001 would be discarded") as loss:
        consent(lost)
    assert loss.value.hint == "--yes accepts it"
