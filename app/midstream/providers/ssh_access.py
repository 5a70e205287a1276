"""SSH access to the workers of a slice, for every provider.

The service publishes the workers' host keys, so that no host key is accepted unchecked. The results are an SSH
configuration and a known_hosts file under ``$MIDSTREAM_STATE/slices/``, which midstream and ``ssh -F`` use.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midstream.errors import UsageError
from midstream.fleet.slice_target import SliceTarget
from midstream.providers import os_login
from midstream.providers.provider import ErrorKind, Progress, ProviderError, Slice
from midstream.state_directory import make_directory, state_directory
from midstream_core.json_types import JsonObject

KEYGEN_TIMEOUT = 30.0  # seconds
NEW_SLICE_AGE = 900.0  # seconds; workers of an older slice have booted
SSH_KEYS = "ssh-keys"  # key of the metadata; its value has one line `USER:TYPE KEY COMMENT` for each key
PUBLISHED = "published.json"  # what each worker has published, by its name in known_hosts
KEY_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")
# Any program on a worker may publish anything. A line end in it would be a line of our own files, which ssh obeys.
_KEY, _HOSTNAME = re.compile(r"[A-Za-z0-9+/]{4,4096}={0,3}"), re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")


def grant_access(
    name: str,
    target: SliceTarget,
    slice_: Slice,
    progress: Progress,
    install: Callable[[str, str], object],
    published: Callable[[], Sequence[dict[str, str]]],
    *,
    touch: bool,
) -> dict[str, dict[str, Any]]:
    """Install our key on the workers, and return their entries of the fleet file.

    Args:
        name: Name of the target in the fleet file.
        target: The target.
        slice_: Its slice.
        progress: Gets lines of progress.
        install: Installs (user name, public key) on the workers, unless the target names an account of OS Login.
        published: Returns what each worker publishes: its host keys by kind, and ``hostname``.
        touch: False installs and creates no key.

    Raises:
        ProviderError: The service refused, or a worker has no address of the requested kind.
        UsageError: The key of the target cannot be used, or OS Login is in force and the target names no account.
    """
    key = identity(target, progress, create=touch)
    user = target.user or getpass.getuser()
    if touch and key is not None:
        public = public_key(key)
        if target.os_login:
            user = os_login.import_key(target.os_login, public, slice_.project)
        else:
            install(user, public)
    return write_access(name, target, slice_, published(), user, key)


def key_line(user: str, public: str) -> str:
    """Return a line of the metadata `SSH_KEYS`."""
    return f"{user}:{public} {user}"


def has_key(lines: Iterable[str], line: str) -> bool:
    """Return whether lines of the metadata have the user and the key of ``line``."""
    return any(other.split()[:2] == line.split()[:2] for other in lines)


def boots(slice_: Slice) -> bool:
    """Return whether workers may not have published their host keys yet."""
    return slice_.created is None or time.time() - slice_.created < NEW_SLICE_AGE


def write_access(
    name: str, target: SliceTarget, slice_: Slice, published: Sequence[dict[str, str]], user: str, key: Path | None
) -> dict[str, dict[str, Any]]:
    """Write the SSH configuration of a slice; return its workers' fleet file entries.

    The entries are ``NAME-0``, ``NAME-1``.

    Args:
        name: Name of the target in the fleet file.
        target: The target.
        slice_: Its slice.
        published: For each worker its host keys by kind, and ``hostname``; empty where it has published nothing.
        user: User name on the workers.
        key: Our private key; None: those of the user's SSH configuration.

    Raises:
        ProviderError: A worker has no address of the requested kind.
    """
    directory = state_directory().absolute() / "slices" / slice_.project / slice_.zone / slice_.name
    make_directory(directory)
    attributes = _with_earlier(directory, slice_, published)
    names = [f"{name}-{index}" for index in range(len(slice_.workers))]
    known_hosts = [
        f"{_alias(slice_, index)} {kind} {blob}\n"
        for index, keys in enumerate(attributes)
        for kind, blob in keys.items()
        if kind in KEY_KINDS
    ]
    write_file(directory / "known_hosts", "".join(known_hosts))
    blocks = [
        _block(alias, index, target, slice_, attributes[index], user, key, directory)
        for index, alias in enumerate(names)
    ]
    config = directory / "ssh_config"
    write_file(config, f"# {slice_.path}: written by midstream on every look-up\n" + "\n".join(blocks))
    price = None if target.price_per_hour is None else target.price_per_hour / max(1, len(names))
    entries = {}
    for alias, worker in zip(names, slice_.workers, strict=True):
        own = {"type": "ssh", "address": alias, "ssh_config": str(config), "internal_address": worker.internal}
        entries[alias] = {**own, **({} if price is None else {"price_per_hour": price}), **target.worker}
    return entries


def _with_earlier(directory: Path, slice_: Slice, published: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return what workers publish, completed by what they published before; store it.

    An answer without a worker's keys says nothing about the worker, so its keys stay.
    """
    file = directory / PUBLISHED
    try:
        before = json.loads(file.read_text())
    except (OSError, json.JSONDecodeError):
        before = {}
    merged = []
    for index, now in enumerate(published):
        earlier = before.get(_alias(slice_, index), {}) if isinstance(before, dict) else {}
        merged.append(_plain({**earlier, **now} if isinstance(earlier, dict) else now))
    write_file(file, json.dumps({_alias(slice_, index): keys for index, keys in enumerate(merged)}))
    return merged


