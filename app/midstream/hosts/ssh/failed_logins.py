"""Failed logins, whose repetition would lock out other entries of the server.

OpenSSH 9.8 and newer refuse all connections of a machine for a while after failed logins (PerSourcePenalties: 5 seconds
for each, in force from 15 seconds on). Of the entries that a server has refused, one is tried again in 15 seconds. The
others report what they were refused with, as does that one until then. An entry that was not refused is not delayed,
and neither is one whose keys or settings have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from midstream.errors import HostError
from midstream.hosts.ssh.auth_keys import open_agent
from midstream.hosts.ssh.resolved_options import SshSettings
from midstream.state_directory import make_directory, state_directory
from midstream_core import records

INTERVAL = 15.0  # seconds between failed logins on a server
KEPT = 3600.0  # seconds that a failed login stays in the file


def check(name: str, settings: SshSettings) -> None:
    """Raise the last login's HostError if the server has just refused these keys.

    Args:
        name: Name of the host, for the message.
        settings: Its settings.
    """
    logins = _read(_file(settings))
    if not logins or (last := logins.get(_fingerprint(settings))) is None:
        return
    now = time.time()
    since = min((now - login["time"] for login in logins.values() if login["time"] <= now), default=INTERVAL)
    if since < INTERVAL:
        raise HostError(
            f"{name}: {last['message'].partition(': ')[2]} "
            f"({now - last['time']:.0f} s ago; it is tried again in {INTERVAL - since:.0f} s)",
            last["hint"],
        )


def recorded(settings: SshSettings, error: HostError) -> HostError:
    """Store a failed login; return its error."""
    file = _file(settings)
    now = time.time()
    logins = {key: login for key, login in _read(file).items() if now - KEPT < login["time"] <= now}
    logins[_fingerprint(settings)] = {"time": now, "message": error.message, "hint": error.hint}
    make_directory(file.parent)
    records.write_json(str(file), logins, durable=False)
    return error


def clear(settings: SshSettings) -> None:
    """Remove the failed login of these keys: they are accepted."""
    file = _file(settings)
    if logins := _read(file):
        logins.pop(_fingerprint(settings), None)
        records.write_json(str(file), logins, durable=False)


def forget() -> None:
    """Forget all failed logins, for a user who tries again."""
    shutil.rmtree(_directory(), ignore_errors=True)


def _directory() -> Path:
    return state_directory() / "failed_logins"


def _file(settings: SshSettings) -> Path:
    """Return the file of the server: by its address, and the way there."""
    way = (settings.hostname, str(settings.port), settings.proxy_command or "", *settings.jumps)
    return _directory() / f"{_hash(*way)}.json"


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the failed logins by fingerprint; none of a damaged file."""
    try:
        logins = json.loads(file.read_text())
        return {
            key: login for key, login in logins.items() if float(login["time"]) and login["message"] and "hint" in login
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _fingerprint(settings: SshSettings) -> str:
    """Return a text that changes with the user, the key files and the agent's keys."""
    files = [settings.user, *settings.certificate_files]
    files += [f"{file}{end}" for file in settings.identity_files for end in ("", ".pub", "-cert.pub")]
    agent = open_agent(settings.identity_agent)
    try:
        keys = [key.get_base64() for key in agent.get_keys()] if agent is not None else []
    finally:
        if agent is not None:
            agent.close()
    return _hash(*files, *map(_state, files), *keys, str(settings.identities_only))


def _state(file: str) -> str:
    try:
        status = os.stat(file)
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def _hash(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
