"""SSH access to machines of Compute Engine, by OS Login or keys in their metadata."""

from __future__ import annotations

import time
from functools import partial

from midstream.errors import UsageError
from midstream.fleet.gce_target import ComputeTarget
from midstream.providers import ssh_access
from midstream.providers.gce.client import ComputeClients, call
from midstream.providers.gce.errors import explained
from midstream.providers.provider import Polling, Progress, ProviderError, Slice
from midstream.providers.ssh_access import KEY_KINDS, SSH_KEYS, boots, has_key, key_line

OS_LOGIN, BLOCKED = "enable-oslogin", "block-project-ssh-keys"
MAX_UPDATES = 6  # of the metadata, while others change it too
BOOT_TIMEOUT = 120.0  # seconds that a ready machine may take to publish its host keys


def grant_access(
    clients: ComputeClients, name: str, target: ComputeTarget, slice_: Slice, progress: Progress, *, touch: bool
) -> dict[str, dict[str, object]]:
    """Install our key where it is missing; return the machines as fleet file entries."""

    def published() -> list[dict[str, str]]:
        return [host_keys(clients, slice_, index, progress, wait=touch) for index in range(len(slice_.machines))]

    install = partial(_install_key, clients, name, slice_, progress)
    return ssh_access.grant_access(name, target, slice_, progress, install, published, touch=touch)


def _install_key(clients: ComputeClients, name: str, slice_: Slice, progress: Progress, user: str, public: str) -> None:
    with explained(f"the metadata of {slice_.project} cannot be read", slice_.project, slice_.zone):
        project = call(clients.projects.get, project=slice_.project)
    common = {item.key: item.value for item in project.common_instance_metadata.items}
    for machine in slice_.machines:
        _install_on(clients, name, slice_, machine, common, key_line(user, public), progress)


def _install_on(
    clients: ComputeClients,
    name: str,
    slice_: Slice,
    machine: str,
    common: dict[str, str],
    line: str,
    progress: Progress,
) -> None:
    """Add the line to a machine's metadata, unless it or the project's has the key.

    On a conflict with a concurrent update the metadata is read again, so that no key of another user is lost.
    """
    from google.api_core import exceptions
    from google.cloud import compute_v1

    place = {"project": slice_.project, "zone": slice_.zone, "instance": machine}
    polling = Polling()
    for updates_left in reversed(range(MAX_UPDATES)):
        with explained(f"no key can be added to {machine}", slice_.project, slice_.zone):
            metadata = call(clients.instances.get, **place).metadata
            own = {item.key: item.value for item in metadata.items}
            if own.get(OS_LOGIN, common.get(OS_LOGIN, "")).upper() == "TRUE":
                where = machine if OS_LOGIN in own else f"the project {slice_.project}"
                raise UsageError(
                    f"{name}: {where} requires OS Login ({OS_LOGIN}), so keys in the metadata have no effect",
                    f"os_login: YOU@EXAMPLE.COM for {name} in the fleet file",
                )
            lines = own.get(SSH_KEYS, "").splitlines()
            inherited = [] if own.get(BLOCKED, "").upper() == "TRUE" else common.get(SSH_KEYS, "").splitlines()
            if has_key((*lines, *inherited), line):
                return
            items = {**own, SSH_KEYS: "\n".join([*lines, line])}
            resource = compute_v1.Metadata(
                fingerprint=metadata.fingerprint,
                items=[compute_v1.Items(key=key, value=value) for key, value in items.items()],
            )
            try:
                call(clients.instances.set_metadata_unary, metadata_resource=resource, **place)
                progress(f"{slice_.path}: key installed on {machine}")
                return
            except (exceptions.PreconditionFailed, exceptions.Conflict, exceptions.ServiceUnavailable):
                if not updates_left:
                    raise
        polling.wait()


def host_keys(clients: ComputeClients, slice_: Slice, index: int, progress: Progress, *, wait: bool) -> dict[str, str]:
    """Return the host keys that a machine publishes, and its name as ``hostname``.

    Machines boot for a moment.

    Args:
        clients: Clients of the service.
        slice_: The slice.
        index: Number of the machine in it.
        progress: Receives a warning where the keys cannot be read; the known ones then stay in use.
        wait: Whether to wait for the keys of a new slice while it boots.
    """
    from google.api_core.exceptions import NotFound

    machine = slice_.machines[index]
    deadline = time.monotonic() + (BOOT_TIMEOUT if wait and boots(slice_) else 0.0)
    polling = Polling()
    place = {"project": slice_.project, "zone": slice_.zone, "instance": machine}
    while True:
        keys: dict[str, str] = {}
        try:
            with explained(f"the host keys of {machine} cannot be read", slice_.project, slice_.zone):
                try:
                    answer = call(clients.instances.get_guest_attributes, query_path="hostkeys/", **place)
                    keys = {item.key: item.value for item in answer.query_value.items if item.key in KEY_KINDS}
                except NotFound:
                    keys = {}  # it has not published any yet
        except ProviderError as error:
            progress(f"{error.message}; the host keys that are known stay in use")
            return {"hostname": machine}
        if keys or time.monotonic() >= deadline:
            return {**keys, "hostname": machine}
        polling.wait()
