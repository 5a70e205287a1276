"""SSH settings of a fleet entry: its fields, then its SSH configuration."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path

from midstream.errors import UsageError
from midstream.fleet.fleet import SshHostConfig
from midstream.fleet.rented_files import own_known_hosts, rented_known_hosts
from midstream.fleet.ssh_address import check_names, parse_address
from midstream.fleet.ssh_config_reader import DEFAULT_SSH_CONFIG
from midstream.hosts.ssh.config_files import config_words, query_paramiko, query_ssh

DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
DEFAULT_CONNECT_TIMEOUT = 15.0  # seconds for each of: TCP, banner
ALGORITHM_OPTIONS = ("kexalgorithms", "hostkeyalgorithms", "ciphers", "macs", "pubkeyacceptedalgorithms")
FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


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
    known_hosts_command: tuple[str, ...] = ()
    revoked_host_keys: str | None = None  # path of a file
    check_host_ip: bool = False
    proxy_passes_socket: bool = False  # ProxyUseFdpass
    family: socket.AddressFamily = socket.AF_UNSPEC
    bind_address: str | None = None
    connect_timeout: float = DEFAULT_CONNECT_TIMEOUT
    connection_attempts: int = 1
    algorithms: Mapping[str, tuple[str, ...]] = dataclass_field(
        default_factory=dict[str, tuple[str, ...]]
    )  # allowed, by option
    unused_logins: tuple[str, ...] = ()  # options by which ssh may log in, and midstream does not
    unused_trust: tuple[str, ...] = ()  # options by which ssh may accept an unknown host key, and midstream does not
    tokens: Mapping[str, str] = dataclass_field(default_factory=dict[str, str])  # those of ssh_config(5)
    config_words: tuple[str, ...] = ()  # options that make the ssh program read the same configuration
    host_key_words: tuple[str, ...] = ()  # and the same host keys, where they are not those of the configuration

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
    key = os.path.expanduser(config.identity_file or "")
    if key and not os.path.isfile(key) and not os.path.isfile(key + ".pub"):  # an agent may have the private key
        raise UsageError(f"hosts.{name}.identity_file {key} does not exist here", "the path of a private key")
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
    """Resolve a hop of ProxyJump, ``[user@]name[:port]``, with or without ``ssh://``."""
    user, alias, port = parse_address(jump, f"{name}: ProxyJump")
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
    file: str = DEFAULT_SSH_CONFIG,
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
    options = query_ssh(name, ssh, words, alias, user, port) if ssh else query_paramiko(name, file, alias)

    def last(key: str) -> str | None:
        value = options.get(key)
        return value[-1] if value and value[-1].lower() != "none" else None

    def on(key: str) -> bool:
        return last(key) in ("yes", "true")

    port = port or int(last("port") or 22)
    hostname = last("hostname") or alias
    user = user or last("user") or getpass.getuser()
    check_names(name, hostname, user)
    if last("bindinterface"):
        raise UsageError(f"{name}: the SSH option BindInterface is not supported", "BindAddress, or a ProxyCommand")
    alias_key = last("hostkeyalias")
    tokens = _tokens(alias, hostname, port, user, last("proxyjump") or "", alias_key or alias)
    known_as = alias_key or (hostname if port == 22 else f"[{hostname}]:{port}")
    tokens["H"] = known_as
    files = _paths(known_hosts or options.get("userknownhostsfile", ["~/.ssh/known_hosts"])[-1])
    system_wide = _paths(
        options.get("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"])[-1]
    )
    if not files or files[0] == os.devnull:
        # Accepted keys have to be stored. Other configurations may have another host of this name.
        of_file = f"-{hashlib.sha256(file.encode()).hexdigest()[:8]}" if words else ""
        files = [str(own_known_hosts(f"ssh-{alias}{of_file}")), *files[1:]]
        known_hosts = files[0]
    host_key_words: tuple[str, ...] = ()
    if known_hosts:
        quoted = " ".join(f'"{path}"' if " " in path else path for path in files)
        host_key_words = ("-o", f"UserKnownHostsFile={quoted}")
    explicit = [identity_file] if identity_file else []
    configured = [path for path in options.get("identityfile", DEFAULT_KEYS) if path.lower() != "none"]
    proxy, known_hosts_command = last("proxycommand"), last("knownhostscommand")
    revoked = last("revokedhostkeys")
    return SshSettings(
        alias=alias,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=tuple(dict.fromkeys(_path(path, tokens) for path in [*explicit, *configured])),
        identities_only=bool(explicit) or on("identitiesonly"),
        known_hosts=tuple(_path(path, tokens) for path in [*files, *system_wide]),
        known_as=known_as,
        certificate_files=tuple(_path(path, tokens) for path in options.get("certificatefile", [])),
        identity_agent=_agent(options.get("identityagent", ["SSH_AUTH_SOCK"])[-1], tokens),
        proxy_command=expand(proxy, tokens) if proxy else None,
        jumps=tuple((last("proxyjump") or "").split(",")) if last("proxyjump") else (),
        # As ssh: an entry without a port also applies.
        also_known_as=(hostname,) if not alias_key and port != 22 else (),
        hash_known_hosts=on("hashknownhosts"),
        known_hosts_command=tuple(shlex.split(known_hosts_command)) if known_hosts_command else (),
        revoked_host_keys=_path(revoked, tokens) if revoked else None,
        check_host_ip=on("checkhostip"),
        proxy_passes_socket=on("proxyusefdpass"),
        family=FAMILIES.get(last("addressfamily") or "", socket.AF_UNSPEC),
        bind_address=last("bindaddress"),
        connect_timeout=float(last("connecttimeout") or DEFAULT_CONNECT_TIMEOUT),
        connection_attempts=max(1, int(last("connectionattempts") or 1)),
        # paramiko's parser does not resolve `+`, `-` and `^`, which name a part of ssh's own list.
        algorithms={key: tuple(options[key][-1].split(",")) for key in ALGORITHM_OPTIONS if ssh and key in options},
        unused_logins=_unused_logins(last),
        unused_trust=_unused_trust(last),
        tokens=tokens,
        config_words=words,
        host_key_words=host_key_words,
    )


def _unused_logins(last: Callable[[str], str | None]) -> tuple[str, ...]:
    """Return the options by which ssh logs in without the keys that midstream offers."""
    used = [option for option in ("PKCS11Provider",) if last(option.lower())]
    master = last("controlpath")
    if master and os.path.exists(os.path.expanduser(master)):
        used.append("ControlPath, a connection that is open")
    return tuple(used)


def _unused_trust(last: Callable[[str], str | None]) -> tuple[str, ...]:
    """Return the options by which ssh accepts host keys that are in no file."""
    words = {"true": "yes", "false": "no"}  # as ssh -G prints some of them
    options = {"StrictHostKeyChecking": ("no", "off", "accept-new"), "VerifyHostKeyDNS": ("yes",)}
    options["NoHostAuthenticationForLocalhost"] = ("yes",)
    values = {option: last(option.lower()) or "" for option in options}
    return tuple(
        f"{option} {words.get(value, value)}"
        for option, value in values.items()
        if words.get(value, value) in options[option]
    )


# ---------------------------------------------------------------------------------------------------- addresses


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


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace the percent tokens that have a value; others stay."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _path(text: str, tokens: Mapping[str, str]) -> str:
    """Expand ``~``, ``%h`` and ``${NAME}`` in a path."""
    named = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), text.strip('"'))
    return os.path.expanduser(expand(named, tokens))


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
