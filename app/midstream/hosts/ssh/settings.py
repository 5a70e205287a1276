"""How a fleet entry is reached: what the entry says, then the user's SSH configuration as OpenSSH resolves it.

``ssh -G`` prints what ssh would do for a name: Include, Match, wildcards and canonical names are its own business.
Where there is no such program, paramiko's parser reads the one file that the entry names.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from midstream.errors import UsageError
from midstream.fleet.fleet import SshHost

RESOLVE_TIMEOUT = 30.0  # seconds; a ``Match exec`` may run programs
DEFAULT_CONFIG = "~/.ssh/config"


@dataclass(frozen=True)
class SshSettings:
    """Everything that a connection needs to know."""

    alias: str  # as the fleet file, or a ProxyJump, calls it
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    identities_only: bool
    known_hosts: tuple[str, ...]
    known_as: str  # what the host is called in known_hosts
    certificate_files: tuple[str, ...] = ()
    identity_agent: str | None = None  # path of its socket; None where no agent is to be asked
    proxy_command: str | None = None
    jumps: tuple[str, ...] = ()  # ProxyJump, in the order that they are passed
    also_known_as: tuple[str, ...] = ()
    hash_known_hosts: bool = False
    config_words: tuple[str, ...] = ()  # options that make the ssh program read the same configuration

    @property
    def address(self) -> str:
        return f"{self.user}@{self.hostname}:{self.port}"

    @property
    def names(self) -> tuple[str, ...]:
        """What known_hosts may call it."""
        return (self.known_as, *self.also_known_as)


def resolve(name: str, config: SshHost) -> SshSettings:
    """UsageError where the address or the configuration cannot be read."""
    for field in ("identity_file", "ssh_config", "known_hosts"):
        value = getattr(config, field)
        if value and not os.path.isabs(os.path.expanduser(value)):
            # Relative to what? A migration goes on in another folder than it was begun in.
            raise UsageError(f"hosts.{name}.{field} {value!r} is relative", "an absolute path, or one that begins ~/")
    user, alias, port = parse_address(config.address, f"hosts.{name}.address")
    return resolve_alias(
        name,
        alias,
        user=config.user or user,
        port=config.port or port,
        file=config.ssh_config,
        identity_file=config.identity_file,
        known_hosts=config.known_hosts,
    )


def resolve_jump(name: str, jump: str, file: str) -> SshSettings:
    """A hop of ProxyJump: ``[user@]name[:port]`` or ``ssh://[user@]name[:port]``."""
    user, alias, port = parse_address(jump.removeprefix("ssh://").rstrip("/"), f"{name}: ProxyJump")
    return resolve_alias(alias, alias, user=user, port=port, file=file)


def resolve_alias(
    name: str,
    alias: str,
    *,
    user: str | None = None,
    port: int | None = None,
    file: str = DEFAULT_CONFIG,
    identity_file: str | None = None,
    known_hosts: str | None = None,
) -> SshSettings:
    """What ssh would do for ``alias``. ``user`` ... ``known_hosts`` stand above the configuration."""
    words = _config_words(file)
    ssh = shutil.which("ssh")
    found = _ask_ssh(name, ssh, words, alias, user, port) if ssh else _ask_paramiko(name, file, alias)

    def last(key: str) -> str | None:
        value = found.get(key)
        return value[-1] if value and value[-1].lower() != "none" else None

    port = port or int(last("port") or 22)
    hostname = last("hostname") or alias
    user = user or last("user") or getpass.getuser()
    _check_plain(name, hostname, user)
    tokens = _tokens(alias, hostname, port, user, last("proxyjump") or "", last("hostkeyalias") or alias)
    alias_key = last("hostkeyalias")
    files = _paths(known_hosts) if known_hosts else _paths(last("userknownhostsfile") or "~/.ssh/known_hosts")
    everybodys = _paths(last("globalknownhostsfile") or "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
    own = [identity_file] if identity_file else []
    configured = [each for each in found.get("identityfile", []) if each.lower() != "none"]
    proxy = last("proxycommand")
    return SshSettings(
        alias=alias,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=tuple(dict.fromkeys(_path(each, tokens) for each in [*own, *configured])),
        identities_only=bool(own) or last("identitiesonly") == "yes",
        known_hosts=tuple(_path(each, tokens) for each in [*files, *everybodys]),
        known_as=alias_key or (hostname if port == 22 else f"[{hostname}]:{port}"),
        certificate_files=tuple(_path(each, tokens) for each in found.get("certificatefile", [])),
        identity_agent=_agent(found.get("identityagent", ["SSH_AUTH_SOCK"])[-1], tokens),
        proxy_command=_expand(proxy, tokens) if proxy else None,
        jumps=tuple((last("proxyjump") or "").split(",")) if last("proxyjump") else (),
        # As ssh does: a host that is known without its port counts.
        also_known_as=(hostname,) if not alias_key and port != 22 else (),
        hash_known_hosts=last("hashknownhosts") == "yes",
        config_words=words,
    )


# ------------------------------------------------------------------------------------------- the configuration


def _config_words(file: str) -> tuple[str, ...]:
    """``-F FILE``; nothing where ssh reads that file anyhow, and the system's with it."""
    path = os.path.expanduser(file)
    if path == os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".ssh", "config"):
        return ()
    return ("-F", path if os.path.isfile(path) else "/dev/null")


