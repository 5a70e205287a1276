"""Google's metadata server, which describes a machine to its programs.

Standard library only.

The server is queried only where the firmware names Google, or where ``GCE_METADATA_HOST`` (a variable of Google's own
programs) names a server. This module is also sent to hosts.

https://cloud.google.com/compute/docs/metadata/overview
"""

from __future__ import annotations

import os

from midstream_core.metadata_request import metadata_answer

VARIABLE = "GCE_METADATA_HOST"
HOST = "metadata.google.internal"
PRODUCT = "/sys/class/dmi/id/product_name"
# Metadata key -> prefix of a value that is a notice. It comes 30 s before a spot machine is preempted, and earlier
# before maintenance that ends a machine: https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice
NOTICES = {"preempted": "TRUE", "maintenance-event": "TERMINATE"}


def metadata_server(product: str = PRODUCT, host: str = HOST) -> str:
    """Return the address of the server; empty on a machine that is not Google's."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return named
    try:
        with open(product, encoding="utf-8", errors="replace") as file:
            return host if "Google" in file.read() else ""
    except OSError:
        return ""


def notices(server: str) -> list[str] | None:
    """Return the notices that are in force.

    None where they cannot be read, which proves nothing.
    """
    values = {name: read_metadata(server, name) for name in NOTICES}
    if not any(values.values()):
        return None
    return [f"{name}: {value}" for name, value in values.items() if value.upper().startswith(NOTICES[name])]


def read_metadata(server: str, name: str) -> str:
    """Return the machine's metadata ``name``.

    Empty where it cannot be read, which proves nothing.
    """
    url = f"http://{server}/computeMetadata/v1/instance/{name}"
    return metadata_answer(url, {"Metadata-Flavor": "Google"}, 1000)[1]
