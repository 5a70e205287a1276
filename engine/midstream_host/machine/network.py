"""Network of a host: addresses, reachable ports, shared file systems.

Runs on the hosts; standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import posixpath
import re
import selectors
import socket
import sys
import time
from typing import Dict, List, Optional, Sequence, Set

from midstream_core.json_types import JsonValue
from midstream_host.declarations import program, reads, repeatable

HELLO = b"midstream "  # sent to each connection, followed by the token and a newline
TOKENS = ".tokens"


@dataclasses.dataclass(frozen=True)
class Reached:
    """The seconds of a round trip to an address, or the error."""

    seconds: Optional[float] = None
    error: str = ""


def addresses(proc: str = "/proc/net") -> List[str]:
    """Return this host's addresses, IPv4 before IPv6 and loopback last.

    Link-local ones are left out.
    """
    texts: List[str] = []
    with contextlib.suppress(OSError), open(os.path.join(proc, "fib_trie"), encoding="ascii") as file:
        last = ""
        for line in file:
            match = re.search(r"(\d+\.\d+\.\d+\.\d+)", line)
            last = match.group(1) if match else last
            if "/32 host LOCAL" in line:
                texts.append(last)
    with contextlib.suppress(OSError), open(os.path.join(proc, "if_inet6"), encoding="ascii") as file:
        for line in file:
            digits, scope = line.split()[0], line.split()[3]
            if scope in ("00", "10"):  # global, loopback
                texts.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    unique = list(dict.fromkeys(address for address in texts if not address.startswith("169.254.")))
    return sorted(unique, key=lambda address: address.startswith("127.") or address == "::1")


@program
def listen(token: str, first: int = 0, last: int = 0, seconds: float = 60.0) -> int:
    """Answer connections with ``token`` until stdin closes, for at most ``seconds``.

    A program, which listens on all addresses, on one port of ``first`` to ``last``, or on any.

    Events: ``listening`` (``port``, ``addresses``) or ``problem``, then ``done``. The port is free after it.
    """
    try:
        sockets = _bind(range(first, last + 1) if first else (0,))
    except OSError as error:
        where = "of {} to {}".format(first, last) if first else "at all"
        _emit("problem", message="cannot listen on a port {}: {}".format(where, error.strerror))
        return 1
    _emit("listening", port=sockets[0].getsockname()[1], addresses=addresses())
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        for sock in sockets:
            selector.register(sock, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                if not isinstance(key.fileobj, socket.socket):
                    for sock in sockets:
                        sock.close()
                    _emit("done")
                    return 0
                _greet(key.fileobj, token)
    _emit("done")
    return 0


def _bind(ports: Sequence[int]) -> List[socket.socket]:
    error: OSError = OSError(0, "no port was given")
    for port in ports:
        try:
            return [_listener(port)]
        except OSError as failed:
            error = failed
    raise error


def _listener(port: int) -> socket.socket:
    """Listen on all addresses, with IPv6 where the host has it."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=256, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=256)


def _greet(listener: socket.socket, token: str) -> None:
    with contextlib.suppress(OSError):  # the connection was closed
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(2.0)
            peer.sendall(HELLO + token.encode() + b"\n")
            peer.recv(1)  # the other end closes first, so that no socket of this port stays in TIME_WAIT


@reads()
def reach(candidates: Sequence[str], port: int, token: str, timeout: float = 3.0) -> Dict[str, Reached]:
    """Connect to each of the ``candidates``.

    The host with the token is expected to answer.
    """
    return {address: _reach(address, port, token, timeout) for address in candidates}


def _reach(address: str, port: int, token: str, timeout: float) -> Reached:
    began = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout) as peer:
            seconds = time.monotonic() - began
            peer.settimeout(timeout)
            greeting = b""
            while not greeting.endswith(b"\n") and len(greeting) < 200:
                data = peer.recv(200)
                if not data:
                    break
                greeting += data
    except socket.timeout:
        return Reached(error="no answer within {:.0f} s".format(timeout))
    except OSError as error:
        return Reached(error=error.strerror or str(error))
    return Reached(seconds) if greeting == HELLO + token.encode() + b"\n" else Reached(error="another machine answers")


@repeatable("it writes the same file again")
def write_token(root: str, name: str) -> None:
    """Write a token under ``root``; hosts that share the file system find it."""
    directory = posixpath.join(root, TOKENS)
    os.makedirs(directory, exist_ok=True)
    with open(posixpath.join(directory, _checked(name)), "w", encoding="ascii") as file:
        file.write(name)
        file.flush()
        os.fsync(file.fileno())


@reads()
def find_tokens(root: str, names: Sequence[str], patience: float = 2.0) -> List[str]:
    """Find tokens on this host.

    Network file systems may show a new name late: wait up to ``patience`` seconds for all of them.
    """
    directory = posixpath.join(root, TOKENS)
    deadline = time.monotonic() + patience
    while True:
        names_here: Set[str] = set()
        with contextlib.suppress(OSError):
            names_here = set(os.listdir(directory))  # makes NFS refresh the directory
        tokens = [name for name in map(_checked, names) if name in names_here and _has_token(directory, name)]
        if len(tokens) == len(names) or time.monotonic() >= deadline:
            return tokens
        time.sleep(0.1)


def _has_token(directory: str, name: str) -> bool:
    with contextlib.suppress(OSError), open(posixpath.join(directory, name), encoding="ascii") as file:
        return file.read() == name
    return False


@repeatable("what is removed stays removed")
def delete_token(root: str, name: str) -> None:
    """Delete a token."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(posixpath.join(root, TOKENS, _checked(name)))
    with contextlib.suppress(OSError):  # it has other tokens, or does not exist
        os.rmdir(posixpath.join(root, TOKENS))


def _checked(name: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{8,64}", name):
        raise ValueError("{!r} is no token".format(name))
    return name


def _emit(event: str, **fields: JsonValue) -> None:
    sys.stdout.buffer.write(json.dumps(dict(fields, event=event)).encode() + b"\n")
    sys.stdout.buffer.flush()
