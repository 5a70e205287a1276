"""How a fleet entry is reached: what the entry says, then what the user's SSH configuration says, then the defaults."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from midstream.errors import HostError, UsageError
from midstream.fleet.config import SshHost


@dataclass(frozen=True)
class SshSettings:
    """Everything that a connection needs to know."""

    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    identities_only: bool
    known_hosts: tuple[str, ...]
    known_as: str  # what the host is called in known_hosts
    proxy_command: str | None = None

    @property
    def address(self) -> str:
        return f"{self.user}@{self.hostname}:{self.port}"


def resolve(name: str, config: SshHost) -> SshSettings:
    """UsageError where the address or the configuration cannot be read."""
    import paramiko

    user, alias, port = _parts(name, config.address)
    file = Path(config.ssh_config).expanduser()
    looked_up: dict[str, str | list[str]] = {}
    if file.is_file():
        try:
            looked_up = dict(paramiko.SSHConfig.from_path(str(file)).lookup(alias))
        except (paramiko.ConfigParseError, paramiko.CouldNotCanonicalize) as error:
            raise UsageError(f"{file}: {error}", f"mend it, or name another with hosts.{name}.ssh_config") from error

    def text(key: str) -> str | None:
        value = looked_up.get(key)
        return value if isinstance(value, str) else None

    port = config.port or port or int(text("port") or 22)
    hostname = text("hostname") or alias
    alias_key = text("hostkeyalias")
    identities = looked_up.get("identityfile") or []
    proxy = text("proxycommand") or _jump(name, file, text("proxyjump"), hostname, port)
    own = [config.identity_file] if config.identity_file else []
    files = (config.known_hosts or text("userknownhostsfile") or "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
    everybodys = (text("globalknownhostsfile") or "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2").split()
    return SshSettings(
        hostname=hostname,
        port=port,
        user=config.user or user or text("user") or getpass.getuser(),
        identity_files=tuple(
            os.path.expanduser(each) for each in [*own, *(identities if isinstance(identities, list) else [identities])]
        ),
        identities_only=bool(own) or (text("identitiesonly") or "no").lower() == "yes",
        known_hosts=tuple(os.path.expanduser(each) for each in [*files, *everybodys]),
        known_as=alias_key or (hostname if port == 22 else f"[{hostname}]:{port}"),
        proxy_command=proxy if proxy != "none" else None,
    )


def _jump(name: str, file: Path, jumps: str | None, hostname: str, port: int) -> str | None:
    """ProxyJump as the command that does it: OpenSSH's own, which checks the host keys on the way as strictly as we do
    and never asks. HostError where there is no such command here."""
    if jumps in (None, "none"):
        return None
    if not shutil.which("ssh"):
        raise HostError(f"{name}: ProxyJump {jumps} needs the ssh command here", "apt-get install openssh-client")
    *before, last = jumps.split(",")
    through = ["-J", ",".join(before)] if before else []
    destination = f"[{hostname}]:{port}" if ":" in hostname else f"{hostname}:{port}"
    strict = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    return shlex.join(["ssh", "-F", str(file), *strict, *through, "-W", destination, *_jump_words(last)])


def _jump_words(jump: str) -> list[str]:
    """``[user@]name[:port]`` or ``ssh://[user@]name[:port]``, as ssh takes it."""
    return [jump] if jump.startswith("ssh://") else [f"ssh://{jump}"] if ":" in jump else ["--", jump]


def _parts(name: str, address: str) -> tuple[str | None, str, int | None]:
    """``user@name:port`` -> its parts; IPv6 addresses with a port stand in brackets."""
    user, _, rest = address.rpartition("@")
    port: str | None = None
    if rest.startswith("["):
        rest, _, port = rest[1:].partition("]")
        port = port.removeprefix(":") or None
    elif rest.count(":") == 1:
        rest, port = rest.split(":")
    if not rest or rest.startswith("-") or (port is not None and not port.isdigit()):
        raise UsageError(f"hosts.{name}.address {address!r} cannot be read", "address: [user@]name[:port]")
    return user or None, rest, int(port) if port else None
