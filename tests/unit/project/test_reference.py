"""Generated pages are current, and the tables that they are made from agree with the program."""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream import json_events
from midstream.check.check_result import Check
from midstream.costs import cost_report
from midstream.flags import parser
from midstream.fleet import fleet
from midstream.headless.fleet.show_costs import DEFAULT_PERIOD
from midstream.json_events import BY_NAME, EVENTS
from midstream.json_events.notifications import NOTIFICATION_FIELDS, NOTIFICATIONS
from midstream.migrate import notify
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.repair.repair_proposal import RepairProposal
from midstream.providers.provider import Slice
from midstream.tui import commands
from midstream.tui.screens.dialogs.form import FormScreen
from midstream.watch import symptoms
from midstream.watch.resolved_config import Change
from midstream.watch.snapshot import CheckpointView, HostView
from midstream_core import records
from midstream_host import supervise
from midstream_host.runs.leftovers import Leftover
from pages import fleet_page, man_page
from pages.__main__ import pages
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


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Yield the modules that print events; those of hosts and feeds have events of their own."""
    for path in sorted(APP.rglob("*.py")):
        if path.relative_to(APP).parts[0] not in ("remote", "watch", "reference", "json_events"):
            yield path, ast.parse(path.read_text())


def constant(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def events_in_source() -> Iterator[tuple[str, str, set[str]]]:
    """Yield (where, event, fields) of each event that the source builds: dictionaries, and lines of a journal."""
    for path, tree in modules():
        for node in ast.walk(tree):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Dict):
                values = {constant(key): value for key, value in zip(node.keys, node.values, strict=True)}
                if isinstance(name := constant(values.get("event")), str):
                    yield where, name, {key for key in values if key not in (None, "event")}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                fields = {word.arg for word in node.keywords if word.arg}
                if node.func.attr == "note":
                    yield where, "note", fields
                elif node.func.attr == "write" and node.args and constant(node.args[0]) in BY_NAME:
                    yield where, constant(node.args[0]), fields


def test_each_event_in_the_source_is_documented() -> None:
    found = list(events_in_source())
    assert len(found) > 40
    undocumented = [
        f"{where}: {name} {sorted(fields)}"
        for where, name, fields in found
        if name not in BY_NAME or not fields <= set(BY_NAME[name].fields) | _notification(name)
    ]
    assert undocumented == [], "add them to midstream/json_events/, then: make pages"


def _notification(name: str) -> set[str]:
    return set(NOTIFICATION_FIELDS) if name in ("migration", "guard") else set()


def names_of(cls: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


# Events whose fields are those of a dataclass, besides fields in the source.
SPREAD = {
    "host": names_of(HostView),
    "check": names_of(Check),
    "checkpoint": names_of(CheckpointView),
    "leftover": names_of(Leftover) | names_of(Slice) - {"metadata"},
    "repair": names_of(RepairProposal),
    "change": names_of(Change),
    "slice": names_of(Slice) - {"metadata"},
    "plan": {*names_of(Plan), "format"},
    "host_cost": set(cost_report.host_json(cost_report.HostCost("a", None, 0, None, 0.0, 0.0, 0.0, 0.0))),
}


@pytest.mark.parametrize("name", SPREAD)
def test_fields_of_events_are_those_of_their_classes(name: str) -> None:
    documented = set(BY_NAME[name].fields) | (set(BY_NAME["slice"].fields) if name == "leftover" else set())
    assert SPREAD[name] <= documented


def test_no_event_or_field_is_documented_that_the_source_lacks() -> None:
    words = {
        constant(node) for _, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.expr)
    }
    calls = [node for _, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    words |= {word.arg for call in calls for word in call.keywords}
    words |= {name for fields in SPREAD.values() for name in fields}
    words |= {f"{name}_hours" for name in cost_report.TIMES} | names_of(cost_report.MigrationCost)
    stale = [f"{event.name}.{name}" for event in EVENTS for name in event.fields if name not in words]
    assert stale == []


def test_notifications_are_those_that_are_sent() -> None:
    assert set(NOTIFICATIONS) == {
        notify.FINISHED, notify.FAILED, notify.NEEDS_YOU, notify.LOST, symptoms.STALLED, symptoms.DIVERGING,
        symptoms.NOT_A_NUMBER, notify.RESTARTED,
    }  # fmt: skip


def test_modes_of_events_are_modes() -> None:
    assert {mode for event in EVENTS for mode in event.of} <= set(parser().modes)


def test_an_unknown_event_or_field_is_a_problem() -> None:
    assert json_events.problem_of({"event": "log", "run": "a", "attempt": 1, "line": ""}) == ""
    assert json_events.problem_of({"event": "metrics", "run": "a", "train/loss": 1.0}) == ""
    assert "colour" in json_events.problem_of({"event": "log", "colour": 1})
    assert "nosuch" in json_events.problem_of({"event": "nosuch"})


# ------------------------------------------------------------------------------- what pages say in their own words


def test_keys_in_the_guide_of_the_terminal_ui_exist() -> None:
    known = {commands.key_name(key) for command in commands.COMMANDS for key in command.keys}
    known |= {binding[0] for binding in FormScreen.BINDINGS if isinstance(binding, tuple)} | {"tab"}
    page = (REPOSITORY / "docs/how-to/tui.md").read_text()
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
    defined = {getattr(records, name) for name in records.__all__ if name.startswith("EXIT_")}
    assert listed == defined
