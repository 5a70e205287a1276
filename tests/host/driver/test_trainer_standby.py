"""The standby of another trainer's run: its lease, and the command that hands the run over."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from midstream_core import records
from midstream_host.driver.standby import Standby


def test_clock_that_is_set_forward_ends_no_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was suspended, or started with a wrong clock, corrects it while the standby waits."""
    files = records.AttemptPaths(str(tmp_path))
    records.Command(records.RESTORE, epoch=2, sequence=2).write(files.command_file)
    trainer: Any = SimpleNamespace(place=SimpleNamespace(files=files, epoch=2))
    updates: list[dict[str, Any]] = []
    status: Any = SimpleNamespace(update=lambda **changes: updates.append(changes))
    standby = Standby(trainer, status)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86400.0)
    command = standby._wait_for_state()
    assert command is not None
    assert command.action == records.RESTORE
    assert updates[-1]["acknowledged"] == 2


def test_lease_that_is_not_renewed_ends_the_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_STANDBY_SECONDS", "0.5")
    trainer: Any = SimpleNamespace(place=SimpleNamespace(files=records.AttemptPaths(str(tmp_path)), epoch=2))
    status: Any = SimpleNamespace(update=lambda **_: None)
    assert Standby(trainer, status)._wait_for_state() is None
