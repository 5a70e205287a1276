"""Secrets of an engine, read on this machine and stored in a file of the host.

Only the owner of that file can read it.

The fleet file has the source of each secret, never its value. Values are sent over stdin, and the engine's supervisor
sets them in the engine's environment: they are in no command line, journal or log.
"""

from __future__ import annotations

import os
from pathlib import Path

from midstream.errors import UsageError
from midstream.fleet.fleet import HostConfig


def read_secrets(host: str, config: HostConfig) -> dict[str, str]:
    """Return ``{name: value}`` of the host's ``secrets:``.

    Raises:
        UsageError: A secret is not available on this machine.
    """
    return {name: _read(f"hosts.{host}.secrets.{name}", source) for name, source in config.secrets.items()}


def _read(what: str, source: str) -> str:
    kind, _, location = source.partition(":")
    if kind == "env":
        if location not in os.environ:
            raise UsageError(f"{what}: {location} is not set in this environment", f"export {location}=...")
        return os.environ[location]
    file = Path(location).expanduser()
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what}: {file} cannot be read: {error}", "create the file, or remove the entry") from None
