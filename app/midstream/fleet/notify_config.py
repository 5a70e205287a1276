"""Notifications of the fleet file (``notify:``): where events are sent.

The command of ``on_event:`` runs too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from midstream.errors import UsageError
from midstream.suggestions import nearest

WEBHOOK, SLACK = "webhook", "slack"
TYPES = (WEBHOOK, SLACK)


@dataclass(frozen=True)
class NotifyConfig:
    """One receiver of events."""

    type: str = WEBHOOK  # one of TYPES
    url: str = ""  # env:NAME or file:PATH of this machine, or an address without a secret
    kinds: list[str] = field(default_factory=list)  # of events; empty: all


def check_notify(path: str, receivers: Sequence[NotifyConfig], kinds: Sequence[str]) -> None:
    """Raise UsageError for an invalid receiver.

    Messages never repeat an address, which may be a secret.
    """
    for index, receiver in enumerate(receivers):
        where = f"{path}: notify[{index}]"
        if receiver.type not in TYPES:
            raise UsageError(f"{where}.type is {receiver.type!r}", nearest(receiver.type, TYPES))
        if not receiver.url.startswith(("env:", "file:")) and not is_address(receiver.url):
            raise UsageError(
                f"{where}.url is neither env:NAME nor file:PATH nor an https:// address",
                "env:NAME keeps an address with a secret out of the file",
            )
        for kind in receiver.kinds:
            if kind not in kinds:
                raise UsageError(f"{where}.kinds has {kind!r}", nearest(kind, tuple(kinds)))


def is_address(url: str) -> bool:
    """Return whether a URL is https, or http to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host)
    try:
        return parts.scheme == "http" and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False
