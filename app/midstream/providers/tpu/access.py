"""SSH access to a TPU slice's workers: installs our key, reads their host keys."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from midstream.fleet.slice_target import SliceTarget
from midstream.providers import ssh_access
from midstream.providers.google_errors import explained
from midstream.providers.google_rest import CALL_TIMEOUT
from midstream.providers.provider import Polling, Progress, ProviderError, Slice
from midstream.providers.ssh_access import KEY_KINDS, SSH_KEYS, boots, has_key, key_line
from midstream.providers.tpu.client import read_retry
from midstream_core.json_types import JsonValue

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient

MAX_UPDATES = 6  # of the metadata, while others change it too
BOOT_TIMEOUT = 120.0  # seconds that a ready worker may take to publish its host keys
HOST_KEYS = "hostkeys/"


def grant_access(
    client: TpuClient, name: str, target: SliceTarget, slice_: Slice, progress: Progress, *, touch: bool
) -> dict[str, dict[str, JsonValue]]:
    """Install our key on the workers, and return their entries of the fleet file."""
    install = partial(install_key, client, slice_, progress)
    published = partial(_published, client, slice_, progress, wait=touch)
    return ssh_access.grant_access(name, target, slice_, progress, install, published, touch=touch)


def install_key(client: TpuClient, slice_: Slice, progress: Progress, user: str, public: str) -> None:
    """Add our key to the node's metadata, which its guest agents read.

    On a conflict with a concurrent update the metadata is read again, so that no key of another user is lost.

    Args:
        client: Client of the TPU API.
        slice_: The slice.
        progress: Gets lines of progress.
        user: User name on the workers.
        public: ``TYPE KEY``.

    Raises:
        ProviderError: The service refused the update.
    """
    from google.api_core import exceptions
    from google.cloud import tpu_v2

    full = f"projects/{slice_.project}/locations/{slice_.zone}/nodes/{slice_.name}"
    line = key_line(user, public)
    polling = Polling()
    for updates_left in reversed(range(MAX_UPDATES)):
        with explained(f"no key can be added to {slice_.path}", slice_.project, slice_.zone):
            node = client.get_node(name=full, retry=read_retry(), timeout=CALL_TIMEOUT)
            keys = node.metadata.get(SSH_KEYS, "").splitlines()
            if has_key(keys, line):
                return
            metadata = {**node.metadata, SSH_KEYS: "\n".join([*keys, line])}
            try:
                update = {"node": tpu_v2.Node(name=full, metadata=metadata), "update_mask": {"paths": ["metadata"]}}
                operation = client.update_node(request=update, timeout=CALL_TIMEOUT)
                operation.result(timeout=BOOT_TIMEOUT)
                progress(f"{slice_.path}: key of {user} installed")
                return
            except TimeoutError:  # the update goes on, and a login is tried for a while
                progress(f"{slice_.path}: the service still installs the key of {user} after {BOOT_TIMEOUT:.0f} s")
                return
            except (exceptions.Conflict, exceptions.ServiceUnavailable, exceptions.FailedPrecondition):
                if not updates_left:
                    raise
        polling.wait()


# ----------------------------------------------------------------------------------------------------- their keys


def guest_attributes(client: TpuClient, slice_: Slice, *, wait: bool) -> list[dict[str, str]]:
    """Return what each worker has published: its host keys by kind, and ``hostname``.

    Workers of a new slice publish it a moment after their boot. A connection to a worker without host keys is refused.
    """
    from google.cloud import tpu_v2

    full = f"projects/{slice_.project}/locations/{slice_.zone}/nodes/{slice_.name}"
    deadline = time.monotonic() + (BOOT_TIMEOUT if wait and boots(slice_) else 0.0)
    polling = Polling()
    while True:
        with explained(f"the host keys of {slice_.path} cannot be read", slice_.project, slice_.zone):
            request = tpu_v2.GetGuestAttributesRequest(name=full, query_path=HOST_KEYS)
            answer = client.get_guest_attributes(request=request, retry=read_retry(), timeout=CALL_TIMEOUT)
        attributes = [{item.key: item.value for item in worker.query_value.items} for worker in answer.guest_attributes]
        attributes += [{} for _ in range(len(slice_.workers) - len(attributes))]
        if all(any(kind in KEY_KINDS for kind in keys) for keys in attributes) or time.monotonic() >= deadline:
            return attributes[: len(slice_.workers)]
        polling.wait()


def _published(client: TpuClient, slice_: Slice, progress: Progress, *, wait: bool) -> list[dict[str, str]]:
    """Return what the workers publish; nothing where it cannot be read.

    The slice is there then, and may be training.
    """
    try:
        return guest_attributes(client, slice_, wait=wait)
    except ProviderError as error:
        progress(f"{error.message}; the host keys that are known stay in use")
        return [{} for _ in slice_.workers]
