"""A link with a rate and a delay that can be cut: a proxy between a client and a real server on loopback.

    python tests/simulators/link.py PORT MILLISECONDS MBIT [COPY_PORT]        (as a process of its own; prints the port
    that it listens on)

Bytes are read at the link's rate, which all connections of one direction share, and sent on after half of the round
trip: so no more bytes are in flight than on a real link.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from simulators.sshd import SshServer

PIECE = 1 << 16
LARGE = 1 << 18  # where the rate is high: fewer turns of the processor
FAR = "127.0.0.2"  # address of a server's machine as it is seen over a link that carries a port of copies, too
KEPT = 0.05  # seconds of the rate that a sender's buffers keep a real link busy for, while its program is not at it


class _Rate:
    def __init__(self, bytes_per_second: float) -> None:
        self.rate = bytes_per_second
        self._due = 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        if not self.rate:
            return
        with self._lock:
            now = time.monotonic()
            self._due = max(self._due, now - KEPT) + count / self.rate
            wait = self._due - now
        if wait > 0:
            time.sleep(wait)


class Link:
    """A proxy with a delay, a rate and faults.

    ``cut`` closes the connections; a frozen
    link forwards nothing and closes nothing.
    """

    def __init__(self, port: int, seconds: float = 0.0, rate: float = 0.0, copy_port: int = 0) -> None:
        """Listen.

        Args:
            port: Port of the server.
            seconds: Of the round trip.
            rate: Bytes per second; 0 for no limit.
            copy_port: A further port of the server's machine that the link carries, at `FAR`.
        """
        self._delay = seconds / 2
        self._rates = _Rate(rate), _Rate(rate)
        self._socks: tuple[list[socket.socket], ...] = [], []  # of the server's port, and of the other
        self._lock = threading.Lock()
        self.bytes_there = 0  # towards the server
        self._then: tuple[int, Callable[[], None]] | None = None
        self._flip = False
        self._moving = threading.Event()
        self._moving.set()
        self._listeners = [socket.create_server((FAR if copy_port else "127.0.0.1", 0), backlog=64)]
        self.port = self._listeners[0].getsockname()[1]
        if copy_port:
            self._listeners.append(socket.create_server((FAR, copy_port), backlog=64))
        self.accepted = [0, 0]  # connections to the server, and to the other port
        for number, to in enumerate((port, copy_port)[: len(self._listeners)]):
            threading.Thread(target=self._accept, args=(number, to), daemon=True).start()

    def _accept(self, number: int, to: int) -> None:
        listener = self._listeners[number]
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            self.accepted[number] += 1
            self._moving.wait()
            try:
                far = socket.create_connection(("127.0.0.1", to), 10)
            except OSError:  # no process listens on that port yet
                near.close()
                continue
            far.settimeout(None)
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._socks[number].extend((near, far))
            for one, other, rate, counts in ((near, far, self._rates[0], True), (far, near, self._rates[1], False)):
                threading.Thread(target=self._carry, args=(one, other, rate, counts), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, rate: _Rate, counts: bool) -> None:
        piece = LARGE if rate.rate > 50e6 else PIECE
        under_way: deque[tuple[float, bytes]] = deque()
        arrived = threading.Condition()

        def hand_on() -> None:
            while True:
                with arrived:
                    while not under_way:
                        arrived.wait()
                    due, data = under_way.popleft()
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    if not data:
                        other.shutdown(socket.SHUT_WR)
                        return
                    other.sendall(data)
                except OSError:
                    return

        if self._delay:
            threading.Thread(target=hand_on, daemon=True).start()
        data = b"?"
        while data:
            try:
                data = one.recv(piece)
            except OSError:
                data = b""
            rate.take(len(data))
            if counts:
                self._count(len(data))
                if self._flip and len(data) > 1000:
                    self._flip = False
                    data = data[:500] + bytes([data[500] ^ 8]) + data[501:]
            if self._delay:
                with arrived:
                    under_way.append((time.monotonic() + self._delay, data))
                    arrived.notify()
                continue
            self._moving.wait()
            try:
                if data:
                    other.sendall(data)
                else:
                    other.shutdown(socket.SHUT_WR)
            except OSError:
                return

    def _count(self, count: int) -> None:
        action = None
        with self._lock:
            self.bytes_there += count
            if self._then is not None and self.bytes_there >= self._then[0]:
                action, self._then = self._then[1], None
        if action is not None:
            action()

    def after(self, count: int, action: Callable[[], None]) -> None:
        """Call a function once ``count`` more bytes went to the server; further bytes wait for it."""
        with self._lock:
            self._then = self.bytes_there + count, action

    def flip(self) -> None:
        """Change one bit of the next bytes to the server."""
        self._flip = True

    def freeze(self) -> None:
        """Forward nothing from now on, and close nothing. For a link without a delay."""
        self._moving.clear()

    def thaw(self) -> None:
        """Forward the delayed bytes, and all further ones."""
        self._moving.set()

    def cut(self) -> None:
        self._cut(*self._socks)

    def cut_copies(self) -> None:
        """Close the connections to the further port alone."""
        self._cut(self._socks[1])

    def _cut(self, *connections: list[socket.socket]) -> None:
        with self._lock:
            socks = [sock for each in connections for sock in each]
            for each in connections:
                each.clear()
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def close_copy_port(self) -> None:
        """Refuse connections to the further port, as a firewall."""
        _end(self._listeners[1])

    def close(self) -> None:
        for listener in self._listeners:
            _end(listener)
        self.thaw()
        self.cut()


def _end(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
    listener.close()


def through(server: SshServer, port: int, copy_port: int = 0) -> SshServer:
    """Return the same server, reached over a link that listens on ``port``.

    Copies go over the link, too: over SSH, or, if it carries a ``copy_port``, directly.
    """
    directory = server.directory / f"over-{port}"
    directory.mkdir()
    address = FAR if copy_port else server.address
    for name in ("ssh_config", "known_hosts"):
        text = (server.directory / name).read_text().replace(f"HostName {server.address}\n", f"HostName {address}\n")
        text = text.replace(f"Port {server.port}\n", f"Port {port}\n")
        text = text.replace(f"[{server.address}]:{server.port} ", f"[{address}]:{port} ")
        (directory / name).write_text(text.replace(str(server.known_hosts), str(directory / "known_hosts")))
    config = replace(server.config, ssh_config=str(directory / "ssh_config"))
    if copy_port:
        return replace(server, directory=directory, config=replace(config, copy_ports=f"{copy_port}-{copy_port}"))
    return replace(server, directory=directory, config=replace(config, copy_route="relay"))


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):  # a link has no share in the machines' processors
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    to, milliseconds, mbit, *copies = sys.argv[1:]
    made = Link(int(to), float(milliseconds) / 1000, float(mbit) * 1e6 / 8, int(copies[0]) if copies else 0)
    print(made.port, flush=True)
    sys.stdin.read()
