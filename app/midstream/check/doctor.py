"""Checks of this machine, without a connection to others (``midstream --doctor``)."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from midstream.bundled_files import shipped
from midstream.check.check_result import FAIL, PASS, WARN, Check, judge
from midstream.counts import count
from midstream.errors import MidstreamError, UsageError
from midstream.fleet.fleet_file import load_fleet
from midstream.fleet.fleet_path import default_fleet_path
from midstream.output import NO_SCREEN
from midstream.ownership import operator_key
from midstream.state_directory import state_directory
from midstream_host.machine import checks

PACKAGES = ("paramiko", "textual", "draccus", "PyYAML")
GOOGLE = ("google-cloud-storage", "google-cloud-tpu")


def doctor(fleet_path: str | None) -> Iterator[Check]:
    """Yield the checks one after the other. Nothing is changed."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield judge("python", sys.version_info >= (3, 11), f"{version} ({sys.executable})", "midstream needs 3.11 or newer")
    yield from _packages()
    yield _fleet(fleet_path)
    yield _state()
    yield from _ssh()
    yield _terminal()
    yield _operator_key()
    synchronized = checks.clock_synchronized()
    words = {
        True: "synchronized with a time server",
        False: "not synchronized with a time server",
        None: "this system does not report whether it is synchronized",
    }
    yield judge("clock", synchronized is not False, words[synchronized], "timedatectl set-ntp true", otherwise=WARN)
    uv = shutil.which("uv")
    yield Check("uv", PASS, uv or "not installed: environments of this machine are built with venv and pip")


def _operator_key() -> Check:
    """Show the public key that other operators name in their fleet files."""
    try:
        key = operator_key.public_key()
    except MidstreamError as error:
        return Check("operator key", FAIL, error.message, error.hint)
    return Check("operator key", PASS, key or "none yet: the first launch or migration makes it")


def _packages() -> Iterator[Check]:
    for names, hard in ((PACKAGES, FAIL), (GOOGLE, WARN)):
        missing = [name for name in names if _version(name) is None]
        installed = ", ".join(f"{name} {_version(name)}" for name in names if name not in missing)
        words = f"{', '.join(missing)} is missing" if missing else installed
        yield judge("packages", not missing, words, "install midstream again", otherwise=hard)
    missing = [name for name in ("engine-cpu.txt", "python.json") if not _shipped(f"locks/{name}")]
    words = f"{', '.join(missing)} is missing" if missing else "the lock files are installed"
    yield judge("locks", not missing, words, "install midstream again")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _shipped(name: str) -> bool:
    from midstream.errors import MidstreamError

    try:
        shipped(name)
    except MidstreamError:
        return False
    return True


def _fleet(path: str | None) -> Check:
    try:
        fleet = load_fleet(path)
    except UsageError as error:
        missing = path is None and not default_fleet_path().exists()
        return Check("fleet file", WARN if missing else FAIL, error.message, error.hint)
    for name, host in fleet.hosts.items():
        for secret, source in host.secrets.items():
            kind, _, variable = source.partition(":")
            if kind == "env" and variable not in os.environ:
                return Check(
                    "fleet file",
                    WARN,
                    f"hosts.{name}.secrets.{secret}: {variable} is not set",
                    f"export {variable}=...",
                )
    return Check(
        "fleet file",
        PASS,
        f"{fleet.path}: {count(len(fleet.hosts), 'host')}, {count(len(fleet.target_names), 'target')}",
    )


def _state() -> Check:
    path = state_directory()
    existing = next(directory for directory in (path, *path.parents) if directory.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(4096))  # a full disk has room for the name of a file, and none for its bytes
    except OSError as error:
        hint = f"make {existing} writable, or set MIDSTREAM_STATE to another directory"
        return Check("state", FAIL, f"{path} cannot be written: {error.strerror}", hint)
    return Check("state", PASS, str(path))


def _ssh() -> Iterator[Check]:
    ssh = shutil.which("ssh")
    yield judge(
        "ssh",
        ssh is not None,
        ssh or "not installed: the SSH configuration is read without it (no Match exec, no canonical names)",
        "apt-get install openssh-client",
        otherwise=WARN,
    )
    agent = os.environ.get("SSH_AUTH_SOCK", "")
    keys = [path for path in sorted(Path("~/.ssh").expanduser().glob("id_*")) if path.suffix != ".pub"]
    configured = [path for path in _configured_keys() if path not in keys]
    loose = [path for path in (*keys, *configured) if path.stat().st_mode & 0o077]
    if loose:
        yield Check("keys", WARN, f"{loose[0]} can be read by others: ssh refuses it", f"chmod 600 {loose[0]}")
        return
    words = [f"{len(keys)} in ~/.ssh"] if keys else []
    words += [f"{len(configured)} of ~/.ssh/config"] if configured else []
    words += ["an agent"] if agent and os.path.exists(agent) else []
    if words:
        yield Check("keys", PASS, " and ".join(words))
    else:
        yield Check("keys", WARN, "no key in ~/.ssh and no agent", "ssh-keygen -t ed25519, or ssh-add FILE")


def _configured_keys() -> list[Path]:
    """Return the keys that ``~/.ssh/config`` names and that exist."""
    try:
        text = Path("~/.ssh/config").expanduser().read_text(errors="replace")
    except OSError:
        return []
    named = re.findall(r"(?im)^\s*IdentityFile[\s=]+\"?([^\"\n]+?)\"?\s*$", text)
    return sorted({path for name in named if (path := Path(name).expanduser()).is_file()})


def _terminal() -> Check:
    kind = os.environ.get("TERM", "")
    if kind in NO_SCREEN:
        hint = "midstream --status prints the same once; export TERM=xterm-256color if it is one"
        return Check("terminal", WARN, f"the terminal UI does not start: TERM is {kind or 'not set'}", hint)
    encoding = (getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "")
    if encoding != "utf8":
        return Check(
            "terminal", WARN, f"its encoding is {encoding or 'an unknown encoding'}", "export LANG=C.UTF-8, or --ascii"
        )
    return Check("terminal", PASS, f"{kind}, UTF-8")
