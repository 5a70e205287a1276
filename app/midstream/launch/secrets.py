"""What an engine has to know and nobody may read: from this machine to a file of the host that its owner alone reads.

The fleet file says where each lies here, never what it is. It travels over stdin, and the engine's supervisor puts it
into the engine's environment: no command line, journal or log ever holds it.
"""

from __future__ import annotations

import os
from pathlib import Path

from midstream.errors import UsageError
from midstream.fleet.fleet import HostConfig


def read_secrets(host: str, config: HostConfig) -> dict[str, str]:
    """``{name: value}`` of the host's ``secrets:``. UsageError where one is not to be had here."""
    return {name: _read(f"hosts.{host}.secrets.{name}", source) for name, source in config.secrets.items()}


def _read(what: str, source: str) -> str:
    kind, _, place = source.partition(":")
    if kind == "env":
        if place not in os.environ:
            raise UsageError(f"{what}: {place} is not set in this environment", f"export {place}=...")
        return os.environ[place]
    file = Path(place).expanduser()
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what}: {file} cannot be read: {error}", "write it there, or take the entry out") from None
