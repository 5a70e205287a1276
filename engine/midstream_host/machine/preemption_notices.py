"""Notices of preemption or shutdown of this machine.

Runs on the host; standard library only.

Notices come from systemd's scheduled shutdown and from the metadata servers of Google, AWS and Azure.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Optional

from midstream_core.cloud_notices import sources
from midstream_core.google_metadata import HOST, PRODUCT, metadata_server, read_metadata
from midstream_host.declarations import reads

SCHEDULED = "/run/systemd/shutdown/scheduled"


@dataclasses.dataclass(frozen=True)
class Notice:
    """A notice that this machine is about to be preempted or shut down."""

    kind: str
    message: str


@reads()
def read(scheduled: str = SCHEDULED, product: str = PRODUCT, host: str = HOST) -> Optional[Notice]:
    """The newest notice, None where there is none."""
    server = metadata_server(product, host)
    return _shutdown(scheduled) or (_google(server) if server else None) or _others()


@reads()
def worker() -> Optional[int]:
    """This machine's number among the workers of its TPU slice; None where unknown."""
    number = _instance("attributes/agent-worker-number")
    return int(number) if number.isdecimal() else None


def service_account() -> str:
    """Return the address of this machine's service account; empty if none or unknown."""
    return _instance("service-accounts/default/email")


def _instance(what: str) -> str:
    """Return the value of a metadata key; empty if the machine is not Google's."""
    server = metadata_server()
    return read_metadata(server, what) if server else ""


def _shutdown(path: str) -> Optional[Notice]:
    """Return the notice of a scheduled shutdown.

    systemd writes USEC= and MODE=, and removes the file on cancel.
    """
    try:
        with open(path, encoding="utf-8") as file:
            fields = dict(line.strip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return None
    if fields.get("MODE") not in ("poweroff", "reboot", "halt", "kexec"):
        return None
    digits = fields.get("USEC", "")
    when = int(digits) / 1e6 if digits.isdecimal() else None
    when_text = "now" if when is None else "in {:.0f} s".format(max(0.0, when - time.time()))
    return Notice("shutdown", "{} is scheduled {}".format(fields["MODE"], when_text))


def _others() -> Optional[Notice]:
    """Notice of AWS or Azure."""
    for cloud, source in sources().items():
        notice = source() if cloud != "google" else None
        if notice:
            return Notice("preempted", "the provider ends this machine: {}".format(notice[0]))
    return None


def _google(server: str) -> Optional[Notice]:
    if read_metadata(server, "preempted").upper() == "TRUE":
        return Notice("preempted", "the provider preempts this machine now")
    event = read_metadata(server, "maintenance-event")
    if event.startswith("TERMINATE"):
        return Notice("maintenance", "maintenance ends this machine soon ({})".format(event))
    return None
