"""The server's side of ``kubectl exec``: a process of this machine behind a WebSocket of Kubernetes' channel protocol.

A binary frame is a byte that names the channel, then its bytes. ``v5.channel.k8s.io`` can also close a channel.
https://datatracker.ietf.org/doc/html/rfc6455, https://kubernetes.io/docs/reference/using-api/kubectl-streaming
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255  # channels
BINARY, CLOSING, PING, PONG = 2, 8, 9, 10  # kinds of frames
ACCEPT = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def accept_key(key: str) -> str:
    """Return the header Sec-WebSocket-Accept for a client's key."""
    return base64.b64encode(hashlib.sha1((key + ACCEPT).encode()).digest()).decode()


class ExecSocket:
    """A connection that was switched to WebSocket; ``reader`` and ``writer`` are its two directions."""

    def __init__(self, reader: BufferedIOBase, writer: Any) -> None:
        self._reader, self._writer = reader, writer
        self._lock = threading.Lock()

    def run(self, argv: Sequence[str], home: Path, stdin: bool) -> None:
        """Run a command to its end. Its status is the last message."""
        env = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        env.update(HOME=str(home), HOSTNAME=home.name)
        try:
            child = subprocess.Popen(
                list(argv), env=env, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            return self._end({"status": "Failure", "message": f"exec failed: {error}", "reason": "InternalError"})
        (home / f"pid-{child.pid}").touch()
        assert child.stdin is not None
        if not stdin:
            child.stdin.close()
        pumps = [
            threading.Thread(target=self._pump, args=(pipe, channel), daemon=True)
            for pipe, channel in ((child.stdout, STDOUT), (child.stderr, STDERR))
        ]
        for pump in pumps:
            pump.start()
        receiving = threading.Thread(target=self._receive, args=(child.stdin,), daemon=True)
        receiving.start()
        for pump in pumps:
            pump.join()
        code = child.wait()
        code = code if code >= 0 else 128 - code
        cause = {"reason": "ExitCode", "message": str(code)}
        failed = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]},
                  "message": f"command terminated with non-zero exit code: exit status {code}"}  # fmt: skip
        self._end(failed if code else {"status": "Success"})
        with contextlib.suppress(OSError):
            self._writer.shutdown(socket.SHUT_RD)
        receiving.join()

    def _end(self, status: dict[str, Any]) -> None:
        try:
            self._send(BINARY, bytes([STATUS]) + json.dumps({"metadata": {}, **status}).encode())
            self._send(CLOSING, (1000).to_bytes(2, "big"))
        except OSError:
            return  # the client has exited: the command goes on to its end, as in a cluster

    def _pump(self, pipe: BinaryIO, channel: int) -> None:
        with pipe:
            while data := pipe.read(1 << 15):
                try:
                    self._send(BINARY, bytes([channel]) + data)
                except OSError:
                    return

    def _receive(self, sink: BinaryIO) -> None:
        """Write the client's bytes to the process, and close its stdin at their end."""
        try:
            while frame := self._frame():
                kind, data = frame
                if kind == PING:
                    self._send(PONG, data)
                elif kind == CLOSING or data[:2] == bytes([CLOSE, STDIN]):
                    break
                elif kind == BINARY and data[:1] == bytes([STDIN]):
                    rest = memoryview(data)[1:]
                    while rest:
                        rest = rest[sink.write(rest) :]
        except (OSError, ValueError):
            pass  # the process or the connection has ended
        finally:
            sink.close()

    def _frame(self) -> tuple[int, bytes] | None:
        """Return the next frame, unmasked; None at the end of the connection. Clients send no fragments here."""
        head = self._reader.read(2)
        if len(head) < 2:
            return None
        size = head[1] & 127
        if size > 125:
            size = int.from_bytes(self._reader.read(2 if size == 126 else 8), "big")
        mask = self._reader.read(4) if head[1] & 128 else bytes(4)
        data = self._reader.read(size)
        if len(data) < size:
            return None
        key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        return head[0] & 15, (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")

    def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = bytes([128 | kind, size])
        elif size < 1 << 16:
            head = bytes([128 | kind, 126]) + size.to_bytes(2, "big")
        else:
            head = bytes([128 | kind, 127]) + size.to_bytes(8, "big")
        with self._lock:
            self._writer.sendall(head + data)
