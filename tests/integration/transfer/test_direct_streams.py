"""Copies between this machine and a real SSH host over TLS, and over SSH where its port cannot be reached."""

from __future__ import annotations

import random
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration.transfer.test_copy_tree import old_python
from midstream.errors import ConnectionLostError, MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host_pool import open_host
from midstream.hosts.local_host import LocalHost
from midstream.hosts.ssh.ssh_host import SshHost
from midstream.transfer import direct_streams
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.incremental_copy import IncrementalCopy
from midstream.transfer.link import probe
from midstream.transfer.report import Progress
from midstream.transfer.tls_certificates import make_peers
from midstream_host.copy import tls_context
from midstream_host.object_files import INCOMING
from simulators.link import FAR, Link, through
from simulators.sshd import Lab
from support.checkpoints.trees import assert_same_tree, random_contents, write_tree
from support.loopback import free_port

MIB = 1 << 20
SIZES = [4 * MIB, MIB, 70_000, 5, 0]
pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def small_copies_go_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_streams, "MIN_BYTES", MIB)


class Pair:
    """This machine, and a host behind a link that carries its SSH port and one port of copies."""

    def __init__(self, lab: Lab, room: Path, copies: bool = True) -> None:
        server = lab.host("far")
        self.copy_port = free_port("127.0.0.1", FAR)
        self.link = Link(server.port, copy_port=self.copy_port)
        if not copies:
            self.link.close_copy_port()
        self.config = through(server, self.link.port, self.copy_port).config
        self.far = SshHost("far", self.config)
        self.far.connect()
        self.here = LocalHost("here", LocalHostConfig(root=str(room / "root")))
        self.source, self.target = room / "source", room / "target"
        write_tree(self.source, random_contents(random.Random(7), SIZES))

    def copy(self, to_far: bool = True, settings: CopySettings | None = None, **named: Any) -> str:
        """Copy the tree, and return the route."""
        one, other = (self.here, self.far) if to_far else (self.far, self.here)
        ends = Endpoint(one, str(self.source)), Endpoint(other, str(self.target))
        return copy_tree(*ends, settings=settings, **named).routes[0]

    def close(self) -> None:
        self.far.close()
        self.link.close()


@pytest.fixture
def pair(lab: Lab, tmp_path: Path) -> Iterator[Pair]:
    with closing(Pair(lab, tmp_path)) as made:
        yield made


@pytest.fixture
def closed(lab: Lab, tmp_path: Path) -> Iterator[Pair]:
    """Hosts with a link that carries SSH alone."""
    with closing(Pair(lab, tmp_path, copies=False)) as made:
        yield made


@pytest.mark.parametrize("to_far", [True, False])
def test_streams_go_directly_both_ways(pair: Pair, to_far: bool) -> None:
    shutil.rmtree(pair.source)
    write_tree(pair.source, random_contents(random.Random(8), [33 * MIB, MIB, 70_000, 5, 0]))
    before = pair.link.accepted[1]
    route = pair.copy(to_far, CopySettings(streams=3))
    assert pair.link.accepted[1] - before == 2, "streams of 16 MiB or more"
    ends = "here -> far" if to_far else "far -> here"
    assert route.startswith(f"direct, {ends} over TLS (here connects to far at {FAR}, ")
    assert_same_tree(pair.target, pair.source)
    assert not (pair.target / INCOMING).exists()


@pytest.mark.parametrize("to_far", [True, False])
def test_program_on_the_host_runs_on_python_3_8(pair: Pair, to_far: bool) -> None:
    pair.far.remote_python = old_python()
    assert pair.copy(to_far).startswith("direct")
    assert_same_tree(pair.target, pair.source)


def test_probe_of_a_plan_names_the_direct_route(pair: Pair) -> None:
    found = probe(pair.here, pair.far)
    assert (found.kind, found.listener, found.address) == ("direct", "target", FAR)
    assert probe(pair.far, pair.here).listener == "source"
    assert probe(pair.here, pair.far, CopySettings(route="relay")).kind == "ssh"


def test_objects_of_a_growing_checkpoint_go_directly(pair: Pair) -> None:
    contents = random_contents(random.Random(3), [2 * MIB, 5])
    objects: list[Any] = [
        {**entry, "path": f"step-1-a001/{entry['path']}"} for entry in write_tree(pair.source / "step-1-a001", contents)
    ]
    ends = Endpoint(pair.here, str(pair.source)), Endpoint(pair.far, str(pair.target))
    before = pair.link.accepted[1]
    copy = IncrementalCopy(*ends, 2 * MIB, 2)
    copy.add(objects, last=True)
    assert copy.wait(120)
    assert pair.link.accepted[1] > before
    for path, data in contents.items():
        assert (pair.target / "step-1-a001" / path).read_bytes() == data


