"""The SSH configuration of an entry: its files, and their options for a host.

``ssh -G`` applies Include, Match, wildcards and canonical names. Without an ssh program, paramiko's parser reads the
files.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

from midstream.errors import UsageError
from midstream.fleet.rented_files import is_rented
from midstream.fleet.ssh_config_reader import DEFAULT_SSH_CONFIG, included_files
from midstream.state_directory import make_directory, state_directory
from midstream_core import records

RESOLVE_TIMEOUT = 30.0  # seconds; a ``Match exec`` may run programs
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
# What paramiko's parser evaluates; it takes any other criterion of Match for true.
_CRITERIA = {"all", "canonical", "final", "host", "originalhost", "user", "localuser", "exec"}


def config_files(file: str) -> list[Path]:
    """Return the user's files that configure an entry with ``ssh_config: FILE``.

    The first file takes precedence. A file that the user's default configuration includes is a part of it, and the
    complete one counts. SkyPilot and dstack write such parts; without an Include that names them they precede the
    default configuration.
    """
    path, default = Path(file).expanduser(), Path(DEFAULT_SSH_CONFIG).expanduser()
    if path == default or path.resolve() in included_files(default):
        return [default]
    return [path, default] if is_rented(path) else [path]


def config_words(file: str) -> tuple[str, ...]:
    """Return ``-F FILE``; empty for the default file.

    ssh reads the default file together with the system's.
    """
    first, *more = config_files(file)
    if more:
        return ("-F", str(_combined([first, *more, Path(SYSTEM_CONFIG)])))
    if first == Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh", "config"):
        return ()
    return ("-F", str(first) if first.is_file() else "/dev/null")


def _combined(files: list[Path]) -> Path:
    """Write a configuration that includes these files; return its path."""
    text = "".join(f'Include "{file}"\n' for file in files)
    directory = state_directory().absolute() / "ssh"
    path = directory / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.conf"
    if not path.exists():
        make_directory(directory)
        records.write_bytes(str(path), text.encode(), durable=False)
    return path


def query_ssh(
    name: str, ssh: str, words: tuple[str, ...], alias: str, user: str | None, port: int | None
) -> dict[str, list[str]]:
    """Return the output of ``ssh -G``: keyword (lower case) -> its values."""
    argv = [ssh, "-G", "-T", *words, *(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", alias]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"{name}: the SSH configuration was not resolved within {RESOLVE_TIMEOUT:.0f} s",
            "a Match exec in it does not end",
        ) from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise UsageError(
            f"{name}: {lines[0] if lines else f'ssh -G exited with {done.returncode}'}",
            f"correct the SSH configuration, or name another with hosts.{name}.ssh_config",
        )
    values: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key.lower(), []).append(value)
    return values


def query_paramiko(name: str, file: str, alias: str) -> dict[str, list[str]]:
    """Return the settings that paramiko's parser reads, as `query_ssh` returns them.

    Raises:
        UsageError: The configuration has an Include or a Match that the parser does not evaluate.
    """
    import paramiko

    files = [path for path in config_files(file) if path.is_file()]
    try:
        # `Host *` ends the last block of the file before.
        text = "\nHost *\n".join(path.read_text(errors="replace") for path in files)
        parsed = paramiko.SSHConfig.from_text(text)
        _check_evaluated(file, vars(parsed)["_config"])
        looked_up = parsed.lookup(alias)
    except (paramiko.ConfigParseError, paramiko.CouldNotCanonicalize, ImportError) as error:
        why = "Match exec needs the ssh program here" if isinstance(error, ImportError) else str(error)
        raise UsageError(f"{file}: {why}", f"correct it, or name another with hosts.{name}.ssh_config") from error
    return {key: list(value) if isinstance(value, list) else [value] for key, value in looked_up.items()}


def _check_evaluated(file: str, blocks: list[dict[str, Any]]) -> None:
    for block in blocks:
        unknown = [
            f"Match {criterion['type']}" for criterion in block.get("matches", []) if criterion["type"] not in _CRITERIA
        ]
        for what in ["Include"] * ("include" in block["config"]) + unknown:
            raise UsageError(f"{file}: {what} needs the ssh program here", "install OpenSSH's client")