def _plain(published: JsonObject) -> dict[str, str]:
    """Return the keys and the name that are well-formed."""
    forms = {**dict.fromkeys(KEY_KINDS, _KEY), "hostname": _HOSTNAME}
    return {
        kind: value
        for kind, value in published.items()
        if kind in forms and isinstance(value, str) and forms[kind].fullmatch(value)
    }


def _block(
    name: str,
    index: int,
    target: SliceTarget,
    slice_: Slice,
    attributes: Mapping[str, str],
    user: str,
    key: Path | None,
    directory: Path,
) -> str:
    worker = slice_.workers[index]
    external = target.reach == "external"
    if external and not worker.external:
        raise ProviderError(
            f"worker {index} of {slice_.path} has no external address",
            "reach: internal, from within its network, or reach: iap",
            ErrorKind.INVALID,
        )
    lines = [
        f"HostName {worker.external if external else worker.internal}",
        f"Port {target.port}",
        f"User {user}",
        f"HostKeyAlias {_alias(slice_, index)}",
        f"UserKnownHostsFile {_quoted(directory / 'known_hosts')}",
    ]
    if key is not None:
        lines += [f"IdentityFile {_quoted(key)}", "IdentitiesOnly yes"]
    if target.reach == "iap":
        instance = attributes.get("hostname", "")
        if not instance:
            raise ProviderError(
                f"worker {index} of {slice_.path} does not publish its instance's name, which IAP needs",
                "enable-guest-attributes=TRUE in the node's metadata",
                ErrorKind.INVALID,
            )
        words = ["gcloud", "compute", "start-iap-tunnel", instance, "%p", "--listen-on-stdin"]
        words += [f"--project={slice_.project}", f"--zone={slice_.zone}", "--verbosity=warning"]
        lines.append(f"ProxyCommand {shlex.join(words)}")
    return f"Host {name}\n" + "".join(f"  {line}\n" for line in lines)


def _alias(slice_: Slice, index: int) -> str:
    """Return the worker's name in known_hosts.

    A later slice of the same name has other names: other machines.
    """
    return f"tpu.{slice_.identity or slice_.name}.{slice_.name}-{index}"


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)


def write_file(path: Path, text: str) -> None:
    """Replace the file atomically: connections may be reading it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(temporary, path)


def identity(target: SliceTarget, progress: Progress, *, create: bool) -> Path | None:
    """Return the target's private key file.

    A missing one is created, as gcloud does; without ``create``, None is returned.
    """
    path = Path(target.identity_file).expanduser()
    if not path.is_absolute():
        raise UsageError(
            f"identity_file {target.identity_file!r} is relative", "an absolute path, or one that begins ~/"
        )
    if path.exists():
        return path
    if not create:
        return None
    make_directory(path.parent)
    progress(f"creating a key for TPU workers: {path}")
    _keygen("-q", "-t", "ed25519", "-N", "", "-C", getpass.getuser(), "-f", str(path))
    return path


def public_key(path: Path) -> str:
    """Return ``TYPE KEY``, the public key of a private key's file."""
    beside = Path(f"{path}.pub")
    text = beside.read_text() if beside.exists() else _keygen("-y", "-P", "", "-f", str(path))
    return " ".join(text.split()[:2])


def _keygen(*words: str) -> str:
    try:
        done = subprocess.run(
            ["ssh-keygen", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=KEYGEN_TIMEOUT
        )
    except FileNotFoundError:
        raise UsageError("ssh-keygen is not installed here", "install OpenSSH's client programs") from None
    if done.returncode:
        why = " ".join(done.stderr.split())[:200]
        raise UsageError(f"{words[-1]} cannot be used: {why}", "identity_file: of the target names another key")
    return done.stdout