def test_closed_port_leads_over_ssh_and_is_not_tried_again(closed: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    route = closed.copy()
    assert route.startswith("here -> far over SSH (")
    assert f"not direct: {FAR}: " in route
    assert "refused" in route
    assert_same_tree(closed.target, closed.source)
    assert "refused" in probe(closed.here, closed.far).not_direct
    shutil.rmtree(closed.target)
    listens: list[int] = []
    monkeypatch.setattr(direct_streams.DirectStreams, "_listen", lambda _: listens.append(1))
    assert "refused" in closed.copy()
    assert not listens


@contextmanager
def stranger(port: int, answer: Callable[[socket.socket], None]) -> Generator[list[bytes]]:
    """Another program that has the port at the host's address. Yields what it was sent."""
    received: list[bytes] = []
    with socket.create_server((FAR, port)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock, suppress(OSError):
                        sock.settimeout(20)
                        answer(sock)
                        received.append(sock.recv(1000))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield received
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_host_with_another_certificate_is_refused(closed: Pair) -> None:
    """It gets no byte of the copy."""
    ends = make_peers(closed.far, closed.here)
    context = tls_context.context_of({**ends.listener(None), "role": "listen"})
    context.verify_mode = ssl.CERT_NONE
    said: list[bytes] = []

    def answer(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as wrapped:
            said.append(wrapped.recv(1000))

    with stranger(closed.copy_port, answer) as received:
        route = closed.copy()
    assert "not direct: " in route
    assert "certificate" in route
    assert not any(said + received)
    assert_same_tree(closed.target, closed.source)


def test_port_that_says_nothing_leads_over_ssh(closed: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_streams, "HANDSHAKE_TIMEOUT", 0.5)
    over = threading.Event()
    with stranger(closed.copy_port, lambda _: void(over.wait(60))):
        route = closed.copy()
        over.set()
    assert "the handshake did not end" in route
    assert_same_tree(closed.target, closed.source)


def void(_: object) -> None:
    """Drop a result."""


def test_dropped_packets_lead_over_ssh(closed: Pair) -> None:
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server((FAR, closed.copy_port), backlog=0))
        for _ in range(4):  # a full queue: the kernel answers no further caller
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        route = closed.copy()
    assert "timed out" in route
    assert_same_tree(closed.target, closed.source)


def test_cut_link_ends_the_copy_and_its_repeat_continues(pair: Pair) -> None:
    pair.link.after(2 * MIB, pair.link.cut)
    with pytest.raises(ConnectionLostError):
        pair.copy(settings=CopySettings(streams=2))
    pair.far.connect()
    pair.copy(settings=CopySettings(streams=2))
    assert_same_tree(pair.target, pair.source)


def test_cut_direct_connections_lead_over_ssh(pair: Pair) -> None:
    pair.link.after(2 * MIB, pair.link.cut_copies)
    with pytest.raises(ConnectionLostError):
        pair.copy(settings=CopySettings(streams=2))
    assert not (pair.target / "manifest.json").exists()
    assert "over SSH" in pair.copy(settings=CopySettings(streams=2))
    assert_same_tree(pair.target, pair.source)


def refused(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def test_cancelled_copy_leaves_no_program(pair: Pair) -> None:
    cancel = threading.Event()

    def watch(progress: Progress) -> None:
        if progress.bytes_done:
            cancel.set()

    with pytest.raises(MidstreamError, match="cancelled"):
        pair.copy(settings=CopySettings(bandwidth_limit=1e6), progress=watch, cancel=cancel)
    while not refused(pair.copy_port):
        time.sleep(0.02)
    pair.copy()
    assert_same_tree(pair.target, pair.source)


def test_host_behind_a_proxy_is_reached_over_ssh(lab: Lab, tmp_path: Path) -> None:
    server, gateway = lab.host("far"), lab.host("gateway")
    config = server.directory / "ssh_config"
    proxy = f"ssh -F {gateway.directory / 'ssh_config'} -W %h:%p gateway"
    config.write_text(f"{config.read_text()}  ProxyCommand {proxy}\n")
    far = open_host("far", server.config)
    far.connect()
    here = LocalHost("here", LocalHostConfig(root=str(tmp_path / "root")))
    write_tree(tmp_path / "source", random_contents(random.Random(1), [MIB]))
    ends = Endpoint(here, str(tmp_path / "source")), Endpoint(far, str(tmp_path / "target"))
    assert "not direct: a proxy or a jump host is between" in copy_tree(*ends).routes[0]
    far.close()


def test_relay_in_the_fleet_file_opens_no_port(pair: Pair) -> None:
    far = SshHost("far", replace(pair.config, copy_route="relay"))
    far.connect()
    ends = Endpoint(pair.here, str(pair.source)), Endpoint(far, str(pair.target))
    assert "over SSH" in copy_tree(*ends).routes[0]
    assert pair.link.accepted[1] == 0
    far.close()
