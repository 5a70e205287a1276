"""Names, tags and notes of runs from the terminal UI, undo of the last edit, and own keys in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.cli import main
from midstream.errors import MidstreamError, UsageError
from midstream.listing import fleet_fields, labels
from midstream.listing.filter_parser import parse
from midstream.listing.fleet_facts import FleetFacts
from midstream.listing.fleet_moment import FleetMoment
from midstream.listing.labels import Label
from midstream.tui import commands, own_keys
from midstream.tui.screens.dialogs.form import FormScreen
from midstream.tui.screens.wizard import WizardScreen
from support.tui import fleets
from support.tui.fleets import NOW
from support.tui.screens import app_over, line_with, screen_text, settle


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def _table_keys() -> Iterator[None]:
    """Own keys end with the test."""
    yield
    commands.OWN_KEYS.clear()


@pytest.mark.long
async def test_run_is_named_tagged_and_annotated_and_the_edit_undone() -> None:
    app = app_over(fleets.small_fleet(fleets.run("alpha"), fleets.run("beta")))
    async with app.run_test(size=(200, 30), notifications=True) as pilot:
        await settle(pilot)
        assert "NAME" not in screen_text(app), "an empty column is not shown"
        await pilot.press("B")
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        await pilot.press(*"baseline", "down", *"lr,", *"wide", "down", *"see issue 12", "enter")
        await settle(pilot, lambda: "baseline" in line_with(screen_text(app), "alpha", "training"))
        line = line_with(screen_text(app), "alpha", "training")
        for words in ("lr, wide", "see issue 12"):
            assert words in line
        await pilot.press("slash", *"tags:wide", "enter")
        await settle(pilot, lambda: " beta " not in screen_text(app).split("beta")[0] and "1 of 2" in screen_text(app))
        await pilot.press("escape", "U")
        await settle(pilot, lambda: "baseline" not in screen_text(app))
        await pilot.press("U")
        await settle(pilot, lambda: "no edit" in screen_text(app))


def test_labels_are_stored_and_edits_undone_one_by_one(state: Path) -> None:
    labels.edit("alpha", Label("one"))
    labels.edit("alpha", Label("two", ("x",), "note"))
    labels.edit("beta", Label("other"))
    assert labels.load().of("alpha") == Label("two", ("x",), "note")
    assert labels.undo()[1] == "beta"
    assert labels.undo()[0].of("alpha") == Label("one")
    assert labels.undo()[0].labels == {}
    with pytest.raises(UsageError, match="no edit"):
        labels.undo()


def test_damaged_labels_are_not_replaced(state: Path) -> None:
    file = state / "labels.json"
    for text in ("{", '{"labels": {"a": {"tags": 1}}}', '{"edits": [1]}'):
        file.write_text(text)
        with pytest.raises(MidstreamError, match="cannot be read"):
            labels.edit("alpha", Label("one"))
        assert file.read_text() == text


@pytest.mark.parametrize(
    ("name", "tags", "note", "wrong"),
    [
        ("x" * 81, "", "", "the name has 81"),
        ("", " ".join(map(str, range(21))), "", "at most 20 tags"),
        ("", "", "n" * 501, "note"),
    ],
)
def test_long_labels_are_refused(name: str, tags: str, note: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        Label.read(name, tags, note)


def test_own_tags_are_found_beside_those_of_the_tracker() -> None:
    run = fleets.labelled(fleets.run("alpha"), 1.0, "", "lr")
    facts = FleetFacts(labels.Labels().edited("alpha", Label("base", ("mine",))))
    moment = FleetMoment(fleets.small_fleet(run), (), NOW, facts)
    for text in ("tags=lr", "tags=mine", "name:base", "mine"):
        assert parse(text, fleet_fields.RUNS, NOW).holds(run, moment), text


@pytest.mark.long
async def test_own_key_runs_its_command_and_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("fleet.migrate: K\nfleet.filter: [F, ctrl+f]\n")
    app = app_over(fleets.small_fleet(fleets.run()))
    own_keys.use(app, own_keys.read(file))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        assert "K Migrate" in screen_text(app)
        await pilot.press("m")
        await settle(pilot)
        assert not isinstance(app.screen, WizardScreen), "the key of the table is free"
        await pilot.press("F", *"nano", "enter")
        await settle(pilot, lambda: "nano" in app.saved_layout.list_of("runs").filter)
        await pilot.press("K")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("fleet.migrat: x\n", "no command 'fleet.migrat'"),
        ("fleet.migrate: S\n", "fleet.migrate and fleet.stop have both S"),
        ("fleet.migrate: {a: 1}\n", "needs a key"),
        ("- 1\n", "no lines of COMMAND: KEY"),
        ("a: [\n", "cannot be read"),
    ],
)
def test_wrong_key_files_are_refused_in_one_line(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=wrong):
        own_keys.read(file)


def test_missing_key_file_changes_nothing(tmp_path: Path) -> None:
    assert own_keys.read(tmp_path / "none.yaml") == {}


def test_each_command_has_an_id_of_its_own() -> None:
    ids = [command.id for command in commands.COMMANDS]
    assert len(ids) == len(set(ids)), sorted(name for name in ids if ids.count(name) > 1)


def test_no_key_has_two_commands_on_one_screen() -> None:
    for scope in commands.SCOPES:
        taken: dict[str, str] = {}
        for command in commands.of(scope):
            for key in command.keys:
                assert taken.setdefault(key, command.name) == command.name, (scope, key)


def test_flag_sets_a_label_as_the_key_does(
    state: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts: {{here: {{type: local, root: {tmp_path / 'root'}}}}}\n")
    mode = ["--fleet", str(fleet), "--label"]
    labels.edit("r", Label("first", ("a",), "n"))
    assert main([*mode, "r", "--tags", "b,c", "--note", ""]) == 0
    assert capfd.readouterr().out == "r: name first; tags b, c\n"
    assert labels.load().of("r") == Label("first", ("b", "c"))
    monkeypatch.chdir(tmp_path)
    assert main(["--fleet", "none.yaml", "--label", "--undo", "--json"]) == 0, "an edit is of this machine"
    assert json.loads(capfd.readouterr().out)["note"] == "n"
    for words, message in (
        (["nonesuch"], "no run 'nonesuch'"),
        ([], "--label needs RUN"),
        (["r", "--undo"], "--undo takes back the last edit"),
        (["r", "--name", "x" * 81], "the name has 81 characters"),
    ):
        assert main([*mode, *words]) == 2
        assert message in capfd.readouterr().err
    assert labels.load().of("r") == Label("first", ("a",), "n")
