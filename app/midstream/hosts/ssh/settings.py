"""SSH settings of a fleet entry: its own fields, then the user's SSH settings.

``ssh -G`` resolves the configuration, with Include, Match, wildcards and canonical names. Without an ssh program,
paramiko's parser reads the one file that the entry names.
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
from midstream.fleet.fleet import SshHostConfig
from midstream.fleet.rented_files import rented_known_hosts

RESOLVE_TIMEOUT = 30.0  # seconds; a ``Match exec`` may run programs
DEFAULT_CONFIG = "~/.ssh/config"


@dataclass(frozen=True)
class SshSettings:
    """Everything that a connection needs."""

    alias: str  # its name in the fleet file or in ProxyJump
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    identities_only: bool
    known_hosts: tuple[str, ...]
    known_as: str  # its name in known_hosts
    certificate_files: tuple[str, ...] = ()
    identity_agent: str | None = None  # path of its socket; None: no agent is used
    proxy_command: str | None = None
    jumps: tuple[str, ...] = ()  # ProxyJump, in order
    also_known_as: tuple[str, ...] = ()
    hash_known_hosts: bool = False
    config_words: tuple[str, ...] = ()  # options that make the ssh program read the same configuration

    @property
    def address(self) -> str:
        """``USER@HOST:PORT``."""
        return f"{self.user}@{self.hostname}:{self.port}"

    @property
    def names(self) -> tuple[str, ...]:
        """Its possible names in known_hosts."""
        return (self.known_as, *self.also_known_as)


def resolve(name: str, config: SshHostConfig) -> SshSettings:
    """Resolve a fleet entry.

    Raises:
        UsageError: The address or the configuration is malformed.
    """
    for field in ("identity_file", "ssh_config", "known_hosts"):
        value = getattr(config, field)
        if value and not os.path.isabs(os.path.expanduser(value)):
            # A migration's own process runs in another directory.
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
    """Resolve a hop of ProxyJump.

    Its form is ``[user@]name[:port]`` or ``ssh://[user@]name[:port]``.
    """
    user, alias, port = parse_address(jump.removeprefix("ssh://").rstrip("/"), f"{name}: ProxyJump")
    rented = rented_known_hosts(Path(file).expanduser(), alias)
    return resolve_alias(
        alias, alias, user=user, port=port, file=file, known_hosts=str(rented) if rented is not None else None
    )


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
    """Resolve ``alias`` as ssh does.

    Args:
        name: Name of the host in messages.
        alias: Name of the host in the configuration.
        user: Overrides the configuration, as do the following.
        port: TCP port.
        file: The configuration file.
        identity_file: Path of a private key.
        known_hosts: Path of a known_hosts file.

    Raises:
        UsageError: The configuration is malformed, or has a name that a shell would interpret.
    """
    words = config_words(file)
    ssh = shutil.which("ssh")
    found = _query_ssh(name, ssh, words, alias, user, port) if ssh else _query_paramiko(name, file, alias)

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
    system_wide = _paths(last("globalknownhostsfile") or "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
    explicit = [identity_file] if identity_file else []
    configured = [each for each in found.get("identityfile", []) if each.lower() != "none"]
    proxy = last("proxycommand")
    return SshSettings(
        alias=alias,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=tuple(dict.fromkeys(_path(each, tokens) for each in [*explicit, *configured])),
        identities_only=bool(explicit) or last("identitiesonly") == "yes",
        known_hosts=tuple(_path(each, tokens) for each in [*files, *system_wide]),
        known_as=alias_key or (hostname if port == 22 else f"[{hostname}]:{port}"),
        certificate_files=tuple(_path(each, tokens) for each in found.get("certificatefile", [])),
        identity_agent=_agent(found.get("identityagent", ["SSH_AUTH_SOCK"])[-1], tokens),
        proxy_command=_expand(proxy, tokens) if proxy else None,
        jumps=tuple((last("proxyjump") or "").split(",")) if last("proxyjump") else (),
        # As ssh: an entry without a port also applies.
        also_known_as=(hostname,) if not alias_key and port != 22 else (),
        hash_known_hosts=last("hashknownhosts") == "yes",
        config_words=words,
    )


# ------------------------------------------------------------------------------------------- the configuration


def config_words(file: str) -> tuple[str, ...]:
    """Return ``-F FILE``; empty for the default file.

    ssh reads the default file together with the system's.
    """
    path = os.path.expanduser(file)
    if path == os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".ssh", "config"):
        return ()
    return ("-F", path if os.path.isfile(path) else "/dev/null")


def _query_ssh(
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
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value)
    return found


def _query_paramiko(name: str, file: str, alias: str) -> dict[str, list[str]]:
    """Return the settings that paramiko's parser reads, as `_query_ssh` returns them.

    The parser supports neither Include nor the system's file.
    """
    import paramiko

    path = Path(file).expanduser()
    if not path.is_file():
        return {}
    try:
        looked_up = paramiko.SSHConfig.from_path(str(path)).lookup(alias)
    except (paramiko.ConfigParseError, paramiko.CouldNotCanonicalize, ImportError) as error:
        why = "Match exec needs the ssh program here" if isinstance(error, ImportError) else str(error)
        raise UsageError(f"{path}: {why}", f"correct it, or name another with hosts.{name}.ssh_config") from error
    return {key: list(value) if isinstance(value, list) else [value] for key, value in looked_up.items()}


def parse_address(address: str, where: str) -> tuple[str | None, str, int | None]:
    """Split ``user@name:port``; IPv6 addresses with a port are in brackets.

    Raises:
        UsageError: The address is malformed.
    """
    user, _, rest = address.rpartition("@")
    port: str | None = None
    if rest.startswith("["):
        rest, _, port = rest[1:].partition("]")
        port = port.removeprefix(":") or None
    elif rest.count(":") == 1:
        rest, port = rest.split(":")
    if not rest or rest.startswith("-") or (port is not None and not re.fullmatch(r"\d{1,5}", port, re.ASCII)):
        raise UsageError(f"{where} {address!r} is malformed", "[user@]name[:port]")
    _check_plain(where, rest, user or None)
    return user or None, rest, int(port) if port else None


def _check_plain(name: str, hostname: str, user: str | None) -> None:
    """Refuse names with characters that a shell interprets.

    Host name and user name may become part of a ProxyCommand.
    """
    if hostname.startswith("-") or not re.fullmatch(r"[\w.:%@+-]+", hostname):
        raise UsageError(f"{name}: {hostname!r} is not a host name", "letters, digits, '.', '-', '_' and ':'")
    if user is not None and (user.startswith("-") or re.search(r"[\s'\"`$\\;&<>|(){}\x00-\x1f]", user)):
        raise UsageError(f"{name}: {user!r} is not a user name", "letters, digits, '.', '-', '_' and '@'")


# ------------------------------------------------------------------------------------------------ their values


def _tokens(alias: str, hostname: str, port: int, user: str, jump: str, key_alias: str) -> dict[str, str]:
    """Return the ssh_config(5) percent tokens that have a value before a connection."""
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
    """Expand ``~``, ``%h`` and ``${NAME}`` in a path."""
    named = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), text.strip('"'))
    return os.path.expanduser(_expand(named, tokens))


def _paths(text: str) -> list[str]:
    """Split a list of paths.

    ``ssh -G`` prints no quotes: a word that begins no path continues the last one.
    """
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
    """Resolve IdentityAgent: a path, ``SSH_AUTH_SOCK``, ``$NAME`` or ``none``."""
    if text.lower() == "none":
        return None
    if text == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if re.fullmatch(r"\$\w+", text):
        return os.environ.get(text[1:]) or None
    return _path(text, tokens)
