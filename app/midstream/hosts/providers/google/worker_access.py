"""SSH access to every worker of a slice: install our key, pin the host keys, write an OpenSSH configuration.

The service publishes the workers' host keys (guest attributes), so that no host key is accepted unchecked. The results
are an SSH configuration and a known_hosts file under ``$MIDSTREAM_STATE/slices/``, which midstream and ``ssh -F`` use.
"""

from __future__ import annotations

import getpass
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midstream.errors import UsageError
from midstream.fleet.fleet import TpuTarget
from midstream.hosts.providers.google import os_login
from midstream.hosts.providers.google.api_errors import explained
from midstream.hosts.providers.google.tpu_client import CALL_TIMEOUT, read_retry
from midstream.hosts.providers.provider import ErrorKind, Polling, Progress, ProviderError, Slice
from midstream.state_directory import state_directory

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient

SSH_KEYS = "ssh-keys"  # key of a node's metadata; its value has one line `USER:TYPE KEY COMMENT` for each key
MAX_UPDATES = 6  # of the metadata, while others change it too
BOOT_TIMEOUT = 120.0  # seconds that a ready worker may take to publish its host keys
NEW_SLICE_AGE = 900.0  # seconds; workers of an older slice have booted
KEYGEN_TIMEOUT = 30.0  # seconds
HOST_KEYS = "hostkeys/"
KEY_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")


def grant_access(
    client: TpuClient, name: str, target: TpuTarget, found: Slice, progress: Progress, *, touch: bool
) -> dict[str, dict[str, Any]]:
    """Install our key on the workers, and return their entries of the fleet file: ``NAME-0``, ``NAME-1``, ...

    Args:
        client: Client of the TPU API.
        name: Name of the target in the fleet file.
        target: The target.
        found: Its slice.
        progress: Gets lines of progress.
        touch: False installs and creates no key.

    Raises:
        ProviderError: The service refused, or a worker has no address of the requested kind.
        UsageError: The key of the target cannot be used.
    """
    key = identity(target, progress, create=touch)
    user = target.user or getpass.getuser()
    if touch and key is not None:
        public = public_key(key)
        if target.os_login:
            user = os_login.import_key(target.os_login, public, found.project)
        else:
            install_key(client, found, user, public, progress)
    attributes = guest_attributes(client, found, wait=touch)
    directory = state_directory().absolute() / "slices" / found.project / found.zone / found.name
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    names = [f"{name}-{index}" for index in range(len(found.workers))]
    known = [
        f"{_alias(found, index)} {kind} {blob}\n"
        for index, each in enumerate(attributes)
        for kind, blob in each.items()
        if kind in KEY_KINDS
    ]
    _write(directory / "known_hosts", "".join(known))
    blocks = [
        _block(each, index, target, found, attributes[index], user, key, directory) for index, each in enumerate(names)
    ]
    config = directory / "ssh_config"
    _write(config, f"# {found.path}: written by midstream on every look-up\n" + "\n".join(blocks))
    price = None if target.price_per_hour is None else target.price_per_hour / max(1, len(names))
    entries = {}
    for each, worker in zip(names, found.workers, strict=True):
        own = {"type": "ssh", "address": each, "ssh_config": str(config), "internal_address": worker.internal}
        entries[each] = {**own, **({} if price is None else {"price_per_hour": price}), **target.worker}
    return entries


def _block(
    name: str,
    index: int,
    target: TpuTarget,
    found: Slice,
    attributes: Mapping[str, str],
    user: str,
    key: Path | None,
    directory: Path,
) -> str:
    worker = found.workers[index]
    external = target.reach == "external"
    if external and not worker.external:
        raise ProviderError(
            f"worker {index} of {found.path} has no external address",
            "reach: internal, from within its network, or reach: iap",
            ErrorKind.INVALID,
        )
    lines = [
        f"HostName {worker.external if external else worker.internal}",
        f"Port {target.port}",
        f"User {user}",
        f"HostKeyAlias {_alias(found, index)}",
        f"UserKnownHostsFile {_quoted(directory / 'known_hosts')}",
    ]
    if key is not None:
        lines += [f"IdentityFile {_quoted(key)}", "IdentitiesOnly yes"]
    if target.reach == "iap":
        instance = attributes.get("hostname", "")
        if not instance:
            raise ProviderError(
                f"worker {index} of {found.path} does not publish its instance's name, which IAP needs",
                "enable-guest-attributes=TRUE in the node's metadata",
                ErrorKind.INVALID,
            )
        words = ["gcloud", "compute", "start-iap-tunnel", instance, "%p", "--listen-on-stdin"]
        words += [f"--project={found.project}", f"--zone={found.zone}", "--verbosity=warning"]
        lines.append(f"ProxyCommand {shlex.join(words)}")
    return f"Host {name}\n" + "".join(f"  {line}\n" for line in lines)


