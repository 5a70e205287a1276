"""Addresses of SSH servers."""

from __future__ import annotations

import re

from midstream.errors import UsageError

FORM = "[user@]name[:port]"
LARGEST_PORT = 65535


def parse_address(address: str, where: str) -> tuple[str | None, str, int | None]:
    """Split ``user@name:port``, as `split_address`, and check the names.

    Raises:
        UsageError: The address is malformed, or a name has characters that a shell interprets.
    """
    user, name, port = split_address(address, where)
    check_names(where, name, user)
    return user, name, port


def split_address(address: str, where: str) -> tuple[str | None, str, int | None]:
    """Split ``user@name:port``, with or without ``ssh://``.

    IPv6 addresses with a port are in brackets. The name may be any word of an SSH configuration.

    Raises:
        UsageError: The address is malformed.
    """
    user, _, rest = address.removeprefix("ssh://").rstrip("/").rpartition("@")
    port: str | None = None
    if rest.startswith("["):
        rest, _, port = rest[1:].partition("]")
        port = port.removeprefix(":") or None
    elif rest.count(":") == 1:
        rest, port = rest.split(":")
    if not rest or rest.startswith("-") or (port is not None and not re.fullmatch(r"\d+", port, re.ASCII)):
        raise UsageError(f"{where} {address!r} is malformed", FORM)
    if port is not None and not 1 <= int(port[:6]) <= LARGEST_PORT:
        raise UsageError(f"{where} {address!r}: {port[:20]} is no port", f"1 to {LARGEST_PORT}")
    return user or None, rest, int(port) if port else None


def check_names(where: str, hostname: str, user: str | None) -> None:
    """Refuse names with characters that a shell interprets.

    Host name and user name may become part of a ProxyCommand.
    """
    if hostname.startswith("-") or not re.fullmatch(r"[\w.:%@+-]+", hostname):
        raise UsageError(f"{where}: {hostname!r} is not a host name", "letters, digits, '.', '-', '_' and ':'")
    if user is not None and (user.startswith("-") or re.search(r"[\s'\"`$\\;&<>|(){}\x00-\x1f]", user)):
        raise UsageError(f"{where}: {user!r} is not a user name", "letters, digits, '.', '-', '_' and '@'")