def _ask_ssh(
    name: str, ssh: str, words: tuple[str, ...], alias: str, user: str | None, port: int | None
) -> dict[str, list[str]]:
    """What ``ssh -G`` prints: keyword (lower case) -> its values."""
    argv = [ssh, "-G", "-T", *words, *(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", alias]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"{name}: the SSH configuration is not read within {RESOLVE_TIMEOUT:.0f} s",
            "a Match exec in it does not end",
        ) from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise UsageError(
            f"{name}: {lines[0] if lines else f'ssh -G ended with {done.returncode}'}",
            f"mend the SSH configuration, or name another with hosts.{name}.ssh_config",
        )
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value)
    return found


def _ask_paramiko(name: str, file: str, alias: str) -> dict[str, list[str]]:
    """The same from paramiko's parser, which knows wildcards and Match but neither Include nor the system's file."""
    import paramiko

    path = Path(file).expanduser()
    if not path.is_file():
        return {}
    try:
        looked_up = paramiko.SSHConfig.from_path(str(path)).lookup(alias)
    except (paramiko.ConfigParseError, paramiko.CouldNotCanonicalize, ImportError) as error:
        why = "Match exec needs the ssh program here" if isinstance(error, ImportError) else str(error)
        raise UsageError(f"{path}: {why}", f"mend it, or name another with hosts.{name}.ssh_config") from error
    return {key: list(value) if isinstance(value, list) else [value] for key, value in looked_up.items()}


def parse_address(address: str, where: str) -> tuple[str | None, str, int | None]:
    """``user@name:port`` -> its parts; IPv6 addresses with a port stand in brackets."""
    user, _, rest = address.rpartition("@")
    port: str | None = None
    if rest.startswith("["):
        rest, _, port = rest[1:].partition("]")
        port = port.removeprefix(":") or None
    elif rest.count(":") == 1:
        rest, port = rest.split(":")
    if not rest or rest.startswith("-") or (port is not None and not re.fullmatch(r"\d{1,5}", port, re.ASCII)):
        raise UsageError(f"{where} {address!r} cannot be read", "[user@]name[:port]")
    _check_plain(where, rest, user or None)
    return user or None, rest, int(port) if port else None


def _check_plain(name: str, hostname: str, user: str | None) -> None:
    """Both may stand in a ProxyCommand, which a shell reads: what means something to a shell is no name."""
    if hostname.startswith("-") or not re.fullmatch(r"[\w.:%@+-]+", hostname):
        raise UsageError(f"{name}: {hostname!r} is no name of a host", "letters, digits, '.', '-', '_' and ':'")
    if user is not None and (user.startswith("-") or re.search(r"[\s'\"`$\\;&<>|(){}\x00-\x1f]", user)):
        raise UsageError(f"{name}: {user!r} is no name of a user", "letters, digits, '.', '-', '_' and '@'")


# ------------------------------------------------------------------------------------------------ their values


def _tokens(alias: str, hostname: str, port: int, user: str, jump: str, key_alias: str) -> dict[str, str]:
    """The percent tokens of ssh_config(5) that make sense before a connection."""
    local = socket.gethostname()
    mixed = f"{local}{hostname}{port}{user}{jump}".encode()
    return {
        "%": "%",
        "h": hostname,
        "n": alias,
        "p": str(port),
        "r": user,
        "u": getpass.getuser(),
        "d": os.path.expanduser("~"),
        "i": str(os.getuid()),
        "j": jump,
        "k": key_alias,
        "l": local,
        "L": local.split(".")[0],
        "C": hashlib.sha1(mixed).hexdigest(),
    }


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _path(text: str, tokens: Mapping[str, str]) -> str:
    """A path with ``~``, ``%h`` and ``${NAME}`` in it."""
    named = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), text.strip('"'))
    return os.path.expanduser(_expand(named, tokens))


def _paths(text: str) -> list[str]:
    """``ssh -G`` prints lists of paths without quotes: what does not begin one belongs to the one before."""
    if text.lower() == "none":
        return []
    paths: list[str] = []
    for word in text.split(" "):
        if paths and not word.startswith(("/", "~", "%", "$")):
            paths[-1] += f" {word}"
        elif word:
            paths.append(word)
    return paths


def _agent(text: str, tokens: Mapping[str, str]) -> str | None:
    """IdentityAgent: a path, ``SSH_AUTH_SOCK``, ``$NAME`` or ``none``."""
    if text.lower() == "none":
        return None
    if text == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if re.fullmatch(r"\$\w+", text):
        return os.environ.get(text[1:]) or None
    return _path(text, tokens)
