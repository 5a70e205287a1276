from __future__ import annotations

import pytest

from simulators.sshd import lab, server
from support.command_line import runs

__all__ = ["lab", "runs", "server"]


@pytest.fixture(autouse=True)
def _its_own_state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the campaign's state directory, which stays from test to test."""
    if "campaign" in request.fixturenames:
        monkeypatch.setenv("MIDSTREAM_STATE", str(request.getfixturevalue("campaign").room / "state"))
