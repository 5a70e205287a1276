"""Generated pages are current, and the tables that they are made from agree with the program."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from midstream.flags import parser
from midstream.fleet import fleet
from midstream.headless.show_costs import DEFAULT_PERIOD
from midstream.json_events.json_event import JsonEvent
from midstream.json_events.notifications import NOTIFICATION_FIELDS, NOTIFICATIONS
from midstream.json_events.result_event import MigrationResult, ResultEvent
from midstream.migrate import notify
from midstream.migrate.journal.request import Request
from midstream.operations import alerts
from midstream.tui import commands
from midstream.tui.screens.dialogs.form import FormScreen
from midstream.watch import symptoms
from midstream_core import records
from midstream_host import supervise
from pages import fleet_page, man_page
from pages.__main__ import pages
from pages.json_lines import kinds, problem_of
from pages.markdown import marked, replaced
from support.paths import REPOSITORY

APP = REPOSITORY / "app" / "midstream"


def test_generated_pages_are_current() -> None:
    stale = [str(path) for path, text in pages(REPOSITORY / "docs").items() if path.read_text() != text]
    assert stale == [], "make pages"


def test_generated_section_is_replaced_and_a_missing_one_refused() -> None:
    page = "a\n<!-- made: x -->\nold\n<!-- end -->\nb\n"
    assert replaced(page, "x", "new\n") == "a\n<!-- made: x -->\n\nnew\n\n<!-- end -->\nb\n"
    with pytest.raises(ValueError, match="no line"):
        replaced(page, "y", "new")


def test_flags_in_texts_become_code() -> None:
    assert marked("goes with --migrate PATH, or `--to`") == "goes with `--migrate PATH`, or `--to`"
    assert marked("in ~/.ssh/config or $MIDSTREAM_FLEET") == "in `~/.ssh/config` or `$MIDSTREAM_FLEET`"


# ---------------------------------------------------------------------------------------------------- fleet file


def test_each_field_of_the_fleet_file_is_described() -> None:
    kinds = [*fleet.HostConfig.get_known_choices().values(), *fleet.TargetConfig.get_known_choices().values()]
    assert {kind for kind in kinds if fleet_page.own_fields(kind)} <= set(fleet_page.FIELDS)
    for cls, described in fleet_page.FIELDS.items():
        assert [field.name for field in fleet_page.own_fields(cls)] == list(described), cls.__name__


def test_example_fleet_file_has_every_field() -> None:
    text = (REPOSITORY / "configs" / "fleet.example.yaml").read_text()
    fields = {name for described in fleet_page.FIELDS.values() for name in described} | {"on_event", "google"}
    assert [name for name in sorted(fields) if f"{name}:" not in text] == []


# ------------------------------------------------------------------------------------------------------ man page


def test_man_page_has_every_flag_and_renders_without_warnings() -> None:
    text = man_page.page()
    for name in parser().notes:
        assert f"\\fB{name.replace('-', chr(92) + '-')}\\fR" in text
    if not shutil.which("groff"):
        pytest.skip("no groff: apt-get install groff-base")
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-c", "-P-b", "-P-u", "-ww"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "EXIT STATUS" in done.stdout


# --------------------------------------------------------------------------------------------------- JSON events


# Lines that the parts of midstream below `json_events` write: a journal's, a guard's, and notifications.
WRITTEN_BELOW = ("phase", "stage", "command", "note", "guard", "migration")


def events_in_source() -> Iterator[tuple[str, str, set[str]]]:
    """Yield (where, event, fields) of each event that the source builds without its class."""
    for path in sorted(APP.rglob("*.py")):
        if path.relative_to(APP).parts[0] in ("watch", "hosts", "json_events"):
            continue  # lines of probes and programs on hosts
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Dict):
                values = {constant(key): value for key, value in zip(node.keys, node.values, strict=True)}
                if isinstance(name := constant(values.get("event")), str):
                    yield where, name, {key for key in values if key not in (None, "event")}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                fields = {word.arg for word in node.keywords if word.arg}
                if node.func.attr == "note":
                    yield where, "note", fields
                elif node.func.attr == "write" and node.args and constant(node.args[0]) in kinds():
                    yield where, constant(node.args[0]), fields


def constant(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def test_events_without_their_class_are_documented_lines() -> None:
    found = list(events_in_source())
    assert len(found) > 20
    undocumented = [
        f"{where}: {name} {sorted(fields)}"
        for where, name, fields in found
        if name not in (*WRITTEN_BELOW, "result") or not fields <= set(kinds()[name].fields) | _notification(name)
    ]
    assert undocumented == [], "build it by its class in midstream/json_events/"


def _notification(name: str) -> set[str]:
    return set(NOTIFICATION_FIELDS) if name in ("migration", "guard") else set()


def test_each_event_is_built_somewhere() -> None:
    """An event of `--json` whose class nothing calls would be documented and never printed."""
    called = {
        node.func.id
        for path in APP.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    classes = [each for each in subclasses(JsonEvent) if each.event not in WRITTEN_BELOW]
    assert len(classes) > 50
    assert {each.__name__ for each in classes if each not in (ResultEvent, MigrationResult)} <= called


def subclasses(cls: type[JsonEvent]) -> Iterator[type[JsonEvent]]:
    """Yield the classes of all events."""
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def test_notifications_are_those_that_are_sent() -> None:
    assert set(NOTIFICATIONS) == {
        notify.FINISHED, notify.FAILED, notify.NEEDS_YOU, notify.LOST, symptoms.STALLED, symptoms.DIVERGING,
        symptoms.NOT_A_NUMBER, notify.RESTARTED, alerts.IDLE,
    }  # fmt: skip


def test_modes_of_events_are_modes() -> None:
    assert {mode for kind in kinds().values() for mode in kind.of} <= set(parser().modes)


def test_an_unknown_event_or_field_is_a_problem() -> None:
    assert problem_of({"event": "log", "run": "a", "attempt": 1, "line": ""}) == ""
    assert problem_of({"event": "metrics", "run": "a", "train/loss": 1.0}) == ""
    assert "colour" in problem_of({"event": "log", "colour": 1})
    assert "nosuch" in problem_of({"event": "nosuch"})


# ------------------------------------------------------------------------------- what pages say in their own words


def test_keys_in_the_guide_of_the_terminal_ui_exist() -> None:
    known = {commands.key_name(key) for command in commands.COMMANDS for key in command.keys}
    known |= {binding[0] for binding in FormScreen.BINDINGS if isinstance(binding, tuple)} | {"tab"}
    page = "".join((REPOSITORY / f"docs/how-to/{name}.md").read_text() for name in ("tui", "curves-and-logs"))
    codes = [code for line in page.splitlines() for code in re.findall(r"`([^`]+)`", line)]
    key = re.compile(r"[A-Za-z0-9\[\]+/?:-]|ctrl\+\w|esc|enter|space|tab")
    named = [code for code in codes if key.fullmatch(code)]
    assert len(named) > 20
    assert [code for code in named if code not in known] == []


def test_defaults_in_words_are_those_of_the_program() -> None:
    flags, request = parser(), Request(run_id="a", target="b")
    words = {name: flags.default_of(name) for name in ("--since", "--mode", "--checkpoint")}
    assert words == {"--since": DEFAULT_PERIOD, "--mode": request.mode, "--checkpoint": request.checkpoint}
    numbers = {name: flags.actions[name].default for name in ("--certify-steps", "--healthy-steps")}
    assert numbers == {"--certify-steps": request.certify_steps, "--healthy-steps": request.healthy_steps}
    assert fleet_page.FIELDS[fleet.HostConfig]["stall_timeout"][1] == f"`{supervise.STALL_TIMEOUT:g}`"


def test_exit_codes_of_the_engine_are_those_of_the_records() -> None:
    section = (REPOSITORY / "docs/reference/cli.md").read_text().split("## The engine")[1].split("\n## ")[0]
    listed = {int(code) for code in re.findall(r"^\| `(\d+)`", section, re.MULTILINE)}
    defined = {getattr(records, name) for name in records._MODULE_OF if name.startswith("EXIT_")}
    assert listed == defined
