"""A network cable from this machine to a host in a network namespace: two ends, a rate, and it can be pulled.

The kernel moves and limits the bytes, so a cable costs the processors little. It has no delay: a link with one is a
proxy (`link.py`). Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

MTU = 9000  # bytes of a packet, as in the networks of clouds: headers take 0.7 % of the rate
QUEUE = 0.05  # seconds that a packet waits for the rate before it is dropped


class NoNamespacesError(Exception):
    """This machine, or this user, cannot create network namespaces. The text says what is missing."""


@dataclass(frozen=True)
class Cable:
    """A cable to the namespace ``space``.

    Attributes:
        name: Network device of this machine.
        space: Namespace at the other end.
        address: Address of this machine at the cable.
        there: Address of the other end.
    """

    name: str
    space: str
    address: str
    there: str

    def pull(self) -> None:
        """Carry nothing from now on, without a notice to either end."""
        _ip("link", "set", self.name, "down")

    def plug(self) -> None:
        """Carry bytes again."""
        _ip("link", "set", self.name, "up")

    def limit(self, mbit: float) -> None:
        """Limit each direction to ``mbit`` million bits a second, headers included."""
        burst = max(128 << 10, int(mbit * 1e6 / 8 / 250))  # bytes: what a kernel of 250 ticks a second sends in one
        words = ["root", "tbf", "rate", f"{mbit:g}mbit", "burst", str(burst), "latency", f"{QUEUE * 1e3:g}ms"]
        _run("tc", "qdisc", "replace", "dev", self.name, *words)
        _run("tc", "-n", self.space, "qdisc", "replace", "dev", "far", *words)


@contextlib.contextmanager
def cable() -> Iterator[Cable]:
    """Context with a cable to a new namespace, in which nothing runs.

    Raises:
        NoNamespacesError: There are none here.
    """
    if os.geteuid() or not shutil.which("ip"):
        raise NoNamespacesError("no network namespaces: run as root, with iproute2")
    pid = os.getpid()
    space, near = f"msn{pid}", f"msa{pid}"
    try:
        _ip("netns", "add", space)
    except subprocess.CalledProcessError as error:
        raise NoNamespacesError("no network namespaces here") from error
    try:
        net = f"10.{213 + pid % 40}.{pid // 40 % 250}"
        made = Cable(near, space, f"{net}.1", f"{net}.2")
        size = ["mtu", str(MTU)]
        _ip("link", "add", near, *size, "type", "veth", "peer", "name", "far", *size, "netns", space)
        _ip("addr", "add", f"{made.address}/24", "dev", near)
        _ip("-n", space, "addr", "add", f"{made.there}/24", "dev", "far")
        for device in ("lo", "far"):
            _ip("-n", space, "link", "set", device, "up")
        made.plug()
        yield made
    finally:
        _ip("netns", "del", space)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
