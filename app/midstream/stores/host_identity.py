"""The Google identity of an engine on a host.

It is compared with the one that the fleet file demands for its store.

TensorStore has no impersonation: the engine's requests have the identity of the machine itself.
"""

from __future__ import annotations

from midstream.fleet.fleet import Fleet
from midstream.hosts.host import Host
from midstream.remote.machine import google_identity
from midstream.stores.bucket_access import access_for


def identity_problem(fleet: Fleet, host: Host, store: str) -> tuple[str, str]:
    """Return why an engine on ``host`` cannot use ``store``, and a hint.

    Both are empty if it can use it as the fleet file says.

    Raises:
        HostError: The host did not answer.
    """
    wanted = access_for(fleet, store).impersonate
    if not wanted:
        return "", ""
    own = host.call(google_identity.own)(env=dict(fleet.hosts[host.name].env))
    if own.account == wanted:
        return "", ""
    if own.account:
        account = own.account
    else:
        account = "the owner of its own credentials" if own.source else "an anonymous client"
    return (
        f"{host.name}: the engine's requests to {store} come from {account}, which cannot act for {wanted} "
        "(impersonate:)",
        f"give the machine that account (of a slice: service_account: {wanted}), or remove store: for it, so that this "
        "machine relays the bytes",
    )
