"""The listening end of a direct copy: whoever calls and says nothing keeps nobody out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from midstream.fleet.fleet import LocalHost
from midstream.hosts.local_host import LocalMachine
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import reports
from midstream.remote.copy import tls_peer
from midstream.transfer.route import Ends, make_ends


class Listening:
    """A program that waits for its one peer, and who may call it."""

    def __init__(self, host: LocalMachine):
        self.host = host
        self.ends: Ends = make_ends(host, host)
        self.process = start_program(host, "copy.tls_peer.answer", {"peer": self.ends.listener(None)})
        self.lines = reports(self.process)
        self.port: int = next(self.lines)["port"]

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)

    def knock(self) -> dict:
        """The real peer calls."""
        return self.host.call("copy.tls_peer.probe", peer=self.ends.dialer(["127.0.0.1"], self.port))


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    made = Listening(LocalMachine("here", LocalHost(root=str(tmp_path))))
    yield made
    made.process.close()


@pytest.mark.parametrize("count", [8, 200, 600])
def test_silent_callers_keep_nobody_out(listening: Listening, count: int):
    """Handled one after the other, each for its 5 s, seven of them would outlast the listener."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(listening.dial())
        found = listening.knock()
        assert found["address"] == "127.0.0.1", found
        assert next(listening.lines)["event"] == "done"


def test_callers_that_send_a_byte_now_and_then_keep_nobody_out(listening: Listening):
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    stopped = threading.Event()

    def drip(callers: list[socket.socket]) -> None:
        for byte in hello:
            for caller in callers:
                with suppress(OSError):  # hung up on
                    caller.send(bytes([byte]))
            if stopped.wait(0.2):
                return

    with ExitStack() as stack:
        callers = [stack.enter_context(listening.dial()) for _ in range(100)]
        thread = threading.Thread(target=drip, args=(callers,))
        thread.start()
        found = listening.knock()
        stopped.set()
        thread.join()
        assert found["address"] == "127.0.0.1", found


def test_a_flood_of_callers_keeps_nobody_out(listening: Listening):
    stopped = threading.Event()
    begun = threading.Event()

    def flood() -> None:
        kept: list[socket.socket] = []
        while not stopped.is_set():
            with suppress(OSError):
                caller = socket.create_connection(("127.0.0.1", listening.port), 1)
                caller.send(b"GET / HTTP/1.0\r\n\r\n" if len(kept) % 3 else b"\x16")
                kept.append(caller)
            if len(kept) > 400:
                begun.set()
                kept.pop(0).close()
        for each in kept:
            each.close()

    thread = threading.Thread(target=flood)
    thread.start()
    assert begun.wait(60)
    found = listening.knock()
    stopped.set()
    thread.join()
    assert found["address"] == "127.0.0.1", found


def test_who_shows_another_certificate_is_not_let_in(listening: Listening):
    stranger = make_ends(listening.host, listening.host).dialer(["127.0.0.1"], listening.port)
    stranger["trusted"] = listening.ends.dialer([], 0)["trusted"]
    found = listening.host.call("copy.tls_peer.probe", peer=stranger)
    assert found["address"] is None
    assert listening.knock()["address"] == "127.0.0.1"


def test_a_listener_that_never_ends_its_handshake_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tls_peer, "HANDSHAKE", 1.0)
    host = LocalMachine("here", LocalHost(root=str(tmp_path)))
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
        dialer = make_ends(host, host).dialer(["127.0.0.1"], listener.getsockname()[1])
        found = tls_peer.probe(dialer)
        stopped.set()
        thread.join()
    assert found["address"] is None
    assert "the handshake did not end within 1 s" in found["why"]
