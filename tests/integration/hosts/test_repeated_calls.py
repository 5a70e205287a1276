"""Calls of remote functions that are repeated after lost contact, on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import ConnectionLostError, HostError, RemoteError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host import Completed
from midstream.hosts.local_host import LocalHost
from midstream.hosts.reconnect import CALL
from midstream.hosts.rpc import remote_call
from midstream_host.runs import leftovers, run_state

TRIES = 1 + (CALL.tries or 0)


class Host(LocalHost):
    """This machine as a host that loses contact before or after executing calls."""

    def __init__(self, root: Path, *, losses: int, executed: bool) -> None:
        super().__init__("here", LocalHostConfig(root=str(root)))
        self.losses, self.executed, self.calls, self.connected = losses, executed, 0, 0

    def connect(self) -> None:
        self.connected += 1

    def run(self, *arguments: Any, **named: Any) -> Completed:
        self.calls += 1
        if self.calls <= self.losses:
            if self.executed:
                super().run(*arguments, **named)
            raise ConnectionLostError("here: lost contact")
        return super().run(*arguments, **named)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_call, "CALL", replace(CALL, first_delay=0.0))


def test_call_reconnects_and_repeats_after_lost_answer(tmp_path: Path) -> None:
    host = Host(tmp_path, losses=TRIES - 1, executed=False)
    assert host.call(run_state.list_runs)(root=host.root) == []
    assert (host.calls, host.connected) == (TRIES, TRIES - 1)


def test_call_is_repeated_a_limited_number_of_times(tmp_path: Path) -> None:
    host = Host(tmp_path, losses=100, executed=False)
    with pytest.raises(ConnectionLostError):
        host.call(run_state.list_runs)(root=host.root)
    assert host.calls == TRIES


def test_once_function_is_not_repeated(tmp_path: Path) -> None:
    host = Host(tmp_path, losses=1, executed=False)
    with pytest.raises(ConnectionLostError):
        host.call(leftovers.remove)(root=host.root, run_id="r", names={})
    assert host.calls == 1


def test_truncated_answer_is_lost_contact_remote_error_is_not(tmp_path: Path) -> None:
    class Killed(Host):
        def run(self, *arguments: Any, **named: Any) -> Completed:
            super().run(*arguments, **named)
            return Completed(-9, b'{"value": [', b"")

    host = Killed(tmp_path, losses=0, executed=False)
    with pytest.raises(ConnectionLostError, match="ended by signal 9 before it answered"):
        host.call(run_state.list_runs)(root=host.root)
    assert host.calls == TRIES
    connected = Host(tmp_path, losses=0, executed=False)
    with pytest.raises(RemoteError):
        connected.call(run_state.read_text)(path=f"{tmp_path}/nothing")
    assert connected.calls == 1


def test_timeout_is_lost_contact(tmp_path: Path) -> None:
    host = LocalHost("here", LocalHostConfig(root=str(tmp_path)))
    with pytest.raises(ConnectionLostError, match="did not end within 0 s"):
        host.run(["sleep", "60"], timeout=0.2)
    with pytest.raises(HostError):
        host.open(["/nowhere"])
