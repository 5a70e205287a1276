"""`Y` shows a selection as YAML or JSON, `y` copies."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from midstream.listing import documents
from midstream.tui import tmux_buffer
from midstream.tui.screens.dialogs.document import DocumentScreen
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle


@pytest.mark.long
async def test_document_shows_and_copies_what_is_selected() -> None:
    app = app_over(fleets.big_fleet(), PreparedActions(prepared_migrations.certified()))
    copied: list[str] = []
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        assert app._driver is not None
        write = app._driver.write
        app._driver.write = lambda data: (copied.append(data), write(data))[1]
        await pilot.press("y")
        await settle(pilot)
        assert copied == [f"\x1b]52;c;{base64.b64encode(b'gpt2-medium').decode()}\a"]
        await pilot.press("Y")
        await settle(pilot)
        assert isinstance(app.screen, DocumentScreen)
        text = screen_text(app)
        assert "run gpt2-medium: YAML" in text
        assert "state: training" in text
        await pilot.press("y")
        await settle(pilot)
        value = yaml.safe_load(base64.b64decode(copied[-1][7:-1]))
        assert (value["run"], value["status"]["tags"]) == ("gpt2-medium", [])
        await pilot.press("t", "y")
        await settle(pilot)
        assert '"state": "training"' in screen_text(app)
        assert json.loads(base64.b64decode(copied[-1][7:-1])) == value
        await pilot.press("slash", *"root_digest", "enter")
        await settle(pilot)
        assert '"root_digest":' in screen_text(app)
        await pilot.press("escape", "escape", "1", "Y")
        await settle(pilot)
        assert "host small: YAML" in screen_text(app)
        await pilot.press("escape", "3", "Y")
        await settle(pilot)
        assert "certified: true" in screen_text(app)
        await pilot.press("q", "2", "enter", "3", "Y")
        await settle(pilot)
        assert "checkpoint step-" in screen_text(app)


def test_documents_of_hostile_values_are_text() -> None:
    value = {"name": "a\x1b[2J\nb", "nan": float("nan"), "list": ["é", None, True]}
    for form in documents.FORMATS:
        text = documents.text_of(value, form)
        assert "\x1b" not in text
    assert yaml.safe_load(documents.text_of(value, documents.YAML))["name"] == value["name"]
    assert json.loads(documents.text_of(value, documents.JSON))["list"] == value["list"]


@pytest.mark.system
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing")
def test_copy_reaches_the_buffer_of_tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    subprocess.run([*tmux, "new-session", "-d", "sleep 600"], check=True, timeout=60)
    try:
        monkeypatch.setenv("TMUX", f"{tmp_path / 'tmux'},1,0")
        tmux_buffer.copy("first\nsecond é\n")
        shown = subprocess.run([*tmux, "show-buffer"], check=True, timeout=60, capture_output=True)
        assert shown.stdout.decode() == "first\nsecond é\n"
        monkeypatch.setenv("TMUX", str(tmp_path / "absent"))
        tmux_buffer.copy("nothing happens without a server")
    finally:
        subprocess.run([*tmux, "kill-server"], timeout=60, check=False)
