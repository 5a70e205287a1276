"""Whether the engine on a host can ask a store in the name that the fleet file says.

It asks as the machine itself: TensorStore takes no account to impersonate.
"""

from __future__ import annotations

from midstream.fleet.fleet import Fleet
from midstream.hosts.host import Host
from midstream.stores.bucket_access import access_for


def why_not(fleet: Fleet, host: Host, store: str) -> tuple[str, str]:
    """Why an engine on ``host`` cannot keep checkpoints in ``store`` as the fleet file says, and what mends it; empty
    where it can. HostError."""
    wanted = access_for(fleet, store).impersonate
    if not wanted:
        return "", ""
    own = host.call("machine.google_identity.own", env=dict(fleet.hosts[host.name].env))
    if own["account"] == wanted:
        return "", ""
    itself = own["account"] or ("the owner of its own credentials" if own["source"] else "nobody in particular")
    return (
        f"{host.name}: the engine asks {store} as {itself}, and cannot act for {wanted} (impersonate:)",
        f"give the machine that account (of a slice: service_account: {wanted}); or take store: out for it, and this "
        "machine relays",
    )
