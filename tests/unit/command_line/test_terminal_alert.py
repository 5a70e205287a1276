"""Alerts of the terminal: bell, OSC 9 and OSC 777, through tmux, and turned off."""

from __future__ import annotations

import pytest

from midstream.migrate.journal import migration_state
from midstream.migrate.journal.migration_view import MigrationView
from midstream.terminal_alert import alert
from midstream.tui.state import notifications
from midstream.tui.state.screen_state import ScreenState
from support.tui import fleets, prepared_migrations


@pytest.mark.parametrize(
    ("environment", "written"),
    [
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "\a\x1b]9;nano: certified\a"),
        ({"TERM": "foot"}, "\a\x1b]777;notify;midstream;nano: certified\a"),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7600"}, "\a\x1b]777;notify;midstream;nano: certified\a"),
        (
            {"TERM": "xterm-kitty"},
            "\a\x1b]99;i=midstream:d=0;midstream\x1b\\\x1b]99;i=midstream:d=1:p=body;nano: certified\x1b\\",
        ),
        ({"TERM": "linux"}, "\a"),
        ({}, "\a"),
        ({"TERM": "foot", "MIDSTREAM_NOTIFY": "osc9"}, "\a\x1b]9;nano: certified\a"),
        ({"TERM": "foot", "MIDSTREAM_NOTIFY": "bell"}, "\a"),
        ({"TERM": "foot", "MIDSTREAM_NOTIFY": "Off"}, ""),
    ],
)
def test_alert_is_that_of_the_terminal(environment: dict[str, str], written: str) -> None:
    assert alert("nano: certified", environment) == written


@pytest.mark.parametrize(
    ("facts", "written"),
    [
        ("on xterm-256color iTerm2 3.5", "\a\x1bPtmux;\x1b\x1b]9;done\a\x1b\\"),
        ("all foot foot(1.16)", "\a\x1bPtmux;\x1b\x1b]777;notify;midstream;done\a\x1b\\"),
        ("1 xterm ", "\a\x1bPtmux;\x1b\x1b]9;done\a\x1b\\"),
        ("off foot foot(1.16)", "\a"),
        ("", "\a"),
    ],
)
def test_alert_passes_through_tmux_only_where_it_is_allowed(facts: str, written: str) -> None:
    assert alert("done", {"TMUX": "/tmp/tmux,1,0", "TERM": "tmux-256color"}, lambda: facts) == written


def test_alert_has_no_control_characters_of_its_text() -> None:
    written = alert("a\x1b]0;x\a;b\n", {"TERM": "foot"})
    assert written.count("\x1b") == 1
    assert written.count("\a") == 2
    assert written.count(";") == 3
    assert "\n" not in written


def test_alerts_are_for_certificates_failures_and_decisions() -> None:
    def alerts(before: MigrationView, after: MigrationView) -> list[str]:
        states = [ScreenState(fleets.small_fleet(), (view,), fleets.NOW) for view in (before, after)]
        return [item.text for item in notifications.between(*states) if item.alert]

    running = prepared_migrations.migration()
    assert alerts(running, prepared_migrations.certified()) == ["nano to large: certified"]
    assert alerts(running, prepared_migrations.migration(migration_state.INTERRUPTED)) == ["nano to large: interrupted"]
    assert alerts(running, prepared_migrations.migration(migration_state.ROLLED_BACK)) == ["nano to large: rolled back"]
    assert alerts(running, prepared_migrations.migration(phase="relaunch")) == []
