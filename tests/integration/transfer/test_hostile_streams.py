"""A host whose program for direct streams reports false ports and numbers."""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from integration.transfer.test_hostile_source import SENDS, hostile
from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host_pool import open_host
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import reports
from midstream.transfer import direct_streams
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.route import StreamRoute
from midstream.transfer.stream import Stream
from midstream.transfer.tls_certificates import make_peers
from midstream_host.allowlist import CHECKPOINT
from midstream_host.copy import stream_server, tls_context
from midstream_host.copy.requested_items import new_key
from midstream_host.copy.tls_peer import NUMBER
from simulators.sshd import Lab
from support.checkpoints.trees import assert_same_tree, paths_below, random_contents, write_tree

MIB = 1 << 20
PATIENCE = 60.0  # seconds
REPORTS = """
_honest_emit = emit
def emit(event, **fields):
    fields = ({change})(event, dict(fields))
    _honest_emit(event, **fields)
def processors():
    return 1  # reports of a process of its own would not pass here
"""
pytestmark = pytest.mark.system


class Copies:
    """Copies with a host whose programs run further code."""

    def __init__(self, lab: Lab, room: Path) -> None:
        self.server, self.room = lab.host("evil"), room
        self.here = LocalHost("here", LocalHostConfig(root=str(room / "root")))
        write_tree(room / "source", random_contents(random.Random(5), [2 * MIB, 5]))

    def copy(self, evil: str, module: str = "copy.stream_server", to_host: bool = True) -> str:
        """Copy, and return the route."""
        hostile(self.server, module, evil)
        host = open_host("evil", self.server.config)
        host.connect()
        one, other = (self.here, host) if to_host else (host, self.here)
        ends = Endpoint(one, str(self.room / "source")), Endpoint(other, str(self.room / "target"))
        with closing(host):
            return copy_tree(*ends).routes[0]


@pytest.fixture(autouse=True)
def small_copies_go_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_streams, "MIN_BYTES", MIB)


@pytest.fixture
def copies(lab: Lab, tmp_path: Path) -> Copies:
    return Copies(lab, tmp_path)


def test_port_of_another_service_is_not_called(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr("midstream.transfer.direct_streams.DirectStreams._dial", called.append)
    change = "lambda event, fields: dict(fields, port=25) if event == 'listening' else fields"
    route = copies.copy(REPORTS.format(change=change))
    assert "not direct: evil: it reports port 25, on which no copy may listen" in route
    assert not called
    assert_same_tree(copies.room / "target", copies.room / "source")


@pytest.mark.parametrize("number", [8, None])
def test_report_for_no_stream_ends_the_copy(copies: Copies, number: int | None) -> None:
    change = f"lambda event, fields: dict(fields, stream={number}) if 'stream' in fields else fields"
    with pytest.raises(MidstreamError, match="evil: the copy's program reports what no stream can"):
        copies.copy(REPORTS.format(change=change))
    assert not (copies.room / "target" / "manifest.json").exists()


def test_program_that_ends_early_ends_the_copy(copies: Copies) -> None:
    evil = "import os\ndef received(stream, write, report):\n    os._exit(9)\n"
    with pytest.raises(MidstreamError, match="evil"):
        copies.copy(evil)
    assert not (copies.room / "target" / "manifest.json").exists()


def test_forged_items_of_a_direct_source_are_refused(copies: Copies) -> None:
    evil = SENDS.format(first="arrays", data="forged", fields="path='arrays/forged/c/0'")
    with pytest.raises(MidstreamError, match=r"sent bytes of object .* that were not requested"):
        copies.copy(evil, "copy.sender", to_host=False)
    assert not [path for path in paths_below(copies.room / "target") if "forged" in str(path)]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy learns that a stream is open after all reports of the stream were read, and their events handled."""
    open_stream = StreamRoute.open

    def opened(*positional: Any, **named: Any) -> Stream:
        stream = open_stream(*positional, **named)
        reading = stream._threads[-1]
        reading.join(PATIENCE)
        assert not reading.is_alive()
        while not stream._events.empty():
            time.sleep(0.01)
        return stream

    monkeypatch.setattr(StreamRoute, "open", opened)


@pytest.mark.usefixtures("late")
def test_source_is_named_where_its_stream_ends_at_once(copies: Copies) -> None:
    evil = "def feed(wait, sender, take):\n    sender.frame(99)\n    sender.flush()\n    return True\n"
    with pytest.raises(TransferError, match=r"the bytes that evil:.* sent to here:.* are malformed"):
        copies.copy(evil, "copy.sender", to_host=False)


@pytest.mark.usefixtures("late")
def test_stream_that_is_done_at_once_is_named(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_streams, "MIN_BYTES", 1 << 40)
    evil = "def received(stream, write, report):\n    report('done')\n    return True\n"
    with pytest.raises(TransferError, match="ended before all that was requested had come"):
        copies.copy(evil, "copy.receiver")


class Server:
    """`stream_server.receive` on this machine, for three streams."""

    def __init__(self, room: Path) -> None:
        host = LocalHost("here", LocalHostConfig(root=str(room)))
        self.ends = make_peers(host, host)
        self.process = start_program(host, stream_server.receive)(
            directory=str(room / "target"), generation="abc", kind=CHECKPOINT, keys=[new_key() for _ in range(3)],
            peer=self.ends.listener(None, ssh_address=True),
        )  # fmt: skip
        self.lines = reports(self.process)
        self.port: int = next(self.lines)["port"]

    def connect(self, first: bytes) -> ssl.SSLSocket:
        """Connect with the right certificate, and send the first bytes."""
        context = tls_context.context_of(self.ends.dialer([], 0))
        sock = context.wrap_socket(socket.create_connection(("127.0.0.1", self.port), 30))
        sock.sendall(first)
        return sock

    def close(self) -> None:
        self.process.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with closing(Server(tmp_path)) as made:
        yield made


def closed(sock: ssl.SSLSocket) -> bool:
    try:
        return not sock.recv(1)
    except OSError:
        return True


@pytest.mark.parametrize("first", [NUMBER.pack(1), NUMBER.pack(3), b"\0"])
def test_number_that_is_taken_or_unknown_is_refused(server: Server, first: bytes) -> None:
    """The stream that has the number goes on."""
    with server.connect(NUMBER.pack(1)) as sock:
        with server.connect(first) as other:
            if len(first) < NUMBER.size:
                other.shutdown(socket.SHUT_WR)
            assert closed(other)
        sock.sendall(b"\x63\0\0\0\0")  # a frame of no kind
        assert next(server.lines) == {
            "event": "problem",
            "kind": "protocol",
            "message": "a frame of kind 99",
            "stream": 1,
        }


def test_streams_that_say_too_much_end_alone(server: Server) -> None:
    with server.connect(NUMBER.pack(0)) as flooding, server.connect(NUMBER.pack(2)) as other:
        flooding.sendall(b"\1\xff\xff\xff\xff")  # an item of 4 GiB
        assert next(server.lines)["stream"] == 0
        other.sendall(b"\4\0\0\0\0")  # the end
        assert next(server.lines) == {"event": "done", "stream": 2}
