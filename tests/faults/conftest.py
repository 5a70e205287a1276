from __future__ import annotations

import pytest

from simulators.sshd import lab
from support.command_line import runs

__all__ = ["lab", "runs"]


@pytest.fixture(autouse=True)
def _its_own_state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stays from test to test, and so do its moves."""
    if "campaign" in request.fixturenames:
        monkeypatch.setenv("MIDSTREAM_STATE", str(request.getfixturevalue("campaign").room / "state"))
