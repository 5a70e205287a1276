"""SSH access to a TPU slice's workers: installs our key, reads their host keys."""

from __future__ import annotations

import getpass
import time
from typing import TYPE_CHECKING

from midstream.fleet.slice_target import SliceTarget
from midstream.providers import os_login
from midstream.providers.google_errors import explained
from midstream.providers.google_rest import CALL_TIMEOUT
from midstream.providers.provider import Polling, Progress, ProviderError, Slice
from midstream.providers.ssh_access import KEY_KINDS, identity, public_key, write_access
from midstream.providers.tpu.client import read_retry
from midstream_core.json_types import JsonValue

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient

SSH_KEYS = "ssh-keys"  # key of a node's metadata; its value has one line `USER:TYPE KEY COMMENT` for each key
MAX_UPDATES = 6  # of the metadata, while others change it too
BOOT_TIMEOUT = 120.0  # seconds that a ready worker may take to publish its host keys
NEW_SLICE_AGE = 900.0  # seconds; workers of an older slice have booted
HOST_KEYS = "hostkeys/"


def grant_access(
    client: TpuClient, name: str, target: SliceTarget, found: Slice, progress: Progress, *, touch: bool
) -> dict[str, dict[str, JsonValue]]:
    """Install our key on the workers, and return their entries of the fleet file.

    The entries are ``NAME-0``, ``NAME-1``, ...

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
    published = _published(client, found, progress, wait=touch)
    return write_access(name, target, found, published, user, key)


def install_key(client: TpuClient, found: Slice, user: str, public: str, progress: Progress) -> None:
    """Add our key to the node's metadata, which its guest agents read.

    On a conflict with a concurrent update the metadata is read again, so that no key of another user is lost.

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
            if any(key.split()[:2] == line.split()[:2] for key in keys):
                return
            metadata = {**node.metadata, SSH_KEYS: "\n".join([*keys, line])}
            try:
                update = {"node": tpu_v2.Node(name=full, metadata=metadata), "update_mask": {"paths": ["metadata"]}}
                operation = client.update_node(request=update, timeout=CALL_TIMEOUT)
                operation.result(timeout=BOOT_TIMEOUT)
                progress(f"{found.path}: key of {user} installed")
                return
            except TimeoutError:  # the update goes on, and a login is tried for a while
                progress(f"{found.path}: the service still installs the key of {user} after {BOOT_TIMEOUT:.0f} s")
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


def _published(client: TpuClient, found: Slice, progress: Progress, *, wait: bool) -> list[dict[str, str]]:
    """Return what the workers publish; nothing where it cannot be read.

    The slice is there then, and may be training.
    """
    try:
        return guest_attributes(client, found, wait=wait)
    except ProviderError as error:
        progress(f"{error.message}; the host keys that are known stay in use")
        return [{} for _ in found.workers]


def _is_new(found: Slice) -> bool:
    return found.created is None or time.time() - found.created < NEW_SLICE_AGE
