"""paramiko's packetizer with limits on the greeting and on packets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko.packet import NeedRekeyException, Packetizer

from midstream.hosts.ssh.untyped_library import untyped

CONNECT_TIMEOUT = 15.0  # seconds for each of: TCP, banner, authentication
GREETING_LIMIT = 64 << 10  # bytes before the key exchange; RFC 4253 has lines of 255
PACKET_LIMIT = 256 << 10  # bytes, as OpenSSH; ours are of 32 KiB


class BoundedPacketizer(Packetizer):
    """A packetizer that limits the size of the greeting and of packets.

    paramiko accepts any announced length, up to 4 GiB. Keep-alives are also due while keys are exchanged, and after the
    clock was set back; paramiko's are not.
    """

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._greeting = 0
        self.greeting: list[str] = []  # its lines before the server's version
        self.greeting_timeout = CONNECT_TIMEOUT
        self._deadline = 0.0
        self._written = 0.0
        self._keepalive: Callable[[], object] | None = None

    def set_keepalive(self, interval: float, callback: Callable[[], object]) -> None:
        self._keepalive_interval, self._keepalive = interval, callback

    def _check_keepalive(self) -> None:
        """Call the callback if nothing was written for the interval.

        Called when nothing was read for a second.
        """
        now = time.monotonic()
        if self._keepalive is not None and now > self._written + self._keepalive_interval:
            self._keepalive()
            self._written = now  # it may have written nothing

    def write_all(self, out: Any) -> None:
        self._written = time.monotonic()
        super().write_all(out)

    def readline(self, timeout: float) -> str:
        line: str = super().readline(timeout)
        if not line.startswith("SSH-"):
            self.greeting.append(line)
        return line

    def _read_timeout(self, timeout: float) -> bytes:
        """Read a part of the greeting, with a limit on its length and time.

        paramiko lacks this limit.
        """
        now = time.monotonic()
        self._deadline = self._deadline or now + self.greeting_timeout
        if now > self._deadline:
            raise paramiko.SSHException(f": its greeting did not end within {self.greeting_timeout:.0f} s")
        data: bytes = untyped(super())._read_timeout(min(timeout, self._deadline - now))
        self._greeting += len(data)
        if self._greeting > GREETING_LIMIT:
            raise paramiko.SSHException(f": its greeting is longer than {GREETING_LIMIT >> 10} KiB")
        return data

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > PACKET_LIMIT:
            raise paramiko.SSHException(f"it announced a packet of {n} bytes")
        try:
            return super().read_all(n, check_rekey)
        except NeedRekeyException:  # nothing was read for a second
            self._check_keepalive()
            raise
