"""The listening end of a direct copy: other callers do not block the peer."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import reports
from midstream.transfer.tls_certificates import TlsPeers, make_peers
from midstream_host.copy import tls_peer


class Listening:
    """A program that waits for its one peer, with callers."""

    def __init__(self, host: LocalHost) -> None:
        self.host = host
        self.ends: TlsPeers = make_peers(host, host)
        self.process = start_program(host, tls_peer.answer)(peer=self.ends.listener(None))
        self.lines = reports(self.process)
        self.port: int = next(self.lines)["port"]

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)

    def connect_peer(self) -> tls_peer.ConnectionProbe:
        """Connect as the real peer."""
        return self.host.call(tls_peer.probe)(peer=self.ends.dialer(["127.0.0.1"], self.port))


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    made = Listening(LocalHost("here", LocalHostConfig(root=str(tmp_path))))
    yield made
    made.process.close()


@pytest.mark.parametrize("count", [8, 200, 600])
def test_callers_that_send_nothing_do_not_block_the_peer(listening: Listening, count: int) -> None:
    """Handled one after another, 5 s each, seven of them would outlast the listener."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(listening.dial())
        found = listening.connect_peer()
        assert found["address"] == "127.0.0.1", found
        assert next(listening.lines)["event"] == "done"


def test_slow_callers_do_not_block_the_peer(listening: Listening) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    stopped = threading.Event()

    def drip(callers: list[socket.socket]) -> None:
        for byte in hello:
            for caller in callers:
                with suppress(OSError):  # closed by the listener
                    caller.send(bytes([byte]))
            if stopped.wait(0.2):
                return

    with ExitStack() as stack:
        callers = [stack.enter_context(listening.dial()) for _ in range(100)]
        thread = threading.Thread(target=drip, args=(callers,))
        thread.start()
        found = listening.connect_peer()
        stopped.set()
        thread.join()
        assert found["address"] == "127.0.0.1", found


def test_flood_of_callers_does_not_block_the_peer(listening: Listening) -> None:
    stopped = threading.Event()
    begun = threading.Event()

    def flood() -> None:
        callers: list[socket.socket] = []
        while not stopped.is_set():
            with suppress(OSError):
                caller = socket.create_connection(("127.0.0.1", listening.port), 1)
                caller.send(b"GET / HTTP/1.0\r\n\r\n" if len(callers) % 3 else b"\x16")
                callers.append(caller)
            if len(callers) > 400:
                begun.set()
                callers.pop(0).close()
        for each in callers:
            each.close()

    thread = threading.Thread(target=flood)
    thread.start()
    assert begun.wait(60)
    found = listening.connect_peer()
    stopped.set()
    thread.join()
    assert found["address"] == "127.0.0.1", found


def test_caller_with_another_certificate_is_refused(listening: Listening) -> None:
    stranger = make_peers(listening.host, listening.host).dialer(["127.0.0.1"], listening.port)
    stranger["trusted"] = listening.ends.dialer([], 0)["trusted"]
    found = listening.host.call(tls_peer.probe)(peer=stranger)
    assert found["address"] is None
    assert listening.connect_peer()["address"] == "127.0.0.1"


def test_probe_times_out_on_an_endless_handshake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tls_peer, "HANDSHAKE_TIMEOUT", 1.0)
    host = LocalHost("here", LocalHostConfig(root=str(tmp_path)))
    stopped = threading.Event()

    def drip() -> None:
        caller, _ = listener.accept()
        with caller:
            caller.send(b"\x16\x03\x03\x40\x00")  # a record of 16 KiB, whose bytes then come one by one
            while not stopped.wait(0.1):
                with suppress(OSError):
                    caller.send(b"\x02")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        dialer = make_peers(host, host).dialer(["127.0.0.1"], listener.getsockname()[1])
        found = tls_peer.probe(dialer)
        stopped.set()
        thread.join()
    assert found["address"] is None
    assert "the handshake did not end within 1 s" in found["why"]


def test_key_without_memfd_is_in_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    host = LocalHost("here", LocalHostConfig(root=str(tmp_path)))
    ends = make_peers(host, host)
    process = start_program(host, tls_peer.answer)(peer=ends.listener(None))
    lines = reports(process)
    found = tls_peer.probe(ends.dialer(["127.0.0.1"], next(lines)["port"]))
    process.close()
    assert found["address"] == "127.0.0.1", found
