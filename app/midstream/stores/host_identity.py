"""Google identity of an engine on a host, compared with the fleet file's demand.

TensorStore has no impersonation: the engine's requests have the identity of the machine itself.
"""

from __future__ import annotations

from midstream.fleet.fleet import Fleet
from midstream.hosts.host import Host
from midstream.stores.bucket_access import access_for
from midstream_host.machine import google_identity


def identity_problem(fleet: Fleet, host: Host, store: str) -> tuple[str, str]:
    """Return why an engine on ``host`` cannot use ``store``, and a hint; else empty.

    The fleet file names the identity that the engine must have.

    Raises:
        HostError: The host did not answer.
    """
    impersonated = access_for(fleet, store).impersonate
    if not impersonated:
        return "", ""
    own = host.call(google_identity.own)(env=dict(fleet.hosts[host.name].env))
    if own.account == impersonated:
        return "", ""
    if own.account:
        account = own.account
    else:
        account = "the owner of its own credentials" if own.source else "an anonymous client"
    return (
        f"{host.name}: the engine's requests to {store} come from {account}, which cannot act for {impersonated} "
        "(impersonate:)",
        f"give the machine that account (of a slice: service_account: {impersonated}), or remove store: for it, so "
        "that this machine relays the bytes",
    )