def _alias(found: Slice, index: int) -> str:
    """Return the worker's name in known_hosts. A later slice of the same name has other names: other machines."""
    return f"tpu.{found.identity or found.name}.{found.name}-{index}"


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)


def _write(path: Path, text: str) -> None:
    """Replace the file atomically: connections may be reading it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(temporary, path)


# ------------------------------------------------------------------------------------------------------- our key


def identity(target: TpuTarget, progress: Progress, *, create: bool) -> Path | None:
    """Return the target's private key file. A missing one is created, as gcloud does, or None without ``create``."""
    path = Path(target.identity_file).expanduser()
    if not path.is_absolute():
        raise UsageError(
            f"identity_file {target.identity_file!r} is relative", "an absolute path, or one that begins ~/"
        )
    if path.exists():
        return path
    if not create:
        return None
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
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


def install_key(client: TpuClient, found: Slice, user: str, public: str, progress: Progress) -> None:
    """Add our key to the node's metadata, which its guest agents read.

    On a conflict with a concurrent update the metadata is read again, so that nobody's key is lost.

    Args:
        client: Client of the TPU API.
        found: The slice.
        user: User name on the workers.
        public: ``TYPE KEY``.
        progress: Gets lines of progress.

    Raises:
        ProviderError: The service refused the update.
    """
    from google.api_core import exceptions
    from google.cloud import tpu_v2

    full = f"projects/{found.project}/locations/{found.zone}/nodes/{found.name}"
    line = f"{user}:{public} {user}"
    polling = Polling()
    for updates_left in reversed(range(MAX_UPDATES)):
        with explained(f"no key can be added to {found.path}", found.project, found.zone):
            node = client.get_node(name=full, retry=read_retry(), timeout=CALL_TIMEOUT)
            keys = node.metadata.get(SSH_KEYS, "").splitlines()
            if any(each.split()[:2] == line.split()[:2] for each in keys):
                return
            metadata = {**node.metadata, SSH_KEYS: "\n".join([*keys, line])}
            try:
                update = {"node": tpu_v2.Node(name=full, metadata=metadata), "update_mask": {"paths": ["metadata"]}}
                operation = client.update_node(request=update, timeout=CALL_TIMEOUT)
                operation.result(timeout=BOOT_TIMEOUT)
                progress(f"{found.path}: key of {user} installed")
                return
            except (exceptions.Conflict, exceptions.ServiceUnavailable, exceptions.FailedPrecondition):
                if not updates_left:
                    raise
        polling.wait()


# ----------------------------------------------------------------------------------------------------- their keys


def guest_attributes(client: TpuClient, found: Slice, *, wait: bool) -> list[dict[str, str]]:
    """Return what each worker has published: its host keys by kind, and ``hostname``.

    Workers of a new slice publish it a moment after their boot. A connection to a worker without host keys is refused.
    """
    from google.cloud import tpu_v2

    full = f"projects/{found.project}/locations/{found.zone}/nodes/{found.name}"
    deadline = time.monotonic() + (BOOT_TIMEOUT if wait and _is_new(found) else 0.0)
    polling = Polling()
    while True:
        with explained(f"the host keys of {found.path} cannot be read", found.project, found.zone):
            request = tpu_v2.GetGuestAttributesRequest(name=full, query_path=HOST_KEYS)
            answer = client.get_guest_attributes(request=request, retry=read_retry(), timeout=CALL_TIMEOUT)
        each = [{item.key: item.value for item in worker.query_value.items} for worker in answer.guest_attributes]
        each += [{} for _ in range(len(found.workers) - len(each))]
        if all(any(kind in KEY_KINDS for kind in known) for known in each) or time.monotonic() >= deadline:
            return each[: len(found.workers)]
        polling.wait()


def _is_new(found: Slice) -> bool:
    return found.created is None or time.time() - found.created < NEW_SLICE_AGE
