"""Interpreters that start at a target while the manifest is read, on a real SSH host."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import ConnectionLostError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host import Process
from midstream.hosts.local_host import LocalHost
from midstream.hosts.ssh.ssh_host import SshHost
from midstream.transfer import copy_tree as copy_tree_module
from midstream.transfer import direct_streams
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from simulators.sshd import Lab
from support.checkpoints.trees import assert_same_tree, random_contents, write_tree
from support.interpreters import interpreters_below

pytestmark = pytest.mark.system
SIZES = [70_000, 5, 0, 300_000]


@pytest.fixture(name="far")
def _far(lab: Lab) -> Iterator[SshHost]:
    with closing(SshHost("far", lab.host("far").config)) as host:
        host.connect()
        yield host


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Endpoint:
    write_tree(tmp_path / "source", random_contents(random.Random(7), SIZES))
    return Endpoint(LocalHost("here", LocalHostConfig(root=str(tmp_path / "root"))), str(tmp_path / "source"))


def opened_by(host: SshHost, monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> list[Process]:
    """Return a list to which each interpreter is added that is started on ``host``."""
    processes: list[Process] = []
    begun: list[Sequence[str]] = []
    start = host.open

    def opened(argv: Sequence[str], **named: Any) -> Process:
        begun.append(argv)
        before(len(begun))
        processes.append(start(argv, **named))
        return processes[-1]

    monkeypatch.setattr(host, "open", opened)
    return processes


@pytest.mark.parametrize("direct", [False, True])
def test_programs_of_a_copy_use_them(
    far: SshHost, source: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    monkeypatch.setattr(direct_streams, "MIN_BYTES", 0 if direct else 1 << 40)
    processes = opened_by(far, monkeypatch, lambda number: None)
    copy_tree(source, Endpoint(far, str(tmp_path / "target")))
    assert_same_tree(tmp_path / "source", tmp_path / "target")
    assert len(processes) == 2  # the session and one receiver, none beside those that waited


def test_they_end_where_there_is_no_tree(
    lab: Lab, far: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = opened_by(far, monkeypatch, lambda number: None)
    here = LocalHost("here", LocalHostConfig(root=str(tmp_path / "root")))
    (tmp_path / "source").mkdir()
    server = lab.servers["far"]
    with pytest.raises(TransferError, match="not a complete tree"):
        copy_tree(Endpoint(here, str(tmp_path / "source")), Endpoint(far, str(tmp_path / "target")))
    deadline = time.monotonic() + 60
    while len(processes) < 2 or interpreters_below(server.process.pid):
        assert time.monotonic() < deadline, "an interpreter still runs"
        time.sleep(0.05)
    assert not (tmp_path / "target").exists()


def test_copy_starts_its_own_where_none_could_start(
    far: SshHost, source: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(number: int) -> None:
        if number <= 2:
            raise ConnectionLostError("far: the channel was closed")

    processes = opened_by(far, monkeypatch, lost)
    copy_tree(source, Endpoint(far, str(tmp_path / "target")))
    assert_same_tree(tmp_path / "source", tmp_path / "target")
    assert processes


def test_copy_starts_its_own_where_the_waiting_have_ended(
    lab: Lab, far: SshHost, source: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the host's system had killed them."""
    processes = opened_by(far, monkeypatch, lambda number: None)
    read = copy_tree_module.read_contents

    def read_later(*arguments: Any) -> Any:
        deadline = time.monotonic() + 60
        while len(found := interpreters_below(lab.servers["far"].process.pid)) < 2:
            assert time.monotonic() < deadline, "no interpreter waits"
            time.sleep(0.05)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return read(*arguments)

    monkeypatch.setattr(copy_tree_module, "read_contents", read_later)
    copy_tree(source, Endpoint(far, str(tmp_path / "target")))
    assert_same_tree(tmp_path / "source", tmp_path / "target")
    assert len(processes) > 2
