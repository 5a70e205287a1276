"""Messages over a socket: a JSON header and a payload, each after its length."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

_LENGTHS = struct.Struct(">IQ")
MAX_HEADER = 1 << 20  # bytes; no midstream process sends more


class FrameError(Exception):
    """The received bytes are not a message of a midstream process."""


@dataclass(frozen=True)
class Message:
    """``kind`` selects the handler; the meaning of ``payload`` is the sender's."""

    kind: str
    sender: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""


class Channel:
    """One end of a connection. Any thread may send; one thread receives.

    Both raise OSError where the other end has closed, and TimeoutError where it sent (or accepted) nothing for as long
    as the socket's timeout.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._sending = threading.Lock()

    def set_timeout(self, seconds: float) -> None:
        """Set the timeout of `send` and `receive`."""
        self._socket.settimeout(seconds)

    def send(self, message: Message) -> None:
        """Send one message. Raises OSError."""
        header = json.dumps({"kind": message.kind, "sender": message.sender, **message.fields}).encode()
        with self._sending:
            self._socket.sendall(_LENGTHS.pack(len(header), len(message.payload)) + header + message.payload)

    def receive(self) -> Message | None:
        """Return the next message; None at an orderly end. Raises OSError and FrameError."""
        lengths = self._read(_LENGTHS.size)
        if lengths is None:
            return None
        header_length, payload_length = _LENGTHS.unpack(lengths)
        if header_length > MAX_HEADER:
            raise FrameError(f"a header of {header_length} bytes")
        header, payload = self._read(header_length), self._read(payload_length)
        if header is None or payload is None:
            raise ConnectionResetError("the connection ended in the middle of a message")
        try:
            fields = json.loads(header)
            kind, sender = str(fields.pop("kind")), int(fields.pop("sender"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FrameError(f"an invalid header ({error})") from error
        return Message(kind, sender, fields, payload)

    def close(self) -> None:
        """Close the connection; a thread that waits in `receive` wakes up."""
        with contextlib.suppress(OSError):  # the other end closed first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int) -> bytes | None:
        pieces = bytearray()
        while len(pieces) < size:
            piece = self._socket.recv(min(size - len(pieces), 1 << 20))
            if not piece:
                if pieces:
                    raise ConnectionResetError("the connection ended in the middle of a message")
                return None
            pieces += piece
        return bytes(pieces)
