"""Notices that this machine is about to be taken away. Runs on the host; standard library only.

A notice is positive evidence, written down by the system itself: systemd's scheduled shutdown, or the metadata server
of Google's machines (asked only where the machine's own firmware says that it is one, or where ``GCE_METADATA_HOST``,
which Google's own programs know too, names one).
"""

from __future__ import annotations

import os
import time
import urllib.request
from typing import Dict, Optional

SCHEDULED = "/run/systemd/shutdown/scheduled"
PRODUCT = "/sys/class/dmi/id/product_name"
SERVER = "GCE_METADATA_HOST"
METADATA = "http://{}/computeMetadata/v1/instance/"
PATIENCE = 2.0  # seconds


def read(scheduled: str = SCHEDULED, product: str = PRODUCT, metadata: str = "") -> Optional[Dict[str, object]]:
    """``{kind, message, when}`` of the newest notice (``when``: UTC seconds, None for now), or None without one."""
    named = os.environ.get(SERVER, "")
    server = metadata or METADATA.format(named or "metadata.google.internal")
    return _shutdown(scheduled) or (_google(server) if named or _is_google(product) else None)


def worker() -> Optional[int]:
    """This machine's number among the workers of its TPU slice; None where it is none, or nobody says."""
    said = _instance("attributes/agent-worker-number")
    return int(said) if said.isdigit() else None


def service_account() -> str:
    """The address of this machine's own service account; empty where it has none, or nobody says."""
    return _instance("service-accounts/default/email")


def _instance(what: str) -> str:
    """What the metadata server tells of this machine; empty on machines that are not Google's."""
    named = os.environ.get(SERVER, "")
    if not named and not _is_google(PRODUCT):
        return ""
    return _ask(METADATA.format(named or "metadata.google.internal") + what)


def _shutdown(path: str) -> Optional[Dict[str, object]]:
    """systemd writes USEC=, MODE= and so on while ``shutdown +5`` waits, and removes the file when it is called off."""
    try:
        with open(path, encoding="utf-8") as file:
            fields = dict(line.strip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return None
    if fields.get("MODE") not in ("poweroff", "reboot", "halt", "kexec"):
        return None
    digits = fields.get("USEC", "")
    when = int(digits) / 1e6 if digits.isdigit() else None
    left = "now" if when is None else "in {:.0f} s".format(max(0.0, when - time.time()))
    return {"kind": "shutdown", "message": "{} is scheduled {}".format(fields["MODE"], left), "when": when}


def _is_google(product: str) -> bool:
    try:
        with open(product, encoding="utf-8") as file:
            return "Google" in file.read()
    except OSError:
        return False


def _google(metadata: str) -> Optional[Dict[str, object]]:
    if _ask(metadata + "preempted").upper() == "TRUE":
        return {"kind": "preempted", "message": "the provider takes this machine back now", "when": None}
    event = _ask(metadata + "maintenance-event")
    if event.startswith("TERMINATE"):
        return {"kind": "maintenance", "message": "maintenance ends this machine soon ({})".format(event), "when": None}
    return None


def _ask(url: str) -> str:
    """The server's answer; empty where it gives none, which says nothing."""
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE) as answer:
            return answer.read(1000).decode(errors="replace").strip()
    except OSError:
        return ""
