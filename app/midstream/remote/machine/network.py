"""How hosts see each other: their addresses, who reaches whom on which port, what they share. Runs on the hosts;
standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import selectors
import socket
import sys
import time
from typing import Any, Dict, List, Sequence

HELLO = b"midstream "  # then the token and a newline, to whoever connects
TOKENS = ".tokens"


def addresses(proc: str = "/proc/net") -> List[str]:
    """This host's addresses, IPv4 before IPv6 and loopback last; link-local ones are left out."""
    found: List[str] = []
    with contextlib.suppress(OSError), open(os.path.join(proc, "fib_trie"), encoding="ascii") as file:
        last = ""
        for line in file:
            match = re.search(r"(\d+\.\d+\.\d+\.\d+)", line)
            last = match.group(1) if match else last
            if "/32 host LOCAL" in line:
                found.append(last)
    with contextlib.suppress(OSError), open(os.path.join(proc, "if_inet6"), encoding="ascii") as file:
        for line in file:
            digits, scope = line.split()[0], line.split()[3]
            if scope in ("00", "10"):  # global, loopback
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    unique = list(dict.fromkeys(address for address in found if not address.startswith("169.254.")))
    return sorted(unique, key=lambda address: address.startswith("127.") or address == "::1")


def listen(token: str, first: int = 0, last: int = 0, seconds: float = 60.0) -> int:
    """A streaming program: answer whoever connects with ``token``, on one port (of ``first`` to ``last``, where they
    are given) of all addresses. Lines: ``listening`` with ``port`` and ``addresses``, or ``problem``; it ends with its
    stdin, at the latest after ``seconds``. The port is free again then."""
    try:
        sockets = _bind(range(first, last + 1) if first else (0,))
    except OSError as error:
        where = "of {} to {}".format(first, last) if first else "at all"
        _emit("problem", message="no port {} can be listened on: {}".format(where, error.strerror))
        return 1
    _emit("listening", port=sockets[0].getsockname()[1], addresses=addresses())
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                if not isinstance(key.fileobj, socket.socket):
                    for each in sockets:
                        each.close()
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
    """On all addresses, IPv6 where the host has it."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=256, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=256)


def _greet(listener: socket.socket, token: str) -> None:
    with contextlib.suppress(OSError):  # it went away again
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(2.0)
            peer.sendall(HELLO + token.encode() + b"\n")
            peer.recv(1)  # the other side closes first, so that this port is free at once


def reach(candidates: Sequence[str], port: int, token: str, timeout: float = 3.0) -> Dict[str, Any]:
    """``{address: {"seconds": s}}`` of those of ``candidates`` under which the host with the token answers, and
    ``{address: {"error": why}}`` of the others."""
    return {address: _reach(address, port, token, timeout) for address in candidates}


def _reach(address: str, port: int, token: str, timeout: float) -> Dict[str, Any]:
    began = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout) as peer:
            seconds = time.monotonic() - began
            peer.settimeout(timeout)
            said = b""
            while not said.endswith(b"\n") and len(said) < 200:
                data = peer.recv(200)
                if not data:
                    break
                said += data
    except socket.timeout:
        return {"error": "no answer within {:.0f} s".format(timeout)}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"seconds": seconds} if said == HELLO + token.encode() + b"\n" else {"error": "another machine answers"}


def put_token(root: str, name: str) -> None:
    """Leave a token under ``root`` for other hosts to look for."""
    directory = posixpath.join(root, TOKENS)
    os.makedirs(directory, exist_ok=True)
    with open(posixpath.join(directory, _checked(name)), "w", encoding="ascii") as file:
        file.write(name)
        file.flush()
        os.fsync(file.fileno())


def see_tokens(root: str, names: Sequence[str], patience: float = 2.0) -> List[str]:
    """The tokens that are seen here. File systems over a network may show a new name a moment later: so long they are
    waited for, unless all are there."""
    directory = posixpath.join(root, TOKENS)
    deadline = time.monotonic() + patience
    while True:
        there = set()
        with contextlib.suppress(OSError):
            there = set(os.listdir(directory))  # makes NFS ask again
        found = [name for name in map(_checked, names) if name in there and _holds(directory, name)]
        if len(found) == len(names) or time.monotonic() >= deadline:
            return found
        time.sleep(0.1)


def _holds(directory: str, name: str) -> bool:
    with contextlib.suppress(OSError), open(posixpath.join(directory, name), encoding="ascii") as file:
        return file.read() == name
    return False


def take_token(root: str, name: str) -> None:
    """Remove what ``put_token`` left."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(posixpath.join(root, TOKENS, _checked(name)))
    with contextlib.suppress(OSError):  # others' tokens lie there, or it is gone
        os.rmdir(posixpath.join(root, TOKENS))


def _checked(name: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{8,64}", name):
        raise ValueError("{!r} is no token".format(name))
    return name


def _emit(event: str, **fields: Any) -> None:
    sys.stdout.buffer.write(json.dumps(dict(fields, event=event)).encode() + b"\n")
    sys.stdout.buffer.flush()
