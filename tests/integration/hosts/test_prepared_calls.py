"""Calls in interpreters that wait for their arguments, on a real SSH host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import RemoteError
from midstream.hosts.host import Process
from midstream.hosts.prepared_calls import PreparedCalls
from midstream.hosts.ssh.ssh_host import SshHost
from midstream_host.runs import leftovers, run_state
from simulators.sshd import Lab
from support.interpreters import interpreters_below

pytestmark = pytest.mark.system
PATIENCE = 60.0  # seconds


class Far:
    """An SSH host, and the interpreters that were started on it."""

    def __init__(self, lab: Lab, host: SshHost, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host, self.server = host, lab.servers["far"]
        self.started: list[Process] = []
        self._open = host.open
        monkeypatch.setattr(host, "open", self._opened)

    def _opened(self, argv: Sequence[str], **named: Any) -> Process:
        self.started.append(self._open(argv, **named))
        return self.started[-1]

    def running(self) -> list[int]:
        """Return the process numbers of the interpreters that run there."""
        return interpreters_below(self.server.process.pid)

    def wait_for(self, count: int) -> list[int]:
        """Wait until so many interpreters run there."""
        deadline = time.monotonic() + PATIENCE
        while len(found := self.running()) != count:
            assert time.monotonic() < deadline, f"{len(found)} interpreters run, not {count}"
            time.sleep(0.05)
        return found


@pytest.fixture(name="far")
def _far(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    with closing(SshHost("far", lab.host("far").config)) as host:
        host.connect()
        yield Far(lab, host, monkeypatch)


def test_call_runs_in_the_interpreter_that_waits(far: Far, tmp_path: Path) -> None:
    calls = PreparedCalls()
    calls.prepare(far.host, run_state.list_runs)
    calls.prepare(far.host, run_state.list_runs)  # one for each function
    (tmp_path / "runs/r/attempts").mkdir(parents=True)
    listed = calls.call(far.host, run_state.list_runs)
    assert listed(root=str(tmp_path)) == ["r"]
    assert len(far.started) == 1
    far.wait_for(0)
    assert calls.call(far.host, run_state.list_runs)(root=str(tmp_path)) == ["r"]
    assert len(far.started) == 2


def test_call_of_another_function_starts_its_own(far: Far, tmp_path: Path) -> None:
    calls = PreparedCalls()
    calls.prepare(far.host, run_state.list_runs)
    (tmp_path / "text").write_text("words")
    assert calls.call(far.host, run_state.read_text)(path=str(tmp_path / "text")) == "words"
    calls.close()
    far.wait_for(0)
    assert len(far.started) == 2


def test_call_is_repeated_where_the_interpreter_was_killed(far: Far, tmp_path: Path) -> None:
    calls = PreparedCalls()
    calls.prepare(far.host, run_state.list_runs)
    (waiting,) = far.wait_for(1)
    os.kill(waiting, signal.SIGKILL)
    assert calls.call(far.host, run_state.list_runs)(root=str(tmp_path)) == []
    assert len(far.started) == 2


def test_error_of_the_function_is_raised_once(far: Far, tmp_path: Path) -> None:
    calls = PreparedCalls()
    calls.prepare(far.host, run_state.read_text)
    with pytest.raises(RemoteError, match="nothing"):
        calls.call(far.host, run_state.read_text)(path=str(tmp_path / "nothing"))
    assert len(far.started) == 1


def test_interpreters_end_with_the_connection(far: Far) -> None:
    calls = PreparedCalls()
    calls.prepare(far.host, run_state.list_runs)
    far.wait_for(1)
    far.host.close()
    far.wait_for(0)


def test_function_that_may_not_be_repeated_is_not_prepared(far: Far) -> None:
    with pytest.raises(ValueError, match="may not be repeated"):
        PreparedCalls().prepare(far.host, leftovers.remove)
    assert not far.started
