"""Many small copies; their threads pause at random places.

Orders of events that are rare otherwise become frequent: the interpreter switches threads often, and a thread pauses
before or after it starts, reports, or sets a result. Some copies are cancelled, or lose a program, at a random moment;
the same copy then continues. Each ends equal, and leaves neither threads nor descriptors.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import queue
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.hosts.ssh.ssh_host import SshHost
from midstream.transfer import direct_streams
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.early_stream import EarlyStream
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.incremental_copy import IncrementalCopy
from midstream.transfer.stream import Stream
from midstream.transfer.target_session import TargetSession
from midstream_core import records
from simulators.sshd import Lab
from support.checkpoints.trees import assert_same_tree, random_contents, write_tree
from support.interpreters import interpreters_below

MIB = 1 << 20
SECONDS = 12.0
PATIENCE = 60.0  # seconds for one copy
SIZES: tuple[list[int], ...] = ([0], [1, 0, 300_000], [100] * 60, [2 * MIB, 300_000, 10])
pytestmark = [pytest.mark.system, pytest.mark.drawn]


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> Iterator[random.Random]:
    """Random numbers; as long as they are used, threads pause."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    pauses = random.Random(seed)

    def pause() -> None:
        if pauses.random() < 0.2:
            time.sleep(pauses.random() ** 3 * 0.1)

    def pausing(real: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*positional: Any, **named: Any) -> Any:
            pause()
            result = real(*positional, **named)
            pause()
            return result

        return paused

    places = (
        (threading.Thread, "run"),
        (queue.Queue, "put"),
        (Future, "set_result"),
        (Future, "set_exception"),
        (TargetSession, "landed"),
        (TargetSession, "commit"),
        (Stream, "send_items"),
        (EarlyStream, "take"),
    )
    for owner, name in places:
        monkeypatch.setattr(owner, name, pausing(getattr(owner, name)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield random.Random(seed)
    sys.setswitchinterval(interval)


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


class Copies:
    """Copies of trees and of growing checkpoints between this machine and a host."""

    def __init__(self, room: Path, hosts: tuple[LocalHost, SshHost], server: int, rng: random.Random) -> None:
        self.source, self.target = room / "source", room / "target"
        self._hosts, self._server, self._rng = hosts, server, rng

    def one(self) -> None:
        """Copy once, and compare."""
        rng = self._rng
        for each in (self.source, self.target):
            shutil.rmtree(each, ignore_errors=True)
        growing = rng.random() < 0.3
        tree = self.source / records.checkpoint_name(1, 1) if growing else self.source
        objects = write_tree(tree, random_contents(rng, rng.choice(SIZES)))
        ends = Endpoint(rng.choice(self._hosts), str(self.source)), Endpoint(rng.choice(self._hosts), str(self.target))
        if growing:
            self._grow(*ends, tree, objects)
            return
        if rng.random() < 0.4:
            self._disturbed(*ends)
        with limit() as cancel:
            copy_tree(*ends, cancel=cancel)
        assert_same_tree(self.target, self.source)

    def _disturbed(self, source: Endpoint, target: Endpoint) -> None:
        """Copy; cancel it, or kill a program of the host, at a random moment."""
        kills, moment = self._rng.random() < 0.5, self._rng.random() ** 2
        with limit() as cancel:

            def disturb() -> None:
                if not kills:
                    cancel.set()
                    return
                for pid in interpreters_below(self._server)[:1]:
                    with suppress(ProcessLookupError):  # it has just ended
                        os.kill(pid, signal.SIGKILL)

            timer = threading.Timer(moment, disturb)
            timer.start()
            try:
                with suppress(MidstreamError):
                    copy_tree(source, target, cancel=cancel)
            finally:
                timer.cancel()
                timer.join()
        if (self.target / records.MANIFEST).exists():
            assert_same_tree(self.target, self.source)

    def _grow(self, source: Endpoint, target: Endpoint, tree: Path, objects: list[Any]) -> None:
        (tree / records.MANIFEST).unlink()
        copy = IncrementalCopy(source, target, sum(each["size"] for each in objects), len(objects))
        with closing(copy):
            for each in objects:
                added: Any = {**each, "path": f"{tree.name}/{each['path']}"}
                copy.add([added])
            copy.add([], last=True)
            assert copy.wait(PATIENCE)
        assert_same_tree(self.target / tree.name, tree)


@contextmanager
def limit() -> Generator[threading.Event]:
    """Yield an event that is set after `PATIENCE`: the copy then fails, and the stacks are printed."""
    event = threading.Event()
    timer = threading.Timer(PATIENCE, event.set)
    faulthandler.dump_traceback_later(PATIENCE)
    timer.start()
    try:
        yield event
    finally:
        timer.cancel()
        timer.join()
        faulthandler.cancel_dump_traceback_later()


def test_copies_end_equal_in_any_order_of_events(
    lab: Lab, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_streams, "MIN_BYTES", MIB)
    server = lab.host("far")
    here = LocalHost("here", LocalHostConfig(root=str(tmp_path / "root")))
    write_tree(tmp_path / "first", random_contents(rng, [100]))
    copy_tree(Endpoint(here, str(tmp_path / "first")), Endpoint(here, str(tmp_path / "second")))  # starts the servers
    files, until = open_files(), time.monotonic() + SECONDS
    with closing(SshHost("far", server.config)) as far:
        far.connect()
        copies = Copies(tmp_path, (here, far), server.process.pid, rng)
        while time.monotonic() < until:
            copies.one()
    deadline = time.monotonic() + PATIENCE
    while left := [each.name for each in threading.enumerate() if each.name.startswith(("copy-", "feed"))]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    while (now := open_files()) > files:
        assert time.monotonic() < deadline, now - files
        time.sleep(0.05)
