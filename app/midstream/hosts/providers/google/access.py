"""SSH to every worker of a slice: our key lets us in, their keys are pinned, the way is written down for OpenSSH.

The service itself says which host keys the workers have (guest attributes), so nobody has to trust a first contact.
What is found out is written as an SSH configuration and a known_hosts file under ``$MIDSTREAM_STATE/slices/``: the rest
of midstream, and ``ssh -F``, use it like any other.
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
from midstream.hosts.providers import interface
from midstream.hosts.providers.google import login
from midstream.hosts.providers.google.client import CALL, patient
from midstream.hosts.providers.google.errors import explained
from midstream.hosts.providers.interface import Pauses, ProviderError, Say, Slice

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient

KEYS = "ssh-keys"  # of a node's metadata: one `USER:TYPE KEY COMMENT` a line
CONFLICTS = 6  # times that metadata that others change meanwhile is read again
BOOTED = 120.0  # seconds within which a worker that is ready has told its host keys
HOST_KEYS = "hostkeys/"
KEY_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")


def reach(
    client: TpuClient, name: str, target: TpuTarget, found: Slice, say: Say, *, touch: bool
) -> dict[str, dict[str, Any]]:
    """Fleet entries of the workers: ``NAME-0`` and on. ``touch=False`` lets no key in."""
    key = identity(target, say, touch)
    user = target.user or getpass.getuser()
    if touch and key is not None:
        public = public_key(key)
        if target.os_login:
            user = login.import_key(target.os_login, public, found.project)
        else:
            let_in(client, found, user, public, say)
    attributes = guest_attributes(client, found, waits=touch)
    directory = state_directory() / "slices" / found.project / found.zone / found.name
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
    _write(config, f"# {found.place}: written by midstream, anew whenever it looks\n" + "\n".join(blocks))
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
            f"worker {index} of {found.place} has no external address",
            "reach: internal, from within its network, or reach: iap",
            interface.INVALID,
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
                f"worker {index} of {found.place} does not tell its instance's name, which IAP needs",
                "enable-guest-attributes=TRUE in the node's metadata",
                interface.INVALID,
            )
        words = ["gcloud", "compute", "start-iap-tunnel", instance, "%p", "--listen-on-stdin"]
        words += [f"--project={found.project}", f"--zone={found.zone}", "--verbosity=warning"]
        lines.append(f"ProxyCommand {shlex.join(words)}")
    return f"Host {name}\n" + "".join(f"  {line}\n" for line in lines)


def _alias(found: Slice, index: int) -> str:
    """What a worker is called in known_hosts: one of a later slice of the same name is another machine."""
    return f"tpu.{found.identity or found.name}.{found.name}-{index}"


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)


def _write(path: Path, text: str) -> None:
    """In one piece: connections may be reading it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(temporary, path)


def state_directory() -> Path:
    return Path(os.environ.get("MIDSTREAM_STATE") or "~/.local/state/midstream").expanduser().absolute()


# ------------------------------------------------------------------------------------------------------- our key


def identity(target: TpuTarget, say: Say, make: bool) -> Path | None:
    """The private key's file, made where there is none, as gcloud does. None where it is not there and not made."""
    path = Path(target.identity_file).expanduser()
    if not path.is_absolute():
        raise UsageError(
            f"identity_file {target.identity_file!r} is relative", "an absolute path, or one that begins ~/"
        )
    if path.exists():
        return path
    if not make:
        return None
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    say(f"making a key for TPU workers: {path}")
    _keygen("-q", "-t", "ed25519", "-N", "", "-C", getpass.getuser(), "-f", str(path))
    return path


def public_key(path: Path) -> str:
    """``TYPE KEY`` of a private key's file."""
    beside = Path(f"{path}.pub")
    text = beside.read_text() if beside.exists() else _keygen("-y", "-P", "", "-f", str(path))
    return " ".join(text.split()[:2])


def _keygen(*words: str) -> str:
    try:
        done = subprocess.run(
            ["ssh-keygen", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
        )
    except FileNotFoundError:
        raise UsageError("there is no ssh-keygen here", "install OpenSSH's client programs") from None
    if done.returncode:
        why = " ".join(done.stderr.split())[:200]
        raise UsageError(f"{words[-1]} cannot be used: {why}", "identity_file: of the target names another key")
    return done.stdout


def let_in(client: TpuClient, found: Slice, user: str, public: str, say: Say) -> None:
    """Add our key to the node's metadata, where its guest agents look. Others may add theirs at the same time: what
    they have written meanwhile is read again, so that no key is lost."""
    from google.api_core import exceptions
    from google.cloud import tpu_v2

    full = f"projects/{found.project}/locations/{found.zone}/nodes/{found.name}"
    line = f"{user}:{public} {user}"
    pauses = Pauses()
    for left in reversed(range(CONFLICTS)):
        with explained(f"no key can be added to {found.place}", found.project, found.zone):
            node = client.get_node(name=full, retry=patient(), timeout=CALL)
            keys = node.metadata.get(KEYS, "").splitlines()
            if any(each.split()[:2] == line.split()[:2] for each in keys):
                return
            metadata = {**node.metadata, KEYS: "\n".join([*keys, line])}
            try:
                update = {"node": tpu_v2.Node(name=full, metadata=metadata), "update_mask": {"paths": ["metadata"]}}
                operation = client.update_node(request=update, timeout=CALL)
                operation.result(timeout=BOOTED)
                say(f"{found.place}: lets {user} in")
                return
            except (exceptions.Conflict, exceptions.ServiceUnavailable, exceptions.FailedPrecondition):
                if not left:
                    raise
        pauses.next()


# ----------------------------------------------------------------------------------------------------- their keys


def guest_attributes(client: TpuClient, found: Slice, *, waits: bool) -> list[dict[str, str]]:
    """Of each worker what it told the service at its start: its host keys by kind, and ``hostname``. A slice that has
    just been made needs a moment; what stays empty is told by the connection, which then refuses."""
    from google.cloud import tpu_v2

    full = f"projects/{found.project}/locations/{found.zone}/nodes/{found.name}"
    deadline = time.monotonic() + (BOOTED if waits and _is_new(found) else 0.0)
    pauses = Pauses()
    while True:
        with explained(f"the host keys of {found.place} cannot be read", found.project, found.zone):
            request = tpu_v2.GetGuestAttributesRequest(name=full, query_path=HOST_KEYS)
            answer = client.get_guest_attributes(request=request, retry=patient(), timeout=CALL)
        each = [{item.key: item.value for item in worker.query_value.items} for worker in answer.guest_attributes]
        each += [{} for _ in range(len(found.workers) - len(each))]
        if all(any(kind in KEY_KINDS for kind in known) for known in each) or time.monotonic() >= deadline:
            return each[: len(found.workers)]
        pauses.next()


NEW = 900.0  # seconds


def _is_new(found: Slice) -> bool:
    return found.created is None or time.time() - found.created < NEW
